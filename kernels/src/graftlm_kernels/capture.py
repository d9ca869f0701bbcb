"""Decode steps as one native call: a step's kernel calls are kept once per number of tokens, then run again.

The model's own code makes the calls that are kept, and what cannot be kept is noticed: code of others is not asked
at all, a computation by torch ends the attempt, and a kept step must give the model's own result, bit for bit,
before it is used. It knows no model.
"""

from __future__ import annotations

import logging
import sys
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt
import torch
from torch.nn.modules import module as every_module
from torch.utils._python_dispatch import TorchDispatchMode

from graftlm_kernels import _native

if TYPE_CHECKING:
    from graftlm.contracts.attention import ForwardContext

logger = logging.getLogger(__name__)

#: In larger steps the calls themselves cost little beside their work.
MAX_TOKENS = 64
_KNOWN = frozenset(("graftlm", "graftlm_kernels", "torch", "builtins"))
_NEW_MEMORY = (torch.ops.aten.empty.memory_format, torch.ops.aten.empty_like.default)


class Arena:
    """Memory of kept steps, handed out again as soon as no tensor uses it. Steps share it: one runs at a time."""

    def __init__(self) -> None:
        self.arrays: list[npt.NDArray[np.uint8]] = [_aligned(64)]
        self._idle = self._references(0)

    def like(self, tensor: torch.Tensor) -> torch.Tensor:
        """Return memory for a contiguous tensor of this shape and number format."""
        size = max(tensor.numel() * tensor.element_size(), 1)
        place = next((i for i in range(len(self.arrays)) if self._suits(i, size)), len(self.arrays))
        if place == len(self.arrays):
            self.arrays.append(_aligned(size))
        memory = torch.from_numpy(self.arrays[place])  # holds the array
        return memory[: tensor.numel() * tensor.element_size()].view(tensor.dtype).view(tensor.shape)

    def owns(self, tensor: torch.Tensor) -> bool:
        address = tensor.untyped_storage().data_ptr()
        return any(array.ctypes.data == address for array in self.arrays)

    def _suits(self, place: int, size: int) -> bool:
        return size <= self.arrays[place].nbytes <= 2 * size + 4096 and self._references(place) == self._idle

    def _references(self, place: int) -> int:
        return sys.getrefcount(self.arrays[place])


def _aligned(size: int) -> npt.NDArray[np.uint8]:
    size = -(-size // 64) * 64
    memory = np.empty(size + 64, np.uint8)
    start = -memory.ctypes.data % 64
    return memory[start : start + size]


class Watch(TorchDispatchMode):
    """Gives new tensors memory that stays, and notices what torch itself computes on this thread."""

    def __init__(self, arena: Arena) -> None:
        super().__init__()
        self.arena = arena
        self.obstacle: str | None = None

    @classmethod
    def _should_skip_dynamo(cls) -> bool:
        """Nothing is compiled here; else torch imports its compiler in the first decode step, for a second."""
        return False

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        result = func(*args, **(kwargs or {}))
        if func in _NEW_MEMORY and result.is_contiguous() and result.device.type == "cpu":
            return self.arena.like(result)
        if not _is_view(func, args, result):
            self.obstacle = self.obstacle or f"torch computes {func}"
        return result


def _is_view(func: Any, args: Any, result: Any) -> bool:
    """Tell whether a call only looks at its first argument's memory in another way."""
    if func._schema.is_mutable or not args or not isinstance(args[0], torch.Tensor):
        return False
    results = result if isinstance(result, list | tuple) else (result,)
    own = args[0].untyped_storage().data_ptr()
    return all(isinstance(one, torch.Tensor) and one.untyped_storage().data_ptr() == own for one in results)


class KeptStep:
    """The calls of one step, and where its result appears."""

    def __init__(self, kept: _native.CapturedStep, output: torch.Tensor) -> None:
        self.kept = kept
        self.output = output
        self.is_proven = False
        self.run = kept.run


class StepCapture:
    """Computes what `model` computes. It is called by one thread at a time, as a model with a KV cache is."""

    def __init__(self, model: torch.nn.Module) -> None:
        self.model = model
        self.arena = Arena()
        self.steps: dict[int, KeptStep] = {}
        self.obstacle = _obstacle(model)
        modules = list(model.modules())
        #: Whoever adds a hook to a module later must be heard: these are never replaced, only filled.
        self._hooks = [hooks for m in (*modules, every_module) for hooks in _hooks_of(m)]
        self._caches = [(m, m.kv_cache) for m in modules if hasattr(m, "kv_cache")]

    def __call__(self, input_ids: torch.Tensor, positions: torch.Tensor, context: ForwardContext) -> torch.Tensor:
        metadata = context.attention
        tokens = metadata.num_tokens
        if self.obstacle or metadata.max_query_len != 1 or tokens > MAX_TOKENS or tokens != metadata.num_requests:
            return self._ask_model(input_ids, positions, context)
        if any(self._hooks) or any(layer.kv_cache is not cache for layer, cache in self._caches):
            self._give_up("a module has a hook or another KV cache")
            return self._ask_model(input_ids, positions, context)
        _, query_start, seq_lens, table, stride = metadata.backend.step
        slots = metadata.backend.slots
        where = (input_ids.data_ptr(), positions.data_ptr(), slots, query_start, seq_lens, table, stride)
        step = self.steps.get(tokens)
        if step is None:
            return self._keep(where, tokens, input_ids, positions, context)
        step.run(*where)
        if step.is_proven:
            return step.output.clone()  # the caller may hold it for longer than a step
        hidden = self._ask_model(input_ids, positions, context)
        step.is_proven = torch.equal(hidden, step.output)
        if not step.is_proven:
            self._give_up("a kept step and the model differ")
        return hidden

    def _ask_model(self, input_ids: torch.Tensor, positions: torch.Tensor, context: ForwardContext) -> torch.Tensor:
        hidden: torch.Tensor = self.model(input_ids, positions, context)
        return hidden

    def _keep(
        self,
        where: tuple[int, ...],
        tokens: int,
        input_ids: torch.Tensor,
        positions: torch.Tensor,
        context: ForwardContext,
    ) -> torch.Tensor:
        """Let the model compute the step and keep its calls."""
        kept = _native.CapturedStep(*where)
        watch = Watch(self.arena)
        kept.begin()
        try:
            with watch:
                hidden = self._ask_model(input_ids, positions, context)
        finally:
            kept.end()
        if watch.obstacle or not self.arena.owns(hidden) or not hidden.is_contiguous():
            self._give_up(watch.obstacle or "the result is no kernel's")
            return hidden
        self.steps[tokens] = KeptStep(kept, hidden)
        logger.debug("step kept tokens=%d calls=%d", tokens, len(kept))
        return hidden.clone()

    def _give_up(self, obstacle: str) -> None:
        """Leave all later steps to the model."""
        self.obstacle = obstacle
        self.steps.clear()
        logger.debug("steps are not kept: %s", obstacle)


def _hooks_of(module: Any) -> tuple[dict[int, Any], dict[int, Any]]:
    if module is every_module:
        return module._global_forward_hooks, module._global_forward_pre_hooks
    return module._forward_hooks, module._forward_pre_hooks


def _obstacle(model: torch.nn.Module) -> str | None:
    """Name what is not graftlm's own in a model: its code wants to run in every step."""
    for name, module in model.named_modules():
        choice = getattr(module, "choice", None)
        parts = [module, getattr(module, "linear_method", None), getattr(module, "backend", None)]
        parts.append(getattr(choice, "implementation", None))
        for part in parts:
            if type(part).__module__.partition(".")[0] not in _KNOWN:
                return f"{name} is computed by {type(part).__module__}.{type(part).__qualname__}"
        if "forward" in vars(module) and choice is None:
            return f"{name} has a forward of its own"
    return None
