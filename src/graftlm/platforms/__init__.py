"""What the machine is and what suits it. `current_platform` is resolved on first use, never by an import."""

from __future__ import annotations

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
