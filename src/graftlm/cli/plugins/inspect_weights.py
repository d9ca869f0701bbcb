"""What the helper process of `graftlm plugins explain` adds to an op: instruction sets, and who multiplies instead.

It loads no weights: formats are those that the file's header names.
"""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING

from graftlm.cli.plugins.explanation import Explanation
from graftlm.contracts.points import OP_IMPLEMENTATIONS, QUANTIZATION_METHODS

if TYPE_CHECKING:
    from graftlm.config.engine_config import EngineConfig
    from graftlm.plugins.host import PluginHost


def add_instruction_sets(explanation: Explanation) -> None:
    """Add the instructions with which the implementations compute that run, or may run."""
    from graftlm.ops.entry_points import available, load_if_sound
    from graftlm.ops.implementation import OpImplementation

    found = {}
    for candidate in explanation.candidates:
        if candidate.state not in ("won", "asked when built") or candidate.name not in available(
            OP_IMPLEMENTATIONS
        ):
            continue
        cls = load_if_sound(OP_IMPLEMENTATIONS, candidate.name)
        if isinstance(cls, type) and issubclass(cls, OpImplementation) and (name := cls.instruction_set()):
            found[candidate.name] = name
    if found:
        explanation.facts["instruction set"] = ", ".join(f"{name} ({owner})" for owner, name in found.items())


def add_who_multiplies(host: PluginHost, config: EngineConfig, explanation: Explanation) -> None:
    """Where a quantization method keeps the model's matrices, name it, and the formats of the matrices."""
    method = config.model.quantization
    if not method:
        explanation.facts["format"] = {"auto": "float32"}.get(config.model.dtype, config.model.dtype)
        return
    plugin = next((p for p in host.plugins(QUANTIZATION_METHODS) if p.name == method), None)
    owner = f" of {plugin.distribution} {plugin.version}" if plugin is not None else ""
    explanation.answer = f"the quantization method {method}{owner} multiplies in its place"
    explanation.why = "it keeps the weights in their own format; `explain quantization` says more"
    explanation.facts["format"] = _formats(config) or method
    explanation.notes = [note for note in explanation.notes if note != "this model builds none"]


def _formats(config: EngineConfig) -> str:
    """Count a GGUF file's matrices by format; "" for other checkpoints."""
    from graftlm.models.checkpoints.gguf import read_gguf

    if config.model.format != "gguf":
        return ""
    formats = Counter(t.format.name for t in read_gguf(config.model.path).tensors.values() if len(t.shape) == 2)
    return ", ".join(f"{count} × {name}" for name, count in formats.most_common())
