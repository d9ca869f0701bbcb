"""Quantization methods that are wrong, each in one way that the suite must see."""

from __future__ import annotations

import itertools
from typing import Any, ClassVar

import torch
import torch.nn.functional as F
from torch import nn
from which_process import PROCESS_NUMBER

from graftlm.contracts.quantization import LinearMethod, QuantizationConfig
from graftlm.contracts.weights import QuantizedWeight
from graftlm.models import ModelRegistry


class SoundMethod(LinearMethod):
    """Bytes and one scale for each row, as sound as the int8 example."""

    def create_weights(self, layer: nn.Module, *, input_size: int, output_size: int, dtype: torch.dtype) -> None:
        layer.weight = nn.Parameter(torch.zeros(output_size, input_size, dtype=torch.int8), requires_grad=False)
        layer.scale = nn.Parameter(torch.zeros(output_size, dtype=dtype), requires_grad=False)

    def load_weight(self, layer: nn.Module, weight: Any, *, row_offset: int) -> None:
        rows = self.numbers(weight)
        scale = rows.abs().amax(dim=1).clamp_min(1e-12) / 127
        place = slice(row_offset, row_offset + len(rows))
        layer.weight.data[place] = (rows / scale[:, None]).round().to(torch.int8)
        layer.scale.data[place] = scale.to(layer.scale.dtype)

    def numbers(self, weight: Any) -> torch.Tensor:
        return weight.dequantize(torch.float32) if isinstance(weight, QuantizedWeight) else weight.float()

    def apply(self, layer: nn.Module, x: torch.Tensor, bias: torch.Tensor | None = None) -> torch.Tensor:
        y = F.linear(x, layer.weight.to(x.dtype)) * layer.scale
        return y if bias is None else y + bias

    def embed(self, layer: nn.Module, ids: torch.Tensor) -> torch.Tensor:
        return layer.weight[ids].to(layer.scale.dtype) * layer.scale[ids][:, None]


class Sound(QuantizationConfig):
    name = "sound"
    method: ClassVar[type[LinearMethod]] = SoundMethod

    @classmethod
    def from_checkpoint(cls, hf_config: dict[str, Any]) -> QuantizationConfig:
        return cls()

    def get_linear_method(self, layer: nn.Module, prefix: str) -> LinearMethod | None:
        return self.method()


def _with(**methods: Any) -> type[LinearMethod]:
    """A sound method, but for these functions."""
    plain = {name: getattr(function, "__func__", function) for name, function in methods.items()}
    return type("WrongMethod", (SoundMethod,), plain)


_plain_apply, _plain_load = SoundMethod.apply, SoundMethod.load_weight


class DoesNothing(Sound):
    def get_linear_method(self, layer: nn.Module, prefix: str) -> LinearMethod | None:
        return None


class NeedsItsSection(Sound):
    @classmethod
    def from_checkpoint(cls, hf_config: dict[str, Any]) -> QuantizationConfig:
        assert hf_config["quantization_config"]
        return cls()


class OneForAll(Sound):
    made: ClassVar[list[QuantizationConfig]] = []

    @classmethod
    def from_checkpoint(cls, hf_config: dict[str, Any]) -> QuantizationConfig:
        if not cls.made:
            cls.made.append(cls())
        return cls.made[0]


class ForgetsTheScale(Sound):
    method = _with(apply=lambda self, layer, x, bias=None: F.linear(x, layer.weight.to(x.dtype)))


class ForgetsTheBias(Sound):
    method = _with(apply=lambda self, layer, x, bias=None: _plain_apply(self, layer, x))


class WrongFormat(Sound):
    method = _with(apply=lambda self, layer, x, bias=None: _plain_apply(self, layer, x, bias).float())


class WrongShape(Sound):
    method = _with(apply=lambda self, layer, x, bias=None: _plain_apply(self, layer, x, bias)[None])


class WrongDevice(Sound):
    method = _with(apply=lambda self, layer, x, bias=None: _plain_apply(self, layer, x, bias).to("meta"))


class NeedsTokens(Sound):
    method = _with(apply=lambda self, layer, x, bias=None: _plain_apply(self, layer, x + 0 * x.max(), bias))


class EmbedsBytes(Sound):
    method = _with(embed=lambda self, layer, ids: layer.weight[ids].to(layer.scale.dtype))


class FillsFromTheTop(Sound):
    """Takes rows in the order in which they come, whatever their place is."""

    @staticmethod
    def _load(self: Any, layer: Any, weight: Any, *, row_offset: int) -> None:
        _plain_load(self, layer, weight, row_offset=getattr(layer, "filled", 0))
        layer.filled = getattr(layer, "filled", 0) + weight.shape[0]

    method = _with(load_weight=_load)


class ChangesItsInput(Sound):
    method = _with(apply=lambda self, layer, x, bias=None: _plain_apply(self, layer, x.mul_(1.0001), bias))


class ChangesTheCheckpoint(Sound):
    @staticmethod
    def _numbers(self: Any, weight: Any) -> torch.Tensor:
        return weight.dequantize(torch.float32) if isinstance(weight, QuantizedWeight) else weight.round_().float()

    method = _with(numbers=_numbers)


class OneBuffer(Sound):
    @staticmethod
    def _apply(self: Any, layer: Any, x: torch.Tensor, bias: torch.Tensor | None = None) -> torch.Tensor:
        y = _plain_apply(self, layer, x, bias)
        layer.__dict__.setdefault("buffers", {})
        return layer.buffers.setdefault(y.shape, y).copy_(y)

    method = _with(apply=_apply)


class KeepsState(Sound):
    calls = itertools.count()

    @staticmethod
    def _apply(self: Any, layer: Any, x: torch.Tensor, bias: torch.Tensor | None = None) -> torch.Tensor:
        return _plain_apply(self, layer, x, bias) + 1e-3 * next(KeepsState.calls)

    method = _with(apply=_apply)


class SharesItsWeights(Sound):
    """Keeps the last matrix that was loaded, for all layers of the model."""

    def __init__(self) -> None:
        self.last: list[torch.Tensor] = []

    def get_linear_method(self, layer: nn.Module, prefix: str) -> LinearMethod:
        last = self.last

        def load_weight(self: Any, layer: Any, weight: Any, *, row_offset: int) -> None:
            _plain_load(self, layer, weight, row_offset=row_offset)
            last[:] = [layer.weight.data, layer.scale.data]

        def apply(self: Any, layer: Any, x: torch.Tensor, bias: torch.Tensor | None = None) -> torch.Tensor:
            y = F.linear(x, last[0].to(x.dtype)) * last[1]
            return y if bias is None else y + bias

        return _with(load_weight=load_weight, apply=apply)()


class MisreadsBlocks(Sound):
    """Takes the bytes of a file's blocks for numbers, and leaves the scales out."""

    @staticmethod
    def _numbers(self: Any, weight: Any) -> torch.Tensor:
        if not isinstance(weight, QuantizedWeight):
            return weight.float()
        rows, columns = weight.shape
        blocks = weight.data.reshape(rows, columns // 32, 34)[..., 2:]
        return blocks.contiguous().view(torch.int8).reshape(rows, columns).float()

    method = _with(numbers=_numbers)


class DiffersBetweenProcesses(Sound):
    method = _with(
        apply=lambda self, layer, x, bias=None: _plain_apply(self, layer, x, bias) + 1e-3 * PROCESS_NUMBER
    )


class RegistersLate(Sound):
    @staticmethod
    def _apply(self: Any, layer: Any, x: torch.Tensor, bias: torch.Tensor | None = None) -> torch.Tensor:
        ModelRegistry.register_model("LateForCausalLM", "wrong_models:KeepsState")
        return _plain_apply(self, layer, x, bias)

    method = _with(apply=_apply)


class HalfAMethod(QuantizationConfig):
    name = "half"

    @classmethod
    def from_checkpoint(cls, hf_config: dict[str, Any]) -> QuantizationConfig:
        raise NotImplementedError


class RefusesBlocks(Sound):
    """Not wrong: what it cannot take, it says."""

    @staticmethod
    def _numbers(self: Any, weight: Any) -> torch.Tensor:
        from graftlm.contracts.errors import ModelMismatch

        if isinstance(weight, QuantizedWeight):
            raise ModelMismatch(f"{weight.format} is not taken; serve plain weights")
        return weight.float()

    method = _with(numbers=_numbers)
