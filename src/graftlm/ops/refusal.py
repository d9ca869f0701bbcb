"""What verification says of an op: who computes it, that it is wrong, or why it could not be compared."""

from __future__ import annotations

import dataclasses

from graftlm.contracts.errors import StartupError
from graftlm.plugins import find_host
from graftlm.plugins.registrar import distribution_of


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
    name: str | None

    @property
    def cure(self) -> str:
        leave_out = f", or leave it out with --disable-plugin {self.name}" if self.name else ""
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
    return Provider(code, f"{distribution} {plugin.version}", None if plugin.built_in else plugin.name)
