"""The table of architectures that the engine brings: where each class is, and its facts, without torch.

It does not import the classes.
"""

from __future__ import annotations

from graftlm.contracts.model import ModelSpec

BUILT_IN_MODELS: dict[str, tuple[str, ModelSpec]] = {
    "LlamaForCausalLM": ("graftlm.models.llama:LlamaForCausalLM", ModelSpec()),
    "OPTForCausalLM": ("graftlm.models.opt:OPTForCausalLM", ModelSpec()),
}
