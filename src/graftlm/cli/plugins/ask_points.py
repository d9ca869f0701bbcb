"""Explains who of an extension point a server with the same flags would take: worker, source and so on.

What a hook or the checkpoint decides is found out by asking them, as a start does.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from graftlm.cli.plugins.contenders import explain_contenders, taken
from graftlm.cli.plugins.explanation import Explanation
from graftlm.cli.plugins.kinds import ALL_TAKE_PART
from graftlm.config.errors import ConfigError
from graftlm.contracts.errors import GraftlmError
from graftlm.plugins.errors import PluginError

if TYPE_CHECKING:
    from graftlm.cli.plugins.ask_here import Asked

#: What is raised on purpose: an answer like any other.
ON_PURPOSE = (ConfigError, GraftlmError, PluginError)


def explain_point(asked: Asked, kind: str) -> Explanation:
    """Say who of `kind` is taken, or why that is open."""
    if kind in ALL_TAKE_PART:
        return explain_contenders(asked.description, kind)
    chosen = why = note = error = ""
    try:
        chosen, why, note = _decided(asked, kind)
    except ON_PURPOSE as problem:
        error = str(problem)
    explanation = explain_contenders(asked.description, kind, chosen=chosen, why=why)
    explanation.error = error
    explanation.notes += [note] if note else []
    if not explanation.answer and not error:
        explanation.answer = "it is not decided yet"
    return explanation


def _decided(asked: Asked, kind: str) -> tuple[str, str, str]:
    """Return name or path of the one that is taken, why, and a note."""
    parallel = asked.config.parallel
    match kind:
        case "worker":
            chosen = "" if parallel.worker_cls == "auto" else str(parallel.worker_cls)
            note = "" if chosen else "nobody set it: the platform's check_and_update_config does, or --worker-cls"
            return chosen, f"set by {asked.config.owner_of('parallel.worker_cls')}", note
        case "executor":
            chosen = parallel.distributed_executor_backend or ("uni" if parallel.world_size == 1 else "mp")
            owner = asked.config.owner_of("parallel.distributed_executor_backend")
            why = f"set by {owner}" if owner not in ("default", "engine") else _workers(parallel.world_size)
            return chosen, why, ""
        case "scheduler":
            named = asked.config.scheduler.scheduler_cls
            owner = asked.config.owner_of("scheduler.scheduler_cls")
            why = f"set by {owner}" if named else "the engine's own; --scheduler-cls names another"
            return named or "graftlm.scheduler:Scheduler", why, ""
        case "communicator":
            return _communicator(asked)
    if not asked.has_model:
        return "", "", "the checkpoint decides: give it with --model"
    source = kind == "source"
    why = "it is the first that claims this model" if source else "it is the first that claims this checkpoint"
    if not source and asked.config.asked_by_user("model.load_format"):
        why = "--load-format"
    return taken(asked.description, kind), why, ""


def _workers(number: int) -> str:
    return "for one worker" if number == 1 else f"for {number} workers"


def _communicator(asked: Asked) -> tuple[str, str, str]:
    inspection = asked.inspect("communicator")
    if inspection.explanation is None:
        raise GraftlmError(inspection.error)
    workers = asked.config.parallel.world_size
    note = "" if workers > 1 else "one worker needs none; it is built with --tensor-parallel-size above 1"
    return inspection.explanation.answer, "the platform names it in get_device_communicator_cls", note
