"""`graftlm preload MODEL`: a warm parent in the background, from which `serve` and `run` take their processes.

It resolves the configuration as they do, but with no plugin: what a plugin has a part in, they do themselves.
"""

from __future__ import annotations

import argparse
import dataclasses
import json
import os
import re
import sys
from pathlib import Path
from typing import TYPE_CHECKING

import msgspec

from graftlm.cli.preload_report import as_text, describe_parents
from graftlm.cli.startup import (
    add_engine_flags,
    let_platform_extend,
    make_parser,
    show_help_if_asked,
    start_logging,
    start_plugins,
)
from graftlm.config.arguments import ArgumentParser, Arguments, read_arguments, read_selection
from graftlm.config.errors import ConfigError, InvalidOption
from graftlm.config.options import engine_options, server_options
from graftlm.contracts.errors import GraftlmError, StartupError
from graftlm.models.cache_folder import locked
from graftlm.plugins.errors import PluginError
from graftlm.processes.child import Order
from graftlm.processes.logs import LogSettings
from graftlm.processes.threads import thread_environment
from graftlm.processes.warm.circumstances import circumstances
from graftlm.processes.warm.client import WarmParentAddress, find_warm_parents
from graftlm.processes.warm.parent import WarmOrder
from graftlm.processes.warm.place import Record, check_room, key_of, log_path, make_private, warm_folder
from graftlm.processes.warm.starting import Launched, start_warm_parent

if TYPE_CHECKING:
    from graftlm.config.engine_config import EngineConfig
    from graftlm.plugins.host import PluginHost
    from graftlm.processes.shutdown import ShutdownRequest

#: With the server's, so that a command line or a file of `serve` can be given as it is.
OPTIONS = (*engine_options(), *server_options())

#: What a child of ours imports anyway; nothing here asks for the platform while it is imported.
MODULES = (
    "torch", "graftlm.models.held_by_parent", "graftlm.ops.sampling", "graftlm.worker.model_runner",
    "graftlm.engine.core_process", "graftlm.executor.uni", "graftlm.executor.worker_process",
)  # fmt: skip

_UNITS = {"": 1, "s": 1, "m": 60, "h": 3600, "d": 86400}
_SHORTEST_S, _LONGEST_S = 1, 30 * 86400


def build_parser() -> ArgumentParser:
    parser = make_parser(
        "preload",
        "Keep a process warm that has torch, the kernels and a model's weights in memory, and no plugin code. "
        "`serve` and `run` with the same flags take their processes from it; what has changed since is noticed.",
        model_help="Model to hold, as for serve (default: demo); with --status, --stop: only this (default: all).",
    )
    what = parser.add_mutually_exclusive_group()
    what.add_argument("--status", action="store_true", help="Show the warm parents of this user.")
    what.add_argument("--stop", action="store_true", help="End them; servers that they started go on.")
    what.add_argument("--foreground", action="store_true", help="Stay, and end the warm parent with this command.")
    parser.add_argument(
        "--time-limit", metavar="TIME", default="8h",
        help="End after this time in which nobody took a process, such as 90s, 30m or 8h (default: 8h).",
    )  # fmt: skip
    parser.add_argument("--json", action="store_true", help="Print JSON instead of text.")
    add_engine_flags(parser, OPTIONS)
    for group in parser._action_groups:
        if group.title == "server":
            group.description = "Taken as `serve` takes them, and of no effect here"
    return parser


def run(argv: list[str], *, shutdown: ShutdownRequest) -> int:
    parser = build_parser()
    if show_help_if_asked(parser, argv):
        return 0
    if sys.platform != "linux":
        raise StartupError("`graftlm preload` forks processes and hands them over, for which it needs Linux")
    selection = read_selection(argv, options=OPTIONS)
    start_logging(selection, default_levels=["warning"])
    words = parser.parse_known_args(argv)[0]
    if words.status or words.stop:
        words = parser.parse_strictly(argv)
        return _show(words) if words.status else _stop(words)
    return _start(parser, argv, selection, shutdown=shutdown)


def _show(words: argparse.Namespace) -> int:
    described = describe_parents(_chosen(words.model))
    print(json.dumps(described, indent=2) if words.json else as_text(described))
    return 0


def _stop(words: argparse.Namespace) -> int:
    chosen = _chosen(words.model)
    for parent in chosen:
        parent.stop()
        if not words.json:
            print(f"the warm parent {parent.record.pid} of {parent.record.model} has ended")
    if words.json:
        print(json.dumps([{"pid": p.record.pid, "model": p.record.model} for p in chosen], indent=2))
    elif not chosen:
        print(f"there is no warm parent{f' of {words.model}' if words.model else ''}", file=sys.stderr)
    return 0 if chosen or words.model is None else 1


def _chosen(model: str | None) -> list[WarmParentAddress]:
    """Return the parents of a model, by its name or its path; of every one if none is given."""
    parents = find_warm_parents(on_problem=_complain, on_foreign=_tell_foreign)
    if model is None:
        return parents
    return [p for p in parents if model == p.record.model or os.path.realpath(model) == p.record.checkpoint]


def _tell_foreign(record: Record) -> None:
    print(
        f"graftlm preload: left alone: the warm parent {record.pid} of {record.model} is another container's or "
        f"machine's, or from before a restart; if nobody has it any more, remove {warm_folder() / record.key}.*",
        file=sys.stderr,
    )


def _complain(problem: str) -> None:
    raise StartupError(f"{problem}; set GRAFTLM_PRELOAD_DIR to a folder of your own")


@dataclasses.dataclass(frozen=True)
class _Wish:
    """What a parent is to prepare; `note` says why it holds no weights, if it does not."""

    model: str
    checkpoint: str
    modules: list[str]
    left_out_by: dict[str, str] = dataclasses.field(default_factory=dict)
    calls: list[Order] = dataclasses.field(default_factory=list)
    note: str = ""


def _start(parser: ArgumentParser, argv: list[str], selection: Arguments, *, shutdown: ShutdownRequest) -> int:
    parser.refuse_unknown_flags(argv)  # no plugin adds any
    wish, words = _resolve(parser, argv, selection)
    folder = warm_folder()
    make_private(folder)
    key = key_of(wish.checkpoint)
    check_room(folder, key)
    with locked(folder / f"{key}.lock"):  # another command for this checkpoint is waited for, then replaced
        launched = _launch(wish, words, folder=folder, key=key)
    try:
        if wish.note:
            print(f"graftlm preload: the weights are not held: {wish.note}", file=sys.stderr)
        described = describe_parents([p for p in find_warm_parents() if p.record.key == key])
        print(json.dumps(described, indent=2) if words.json else as_text(described), flush=True)
        if words.foreground:
            return _stay(launched, shutdown)
        hint = f"`graftlm preload --stop` ends it; log: {log_path(folder, key)}"
        print(f"graftlm preload: {hint}", file=sys.stderr)
        return 0
    finally:
        launched.let_go()


def _launch(wish: _Wish, words: argparse.Namespace, *, folder: Path, key: str) -> Launched:
    """Start a parent in place of another one of this checkpoint, and wait until it is ready."""
    for parent in find_warm_parents(on_problem=_complain):
        if parent.record.key == key:
            print(f"the warm parent {parent.record.pid} of {parent.record.model} is replaced", file=sys.stderr)
            parent.stop()
    environment = {**os.environ, **thread_environment(1, 1)}
    order = WarmOrder(
        key=key, folder=str(folder.resolve()), model=wish.model, checkpoint=wish.checkpoint, modules=wish.modules,
        left_out_by=wish.left_out_by, calls=wish.calls, circumstances=circumstances(environment),
        time_limit_s=_seconds(words.time_limit), foreground=words.foreground, log=LogSettings(levels=["info"]),
    )  # fmt: skip
    launched = start_warm_parent(order, environment=environment)
    try:
        launched.wait_ready(lambda text: print(f"graftlm preload: {text}", file=sys.stderr, flush=True))
    except BaseException:
        launched.let_go()
        raise
    return launched


def _stay(launched: Launched, shutdown: ShutdownRequest) -> int:
    shutdown.add_callback(launched.let_go)
    try:
        return launched.process.wait()
    finally:
        shutdown.remove_callback(launched.let_go)


def _resolve(parser: ArgumentParser, argv: list[str], selection: Arguments) -> tuple[_Wish, argparse.Namespace]:
    """Configure as `serve` would if no plugin were installed; without weights where that cannot be done."""
    words = parser.parse_known_args(argv)[0]
    _seconds(words.time_limit)
    kept = {path: v for path, v in selection.values.items() if not path.startswith("plugins.")}
    if disabled := selection.values.get("plugins.disable_plugin"):
        kept["plugins.disable_plugin"] = disabled
    if platform := selection.values.get("plugins.platform"):
        kept["plugins.platform"] = platform
    try:
        host = start_plugins(Arguments({**kept, "plugins.no_plugins": True}, selection.origins))
        let_platform_extend(parser)
        arguments, words = read_arguments(parser, argv, options=OPTIONS)
        from graftlm.engine.configure import configure

        with arguments.naming_origins():
            config = configure(arguments.engine_config(), host)
    except (ConfigError, PluginError, GraftlmError) as error:
        if not _has_plugins():
            raise
        model = words.model or getattr(words, "model.model", None) or "demo"
        return _Wish(model, os.path.realpath(model), list(MODULES), note=f"without plugins, {error}"), words
    return _wish_of(config, host), words


def _wish_of(config: EngineConfig, host: PluginHost) -> _Wish:
    from graftlm.platforms import current_platform

    kernels = [plugin for plugin in host.enabled_plugins if plugin.package == "graftlm_kernels"]
    flags = {p.value.partition(":")[0]: f"--disable-plugin {p.left_out_by}" for p in kernels}
    wish = _Wish(config.model.model, os.path.realpath(config.model.path), [*MODULES, *sorted(flags)], flags)
    if current_platform.device_type != "cpu":
        return dataclasses.replace(wish, note=f"no fork survives what {current_platform.device_name} keeps")
    if config.parallel.world_size > 1:
        return dataclasses.replace(wish, note=f"each of {config.parallel.world_size} workers reads its own share")
    from graftlm.models.hold_order import HoldOrder
    from graftlm.platforms.bootstrap import child_payload

    plan = child_payload(host, role="worker", process="warm parent")
    order = HoldOrder(plan=plan, config=config.to_bytes())
    call = Order(
        function="graftlm.models.held_by_parent:reading_the_weights", payload=msgspec.msgpack.encode(order)
    )
    return dataclasses.replace(wish, calls=[call])


def _has_plugins() -> bool:
    from graftlm.contracts.points import ALL_POINTS
    from graftlm.plugins.discovery import discover

    return any(not plugin.built_in for plugin in discover(ALL_POINTS).plugins)


def _seconds(text: str) -> float:
    """Convert '90s', '30m', '8h' or a number of seconds; raises InvalidOption."""
    match = re.fullmatch(r"(\d+(?:\.\d+)?)([smhd]?)", text.strip())
    seconds = float(match[1]) * _UNITS[match[2]] if match else 0.0
    if not _SHORTEST_S <= seconds <= _LONGEST_S:
        raise InvalidOption(
            "--time-limit", text, problem="it is no such time", cure="use 90s, 30m, 8h; from 1s to 30d"
        )
    return seconds
