"""CustomOp: a layer whose computation each platform, plugin and user may replace.

It does not know any op; which of an op's methods runs is decided in `graftlm.ops.dispatch`, once, at construction.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any, ClassVar, TypeVar

import torch

from graftlm.ops.build import find_build
from graftlm.ops.dispatch import OpChoice, choose
from graftlm.ops.examples import OpExample, Tolerance, roundings
from graftlm.ops.pluggable import PluggableLayer
from graftlm.plugins import Registry

OpT = TypeVar("OpT", bound="type[CustomOp]")

#: switch name -> op class
op_registry: Registry[type[CustomOp]] = Registry("custom_ops", kind="op")


class CustomOp(PluggableLayer):
    """Subclass it, name it with `@CustomOp.register("name")`, and write `forward_native`, the reference.

    `forward_cpu`, `forward_cuda`, `forward_oot`, … are optional. Arguments may be overwritten only where
    the op's docstring says so. `example_ops`, `example_inputs` and `tolerance` let tests and `--verify-ops` compare
    whatever computes the op with `forward_native`.
    """

    #: The name that op switches use; a replacement keeps it.
    name: ClassVar[str] = ""
    choice: OpChoice

    @classmethod
    def register(cls, name: str) -> Callable[[OpT], OpT]:
        """Name an op class, for the switches `+name` and `-name` and for `name.provider`."""

        def decorate(op_cls: OpT) -> OpT:
            if not (isinstance(op_cls, type) and issubclass(op_cls, CustomOp)):
                raise TypeError(f"@CustomOp.register({name!r}) got {op_cls!r}; it must be a subclass of CustomOp")
            if not name or not name.isidentifier():
                raise ValueError(f"op name {name!r}: write a lower-case identifier such as 'rms_norm'")
            op_registry.register(name, op_cls)
            op_cls.name = name
            return op_cls

        return decorate

    def __init__(self, *, enforce_enable: bool = False, shape: tuple[int, ...] = ()) -> None:
        """Choose what computes this object; `shape` are its fixed sizes, shown to implementations.

        `enforce_enable` ignores the switches, for an op whose reference cannot serve.
        """
        super().__init__()
        if not self.name:
            raise TypeError(f"{type(self).__name__} has no op name; decorate it with @CustomOp.register('name')")
        self.fixed_shape = shape
        self.choice = self._choose(enforce_enable=enforce_enable, shape=shape)
        if type(self).forward is CustomOp.forward:
            # An instance attribute: a call costs no look-up of what was chosen.
            self.__dict__["forward"] = self.choice.bound_to(self)

    def _choose(self, *, enforce_enable: bool, shape: tuple[int, ...]) -> OpChoice:
        build = find_build()
        if build is None:
            return OpChoice("forward_native", "constructed outside of a model's build")
        enabled = enforce_enable or self.enabled()
        (build.enabled_custom_ops if enabled else build.disabled_custom_ops)[self.name] += 1
        choice = choose(self, build, enabled=enabled, shape=shape)
        if type(self).forward is not CustomOp.forward:
            choice = OpChoice("forward", f"{type(self).__name__} overrides forward itself")
        build.choices[(self.name, choice.method, choice.reason)] += 1
        return choice

    @classmethod
    def enabled(cls) -> bool:
        """Tell whether the switches leave this op on."""
        build = find_build()
        return build is None or build.switches.enabled(cls.name)

    @staticmethod
    def default_on() -> bool:
        """Tell whether ops without a switch of their own are on."""
        build = find_build()
        return build is None or build.switches.default_on

    @classmethod
    def example_ops(cls) -> Iterable[CustomOp]:
        """Build a few small objects of this class for tests; `prepare_example` completes each."""
        yield cls()

    def prepare_example(self, generator: torch.Generator, dtype: torch.dtype) -> None:
        """Give an example op what loading a checkpoint gives: values of its parameters, then the packing."""
        for parameter in self.parameters():
            values = torch.rand(parameter.shape, generator=generator, device=generator.device) + 0.5
            parameter.data.copy_(values)
        self.process_weights_after_loading()

    def example_inputs(self, generator: torch.Generator, dtype: torch.dtype) -> Iterable[OpExample]:
        """Generate calls that suit this object, small and typical, an empty batch among them.

        Return new tensors on `generator.device` each time; whoever calls the op moves them to its device.
        """
        return ()

    def tolerance(self, dtype: torch.dtype) -> Tolerance:
        """Say how far an answer in `dtype` may lie from `forward_native`, and why."""
        return roundings(dtype, full=64, half=4, reason="a handful of operations in any order")

    def process_weights_after_loading(self) -> None:
        """Let the chosen implementation pack this op's weights."""
        if self.choice.implementation is not None:
            self.choice.implementation.pack({**dict(self.named_parameters()), **dict(self.named_buffers())})

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        return self.choice.bound_to(self)(*args, **kwargs)

    def forward_native(self, *args: Any, **kwargs: Any) -> Any:
        """Compute in plain torch: the reference for every other implementation."""
        raise NotImplementedError(f"{type(self).__name__}.forward_native")

    def forward_cpu(self, *args: Any, **kwargs: Any) -> Any:
        return self.forward_native(*args, **kwargs)

    def forward_cuda(self, *args: Any, **kwargs: Any) -> Any:
        return self.forward_native(*args, **kwargs)

    def forward_rocm(self, *args: Any, **kwargs: Any) -> Any:
        return self.forward_native(*args, **kwargs)

    def forward_xpu(self, *args: Any, **kwargs: Any) -> Any:
        return self.forward_native(*args, **kwargs)

    def forward_tpu(self, *args: Any, **kwargs: Any) -> Any:
        return self.forward_native(*args, **kwargs)

    def forward_oot(self, *args: Any, **kwargs: Any) -> Any:
        return self.forward_native(*args, **kwargs)


def op_names() -> list[str]:
    """Return the switch names of all ops that this process has imported."""
    return op_registry.names()
