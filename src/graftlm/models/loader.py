"""Builds a model and fills it: the architecture's class, this rank's share of the weights, packed once.

It does not know formats, devices or processes; it runs in workers.
"""

from __future__ import annotations

import contextlib
import logging
import time
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

import torch
from torch import nn

from graftlm.config.errors import MissingCheckpointValue
from graftlm.contracts.errors import ModelMismatch, StartupError
from graftlm.layers.loading import missing_weights
from graftlm.models.checkpoints import iterate_weights
from graftlm.models.checkpoints.errors import MissingTensors
from graftlm.models.held_model import number_of_events, take_held_model
from graftlm.models.kept_weights import note_kept_weights
from graftlm.models.registry import ModelRegistry
from graftlm.ops.build import building
from graftlm.ops.verify import verify_ops
from graftlm.processes.startup_trace import span

if TYPE_CHECKING:
    from graftlm.config.engine_config import EngineConfig

logger = logging.getLogger(__name__)

_DTYPES = {
    "auto": torch.float32, "float32": torch.float32, "bfloat16": torch.bfloat16, "float16": torch.float16,
}  # fmt: skip


def load_model(config: EngineConfig, device: torch.device) -> nn.Module:
    """Return the model of `config`, in eval mode on `device`.

    Tensors are read from the map one at a time and cut to this rank's share before they are copied, so the
    weights are never in memory twice.
    """
    started = time.monotonic()
    with naming_checkpoint(config):
        since = number_of_events()
        with span("build the model"):
            model = build_model(config, device)
        held = take_held_model(config, model, since=since)
        if held is None:
            with span("read the weights"):
                fill_model(model, config)
        else:
            model = held
    note_kept_weights(model)
    if config.compilation.verify_ops:
        verify_ops(model, config, dtype=_DTYPES[config.model.dtype], device=device)
    seconds = time.monotonic() - started
    num_bytes = sum(tensor.numel() * tensor.element_size() for tensor in model.state_dict().values())
    logger.debug(
        "weights loaded architecture=%s bytes=%d seconds=%.2f", config.model.architecture, num_bytes, seconds
    )
    return model


def build_model(
    config: EngineConfig,
    device: torch.device,
    *,
    model_cls: type[Any] | None = None,
    failures: list[Exception] | None = None,
) -> nn.Module:
    """Construct the architecture's class as `Model(config=…, prefix="")`, its parameters not yet filled.

    `model_cls` is for tests of a class that no registry knows; `failures` is as in `building`.
    """
    chosen: Any = model_cls or ModelRegistry.load_class(config.model.architecture)
    dtype = _DTYPES[config.model.dtype]
    with _torch_defaults(dtype, device), building(config, dtype=dtype, device=device, failures=failures):
        model: nn.Module = chosen(config=config, prefix="")
    model.requires_grad_(False)
    return model.eval()


def fill_model(model: nn.Module, config: EngineConfig) -> None:
    """Load the checkpoint's tensors, refuse a model that did not get all of its own, and pack once."""
    hand_out_weights(model, config)
    for module in model.modules():
        pack = getattr(module, "process_weights_after_loading", None)
        if pack is not None:
            pack()


def hand_out_weights(model: nn.Module, config: EngineConfig) -> None:
    """Give the checkpoint's tensors to the layers, and refuse a model that did not get all of its own."""
    loaded = model.load_weights(iterate_weights(config))  # type: ignore[operator]
    if missing := missing_weights(model, set(loaded), stacked=getattr(model, "stacked", ())):
        raise MissingTensors(config.model.path, missing=missing, architecture=config.model.architecture)


@contextlib.contextmanager
def naming_checkpoint(config: EngineConfig) -> Iterator[None]:
    """Say which checkpoint does not suit its model, or is too large for the memory."""
    try:
        yield
    except (ModelMismatch, MissingCheckpointValue) as error:
        error.add_note(f"checkpoint {config.model.path!r}, architecture {config.model.architecture}")
        raise
    except (MemoryError, RuntimeError) as error:  # torch has a class for a GPU's memory only
        if not isinstance(error, MemoryError | torch.OutOfMemoryError) and "alloc" not in str(error).lower():
            raise
        raise StartupError(
            f"the weights of {config.model.path!r} do not fit into the memory of this machine in "
            f"--dtype={config.model.dtype} ({str(error).strip().splitlines()[-1]}); serve a smaller or quantized "
            "checkpoint, or share it with --tensor-parallel-size"
        ) from error


@contextlib.contextmanager
def _torch_defaults(dtype: torch.dtype, device: torch.device) -> Iterator[None]:
    """Let plain torch modules inside a model have its number format and device without saying so."""
    before = torch.get_default_dtype()
    torch.set_default_dtype(dtype)
    try:
        with contextlib.nullcontext() if device == torch.get_default_device() else device:
            yield
    finally:
        torch.set_default_dtype(before)
