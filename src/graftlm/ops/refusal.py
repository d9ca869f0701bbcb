"""What verification says of an op: who computes it, that it is wrong, or why it could not be compared."""

from __future__ import annotations

import contextlib
import dataclasses
from collections.abc import Iterator

from graftlm.contracts.errors import StartupError
from graftlm.plugins import Plugin, find_host
from graftlm.plugins.blame import Call
from graftlm.plugins.plugin import ENGINE
from graftlm.plugins.registrar import distribution_of
from graftlm.plugins.slow_calls import told_when_slow
from graftlm.processes.hung_calls import given_up_after

#: How many seconds one op, or one way to multiply, may take for all of its comparisons.
LIMIT_S = 300.0


class OpRefused(StartupError):
    """An op that a plugin provides does not compute what its reference computes."""

    def __init__(self, op: str, *, computed_by: Provider, problem: str) -> None:
        super().__init__(
            f"--verify-ops: the op {op!r}, computed by {computed_by.path} of {computed_by.plugin}, is wrong: "
            f"{problem}; {computed_by.cure}"
        )


class Unverifiable(Exception):
    """There is nothing to compare an op with; the text says why."""


@dataclasses.dataclass(frozen=True, slots=True)
class Provider:
    """Who computes an op: its code, and the plugin that brought it."""

    code: type
    plugin: str
    left_out_by: str | None
    known: Plugin | None = None

    @property
    def cure(self) -> str:
        leave_out = f", or leave it out with --disable-plugin {self.left_out_by}" if self.left_out_by else ""
        return f"correct or update it{leave_out}"

    @property
    def path(self) -> str:
        return f"{self.code.__module__}.{self.code.__qualname__}"


def provider_of_code(code: type) -> Provider:
    """Tell who brought a class."""
    distribution = distribution_of(code.__module__)
    host = find_host()
    known = [p for p in host.known_plugins if p.distribution == distribution] if host is not None else []
    if not known:
        return Provider(code, distribution, None)
    own = [p for p in known if p.value.partition(":")[0] == code.__module__]
    plugin = (own or known)[0]
    leave_out = None if distribution == ENGINE else plugin.left_out_by
    return Provider(code, f"{distribution} {plugin.version}", leave_out, plugin)


@contextlib.contextmanager
def in_time(op: str, computed_by: Provider) -> Iterator[None]:
    """Say while the block takes long whose op is verified; a process of ours fails when it takes `LIMIT_S`.

    The engine's own ops are not watched.
    """
    plugin = computed_by.known
    if plugin is None or plugin.built_in:
        yield
        return

    def refusal(place: str) -> OpRefused:
        problem = f"it has not come back after {LIMIT_S:g} s; it is in {place}"
        return OpRefused(op, computed_by=computed_by, problem=problem)

    with told_when_slow(Call(plugin, f"--verify-ops of {op}"), limit_s=LIMIT_S), given_up_after(LIMIT_S, refusal):
        yield
