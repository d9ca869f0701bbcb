"""Starts the helper process `graftlm.cli.plugins.inspector`, which may import torch, and reads its answer.

It does not know what the helper finds out.
"""

from __future__ import annotations

import subprocess
import sys
from typing import TYPE_CHECKING

import msgspec

from graftlm.cli.plugins.explanation import Explanation
from graftlm.plugins import Role
from graftlm.processes.apart import run_apart
from graftlm.processes.failure import describe_exit

if TYPE_CHECKING:
    from graftlm.plugins.host import PluginHost

_TIMEOUT_S = 120


class InspectionRequest(msgspec.Struct, kw_only=True):
    """What the helper is asked: `question` is "op", "kernel" or "attention"; `plan` is filled in on the way."""

    question: str
    name: str = ""
    config: bytes = b""
    has_model: bool = False
    plan: bytes = b""


class Inspection(msgspec.Struct, kw_only=True):
    """The helper's answer. `names` are the switch name and the class paths of what was asked for."""

    explanation: Explanation | None = None
    names: list[str] = []
    unknown: bool = False
    error: str = ""


def inspect(host: PluginHost, request: InspectionRequest) -> Inspection:
    """Ask a fresh helper process; whatever goes wrong in it is in the answer's `error`."""
    from graftlm.platforms.bootstrap import child_payload

    request = msgspec.structs.replace(request, plan=child_payload(host, role=Role.INSPECTOR, process="inspector"))
    try:
        done = run_apart(
            [sys.executable, "-P", "-m", "graftlm.cli.plugins.inspector"], given=msgspec.msgpack.encode(request),
            timeout_s=_TIMEOUT_S,
        )  # fmt: skip
    except subprocess.TimeoutExpired:
        return Inspection(error=f"the helper process took more than {_TIMEOUT_S} s")
    try:
        return msgspec.msgpack.decode(done.stdout, type=Inspection)
    except msgspec.MsgspecError:
        lines = done.stderr.decode(errors="replace").strip().splitlines()
        last = lines[-1:] if done.returncode >= 0 else []
        return Inspection(error=": ".join([f"the helper process {describe_exit(done.returncode)}", *last]))
