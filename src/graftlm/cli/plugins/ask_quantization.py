"""Explains quantization methods: which one is asked for, who brings each, and which the platform refuses.

It needs no torch: methods are registered by path.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from graftlm.cli.plugins import described
from graftlm.cli.plugins.ask_points import ON_PURPOSE
from graftlm.cli.plugins.explanation import Candidate, Explanation, owner_of
from graftlm.layers.quantization import quantization_names, quantization_registry

if TYPE_CHECKING:
    from graftlm.cli.plugins.ask_here import Asked


def explain_quantization(asked: Asked) -> Explanation:
    """Methods, who brings each, and which the checkpoint or a flag asks for; needs no torch."""
    from graftlm.platforms import current_platform as platform

    explanation = Explanation(kind="quantization")
    wanted = ""
    try:
        if asked.has_model:
            wanted = asked.config.model.quantization or ""
            explanation.answer = wanted or "none: the model computes with plain weights"
            owner = asked.config.owner_of("model.quantization")
            explanation.why = "the checkpoint asks for it" if owner == "engine" else f"asked for by {owner}"
        elif asked.arguments.values.get("model.quantization"):
            wanted = asked.arguments.values["model.quantization"]
            explanation.why = "asked for by user"
    except ON_PURPOSE as error:
        explanation.error = str(error)
    for method in quantization_names():
        refusal = _refusal(platform, method)
        state = "won" if method == wanted else "refused" if refusal else "available"
        reason = refusal or ("" if method == wanted else f"--quantization {method} asks for it")
        explanation.candidates.append(
            Candidate(name=method, state=state, reason=reason, owner=_quantization_owner(asked, method))
        )
    listed = {c.name for c in explanation.candidates}
    for row in described.rows_of(asked.description, "quantization_methods"):
        if row["name"] not in listed:
            explanation.candidates.append(
                Candidate(name=row["name"], state=row["state"], reason=row["reason"], owner=owner_of(row))
            )
    chosen = next((c for c in explanation.candidates if c.state == "won"), None)
    if chosen is not None:
        explanation.answer = f"{chosen.name} of {chosen.owner}"
        explanation.error = explanation.error or chosen.reason
    if not wanted and not explanation.answer:
        explanation.answer = "no method is asked for"
        explanation.notes.append("a checkpoint may name one: give it with --model")
    explanation.facts["runs on"] = ", ".join(platform.supported_quantization) or f"{platform.device_name}: all"
    keeper = _quantization_owner(asked, "gguf") if "gguf" in quantization_names() else ""
    explanation.facts["GGUF blocks (gguf, q8_0, q4_0)"] = (
        f"{keeper} keeps those it has kernels for; others become plain weights"
        if keeper
        else "become plain weights"
    )
    return explanation


def _quantization_owner(asked: Asked, method: str) -> str:
    if method in quantization_registry:
        return quantization_registry.owner(method)
    rows = described.rows_of(asked.description, "quantization_methods")
    return next((owner_of(row) for row in rows if row["name"] == method), "")


def _refusal(platform: Any, method: str) -> str:
    try:
        platform.verify_quantization(method)
    except ValueError as error:
        return str(error)
    return ""
