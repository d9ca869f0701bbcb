"""Builds and fills a model in a warm parent, before any process that will use it exists.

What it leaves behind is the model alone: no plan, no platform, no thread. It runs no plugin code.
"""

from __future__ import annotations

import dataclasses
import sys
from typing import Any

import msgspec
import torch

from graftlm.config.engine_config import EngineConfig
from graftlm.contracts.errors import StartupError
from graftlm.models.held_model import HeldModel, checkpoint_files, decisions, hold
from graftlm.models.hold_order import HoldOrder
from graftlm.models.loader import build_model, fill_model
from graftlm.platforms.bootstrap import apply_plan_in_child
from graftlm.platforms.current import resolve_current_platform
from graftlm.plugins import current_host
from graftlm.plugins.current import hold_host


def reading_the_weights(payload: bytes) -> str:
    """Hold the model of an order, on the CPU; returns what is held, for people."""
    order = msgspec.msgpack.decode(payload, type=HoldOrder)
    config = EngineConfig.from_bytes(order.config)
    apply_plan_in_child(order.plan)
    host, platform = current_host(), resolve_current_platform()
    before = checkpoint_files(config.model.path)
    torch.set_num_threads(1)  # more would start a pool, which no fork survives; children have their own count
    alone = dataclasses.replace(config, parallel=dataclasses.replace(config.parallel, threads_per_worker=1))
    events = host.ledger.events
    start = len(events)
    model = build_model(alone, torch.device("cpu"))
    built = len(events)
    fill_model(model, alone)
    held = HeldModel(
        model=model, config=config, files=before, built=decisions(events[start:built]),
        filled=decisions(events[built:]),
    )  # fmt: skip
    if checkpoint_files(config.model.path) != before:
        raise StartupError(f"the checkpoint {config.model.path!r} was changed while it was read; start again")
    hold_host(None)
    _check_left_behind(host, platform)
    hold(held)
    return f"the weights of {config.model.model}"


def _check_left_behind(*objects: Any) -> None:
    """Raise if a module kept what each process must ask for itself: a child would ask its parent's."""
    identities = set(map(id, objects))
    keepers = sorted(
        f"{name}.{attribute}"
        for name, module in list(sys.modules.items())
        for attribute, value in list(getattr(module, "__dict__", {}).items())
        if id(value) in identities
    )
    if keepers:
        raise RuntimeError(f"the plan of a warm parent stayed behind in {', '.join(keepers)}")
