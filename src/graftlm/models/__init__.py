"""Models: the registry of architectures, the architectures themselves, their checkpoints and sources.

Importing this package imports no torch; architectures are imported in workers.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from graftlm.models.registry import ModelRegistry

__all__ = ["ModelRegistry"]


def __getattr__(name: str) -> Any:
    if name == "ModelRegistry":
        from graftlm.models.registry import ModelRegistry

        return ModelRegistry
    raise AttributeError(f"module 'graftlm.models' has no attribute {name!r}")
