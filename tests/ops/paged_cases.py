"""The batches that attention backends are compared on; plugin authors have them too."""

from __future__ import annotations

from graftlm.testing.attention_cases import AttentionCase as Case

__all__ = ["Case"]
