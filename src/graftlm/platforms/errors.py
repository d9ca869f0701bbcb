"""Why no platform could be chosen; all of them stop the start.

StartupError
├── NoPlatform           nothing answered
├── SeveralPlatforms     two of equal rank answered
├── LeftOutPlatform      --plugins leaves out a platform whose device is there
├── PlatformNotSeen      --platform names one whose device is not there
├── PlatformFailed       a platform plugin raised or was refused; the original error is the cause
├── WrongPlatformClass   a detector named something that is no Platform
├── PlatformFixed        a plugin or a program tried to change or replace the decided platform (contracts)
└── PlatformUnresolved   current_platform was read too early: before a child's plan, or while it is detected
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from graftlm.contracts.errors import StartupError
from graftlm.contracts.fixed_platform import PlatformFixed

__all__ = [
    "LeftOutPlatform",
    "NoPlatform",
    "PlatformFailed",
    "PlatformFixed",
    "PlatformNotSeen",
    "PlatformUnresolved",
    "SeveralPlatforms",
    "WrongPlatformClass",
]


class NoPlatform(StartupError):
    def __init__(self, evidence: Sequence[str]) -> None:
        said = "; ".join(evidence) or "there are no detectors: is graftlm installed with its entry points?"
        super().__init__(f"no platform fits this machine ({said}); choose one with --platform NAME")


class SeveralPlatforms(StartupError):
    def __init__(self, names: Sequence[str]) -> None:
        cure = " or ".join(f"--platform {name}" for name in names)
        super().__init__(f"{len(names)} platform plugins answered: {', '.join(names)}; choose with {cure}")
        self.names = tuple(names)


class LeftOutPlatform(StartupError):
    def __init__(self, name: str, *, plugin: str) -> None:
        super().__init__(
            f"--plugins leaves out platform plugin {plugin}, whose device is there; add {name} to --plugins to "
            f"serve on it, or write --platform cpu to serve without it"
        )


class PlatformNotSeen(StartupError):
    def __init__(self, name: str, *, plugin: str, reason: str) -> None:
        why = f" ({reason})" if reason else ""
        super().__init__(
            f"--platform {name}: platform plugin {plugin} does not offer a platform on this machine{why}; "
            "choose another with --platform, or leave the flag out to detect one"
        )


class PlatformFailed(StartupError):
    """A platform plugin failed; it never leads to another device in silence."""


class WrongPlatformClass(StartupError):
    def __init__(self, class_path: str, *, found: Any) -> None:
        kind = found.__name__ if isinstance(found, type) else type(found).__name__
        super().__init__(f"{class_path} is no Platform but {kind}; subclass graftlm.contracts.platform.Platform")


class PlatformUnresolved(StartupError):
    def __init__(self, *, moment: str) -> None:
        super().__init__(
            f"current_platform was read {moment}; read it inside functions, not while a module is imported"
        )
