"""`graftlm plugins`: what is installed, why it does what it does, and how to write more of it.

It only chooses the sub-command; without one it lists. Each is a module of this package, imported when it is chosen.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING

from graftlm.cli.subcommands import with_hint
from graftlm.config.arguments import ArgumentParser, UsageError
from graftlm.plugins.spelling import nearest_names

if TYPE_CHECKING:
    from graftlm.processes.shutdown import ShutdownRequest

#: Name → module of this package and what it does. A module has `build_parser()` and `run(argv, *, shutdown)`.
SUBCOMMANDS = {
    "list": ("listing", "List every installed plugin, its state and why (the default)."),
    "explain": ("explain", "Say who provides something, who else asked for it, and why not they."),
    "trace": ("trace", "Run a command and show the sixteen stops of its plugins, live, from every process."),
    "doctor": ("doctor", "Import and check every installed plugin in a process of its own."),
    "new": ("new", "Write a working, tested plugin package."),
    "test": ("conformance", "Run the conformance suites of everything that a plugin package declares."),
    "lock": ("lock", "Write names, versions and file hashes of the enabled plugins to a file."),
    "bisect": ("bisect", "Run a command again and again until the plugin that breaks it is named."),
}


def build_parser() -> ArgumentParser:
    """Return the parser of the list, which is what `graftlm plugins` without a sub-command takes."""
    from graftlm.cli.plugins.listing import build_parser as build_list_parser

    parser = build_list_parser()
    parser.usage = "graftlm plugins [SUBCOMMAND] [OPTION …]"
    return parser


def help_text() -> str:
    """Name the sub-commands, then the flags of the list."""
    width = max(map(len, SUBCOMMANDS))
    lines = [f"  {name:<{width}}  {text}" for name, (_, text) in SUBCOMMANDS.items()]
    usage, _, flags = build_parser().format_help().partition("\n\n")
    return "\n".join([usage, "", "sub-commands:", *lines, "", flags])


def load_subcommand(name: str) -> object:
    """Import the module of a sub-command."""
    return importlib.import_module(f"graftlm.cli.plugins.{SUBCOMMANDS[name][0]}")


def run(argv: list[str], *, shutdown: ShutdownRequest) -> int:
    match argv:
        case ["-h" | "--help", *_]:
            print(help_text())
            return 0
        case [name, *rest] if name in SUBCOMMANDS:
            pass
        case [word, *_] if not word.startswith("-"):
            near = nearest_names(word, SUBCOMMANDS, most=2)
            cure = f"did you mean {' or '.join(near)}?" if near else f"there are {', '.join(SUBCOMMANDS)}"
            raise UsageError(f"unknown sub-command {word!r}; {cure}")
        case _:
            name, rest = "list", argv
    try:
        code: int = load_subcommand(name).run(rest, shutdown=shutdown)  # type: ignore[attr-defined]
    except UsageError as error:
        raise with_hint(error, command="plugins", name=name, siblings=SUBCOMMANDS, load=load_subcommand) from None
    return code
