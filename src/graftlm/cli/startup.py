"""The first steps of every command that runs an engine: logging, selection, plugins, then the other flags.

The order is part of the design: nothing logs before logging is set up, no plugin runs before it is selected, and
flags are judged only after the platform could add to them.
"""

from __future__ import annotations

import argparse
import dataclasses
import logging
import os
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

from graftlm.cli.ahead import AHEAD_OPTIONS, start_children
from graftlm.config import environment
from graftlm.config.arguments import (
    ArgumentParser,
    Arguments,
    OpenChoices,
    UsageError,
    add_config_file_flag,
    add_options,
    read_arguments,
    read_selection,
    selection_options,
)
from graftlm.config.options import Option
from graftlm.processes.startup_trace import span

if TYPE_CHECKING:
    from graftlm.plugins.host import PluginHost
    from graftlm.plugins.selection import Selection

logger = logging.getLogger(__name__)


#: For commands whose answer says it all, but for what they wait for.
_QUIET = ("error", "graftlm.plugins.slow_calls=warning")


@dataclasses.dataclass(frozen=True)
class Started:
    """A command whose plugins have been bootstrapped and whose flags have been read."""

    host: PluginHost
    arguments: Arguments
    words: argparse.Namespace


def refuse_beside_url(words: argparse.Namespace, *, allowed: Sequence[str] = ()) -> None:
    """Raise UsageError for a flag that decides something, beside --url: the server has decided it."""
    useless = sorted(path.split(".")[1] for path in vars(words) if "." in path and path not in allowed)
    if useless:
        raise UsageError(
            f"--{useless[0].replace('_', '-')} has no effect with --url: that server is configured already"
        )


def make_parser(command: str, description: str, *, model_help: str | None = None) -> ArgumentParser:
    words = "[MODEL] [OPTION …]" if model_help else "[OPTION …]"
    parser = ArgumentParser(prog=f"graftlm {command}", description=description, usage=f"graftlm {command} {words}")
    if model_help is not None:
        parser.add_argument("model", nargs="?", metavar="MODEL", help=model_help)
    return parser


def add_engine_flags(parser: ArgumentParser, options: Sequence[Option]) -> None:
    """Add `--config` and a flag for each option, with the choices that need no plugin."""
    from graftlm.layers.quantization import quantization_names

    add_config_file_flag(parser)
    add_options(parser, options, choices={"model.quantization": quantization_names()})


def add_selection_flags(parser: ArgumentParser) -> None:
    """Add `--config` and the flags that choose plugins and logging: all that a command without an engine takes."""
    add_config_file_flag(parser)
    add_options(parser, selection_options())


def start_selection_command(
    build_parser: Callable[[], ArgumentParser],
    argv: Sequence[str],
    *,
    default_levels: Sequence[str] = ("error", "graftlm.plugins.slow_calls=warning"),
) -> tuple[Arguments, argparse.Namespace] | None:
    """Read the flags of `add_selection_flags` and the command's own, and set up logging; no plugin runs.

    Returns the selection and the other words, or None when `--help` was all that was wanted.
    """
    parser = build_parser()
    if show_help_if_asked(parser, argv):
        return None
    selection, words = read_arguments(parser, argv, options=selection_options())
    start_logging(selection, default_levels=default_levels)
    return selection, words


def show_help_if_asked(parser: argparse.ArgumentParser, argv: Sequence[str]) -> bool:
    """Print the help, with the names that installed plugins add to flags, and tell whether it was asked for.

    Names come from metadata and manifests: no plugin is imported.
    """
    before_dashes = list(argv)[: list(argv).index("--")] if "--" in argv else list(argv)
    if not {"-h", "--help"} & set(before_dashes):
        return False
    _add_installed_choices(parser)
    parser.print_help()
    return True


def _add_installed_choices(parser: argparse.ArgumentParser) -> None:
    from graftlm.engine.flag_choices import FLAGS, installed_choices

    actions = {action.dest: action for action in parser._actions if action.dest in FLAGS}
    if not actions:
        return
    from graftlm.contracts.points import ALL_POINTS
    from graftlm.plugins.discovery import discover

    for path, by_distribution in installed_choices(discover(ALL_POINTS)).items():
        if path in actions and by_distribution:
            said = "; ".join(f"{', '.join(names)} ({owner})" for owner, names in by_distribution.items())
            actions[path].help = f"{actions[path].help} Installed: {said}.".replace("%", "%%")
            _grow_choices(actions[path], [name for names in by_distribution.values() for name in names])


def _grow_choices(action: argparse.Action, names: Sequence[str]) -> None:
    """Show names as choices of a flag that has a list of them."""
    if isinstance(action.choices, OpenChoices):
        action.choices = OpenChoices(sorted({*action.choices, *names}))
        action.metavar = None


def start_logging(selection: Arguments, *, default_levels: Sequence[str] = ()) -> None:
    """Set up logging as the flags wish, then say what is odd about the environment."""
    from graftlm.processes.logs import configure_logging
    from graftlm.processes.threads import quiet_environment

    levels = selection.values.get("observability.log_level") or list(default_levels)
    with selection.naming_origins():
        configure_logging(levels, selection.values.get("observability.log_format", "text"), "front end")
    for name, value in quiet_environment().items():
        os.environ.setdefault(name, value)
    environment.warn_unknown()


def start_plugins(selection: Arguments, *, on_host: Callable[[PluginHost], None] | None = None) -> PluginHost:
    """Discover, select, detect the platform and run the general plugins, as the selection flags wish.

    `on_host` is given the host also when the start is refused later on.
    """
    from graftlm.engine.unbound_ops import note_unbound_ops
    from graftlm.platforms.bootstrap import bootstrap_frontend

    def given(field: str, default: Any) -> Any:
        return selection.values.get(f"plugins.{field}", default)

    with selection.naming_origins():
        host = bootstrap_frontend(
            selected_plugins(selection),
            platform=given("platform", None),
            allow_fallback=given("allow_platform_fallback", False),
            plugin_config=given("plugin_config", []),
            locked=given("plugins_locked", None),
            on_host=on_host,
        )
    note_unbound_ops(host)
    return host


def selected_plugins(arguments: Arguments) -> Selection:
    """Return which plugins the flags choose."""
    from graftlm.plugins.selection import Selection

    fields = ("plugins", "enable_plugin", "disable_plugin", "no_plugins")
    given = {f: arguments.values[f"plugins.{f}"] for f in fields if f"plugins.{f}" in arguments.values}
    return Selection(**given)


def start_engine_command(
    build_parser: Callable[[], ArgumentParser],
    argv: Sequence[str],
    *,
    options: Sequence[Option],
    default_levels: Sequence[str] = (),
    ahead: Callable[[Arguments], None] | None = None,
) -> Started | None:
    """Take the steps before configuration, in order; None when `--help` was all that was wanted.

    `ahead` is given what can be read before any plugin runs: the selection and `AHEAD_OPTIONS`.
    """
    parser = build_parser()
    if show_help_if_asked(parser, argv):
        return None
    parser.refuse_unknown_flags(argv)  # a platform may add choices, but no flag
    known = {option.path for option in options}
    selection = read_selection(argv, options=options, more=[o for o in AHEAD_OPTIONS if o.path in known])
    start_logging(selection, default_levels=default_levels)
    with selection.naming_origins():
        start_children(selection.values)
    if ahead is not None:
        ahead(selection)
    with span("choose plugins and platform"):
        host = start_plugins(selection)
    let_platform_extend(parser)
    arguments, words = read_arguments(parser, argv, options=options)
    return Started(host, arguments, words)


def let_platform_extend(parser: ArgumentParser) -> None:
    """Call the platform's hook once; it may add choices, and register what they name."""
    from graftlm.layers.quantization import quantization_names
    from graftlm.platforms import current_platform
    from graftlm.platforms.hooks import call_hook

    flags = set(parser.flags())
    call_hook("pre_register_and_update", parser)
    for action in parser._actions:
        if action.dest == "model.quantization":
            _grow_choices(action, quantization_names())
    added = sorted(set(parser.flags()) - flags)
    if added:
        raise UsageError(
            f"the platform {current_platform.device_name} added {', '.join(added)} in pre_register_and_update, and "
            "nothing would read it; a plugin adds choices there, its own settings come as --plugin-config"
        )
