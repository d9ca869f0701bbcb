"""What the machine is and what suits it. `current_platform` is resolved on first use, never by an import.

Nobody can put another object in its place.
"""

from __future__ import annotations

import sys
import types
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from graftlm.contracts.platform import Platform
    from graftlm.platforms.detectors import Detection

    current_platform: Platform

__all__ = ["Detection", "current_platform"]


def __getattr__(name: str) -> Any:
    match name:
        case "current_platform":
            from graftlm.platforms.current import resolve_current_platform

            return resolve_current_platform()
        case "Detection":
            from graftlm.platforms.detectors import Detection

            return Detection
    raise AttributeError(f"module 'graftlm.platforms' has no attribute {name!r}")


class _Platforms(types.ModuleType):
    """This module's own type: assigning `current_platform` would hide the decided one from whoever asks next."""

    def __setattr__(self, name: str, value: Any) -> None:
        if name == "current_platform":
            from graftlm.contracts.fixed_platform import PlatformFixed, at_work

            writer = sys._getframe(1).f_globals.get("__name__", "")
            raise PlatformFixed(who=at_work(writer), does=f"puts {value!r} in the place of current_platform")
        super().__setattr__(name, value)


sys.modules[__name__].__class__ = _Platforms
