"""Finds out who is registering something; knows nothing of registries."""

from __future__ import annotations

import dataclasses
import sys
from typing import Any

from graftlm.plugins.blame import Call, current_call
from graftlm.plugins.plugin import BUILT_IN_PACKAGES
from graftlm.plugins.process_host import held_host

#: Modules whose frames call into plugin code: what lies above them on the stack is not the plugin's.
_BOUNDARIES = frozenset(
    {"graftlm.plugins.host", "graftlm.plugins.general", "graftlm.platforms.hooks", "graftlm.platforms.detection"}
)

ENGINE = "graftlm"
PROGRAM = "program"


@dataclasses.dataclass(frozen=True, slots=True)
class Registrar:
    """Who registers: the owning distribution, the module whose import does it (if one does), the plugin call."""

    owner: str
    module: str | None
    call: Call | None

    @property
    def in_tree(self) -> bool:
        """The engine's own code registers its own things while it is imported: always allowed, never undone."""
        return self.owner == ENGINE and (self.module is not None or self.call is None)


def find_registrar(value: Any) -> Registrar:
    """Tell on whose behalf the present call stack registers `value`."""
    call = current_call()
    module = _importing_module(stop_at_boundary=call is not None)
    if module is not None:
        return Registrar(distribution_of(module), module, call)
    if call is not None:
        owner = call.plugin.distribution if not isinstance(call.plugin, str) else call.label.partition(":")[0]
        return Registrar(owner, None, call)
    return Registrar(distribution_of(getattr(value, "__module__", None) or ""), None, None)


def _importing_module(*, stop_at_boundary: bool) -> str | None:
    """Return the innermost module that is being imported on this stack."""
    frame = sys._getframe(2)
    while frame is not None:
        name = frame.f_globals.get("__name__", "")
        if stop_at_boundary and name in _BOUNDARIES:
            return None
        if frame.f_code.co_name == "<module>":
            return None if name == "__main__" else name
        frame = frame.f_back  # type: ignore[assignment]
    return None


def distribution_of(module: str) -> str:
    """Return the distribution of a module: ours, a known plugin's, else its top-level package or "program"."""
    package = module.partition(".")[0]
    if package in BUILT_IN_PACKAGES:
        return package.replace("_", "-")
    host = held_host()
    if host is not None:
        for plugin in host.known_plugins:
            if plugin.package == package:
                return plugin.distribution
    return package if package and package != "__main__" else PROGRAM
