"""The helper process of `graftlm plugins doctor`: examines each plugin in a fork of its own.

Run as `python -m graftlm.cli.plugins.examiner` with a msgpack request on stdin; it writes a verdict on each line. A
fork that crashes or hangs takes nobody with it.
"""

from __future__ import annotations

import builtins
import os
import select
import signal
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from typing import Any

import msgspec

from graftlm.cli.plugins.left_running import end_processes, warnings_of_leftovers
from graftlm.cli.plugins.type_checks import type_problem
from graftlm.contracts.points import ALL_POINTS, GENERAL_PLUGINS, LORA_RESOLVERS, PLATFORM_PLUGINS
from graftlm.plugins import PluginFailed, Role
from graftlm.plugins.host import PluginHost
from graftlm.plugins.plan import PlatformChoice, PluginPlan
from graftlm.plugins.plugin import Plugin
from graftlm.plugins.spelling import error_text
from graftlm.processes.exit_guard import guard_exits
from graftlm.processes.failure import describe_exit

#: Points whose targets the front end or the engine core import, which do without torch.
_TORCH_FREE = frozenset(
    {"platform_plugins", "general_plugins", "stat_logger_plugins", "endpoint_plugins", "model_loaders",
     "model_sources", "lora_resolvers", "executors", "schedulers", "io_processor_plugins"}
)  # fmt: skip

_TORCH_FREE_ROLES = frozenset({Role.FRONTEND.value, Role.ENGINE.value})


class ExamineRequest(msgspec.Struct, kw_only=True):
    """Whom to examine, each for at most `timeout_s` seconds; `platform` is that of the machine."""

    plugins: list[Plugin]
    platform: PlatformChoice
    settings: dict[str, dict[str, Any]] = {}
    timeout_s: float = 60.0


class Verdict(msgspec.Struct, kw_only=True):
    """What was found out about one plugin: `broken` must be cured, `warnings` should."""

    plugin: str
    broken: list[str] = []
    warnings: list[str] = []
    answer: str = ""
    import_ms: float | None = None
    torch_ms: float | None = None


def main() -> int:
    request = msgspec.msgpack.decode(sys.stdin.buffer.read(), type=ExamineRequest)
    answers = os.dup(1)
    os.dup2(2, 1)  # what plugins print must not get into the verdicts
    for plugin in request.plugins:
        verdict = in_a_fork(plugin, request, answers=answers)
        os.write(answers, msgspec.json.encode(verdict) + b"\n")
    return 0


def in_a_fork(plugin: Plugin, request: ExamineRequest, *, answers: int) -> Verdict:
    """Examine one plugin in a copy of this process, which holds neither torch nor any plugin yet.

    The copy has no hold on `answers`, the descriptor that verdicts are written to.
    """
    reader, writer = os.pipe()
    pid = os.fork()
    if pid == 0:
        code = 1
        try:
            os.setpgid(0, 0)
            os.close(answers)
            os.write(writer, msgspec.json.encode(examine(plugin, request)) + b"\n")
            end_processes()
            code = 0
        finally:
            os._exit(code)
    os.close(writer)
    deadline = time.monotonic() + request.timeout_s
    data = b""
    late = False
    while not data.endswith(b"\n"):  # what the plugin left running may hold the pipe for ever
        ready, _, _ = select.select([reader], [], [], max(0.0, deadline - time.monotonic()))
        if not ready:
            late = True
            break
        if not (piece := os.read(reader, 1 << 16)):
            break
        data += piece
    os.close(reader)
    status = _reap(pid, at_once=late)
    if late:
        return Verdict(plugin=plugin.identity, broken=[f"it took more than {request.timeout_s:g} s"])
    try:
        return msgspec.json.decode(data, type=Verdict)
    except msgspec.MsgspecError:
        return Verdict(plugin=plugin.identity, broken=[f"the process that examined it {_end(status)}"])


def _reap(pid: int, *, at_once: bool) -> int:
    """Return how a fork ended; what it started in its process group ends with it."""
    if at_once:
        os.kill(pid, signal.SIGKILL)
    _, status = os.waitpid(pid, 0)
    with suppress(ProcessLookupError, PermissionError):
        os.killpg(pid, signal.SIGKILL)
    return status


def _end(status: int) -> str:
    return describe_exit(os.waitstatus_to_exitcode(status)).partition(" (")[0]


def examine(plugin: Plugin, request: ExamineRequest) -> Verdict:
    """Import and check one plugin, as the one plugin of a process with every role."""
    verdict = Verdict(plugin=plugin.identity)
    named = msgspec.structs.replace(plugin, named=True)
    plan = PluginPlan(entries=(named,), platform=request.platform, settings=request.settings)
    host = PluginHost(ALL_POINTS, role=Role.INSPECTOR, process="doctor", plan=plan)
    host.roles = set(Role)
    host.install()
    guard_exits()
    with torch_clock() as clock:
        try:
            _check(host, named, verdict)
        except SystemExit as error:
            verdict.broken.append(f"it ends the process with {error.code!r}")
        except PluginFailed as error:
            cause = error.__cause__ or error
            verdict.broken.append(f"{error.phase} raised {error_text(cause)}")
        except (Exception, KeyboardInterrupt) as error:
            verdict.broken.append(error_text(error))
    _judge_torch(named, verdict, clock["ms"])
    verdict.warnings += warnings_of_leftovers()
    return verdict


def _check(host: PluginHost, plugin: Plugin, verdict: Verdict) -> None:
    if plugin.point == LORA_RESOLVERS.name:
        host.freeze()  # it is imported after READY, when registries are closed
    if plugin.point == GENERAL_PLUGINS.name:
        host.run_general_plugins()  # imports it too
    found = host.load_plugin(plugin)
    verdict.import_ms = round(float(host.ledger.of("loaded")[0].facts["ms"]), 1)
    if problem := type_problem(found, plugin):
        verdict.broken.append(problem)
    elif plugin.point == GENERAL_PLUGINS.name:
        verdict.answer = f"registers {len(host.ledger.of('registered', via='general'))}"
    elif plugin.point == PLATFORM_PLUGINS.name:
        _ask_detector(found, plugin, verdict)
    lost = [e.facts["key"] for e in host.ledger.of("registered", via="import")]
    if lost and set(plugin.roles) == {Role.FRONTEND.value}:
        verdict.warnings.append(
            f"its import registers {', '.join(lost)} in the front end only; workers need a general plugin for that"
        )


def _ask_detector(detector: Any, plugin: Plugin, verdict: Verdict) -> None:
    from graftlm.platforms.detection import as_detection, load_platform

    detection = as_detection(detector(), plugin)
    verdict.answer = " ".join(
        filter(None, [detection.class_path or "declines", detection.reason and f"({detection.reason})"])
    )
    if detection.class_path is not None:
        load_platform(detection.class_path, plugin)


def _judge_torch(plugin: Plugin, verdict: Verdict, ms: float) -> None:
    if "torch" not in sys.modules:
        return
    verdict.torch_ms = round(ms, 1)
    if plugin.point in _TORCH_FREE and not plugin.built_in and set(plugin.roles) & _TORCH_FREE_ROLES:
        verdict.warnings.append(
            f"it imports torch ({ms:.0f} ms) in processes that do without; import it inside the functions that "
            'need it, or declare roles = ["worker"]'
            if plugin.point == GENERAL_PLUGINS.name
            else f"it imports torch ({ms:.0f} ms) in a process that does without; import it inside functions"
        )


@contextmanager
def torch_clock() -> Iterator[dict[str, float]]:
    """Measure how long the outermost import of torch takes, whoever asks for it."""
    clock = {"ms": 0.0}
    real = builtins.__import__
    depth = 0

    def timed(name: str, *args: Any, **kwargs: Any) -> Any:
        nonlocal depth
        if depth or name.partition(".")[0] != "torch":
            return real(name, *args, **kwargs)
        depth += 1
        started = time.perf_counter()
        try:
            return real(name, *args, **kwargs)
        finally:
            depth -= 1
            clock["ms"] += (time.perf_counter() - started) * 1000

    builtins.__import__ = timed
    try:
        yield clock
    finally:
        builtins.__import__ = real


if __name__ == "__main__":
    sys.exit(main())
