"""Carries a checkpoint's tensors to the layers they belong to, by their Hugging Face names.

It does not know architectures: a model says which checkpoint names are parts of which merged layer.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Any

import torch

from graftlm.contracts.errors import ModelMismatch
from graftlm.contracts.weights import Weight
from graftlm.layers.parameters import ShapeMismatch, as_tensor
from graftlm.plugins.spelling import nearest_names

#: (layer's name in the model, its name in the checkpoint, shard)
Stacked = tuple[str, str, str | int]

#: Tensors that some checkpoints carry and no model needs.
ALWAYS_SKIPPED = ("rotary_emb.inv_freq", "rotary_emb.cos_cached", "rotary_emb.sin_cached")


class UnexpectedTensor(ModelMismatch):
    """A checkpoint tensor that no layer of the model takes."""

    def __init__(self, name: str, *, near: list[str]) -> None:
        hint = f"; nearest in the model: {', '.join(near)}" if near else ""
        super().__init__(
            f"the checkpoint's tensor {name!r} belongs to no layer of this model{hint}; "
            "its config does not belong to these weights, or the architecture is another"
        )


def load_weights(
    module: torch.nn.Module,
    weights: Iterable[tuple[str, Weight]],
    *,
    stacked: Sequence[Stacked] = (),
    skip: Sequence[str] | Callable[[str], bool] = (),
) -> set[str]:
    """Load the tensors and return the names of the parameters that are complete.

    `stacked` names the parts of merged layers, as ("qkv_proj", "q_proj", "q"). Tensors whose names contain one of
    `skip`, or for which it answers True, are passed over.
    """
    skipped = skip if callable(skip) else _containing(skip)
    parts = {part: (layer, shard) for layer, part, shard in stacked}
    modules = dict(module.named_modules())
    touched: dict[str, torch.nn.Module] = {}
    complete: set[str] = set()
    for name, weight in weights:
        if skipped(name) or any(fragment in name for fragment in ALWAYS_SKIPPED):
            continue
        path, kind, shard = _destination(name, parts)
        layer = modules.get(path)
        load = None if layer is None else getattr(layer, f"load_{kind}", None)
        if layer is not None and load is not None:
            _call_layer(load, name, weight, shard)
            touched[path] = layer
        elif layer is not None and isinstance(layer._parameters.get(kind), torch.nn.Parameter):
            full = f"{path}.{kind}" if path else kind
            _fill(full, layer._parameters[kind], weight)
            complete.add(full)
        else:
            raise UnexpectedTensor(name, near=nearest_names(name, _names(module)))
    for path, layer in touched.items():
        complete.update(_complete_parameters(path, layer))
    return complete


def missing_weights(module: torch.nn.Module, loaded: set[str], *, stacked: Sequence[Stacked] = ()) -> list[str]:
    """Return what no tensor has filled, by the checkpoint's names where `stacked` tells them."""
    parts = {(layer, str(shard)): part for layer, part, shard in stacked}
    return [_in_checkpoint(name, parts) for name in _missing_parameters(module, loaded)]


def _in_checkpoint(name: str, parts: dict[tuple[str, str], str]) -> str:
    """Translate "mlp.gate_up_proj.weight (1)" to the name of the tensor that would fill it."""
    path, _, shard = name.partition(" (")
    owner, _, kind = path.rpartition(".")
    parent, _, layer = owner.rpartition(".")
    part = parts.get((layer, shard.rstrip(")")))
    if part is None:
        return name
    return ".".join(filter(None, [parent, part, kind]))


def _missing_parameters(module: torch.nn.Module, loaded: set[str]) -> list[str]:
    """Return parameter names, with the shard where only a part is missing."""
    missing: list[str] = []
    for path, layer in module.named_modules():
        prefix = f"{path}." if path else ""
        unloaded: Callable[[], list[str]] | None = getattr(layer, "unloaded", None)
        if unloaded is not None:
            missing.extend(prefix + what for what in unloaded())
        else:
            names = [prefix + name for name, parameter in layer._parameters.items() if parameter is not None]
            missing.extend(name for name in names if name not in loaded)
    return missing


def _containing(fragments: Sequence[str]) -> Callable[[str], bool]:
    return lambda name: any(fragment in name for fragment in fragments)


def _destination(name: str, parts: dict[str, tuple[str, str | int]]) -> tuple[str, str, str | int | None]:
    """Split a tensor's name into the layer's path, the kind (weight, bias, …) and the shard."""
    path, _, kind = name.rpartition(".")
    parent, _, last = path.rpartition(".")
    if last in parts:
        layer, shard = parts[last]
        return (f"{parent}.{layer}" if parent else layer), kind, shard
    return path, kind, None


def _call_layer(load: Any, name: str, weight: Weight, shard: str | int | None) -> None:
    try:
        load(weight) if shard is None else load(weight, shard)
    except Exception as error:
        error.add_note(f"while loading the checkpoint's tensor {name!r}")
        raise


def _fill(name: str, parameter: torch.nn.Parameter, weight: Weight) -> None:
    if tuple(weight.shape) != tuple(parameter.shape):
        raise ShapeMismatch(name, found=tuple(weight.shape), expected=tuple(parameter.shape))
    parameter.data.copy_(as_tensor(weight, parameter.dtype))


def _complete_parameters(path: str, layer: torch.nn.Module) -> set[str]:
    unloaded: Callable[[], list[str]] = getattr(layer, "unloaded", list)
    waiting = {what.partition(" ")[0] for what in unloaded()}
    prefix = f"{path}." if path else ""
    # A layer's weight may be kept in several parameters; the bias is always one of its own.
    return {
        prefix + name
        for name, parameter in layer._parameters.items()
        if parameter is not None and ("bias" if name == "bias" else "weight") not in waiting
    }


def _names(module: torch.nn.Module) -> list[str]:
    return [name for name, _ in module.named_parameters()]
