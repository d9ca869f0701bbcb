"""Checks every number and every name that a child process will need, before one is started.

Names come from tables that need no torch: what entry points say, what is registered already, and the ops that
graftlm brings. It changes nothing.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterable, Mapping
from typing import TYPE_CHECKING, Any

from graftlm.config.errors import ConfigError, InvalidOption
from graftlm.config.options import engine_options
from graftlm.contracts import points
from graftlm.contracts.errors import StartupError
from graftlm.engine.checkpoint_values import quantization_of
from graftlm.engine.class_paths import check_class_path, looks_like_class_path
from graftlm.engine.flag_choices import check_declared_choices
from graftlm.engine.unbound_ops import note_unbound_ops
from graftlm.layers.quantization import quantization_names
from graftlm.ops.names import BUILT_IN_OPS, InvalidOpSwitch, parse_switches
from graftlm.plugins.spelling import nearest_names

if TYPE_CHECKING:
    from graftlm.config.engine_config import EngineConfig
    from graftlm.contracts.platform import Platform
    from graftlm.plugins.host import PluginHost

BUILT_IN_EXECUTORS = ("uni", "mp")
BUILT_IN_COMPILERS = ("eager", "inductor")
#: Kept equal to what the CPU platform can name; a test compares them.
BUILT_IN_ATTENTION_BACKENDS = ("TORCH_PAGED",)
#: Methods that keep weights in blocks, from the file or from loading on, up to the kernel.
KEEPS_BLOCKS = ("gguf", "q8_0", "q4_0")

_MOST = 2**31 - 1
_MOST_BYTES = 2**63 - 1

_NUMBERS: tuple[tuple[str, Callable[[Any], bool], str], ...] = (
    ("model.max_model_len", lambda n: 1 <= n <= _MOST, f"use 1 to {_MOST} tokens"),
    ("model.seed", lambda n: -(2**63) <= n < 2**64, "use a 64-bit whole number"),
    ("cache.block_size", lambda n: 1 <= n <= _MOST, "use 1 or more tokens, such as 16"),
    ("cache.kv_cache_memory_bytes", lambda n: 1 <= n <= _MOST_BYTES, "use a number of bytes, such as 512m"),
    ("cache.memory_utilization", lambda x: 0 < x <= 1, "use a share above 0, up to 1"),
    ("scheduler.max_num_seqs", lambda n: 1 <= n <= 65536, "use 1 to 65536"),
    ("scheduler.max_num_batched_tokens", lambda n: 1 <= n <= _MOST, f"use 1 to {_MOST} tokens"),
    ("scheduler.itl_slo", lambda x: 1 < x <= 1e6, "use a number above 1, such as 1.5"),
    ("parallel.tensor_parallel_size", lambda n: 1 <= n <= 4096, "use 1 to 4096 workers"),
    ("parallel.threads_per_worker", lambda n: 1 <= n <= 1024, "use 1 to 1024 threads"),
)
_CHOICES = (
    ("model.dtype", ("float32", "bfloat16", "float16", "auto")),
    ("cache.kv_cache_dtype", ("float32", "bfloat16", "float16", "auto")),
    ("scheduler.scheduling_policy", ("fcfs", "priority")),
    ("parallel.start_method", ("spawn", "forkserver")),
    ("compilation.backend", BUILT_IN_COMPILERS),
)


def check_numbers(config: EngineConfig) -> None:
    """Refuse numbers that no model and no platform could serve."""
    check_ranges({path: _value(config, path) for path, *_ in _NUMBERS})
    for path, choices in _CHOICES:
        check_name(_flag(path), _value(config, path), choices)


def check_ranges(values: Mapping[str, Any]) -> None:
    """Refuse numbers out of range, given by the paths of their options; others are passed over."""
    for path, holds, cure in _NUMBERS:
        value = values.get(path)
        if value is not None and not holds(value):
            raise InvalidOption(_flag(path), value, problem="it is out of range", cure=cure)


def check_names(config: EngineConfig, host: PluginHost, platform: Platform) -> None:
    """Refuse every name that a child process could not resolve."""
    check_declared_choices(host)
    check_worker_class(config.parallel.worker_cls, host, platform)
    check_executor(config, host)
    if config.scheduler.scheduler_cls is not None:
        check_name_or_class("--scheduler-cls", config.scheduler.scheduler_cls, host.available(points.SCHEDULERS))
    backend = config.attention.attention_backend
    if backend is not None:
        names = [*BUILT_IN_ATTENTION_BACKENDS, *host.available(points.ATTENTION_BACKENDS)]
        check_name_or_class("--attention-backend", backend, names)
    method = config.model.quantization
    if method is not None:
        _check_effect(config, method)
        known = {*quantization_names(), *host.available(points.QUANTIZATION_METHODS)}
        if method not in known and method == quantization_of(config.model.hf_config):
            raise StartupError(
                f"the checkpoint {config.model.path} is quantized with {method!r}, which nothing provides "
                f"(there is {', '.join(sorted(known)) or 'no method at all'}); install a plugin that brings it, "
                "or serve the model's unquantized weights"
            )
        check_name("--quantization", method, known)
        _verify_quantization(platform, method)
    check_op_switches(config.compilation.custom_ops, host)
    note_unbound_ops(host)
    providers = {name.rpartition(".")[2] for name in host.available(points.OP_IMPLEMENTATIONS)}
    for provider in config.compilation.op_providers:
        check_name("--op-providers", provider, {*providers, "native"})


def check_worker_class(worker_cls: Any, host: PluginHost, platform: Platform) -> None:
    """Refuse a class object, an unset value, and a path at which no class is."""
    flag = "--worker-cls"
    if isinstance(worker_cls, type):
        path = f"{worker_cls.__module__}:{worker_cls.__qualname__}"
        raise InvalidOption(
            flag, worker_cls.__name__, problem="a class object does not reach the worker's process",
            cure=f"pass its path, {path!r}, and keep it in a module of its own",
        )  # fmt: skip
    if worker_cls in ("", "auto", None):
        raise InvalidOption(
            flag, worker_cls, problem=f"{type(platform).__name__} ({platform.device_name}) left it unset",
            cure="set config.parallel.worker_cls in its check_and_update_config, or give --worker-cls module:Class",
        )  # fmt: skip
    check_name_or_class(flag, worker_cls, host.available(points.WORKERS))


def check_executor(config: EngineConfig, host: PluginHost) -> None:
    flag, backend = "--distributed-executor-backend", config.parallel.distributed_executor_backend
    if backend is None:
        return
    names = [*BUILT_IN_EXECUTORS, *host.available(points.EXECUTORS)]
    check_name_or_class(flag, backend, names)
    workers = config.parallel.world_size
    if backend == "uni" and workers > 1:
        raise InvalidOption(
            flag,
            backend,
            problem=f"it holds one worker, and --tensor-parallel-size asks for {workers}",
            cure="use mp",
        )


def check_op_switches(switches: Iterable[str], host: PluginHost) -> None:
    """Refuse a wrong list of op switches: two base modes, a contradiction, an op that nobody has."""
    listed = list(switches)
    try:
        parse_switches(listed, known=op_names(host))
    except InvalidOpSwitch as error:
        raise ConfigError(str(error).replace("custom_ops=", "--custom-ops=", 1)) from None


def check_name(flag: str, value: Any, known: Iterable[str], *, what: str = "name") -> None:
    """Refuse a value that is not among `known`, with the nearest of them."""
    names = sorted(set(known))
    if value in names:
        return
    near = nearest_names(str(value), names)
    cure = f"did you mean {' or '.join(near)}?" if near else f"there is {', '.join(names)}"
    if not names:
        cure = "there is none yet; install a plugin that brings it"
    raise InvalidOption(flag, value, problem=f"nothing provides this {what}", cure=cure)


def check_name_or_class(flag: str, value: Any, known: Iterable[str]) -> None:
    """Accept a known name or a class path that exists."""
    names = list(known)
    if isinstance(value, str) and value not in names and looks_like_class_path(value):
        check_class_path(flag, value)
    else:
        check_name(flag, value, names)


def op_names(host: PluginHost) -> list[str]:
    """Switch names of graftlm's ops, of plugins' implementations, and of ops registered in this process."""
    provided = {name.rsplit(".", 1)[0] for name in host.available(points.OP_IMPLEMENTATIONS)}
    return sorted({*BUILT_IN_OPS, *provided, *_already_imported("graftlm.ops.custom_op", "op_names")})


def _already_imported(module: str, function: str) -> list[str]:
    """Ask a module that imports torch, but only where a plugin has imported it already."""
    loaded = sys.modules.get(module)
    names = getattr(loaded, function, None)
    return list(names()) if names is not None else []


def _check_effect(config: EngineConfig, method: str) -> None:
    """Refuse a method that another flag contradicts, or that the checkpoint has no weights for."""
    if method in KEEPS_BLOCKS and config.asked_by_user("model.dtype") == "float32":
        raise InvalidOption(
            "--quantization", method,
            problem="it keeps weights in blocks, and --dtype=float32 computes the reference, with all of them "
            "dequantized",
            cure="leave one of the two flags out",
        )  # fmt: skip
    if config.asked_by_user("model.quantization") == "gguf" and config.model.format == "safetensors":
        raise InvalidOption(
            "--quantization", method,
            problem=f"it keeps the blocks of a GGUF file, and {config.model.path} is safetensors",
            cure="leave the flag out, or quantize plain weights with q8_0 or q4_0",
        )  # fmt: skip


def _verify_quantization(platform: Platform, method: str) -> None:
    try:
        platform.verify_quantization(method)
    except ValueError as error:
        raise InvalidOption("--quantization", method, problem=str(error)) from error


def _value(config: EngineConfig, path: str) -> Any:
    section, field = path.split(".")
    return getattr(getattr(config, section), field)


def _flag(path: str) -> str:
    return next(option.flag for option in engine_options() if option.path == path)
