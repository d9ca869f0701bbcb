"""What the helper process of `graftlm plugins explain` says of kernel functions: who replaced one, does it run.

The platform's hook has run by then, as in a worker.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from graftlm.cli.plugins.explanation import Candidate, Explanation
from graftlm.cli.plugins.helper import Inspection
from graftlm.cli.plugins.inspect_attention import ask_for_no_model

if TYPE_CHECKING:
    from graftlm.config.engine_config import EngineConfig


def explain_kernels(config: EngineConfig, name: str, *, problem: str, built: bool) -> Inspection:
    """Explain the kernel function `name`, or all; `built` tells that the model of `config` stands already."""
    from graftlm.ops.attention.unused_kernels import CURE, why_unused
    from graftlm.ops.kernel_functions import ATTENTION_KERNELS, BUILT_IN_KERNELS, kernel_names, kernel_override

    names = [name] if name else kernel_names()
    if not set(names) <= set(kernel_names()):
        return Inspection(unknown=True)
    explanation = Explanation(kind="kernel", name=name, error=problem)
    if not built and ATTENTION_KERNELS & set(names):
        explanation.notes.append(ask_for_no_model(config, construct=True))
    replaced = []
    for kernel in names:
        override, unused = kernel_override(kernel), why_unused(kernel)
        if override is not None:
            path, owner = override
            replaced.append(f"{path} of {owner}" + (f", but not in use: {unused}" if unused else ""))
            reason = f"replaced by name{f', but {unused}' if unused else ''}"
            state = "not in use" if unused else "won"
            explanation.candidates.append(
                Candidate(name=kernel, state=state, reason=reason, owner=owner, target=path)
            )
        state = "lost" if override is not None else "not in use" if unused else "won"
        reason = "the reference" + (f"; {unused}" if unused and override is None else "")
        explanation.candidates.append(
            Candidate(name=kernel, state=state, reason=reason, target=BUILT_IN_KERNELS.get(kernel, ""))
        )
    if any(c.state == "not in use" and c.owner for c in explanation.candidates):
        explanation.notes.append(CURE)
    explanation.answer = "; ".join(replaced)
    if replaced and any("not in use" in said for said in replaced):
        explanation.answer = f"replaced by {explanation.answer}"
    elif not replaced:
        reference = BUILT_IN_KERNELS.get(name, "") if name else ""
        unused = why_unused(name) if name else ""
        explanation.answer = (reference or "the engine's own") + (f", not in use: {unused}" if unused else "")
    return Inspection(explanation=explanation)
