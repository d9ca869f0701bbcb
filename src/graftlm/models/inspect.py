"""The helper process that imports a lazily registered model class and says its facts.

`python -m graftlm.models.inspect module:Class` prints them for a person; the engine sends a msgpack request on
stdin instead. It does not know why it is asked.
"""

from __future__ import annotations

import os
import sys
import traceback
from typing import Any

import msgspec

from graftlm.contracts.model import ModelSpec, is_model_class
from graftlm.plugins.resolve import resolve_class_path


class InspectionRequest(msgspec.Struct):
    """Which class, and the plugin plan to apply before it is imported (empty: none)."""

    class_path: str
    plan: bytes = b""


class InspectionResult(msgspec.Struct):
    """Facts, or the error with its traceback."""

    spec: ModelSpec | None = None
    error: str = ""
    traceback: str = ""


def spec_of(model_cls: Any, *, what: str) -> ModelSpec:
    """Return the facts that a model class carries, or the defaults; refuse what is no model class."""
    if not is_model_class(model_cls):
        raise TypeError(
            f"{what} is {model_cls!r}, which is no model class: it needs forward, compute_logits and load_weights"
        )
    spec = getattr(model_cls, "spec", ModelSpec())
    if not isinstance(spec, ModelSpec):
        raise TypeError(f"{what}: its attribute 'spec' is {spec!r}; make it a graftlm.contracts.model.ModelSpec")
    return spec


def inspect(request: InspectionRequest) -> InspectionResult:
    """Apply the plan, import the class, read its facts."""
    try:
        if request.plan:
            from graftlm.platforms.bootstrap import apply_plan_in_child
            from graftlm.processes.exit_guard import guard_exits

            guard_exits()
            apply_plan_in_child(request.plan)
        return InspectionResult(spec=spec_of(resolve_class_path(request.class_path), what=request.class_path))
    except Exception as error:
        notes = "".join(f"; {note}" for note in getattr(error, "__notes__", ()))
        return InspectionResult(error=f"{type(error).__name__}: {error}{notes}", traceback=traceback.format_exc())


def main() -> int:
    """Answer one request; whatever the plugin prints goes to stderr, so that stdout holds the answer only."""
    answer = os.fdopen(os.dup(sys.stdout.fileno()), "wb")
    os.dup2(sys.stderr.fileno(), sys.stdout.fileno())
    if len(sys.argv) > 1:
        result = inspect(InspectionRequest(sys.argv[1]))
        answer.write(msgspec.json.encode(result) + b"\n")
    else:
        result = inspect(msgspec.msgpack.decode(sys.stdin.buffer.read(), type=InspectionRequest))
        answer.write(msgspec.msgpack.encode(result))
    answer.close()
    return 0 if result.spec is not None else 1


if __name__ == "__main__":
    raise SystemExit(main())
