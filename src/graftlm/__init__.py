"""graftlm: an LLM serving engine that grows by `pip install`.

`import graftlm` imports neither torch nor any plugin; the names below are loaded on first use.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from graftlm.version import __version__

if TYPE_CHECKING:
    from graftlm.contracts.sampling import SamplingParams
    from graftlm.frontend.llm import LLM

__all__ = ["LLM", "SamplingParams", "__version__"]


def __getattr__(name: str) -> Any:
    match name:
        case "LLM":
            from graftlm.frontend.llm import LLM

            return LLM
        case "SamplingParams":
            from graftlm.contracts.sampling import SamplingParams

            return SamplingParams
    raise AttributeError(f"module 'graftlm' has no attribute {name!r}")
