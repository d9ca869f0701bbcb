"""`graftlm plugins bisect -- COMMAND`: runs a command without some plugins until the one that breaks it is named.

A run works when the command ends with code 0, or when its server is ready. It knows nothing of what went wrong.
"""

from __future__ import annotations

import json
import os
import tempfile
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from graftlm.cli.plugins.command_run import CommandRun, split_command
from graftlm.cli.plugins.stops import FRONT_END
from graftlm.cli.startup import make_parser, show_help_if_asked
from graftlm.config.arguments import ArgumentParser, UsageError, read_selection
from graftlm.contracts.errors import GraftlmError
from graftlm.contracts.points import ALL_POINTS
from graftlm.plugins.discovery import discover
from graftlm.plugins.plugin import Plugin

if TYPE_CHECKING:
    from graftlm.processes.shutdown import ShutdownRequest

#: Tells whether the command works without these plugins.
Works = Callable[[Sequence[Plugin]], bool]


class NothingToFind(GraftlmError):
    """The plugins are not what breaks the command, as far as they can be disabled."""


def build_parser() -> ArgumentParser:
    parser = make_parser("plugins bisect", "Run a command until the plugin that breaks it is named.")
    parser.usage = "graftlm plugins bisect [OPTION …] -- serve MODEL [OPTION …]"
    parser.add_argument("--json", action="store_true", help="Print JSON at the end instead of text.")
    parser.add_argument(
        "--timeout", type=float, default=600.0, metavar="SECONDS",
        help="A run that takes longer has failed (default: 600).",
    )  # fmt: skip
    return parser


def run(argv: list[str], *, shutdown: ShutdownRequest) -> int:
    parser = build_parser()
    if show_help_if_asked(parser, argv):
        return 0
    flags, command = split_command(argv, example="graftlm plugins bisect -- serve demo")
    words = parser.parse_strictly(flags)
    if words.timeout <= 0:
        raise UsageError(f"--timeout={words.timeout:g}: use a time above 0")
    suspects = suspects_of(command)
    if not suspects:
        raise NothingToFind("no plugin is installed that could be disabled; the command is broken by itself")
    trial = _Trial(command, shutdown=shutdown, timeout_s=words.timeout, quiet=words.json)
    culprits = bisect(suspects, trial)
    if words.json:
        found = [{"point": p.point, "plugin": p.label, "version": p.version, "target": p.value} for p in culprits]
        print(json.dumps({"culprits": found, "runs": trial.runs}, indent=2, ensure_ascii=False))
        return 0
    for plugin in culprits:
        print(f"{plugin.label} {plugin.version} ({plugin.point}) breaks it: {trial.first_words}")
        print(
            f"  leave it out with --disable-plugin {plugin.identity}, or update or uninstall {plugin.distribution}"
        )
    return 0


def suspects_of(command: Sequence[str]) -> list[Plugin]:
    """Return the plugins that may be disabled: all that are not the engine's own, nor named by the command."""
    given = read_selection(command).values
    named = [*(given.get("plugins.plugins") or []), *given.get("plugins.enable_plugin", [])]
    off = given.get("plugins.disable_plugin", [])
    bare = {name.partition("=")[2] or name for name in (*named, *off)}
    return [
        plugin
        for plugin in discover(ALL_POINTS).plugins
        if not plugin.built_in and not plugin.opt_in and not any(plugin.answers_to(name) for name in bare)
    ]


def bisect(suspects: Sequence[Plugin], works: Works) -> list[Plugin]:
    """Return the plugins without which the command works; each is found by halving the suspects."""
    if works([]):
        raise NothingToFind("the command works with all plugins; there is nothing to find")
    if not works(suspects):
        raise NothingToFind("the command fails without the plugins, too; those that it names itself were left on")
    culprits: list[Plugin] = []
    while not culprits or (len(culprits) < len(suspects) and not works(culprits)):
        rest = [plugin for plugin in suspects if plugin not in culprits]
        fails, holds = 0, len(rest)  # without the first `fails` it fails, without the first `holds` it works
        while holds - fails > 1:
            middle = (fails + holds) // 2
            if works([*culprits, *rest[:middle]]):
                holds = middle
            else:
                fails = middle
        culprits.append(rest[holds - 1])
    return culprits


class _Trial:
    """Runs the command without some plugins, and tells what came of it."""

    def __init__(self, command: Sequence[str], *, shutdown: ShutdownRequest, timeout_s: float, quiet: bool) -> None:
        self.runs: list[dict[str, Any]] = []
        self.first_words = ""
        self._command = list(command)
        self._is_ours = "graftlm" in command[:4]
        self._shutdown = shutdown
        self._timeout_s = timeout_s
        self._quiet = quiet

    def __call__(self, without: Sequence[Plugin]) -> bool:
        names = ",".join(plugin.identity for plugin in without)
        with tempfile.TemporaryDirectory(prefix="graftlm-bisect-") as folder:
            output = Path(folder) / "output"
            started = time.monotonic()
            works, how = self._run(names, output)
            last = output.read_text(errors="replace").strip().splitlines()[-1:] or [""]
        self._shutdown.raise_if_requested()
        self.first_words = self.first_words or ("" if works else f"{how}: {last[0]}")
        self.runs.append(
            {"without": [p.identity for p in without], "works": works, "how": how, "last_line": last[0],
             "seconds": round(time.monotonic() - started, 1)}
        )  # fmt: skip
        if not self._quiet:
            what = f"without {', '.join(p.label for p in without)}" if without else "with all plugins"
            print(f"run {len(self.runs)}: {what}: {'works' if works else 'fails'} ({how})", flush=True)
        return works

    def _run(self, names: str, output: Path) -> tuple[bool, str]:
        command, env = self._command, {}
        if names and self._is_ours:
            command = [*command, "--disable-plugin", names]
        elif names:
            before = os.environ.get("GRAFTLM_DISABLE_PLUGIN")
            env = {"GRAFTLM_DISABLE_PLUGIN": ",".join(filter(None, [before, names]))}
        deadline = time.monotonic() + self._timeout_s
        with (
            output.open("wb") as stream,
            CommandRun(command, shutdown=self._shutdown, env=env, output=stream, deadline=deadline) as trial,
        ):
            for line in trial.lines():
                if line.process == FRONT_END and line.event.event == "ready":
                    return True, "ready"
        if trial.timed_out:
            return False, f"more than {self._timeout_s:g} s"
        return trial.code == 0, f"exit code {trial.code}"
