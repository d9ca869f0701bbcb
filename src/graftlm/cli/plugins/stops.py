"""Which of the sixteen stops in the life of a plugin an event of the ledger belongs to: the one table of them.

Stops 1 and 2 come before any process has a ledger; `graftlm plugins trace` tells them itself. The stops are
those of docs/architecture.md.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

TITLES: dict[int, str] = {
    1: "installing wrote entry points",
    2: "the command starts",
    3: "discovery, selection, detection of the platform",
    4: "general plugins run",
    5: "the platform extends the flags",
    6: "the architecture is resolved",
    7: "the configuration is decided",
    8: "stat loggers; the plan leaves for the engine core",
    9: "the engine core applies the plan",
    10: "each worker gets its plan",
    11: "workers apply the plan; kernels are replaced",
    12: "the worker class, the device, the communicator",
    13: "the model is built; attention asks for its backend",
    14: "layers are replaced",
    15: "ops choose what runs",
    16: "block size, ready",
}

FRONT_END, ENGINE_CORE = "front end", "engine core"

_EVENTS = {
    "discovered": 3, "selected": 3, "detector_called": 3, "platform_activated": 3,
    "model_resolved": 6, "checkpoint_read": 6, "architecture_resolved": 6, "config_stage": 7,
    "stat_logger_loaded": 8, "executor_chosen": 9, "role_taken": 10, "worker_class_resolved": 12,
    "communicator_built": 12, "attention_asked": 13, "kernel_replaced": 13, "kernel_unused": 13, "op_swapped": 14,
    "op_dispatched": 15, "op_refused": 15, "weights_kept": 15, "weights_plain": 15, "op_verified": 15,
    "block_size_decided": 16, "environment_frozen": 16, "ready": 16, "endpoint_attached": 16,
}  # fmt: skip

_HOOKS = {
    "pre_register_and_update": 5, "verify_model_arch": 6, "verify_quantization": 7,
    "apply_config_platform_defaults": 7, "check_and_update_config": 7, "register_triton_kernel_overrides": 11,
    "set_device": 12, "get_device_communicator_cls": 12, "get_attn_backend_cls": 13,
    "update_block_size_for_backend": 16, "get_available_memory": 16,
}  # fmt: skip

#: What is loaded, failed or registered belongs to the stop at which its extension point is used.
_POINTS = {
    "platform_plugins": 3, "model_sources": 6, "model_loaders": 6, "models": 6, "quantization_methods": 7,
    "stat_logger_plugins": 8, "executors": 10, "schedulers": 9, "workers": 12, "communicators": 12,
    "kernel_functions": 11, "attention_backends": 13, "custom_ops": 14, "custom_ops_with_subclasses": 14,
    "op_implementations": 15, "endpoint_plugins": 16, "core_routes": 16, "routes_without_key": 16,
    "lora_resolvers": 16, "logits_processors": 16,
}  # fmt: skip


def stop_of(process: str, event: str, facts: Mapping[str, Any]) -> int | None:
    """Return the stop that an event of `process` belongs to; None where it belongs to none."""
    match event:
        case "hook_called":
            return _HOOKS.get(str(facts.get("hook")))
        case "plan_sent":
            return 8 if process == FRONT_END else 10
        case "plan_applied" | "general_plugin_ran":
            return _general(process)
        case "registered":
            return _registered(process, facts)
        case "loaded" | "failed":
            return _by_point(process, str(facts.get("point")))
    return _EVENTS.get(event)


def _general(process: str) -> int | None:
    """General plugins run where a process comes to life: each kind of process has its own stop for that."""
    if process == FRONT_END:
        return 4
    if process == ENGINE_CORE:
        return 9
    return 11 if process.startswith("worker") else 6


def _registered(process: str, facts: Mapping[str, Any]) -> int | None:
    if facts.get("via") == "general":
        return _general(process)
    if facts.get("via") == "engine":
        return None  # the engine's own, on import
    if facts.get("via") == "hook":
        return 5
    return _by_point(process, str(facts.get("registry")))


def _by_point(process: str, point: str) -> int | None:
    if point == "general_plugins":
        return _general(process)
    if point in ("models", "quantization_methods") and process != FRONT_END:
        return 13 if process != "inspector" else 6
    return _POINTS.get(point)
