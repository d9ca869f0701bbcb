"""For those who write plugins: conformance suites, one per contract, and fakes of what a plugin meets.

It may import every floor below `cli` and is imported by none of them. Importing it imports no torch and no
pytest; each name is loaded on first use.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from graftlm.testing.attention_cases import AttentionCase
    from graftlm.testing.checkpoints import TinyCheckpoint, tiny_llama, tiny_opt
    from graftlm.testing.engine import Script, ScriptedEngineClient
    from graftlm.testing.host import FakeDistribution, plugin_host

__all__ = [
    "AttentionCase",
    "FakeDistribution",
    "Script",
    "ScriptedEngineClient",
    "TinyCheckpoint",
    "plugin_host",
    "tiny_llama",
    "tiny_opt",
]

_MODULE_OF = {
    "AttentionCase": "attention_cases", "FakeDistribution": "host", "Script": "engine",
    "ScriptedEngineClient": "engine", "TinyCheckpoint": "checkpoints", "plugin_host": "host",
    "tiny_llama": "checkpoints", "tiny_opt": "checkpoints",
}  # fmt: skip


def __getattr__(name: str) -> Any:
    if name not in _MODULE_OF:
        raise AttributeError(f"module 'graftlm.testing' has no attribute {name!r}")
    return getattr(importlib.import_module(f"graftlm.testing.{_MODULE_OF[name]}"), name)
