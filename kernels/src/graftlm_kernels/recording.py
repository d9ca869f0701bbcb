"""Records one step as parts that can be run again: native calls together, and between them what is none.

What torch itself computes, and modules of others, split the native calls: they run again from Python, over the same
memory. It knows no model, and it does not decide whether a record is to be trusted.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import torch
from torch.utils._python_dispatch import TorchDispatchMode

from graftlm_kernels import _native
from graftlm_kernels.arena import Arena

if TYPE_CHECKING:
    from graftlm.contracts.attention import ForwardContext

#: Where a step's inputs lie: ids, positions, slots, query starts, sequence lengths, block table, its row stride;
#: and the number of requests.
Where = tuple[int, ...]
Part = Callable[[Where, "ForwardContext"], None]

_NEW_MEMORY = (torch.ops.aten.empty.memory_format, torch.ops.aten.empty_like.default)
_UNREPEATABLE_TAGS = (
    (torch.Tag.dynamic_output_shape, "of a size that depends on numbers"),
    (torch.Tag.data_dependent_output, "and Python reads the result"),
    (torch.Tag.nondeterministic_seeded, "at random"),
)
_PLAIN = (bool, int, float, str, type(None), torch.dtype, torch.device)


class ChangedAnswer(RuntimeError):
    """A module returned something of another kind than it did when the step was recorded."""


class Recording(TorchDispatchMode):
    """Runs a computation once and keeps its parts; `obstacle` says why they cannot be run again.

    New tensors get memory of the arena, so that every part finds its inputs where they were.
    """

    def __init__(self, arena: Arena, *, where: Where, rows: int, context: ForwardContext) -> None:
        super().__init__()
        self.arena = arena
        self.parts: list[Part] = []
        self.num_native = 0
        #: What the native calls are split by, in order.
        self.splits: list[str] = []
        self.obstacle: str | None = None
        self._where = where
        self._rows = rows
        self._context = context
        self._calls: _native.CapturedStep | None = None
        self._inside_others = False

    @classmethod
    def _should_skip_dynamo(cls) -> bool:
        """Nothing is compiled here; else torch imports its compiler in the first decode step, for a second."""
        return False

    def record(self, compute: Callable[[], Any], others: Mapping[str, torch.nn.Module]) -> Any:
        """Return what `compute` does; `others` are the modules that must run themselves in every step."""
        with self._standing_in_for(others):
            self._begin_native()
            try:
                with self:
                    return compute()
            finally:
                self._end_native()

    def _begin_native(self) -> None:
        self._calls = _native.CapturedStep(*self._where)
        self._calls.begin()

    def _end_native(self) -> None:
        calls, self._calls = self._calls, None
        if calls is None:
            return
        calls.end()
        if len(calls):
            self.num_native += len(calls)
            self.parts.append(NativeCalls(calls))

    def _split(self, part: Part, what: str) -> None:
        self._end_native()
        self.parts.append(part)
        self.splits.append(what)
        self._begin_native()

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        result = func(*args, **kwargs)
        if self._inside_others or self.obstacle:
            return result
        if func in _NEW_MEMORY and result.is_contiguous() and result.device.type == "cpu":
            return self.arena.like(result, rows=self._rows)
        if _is_view(func, args, result):
            return result
        self.obstacle = _why_unrepeatable(func, args)
        if self.obstacle:
            return result
        inputs = [one for one in _flat((*args, *kwargs.values())) if isinstance(one, torch.Tensor)]
        kept, copies = self._keep(result, inputs)
        again = self._seen_again(args), {name: self._seen_again(one) for name, one in kwargs.items()}
        self._split(TorchCall(func, *again, copies), str(func))
        return kept

    def _keep(self, result: Any, inputs: Sequence[torch.Tensor]) -> tuple[Any, list[torch.Tensor | None]]:
        """Copy new tensors of a result to memory that stays; return it, and the places of those copies."""
        known = {one.untyped_storage().data_ptr() for one in inputs}
        kept: list[Any] = []
        copies: list[torch.Tensor | None] = []
        for one in result if isinstance(result, tuple | list) else (result,):
            place = None
            if isinstance(one, torch.Tensor) and one.untyped_storage().data_ptr() not in known:
                place = self.arena.like(one, rows=self._rows).copy_(one)
            elif not isinstance(one, torch.Tensor | None):
                self.obstacle = self.obstacle or f"a result is {type(one).__qualname__}, no tensor"
            kept.append(one if place is None else place)
            copies.append(None if place is None else self.arena.seen_again(place))
        return (type(result)(kept) if isinstance(result, tuple | list) else kept[0]), copies

    def _seen_again(self, value: Any) -> Any:
        if isinstance(value, torch.Tensor):
            return self.arena.seen_again(value)
        return type(value)(map(self._seen_again, value)) if isinstance(value, tuple | list) else value

    @contextmanager
    def _standing_in_for(self, others: Mapping[str, torch.nn.Module]) -> Iterator[None]:
        """Let each call of these modules split the native calls."""
        before = [(module, module.__dict__.get("forward")) for module in others.values()]
        for name, module in others.items():
            module.__dict__["forward"] = self._stand_in(name, module)
        try:
            yield
        finally:
            for module, own in before:
                if own is None:
                    del module.__dict__["forward"]
                else:
                    module.__dict__["forward"] = own

    def _stand_in(self, name: str, module: torch.nn.Module) -> Callable[..., Any]:
        forward = module.forward

        def call(*args: Any, **kwargs: Any) -> Any:
            if self._inside_others or self.obstacle:
                return forward(*args, **kwargs)
            for one in _flat((*args, *kwargs.values())):
                if not (isinstance(one, (torch.Tensor, *_PLAIN)) or one is self._context):
                    self.obstacle = f"{name} is given a {type(one).__qualname__}"
                    return forward(*args, **kwargs)
            self._end_native()  # its native calls are its own
            self._inside_others = True
            try:
                result = forward(*args, **kwargs)
                inputs = [one for one in _flat((*args, *kwargs.values())) if isinstance(one, torch.Tensor)]
                kept, copies = self._keep(result, inputs)
                again = self._seen_again(args), {key: self._seen_again(one) for key, one in kwargs.items()}
                part = ModuleCall(name, module, again, self._context, (kept, copies))
            finally:
                self._inside_others = False
            self._split(part, f"{name} ({type(module).__module__}.{type(module).__qualname__})")
            return kept

        return call


class NativeCalls:
    """Kernels, one after the other, without Python between them."""

    __slots__ = ("_run", "calls")

    def __init__(self, calls: _native.CapturedStep) -> None:
        self.calls, self._run = calls, calls.run

    def __call__(self, where: Where, context: ForwardContext) -> None:
        self._run(*where)


class TorchCall:
    """One of torch's own operations."""

    __slots__ = ("args", "copies", "func", "kwargs")

    def __init__(self, func: Any, args: Any, kwargs: Any, copies: list[torch.Tensor | None]) -> None:
        self.func, self.args, self.kwargs, self.copies = func, args, kwargs, copies

    def __call__(self, where: Where, context: ForwardContext) -> None:
        result = self.func(*self.args, **self.kwargs)
        for place, one in zip(self.copies, result if isinstance(result, tuple | list) else (result,), strict=True):
            if place is not None:
                place.copy_(one)


class ModuleCall:
    """A module of somebody else, called as the model calls it."""

    def __init__(
        self,
        name: str,
        module: torch.nn.Module,
        arguments: tuple[Any, dict[str, Any]],
        context: ForwardContext,
        results: tuple[Any, list[torch.Tensor | None]],
    ) -> None:
        self.name = name
        self.module = module
        kept, self.copies = results
        #: Where results lie that were no new memory.
        self.given_back = [
            one.data_ptr() if isinstance(one, torch.Tensor) else 0
            for one in (kept if isinstance(kept, tuple | list) else (kept,))
        ]
        # The step's own context takes the place of the recorded one, which is let go.
        args, kwargs = arguments
        self.args = [None if one is context else one for one in args]
        self.kwargs = {key: None if one is context else one for key, one in kwargs.items()}
        self._context_at = [i for i, one in enumerate(args) if one is context]
        self._context_as = [key for key, one in kwargs.items() if one is context]

    def __call__(self, where: Where, context: ForwardContext) -> None:
        args, kwargs = self.args, self.kwargs
        if self._context_at:
            args = args.copy()
            for i in self._context_at:
                args[i] = context
        if self._context_as:
            kwargs = {**kwargs, **dict.fromkeys(self._context_as, context)}
        result = self.module(*args, **kwargs)
        results = result if isinstance(result, tuple | list) else (result,)
        for place, given, one in zip(self.copies, self.given_back, results, strict=True):
            if place is None:
                if one is not None and one.data_ptr() != given:
                    raise ChangedAnswer(f"{self.name} returned what it was given before, and now something new")
                continue
            if not isinstance(one, torch.Tensor) or one.shape != place.shape or one.dtype != place.dtype:
                raise ChangedAnswer(f"{self.name} returned {list(place.shape)} before, and now {one!r:.60}")
            place.copy_(one)


def _flat(values: Any) -> Iterator[Any]:
    for value in values:
        if isinstance(value, tuple | list):
            yield from _flat(value)
        else:
            yield value


def _is_view(func: Any, args: Any, result: Any) -> bool:
    """Tell whether a call only looks at its first argument's memory in another way."""
    if func._schema.is_mutable or not args or not isinstance(args[0], torch.Tensor):
        return False
    if func is torch.ops.aten.lift_fresh.default:
        return False
    results = result if isinstance(result, list | tuple) else (result,)
    own = args[0].untyped_storage().data_ptr()
    return all(isinstance(one, torch.Tensor) and one.untyped_storage().data_ptr() == own for one in results)


def _why_unrepeatable(func: Any, args: Any) -> str | None:
    """Return why an operation of torch's may not give what it should when it is called again, or None."""
    if func.namespace == "c10d":
        return f"torch computes {func} between ranks"
    if func is torch.ops.aten.lift_fresh.default:
        return "Python makes a tensor of numbers"
    if func is torch.ops.aten.index.Tensor:  # by places its size is known, by a mask it is not
        masks = [one for one in args[1] if one is not None and one.dtype in (torch.bool, torch.uint8)]
        return "torch selects by a mask" if masks else None
    return next((f"torch computes {func} {why}" for tag, why in _UNREPEATABLE_TAGS if tag in func.tags), None)
