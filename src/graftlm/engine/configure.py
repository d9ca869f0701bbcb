"""Resolves what was asked for into one frozen configuration, in one fixed order.

Defaults, the user, the checkpoint, the platform's defaults, the custom-op base mode, the platform's last word,
validation, frozen: each value remembers who set it. It starts no process and imports no torch.
"""

from __future__ import annotations

import contextlib
import logging
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

from graftlm.config.hf_config import HFConfig
from graftlm.contracts.errors import StartupError
from graftlm.engine.checkpoint_values import (
    check_divisible,
    check_values,
    merge_overrides,
    quantization_of,
    resolve_dtype,
    resolve_max_model_len,
)
from graftlm.engine.validation import check_names, check_numbers, check_op_switches, check_worker_class
from graftlm.layers.quantization import quantization_names
from graftlm.models.checkpoints import read_facts
from graftlm.models.registry import ModelRegistry
from graftlm.models.sources import resolve_model
from graftlm.platforms.hooks import call_hook
from graftlm.plugins import record

if TYPE_CHECKING:
    from graftlm.config.engine_config import EngineConfig, ModelConfig
    from graftlm.contracts.model import ModelSpec
    from graftlm.contracts.platform import Platform
    from graftlm.plugins.host import PluginHost

logger = logging.getLogger(__name__)


def configure(config: EngineConfig, host: PluginHost, *, progress: bool = True) -> EngineConfig:
    """Resolve, check and freeze `config` in place; raises ConfigError or StartupError with the cure.

    The plugins have been bootstrapped in this process; `progress` shows a bar while a model is fetched.
    """
    from graftlm.platforms import current_platform as platform  # resolved by this line, not by an import of ours

    platform_owner = f"platform {host.platform_choice.name if host.platform_choice else platform.device_name}"
    _record_stage("user", config, 0)
    check_numbers(config)
    check_op_switches(config.compilation.custom_ops, host)  # as typed; once more when the platform has spoken
    if not isinstance(config.parallel.worker_cls, str):
        check_worker_class(config.parallel.worker_cls, host, platform)
    with _stage(config, "engine"):
        _read_checkpoint(config, progress=progress)
    spec = _resolve_architecture(config)
    _verify_architecture(config, spec, platform)
    with _stage(config, "engine"):
        _resolve_values(config, platform)
    with _stage(config, platform_owner):
        call_hook("apply_config_platform_defaults", config)
    with _stage(config, "engine"):
        _choose_base_mode(config)
    with _stage(config, platform_owner):
        call_hook("check_and_update_config", config)
    check_numbers(config)
    check_names(config, host, platform)
    check_divisible(config.parallel.tensor_parallel_size, config.model.hf_config)
    if config.compilation.backend == "inductor" and config.parallel.worker_cls.startswith("graftlm."):
        logger.warning(
            "--compilation-backend=inductor: the built-in workers compile nothing yet; ops run uncompiled"
        )
    config.freeze()
    return config


def _read_checkpoint(config: EngineConfig, *, progress: bool) -> None:
    model = config.model
    path = resolve_model(model.model, revision=model.revision, progress=progress)
    facts = read_facts(path, load_format=model.load_format)
    model.path = facts.path
    model.format = facts.format
    model.hf_config = HFConfig(merge_overrides(facts.hf_config, model.hf_overrides))
    check_values(model.hf_config)
    if not model.served_model_name:
        model.served_model_name = [model.model]


def _resolve_architecture(config: EngineConfig) -> ModelSpec:
    architectures = config.model.hf_config.get("architectures") or []
    if isinstance(architectures, str) or not all(isinstance(name, str) for name in architectures):
        raise StartupError(f"'architectures' must be a list of names, not {architectures!r}; see --hf-overrides")
    if not architectures:
        raise StartupError(
            f"the checkpoint {config.model.path} names no architecture; name it with "
            '--hf-overrides \'{"architectures": ["…"]}\''
        )
    architecture, spec = ModelRegistry.resolve(list(architectures))
    with _stage(config, "engine"):
        config.model.architecture = architecture
    record("architecture_resolved", architecture=architecture, asked=list(architectures))
    logger.info("Resolved architecture: %s", architecture)
    return spec


def _verify_architecture(config: EngineConfig, spec: ModelSpec, platform: Platform) -> None:
    architecture = config.model.architecture
    if not spec.is_text_generation:
        raise StartupError(
            f"the architecture {architecture} generates no text, and this server serves nothing else"
        )
    if config.parallel.tensor_parallel_size > 1 and not spec.supports_tensor_parallel:
        raise StartupError(
            f"--tensor-parallel-size={config.parallel.tensor_parallel_size}: the architecture {architecture} "
            "runs on one worker; use 1"
        )
    quantization = config.model.quantization or quantization_of(config.model.hf_config)
    if quantization and not spec.supports_quantization:
        raise StartupError(f"the architecture {architecture} does not support --quantization={quantization}")
    call_hook("verify_model_arch", architecture)


def _resolve_values(config: EngineConfig, platform: Platform) -> None:
    """Decide what the platform's hooks may still want to see decided."""
    model, parallel = config.model, config.parallel
    model.max_model_len = resolve_max_model_len(model.max_model_len, model.hf_config)
    model.quantization = model.quantization or quantization_of(model.hf_config) or _kept_format(model)
    model.dtype = resolve_dtype(  # type: ignore[assignment]
        model.dtype, platform.supported_dtypes, device_name=platform.device_name
    )
    if parallel.distributed_executor_backend is None:
        parallel.distributed_executor_backend = "uni" if parallel.world_size == 1 else "mp"


def _kept_format(model: ModelConfig) -> str | None:
    """Name the method that keeps weights in their file's format, if one is installed and no dtype was asked for."""
    return model.format if model.dtype == "auto" and model.format in quantization_names() else None


def _choose_base_mode(config: EngineConfig) -> None:
    """Ops run unless a compiler fuses their plain form; the user's and the platform's own mode stay."""
    if config.compilation.base_mode is None:
        config.compilation.set_base_mode("none" if config.compilation.backend == "inductor" else "all")


@contextlib.contextmanager
def _stage(config: EngineConfig, owner: str) -> Iterator[None]:
    before = len(config.changes)
    with config.stage(owner):
        yield
    _record_stage(owner, config, before)


def _record_stage(owner: str, config: EngineConfig, before: int) -> None:
    changes: dict[str, Any] = {
        change.path: change.value for change in config.changes[before:] if change.owner == owner
    }
    record("config_stage", owner=owner, changes=changes)
