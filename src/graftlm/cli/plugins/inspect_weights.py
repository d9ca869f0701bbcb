"""What `graftlm plugins explain`'s helper process adds to an op: instruction sets, and who multiplies instead.

It loads no weights: the methods were shown what the checkpoint holds, and the ledger has what they said.
"""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING

from graftlm.cli.plugins.described_ops import computed_in
from graftlm.cli.plugins.explanation import Candidate, Explanation
from graftlm.contracts.points import OP_IMPLEMENTATIONS, QUANTIZATION_METHODS
from graftlm.plugins.spelling import counted

if TYPE_CHECKING:
    from graftlm.config.engine_config import EngineConfig
    from graftlm.plugins.host import PluginHost


def add_instruction_sets(explanation: Explanation) -> None:
    """Add the instructions with which the implementations compute that run, or may run."""
    from graftlm.ops.entry_points import available, load_if_sound
    from graftlm.ops.implementation import OpImplementation

    found = [explanation.facts.pop("instruction set", "")]
    for candidate in explanation.candidates:
        if candidate.state not in ("won", "asked when built") or candidate.name not in available(
            OP_IMPLEMENTATIONS
        ):
            continue
        cls = load_if_sound(OP_IMPLEMENTATIONS, candidate.name)
        if isinstance(cls, type) and issubclass(cls, OpImplementation) and (name := cls.instruction_set()):
            found.append(f"{name} ({candidate.name})")
    if any(found):
        explanation.facts["instruction set"] = ", ".join(filter(None, found))


def add_who_multiplies(host: PluginHost, config: EngineConfig, explanation: Explanation) -> None:
    """Where a quantization method keeps matrices of the model, name it, and the formats; else why it keeps none."""
    method = config.model.quantization
    kept = [event.facts for event in host.ledger.of("weights_kept")]
    plain = [event.facts for event in host.ledger.of("op_dispatched", op="linear")]
    for event in host.ledger.of("weights_plain"):
        reason = f"{event.facts['reason']} ({counted(event.count, 'layer')})"
        explanation.candidates.append(Candidate(name=event.facts["method"], state="refused", reason=reason))
    refused = bool(method and explanation.error and not kept)
    if (kept or refused) and not plain:
        explanation.notes = []
        for candidate in explanation.candidates:
            if candidate.state == "asked when built":
                reason = "the start is refused" if refused else f"the method {method} multiplies"
                candidate.state, candidate.reason = "not asked", reason
    if refused and not plain:
        explanation.answer = explanation.why = ""
    if not kept:
        return
    plugin = next((p for p in host.plugins(QUANTIZATION_METHODS) if p.name == method), None)
    owner = f" of {plugin.distribution} {plugin.version}" if plugin is not None else ""
    where = " where it keeps the weights; elsewhere " + explanation.answer if plain else ""
    explanation.answer = f"the quantization method {method}{owner} multiplies in its place{where}"
    reasons = ["it keeps the weights; `explain quantization` says more", explanation.why if plain else ""]
    explanation.why = "; ".join(filter(None, reasons))
    formats: Counter[str] = Counter()
    for facts in (*kept, *plain):
        formats[facts["format"] or method or ""] += facts["count"]
    explanation.facts["format"] = ", ".join(f"{count} × {name}" for name, count in formats.most_common())
    sets = {facts["method"]: facts["instruction_set"] for facts in kept}
    explanation.facts["instruction set"] = ", ".join(f"{name} ({m})" for m, name in sets.items() if name)
    for facts in kept:
        reason = f"weights in {computed_in(facts)} ({counted(facts['count'], 'layer')})"
        explanation.candidates.append(Candidate(name=facts["method"], state="won", reason=reason))
