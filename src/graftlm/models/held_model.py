"""A model that was built and filled before this process was forked, and whether it is the one wanted now.

`held_by_parent.py` puts it here, in a warm parent. It is taken only where building it anew gave the very same
decisions and no code but the engine's own has run: otherwise the weights are read as always, and the log says why.
"""

from __future__ import annotations

import dataclasses
import json
import logging
import os
import sys
from collections.abc import Iterable
from pathlib import Path
from typing import TYPE_CHECKING, Any

from torch import nn

from graftlm.plugins import find_host

if TYPE_CHECKING:
    from graftlm.config.engine_config import EngineConfig
    from graftlm.plugins.host import PluginHost
    from graftlm.plugins.ledger import LedgerEvent

logger = logging.getLogger(__name__)

#: What no model can depend on; every other value of the configuration must be as it was.
_OTHER_SECTIONS = ("observability", "plugins", "scheduler")
_OTHER_VALUES = frozenset({
    "cache.block_size", "cache.enable_prefix_caching", "cache.kv_cache_memory_bytes", "cache.memory_utilization",
    "cache.num_blocks", "model.chat_template", "model.load_format", "model.model", "model.path", "model.revision",
    "model.seed", "model.served_model_name", "model.tokenizer", "parallel.distributed_executor_backend",
    "parallel.distributed_init_method", "parallel.preload", "parallel.start_method", "parallel.threads_per_worker",
})  # fmt: skip

Decision = tuple[str, str | None, str, int]
"""An event of the ledger without its times: name, plugin, facts as JSON, count."""


@dataclasses.dataclass(frozen=True)
class HeldModel:
    """What a warm parent prepared, and all that it depends on."""

    model: nn.Module
    config: EngineConfig
    files: dict[str, tuple[int, ...]]
    built: list[Decision]
    """What building it wrote into the ledger."""
    filled: list[Decision]
    """What reading its weights wrote into the ledger."""


class _Differs(Exception):
    """The held model is not the wanted one; the text says why."""


_held: HeldModel | None = None


def hold(held: HeldModel) -> None:
    """Keep a model for the processes that are forked from this one."""
    global _held
    _held = held


def number_of_events() -> int:
    """Return how many events the ledger has, for `take_held_model`; 0 without a plugin host."""
    host = find_host()
    return len(host.ledger.events) if host is not None else 0


def take_held_model(config: EngineConfig, built: nn.Module, *, since: int) -> nn.Module | None:
    """Return the held model, filled, if it is what `built` would become; the ledger is as if `built` were filled.

    `since` is the number of events before `built` was built. Once asked, no model is held any more.
    """
    global _held
    held, _held = _held, None
    host = find_host()
    if held is None or host is None:
        return None
    try:
        _check_code(host)
        _check_config(held.config, config)
        _check_files(held.files, config.model.path)
        _check_build(held, built, host.ledger.events[since:])
        _repeat(held.filled, host)
    except _Differs as difference:
        logger.info("weights are read here, those of the warm parent do not fit: %s", difference)
        return None
    logger.info("weights are those of the warm parent")
    return held.model


def decisions(events: Iterable[LedgerEvent]) -> list[Decision]:
    """Reduce events to what must be equal for two builds to be."""
    return [
        (e.event, e.plugin, json.dumps({k: v for k, v in e.facts.items() if k != "ms"}, sort_keys=True), e.count)
        for e in events
    ]


def checkpoint_files(path: str) -> dict[str, tuple[int, ...]]:
    """Return what tells whether the files of a checkpoint are still the same; all of a directory's count."""
    place = Path(path)
    files = sorted(f for f in place.iterdir() if f.is_file()) if place.is_dir() else [place]
    found = {os.path.realpath(file): file.stat() for file in files}
    return {name: (s.st_mtime_ns, s.st_ctime_ns, s.st_size, s.st_ino) for name, s in found.items()}


def _check_code(host: PluginHost) -> None:
    """Refuse a process in which anybody else's code may have changed how a model is built or filled."""
    active = [
        p.description
        for p in host.enabled_plugins
        if not p.built_in and (p.identity in host.outcomes or p.package in sys.modules)
    ]
    if active:
        raise _Differs(f"plugin code takes part: {', '.join(active)}")
    if host.plan.replays:
        owners = ", ".join(sorted({replay.owner for replay in host.plan.replays}))
        raise _Differs(f"there are registrations of {owners}")


def _check_config(held: EngineConfig, config: EngineConfig) -> None:
    ours = config.sections()
    for section, theirs in held.sections().items():
        for field, before in theirs.values().items():
            path, now = f"{section}.{field}", getattr(ours[section], field)
            if section not in _OTHER_SECTIONS and path not in _OTHER_VALUES and now != before:
                raise _Differs(f"{path} was {_shown(before)} and is {_shown(now)}")


def _check_files(held: dict[str, tuple[int, ...]], path: str) -> None:
    now = checkpoint_files(path)
    if now.keys() != held.keys():
        other = sorted(now.keys() ^ held.keys())
        raise _Differs(f"the checkpoint has other files ({', '.join(other[:3])})")
    if changed := [name for name in now if now[name] != held[name]]:
        raise _Differs(f"{', '.join(changed[:3])} has changed")


def _check_build(held: HeldModel, built: nn.Module, events: Iterable[LedgerEvent]) -> None:
    now = decisions(events)
    for theirs, ours in zip(held.built, now, strict=False):
        if theirs != ours:
            raise _Differs(
                f"it was built otherwise: {' '.join(map(str, theirs))} is now {' '.join(map(str, ours))}"
            )
    if len(held.built) != len(now):
        raise _Differs(f"{len(held.built)} decisions built it, and {len(now)} build this one")
    for (name, theirs), (_, ours) in zip(_modules(held.model), _modules(built), strict=False):
        if theirs != ours:
            raise _Differs(f"{name or 'the model'} was {theirs} and is {ours}")


def _modules(model: nn.Module) -> list[tuple[str, Any]]:
    return [(f"{name}", type(module)) for name, module in model.named_modules()]


def _repeat(filled: list[Decision], host: PluginHost) -> None:
    """Load what reading the weights would have loaded, so that ledger and outcomes tell the same."""
    since = len(host.ledger.events)
    for event, plugin, facts, _ in filled:
        point = json.loads(facts).get("point")
        named = [p for p in host.enabled_plugins if (p.point, p.label) == (point, plugin)]
        if event != "loaded" or len(named) != 1:
            raise _Differs(f"reading its weights recorded {event} {plugin or ''}".rstrip())
        host.load_plugin(named[0])
    if decisions(host.ledger.events[since:]) != filled:
        raise _Differs("its weights were read with other plugins")


def _shown(value: Any) -> str:
    text = repr(value)
    return text if len(text) <= 60 else f"{text[:60]}…"
