"""The helper process of `graftlm plugins explain`: applies the plan as a worker would, and builds what is asked.

Run as `python -m graftlm.cli.plugins.inspector` with a msgpack request on stdin. It serves nothing.
"""

from __future__ import annotations

import os
import sys
from typing import TYPE_CHECKING, Any

import msgspec

from graftlm.cli.plugins.explanation import Candidate, Explanation
from graftlm.cli.plugins.helper import Inspection, InspectionRequest
from graftlm.config.engine_config import EngineConfig
from graftlm.contracts.points import ATTENTION_BACKENDS, CUSTOM_OPS, OP_IMPLEMENTATIONS
from graftlm.plugins import Role, current_host
from graftlm.processes.exit_guard import guard_exits

if TYPE_CHECKING:
    from graftlm.contracts.platform import Platform
    from graftlm.ops.pluggable import PluggableLayer
    from graftlm.plugins.host import PluginHost


def main() -> int:
    answer = os.dup(1)
    os.dup2(2, 1)  # what plugins print must not get into the answer
    guard_exits()
    request = msgspec.msgpack.decode(sys.stdin.buffer.read(), type=InspectionRequest)
    try:
        result = answer_to(request)
    except Exception as error:
        notes = "".join(f" [{note}]" for note in getattr(error, "__notes__", ()))
        result = Inspection(error=f"{type(error).__name__}: {error}{notes}")
    with os.fdopen(answer, "wb") as stream:
        stream.write(msgspec.msgpack.encode(result))
    return 0


def answer_to(request: InspectionRequest) -> Inspection:
    """Apply the plan, take a worker's role, and find out."""
    from graftlm.platforms.bootstrap import apply_plan_in_child

    apply_plan_in_child(request.plan)
    host = current_host()
    host.take_role(Role.WORKER)
    config = EngineConfig.from_bytes(request.config)
    problem = _build(config) if request.has_model else ""
    match request.question:
        case "op":
            return _op(host, config, request.name, problem=problem, built=request.has_model)
        case "kernel":
            return _kernels(request.name)
        case "attention":
            return Inspection(explanation=_attention(host, config, problem=problem, built=request.has_model))
    raise ValueError(f"unknown question {request.question!r}")


def _kernels(name: str) -> Inspection:
    """Let the platform replace kernel functions as in a worker, and say which run: one, or all."""
    from graftlm.ops.kernel_functions import BUILT_IN_KERNELS, kernel_names, kernel_override
    from graftlm.platforms.hooks import call_hook

    call_hook("register_triton_kernel_overrides")
    names = [name] if name else kernel_names()
    if not set(names) <= set(kernel_names()):
        return Inspection(unknown=True)
    explanation = Explanation(kind="kernel", name=name)
    for kernel in names:
        override = kernel_override(kernel)
        if override is not None:
            path, owner = override
            reason = "replaced by name"
            explanation.candidates.append(
                Candidate(name=kernel, state="won", reason=reason, owner=owner, target=path)
            )
        state = "won" if override is None else "lost"
        own = BUILT_IN_KERNELS.get(kernel, "")
        explanation.candidates.append(Candidate(name=kernel, state=state, reason="the reference", target=own))
    won = [c for c in explanation.candidates if c.state == "won"]
    replaced = [f"{c.target} of {c.owner}" for c in won if c.owner]
    explanation.answer = ", ".join(replaced) or (won[0].target if name else "the engine's own")
    return Inspection(explanation=explanation)


def _build(config: EngineConfig) -> str:
    """Build the model without its weights, on one worker; what happens stands in the ledger. Returns a problem."""
    import torch

    from graftlm.models.loader import build_model
    from graftlm.platforms import current_platform

    try:
        build_model(config, torch.device(current_platform.device_type))
    except Exception as error:
        return f"{type(error).__name__}: {error}"
    return ""


def _op(host: PluginHost, config: EngineConfig, name: str, *, problem: str, built: bool) -> Inspection:
    from graftlm.ops.custom_op import CustomOp
    from graftlm.ops.pluggable import replacement_of
    from graftlm.plugins.registry import key_text

    layer = _find_layer(name)
    if layer is None:
        return Inspection(unknown=True)
    path = key_text(layer)
    switch = getattr(layer, "name", "")
    explanation = Explanation(kind="op", name=path, error=problem, facts={"switch name": switch or "none"})
    try:
        chosen = replacement_of(layer)
    except Exception as error:
        explanation.error = f"{type(error).__name__}: {error}"
        chosen = layer
    explanation.candidates += _class_candidates(host, layer, chosen)
    explanation.answer = f"{key_text(chosen)} is built"
    if issubclass(chosen, CustomOp):
        method, why, candidates = _method(host, config, chosen)
        explanation.candidates += candidates
        explanation.answer += f", and its {method} runs"
        explanation.why = why
        if built:
            _add_what_was_built(host, explanation, switch)
    return Inspection(explanation=explanation, names=[n for n in (switch, path, path.replace(":", ".")) if n])


def _find_layer(name: str) -> type[PluggableLayer] | None:
    from graftlm import layers
    from graftlm.ops import sampling
    from graftlm.ops.custom_op import op_registry
    from graftlm.ops.pluggable import _layers
    from graftlm.plugins.registry import key_text

    _ = [getattr(module, name) for module in (layers, sampling) for name in module.__all__]
    if name in op_registry:
        return op_registry.get(name)
    found = [cls for cls in _layers() if name in (cls.__name__, key_text(cls), key_text(cls).replace(".", ":"))]
    return next((cls for cls in found if cls.__module__.startswith("graftlm.")), next(iter(found), None))


def _class_candidates(host: PluginHost, layer: Any, chosen: Any) -> list[Candidate]:
    """The class itself and everything registered or published in its place."""
    from graftlm.ops.pluggable import replacements
    from graftlm.plugins.registry import key_text
    from graftlm.plugins.resolve import split_path

    paths = {key_text(layer), f"graftlm.layers.{layer.__name__}"}
    found = []
    if layer in replacements:
        found.append(
            Candidate(
                name=key_text(replacements.get(layer)), owner=replacements.owner(layer),
                state="won" if replacements.get(layer) is chosen else "lost", reason="registered with register_oot",
            )
        )  # fmt: skip
    for plugin in host.plugins(CUSTOM_OPS):
        if ".".join(split_path(plugin.name)) in paths:
            won = ".".join(split_path(plugin.value)) == key_text(chosen)
            outcome = host.outcomes.get(plugin.identity)
            state = "won" if won else outcome.state if outcome and outcome.state == "failed" else "lost"
            reason = outcome.reason if outcome and outcome.state == "failed" else "entry point of custom_ops"
            found.append(
                Candidate(
                    name=plugin.value, state=state, reason=reason, owner=f"{plugin.distribution} {plugin.version}"
                )
            )
    own = "won" if chosen is layer else "replaced"
    reason = "nothing replaces it" if chosen is layer else f"{key_text(chosen)} is built in its place"
    return [*found, Candidate(name=key_text(layer), state=own, reason=reason, owner="graftlm")]


def _method(host: PluginHost, config: EngineConfig, cls: Any) -> tuple[str, str, list[Candidate]]:
    """Go through the order of choice: the switch, the class's own method, the providers, the reference."""
    from graftlm.ops.dispatch import overrides
    from graftlm.ops.names import parse_switches
    from graftlm.platforms import current_platform

    own = current_platform.op_method
    switches = parse_switches(config.compilation.custom_ops)
    candidates = []
    answer: tuple[str, str] | None = None
    if not switches.enabled(cls.name):
        answer = ("forward_native", f"switched off by {switches.reason(cls.name)}")
    has_own = overrides(cls, own)
    reason = f"own {own} for {current_platform.device_name}" if has_own else f"{cls.__name__} does not override it"
    if has_own and answer is None:
        answer = (own, reason)
        candidates.append(Candidate(name=own, state="won", reason=reason))
    else:
        state = "not asked" if has_own else "absent"
        candidates.append(Candidate(name=own, state=state, reason=answer[1] if has_own and answer else reason))
    providers = _providers(host, config, current_platform, cls.name, decided=answer)
    candidates += providers
    maybe = next((c.name for c in providers if c.state == "asked when built"), None)
    if answer is None and maybe is not None:
        answer = (f"{maybe}, or forward_native,", "supports() is asked with the layer's shape; --model builds it")
    if answer is None:
        answer = ("forward_native", "the reference; no other implementation for this platform")
    native = "won" if answer[0] == "forward_native" else "last resort"
    candidates.append(Candidate(name="forward_native", state=native, reason=answer[1] if native == "won" else ""))
    return *answer, candidates


def _providers(
    host: PluginHost, config: EngineConfig, platform: Platform, op: str, *, decided: tuple[str, str] | None
) -> list[Candidate]:
    listed = list(dict.fromkeys((*config.compilation.op_providers, *platform.op_providers)))
    listed = listed[: listed.index("native")] if "native" in listed else listed
    found = []
    for plugin in host.plugins(OP_IMPLEMENTATIONS):
        name, _, provider = plugin.name.rpartition(".")
        if name != op:
            continue
        state, reason = "asked when built", "supports() is asked with the layer's shape"
        if provider not in listed:
            state = "not asked"
            reason = f"{platform.device_name} does not list {provider}; --op-providers {provider} would"
        elif decided is not None:
            state, reason = "not asked", decided[1]
        found.append(
            (
                listed.index(provider) if provider in listed else len(listed),
                Candidate(
                    name=plugin.name, state=state, reason=reason, target=plugin.value,
                    owner=f"{plugin.distribution} {plugin.version}",
                ),
            )
        )  # fmt: skip
    return [candidate for _, candidate in sorted(found, key=lambda item: item[0])]


def _add_what_was_built(host: PluginHost, explanation: Explanation, switch: str) -> None:
    """Replace what would be by what was, where the model has built the op."""
    choices = host.ledger.of("op_dispatched", op=switch)
    swaps = {e.facts["cls"]: e.facts for e in host.ledger.of("op_swapped")}
    if not choices:
        explanation.notes.append("this model builds none")
        return
    explanation.facts["built"] = [
        f"{e.facts['count']} × {e.facts['method']} ({e.facts['reason']})" for e in choices
    ]
    if swap := swaps.get(explanation.name):
        explanation.facts["swapped"] = f"{swap['count']} × {swap['replacement']}"
    methods = list(dict.fromkeys(e.facts["method"] for e in choices))
    explanation.answer = (
        f"{explanation.answer.partition(' is built')[0]} is built, and its {', '.join(methods)} runs"
    )
    explanation.why = "; ".join(dict.fromkeys(e.facts["reason"] for e in choices))
    for candidate in explanation.candidates:
        if candidate.name in methods:
            candidate.state = "won"
        elif candidate.state == "asked when built":
            candidate.state, candidate.reason = "refused", explanation.why


def _attention(host: PluginHost, config: EngineConfig, *, problem: str, built: bool) -> Explanation:
    from graftlm.contracts.platform import AttentionQuestion
    from graftlm.platforms import current_platform

    explanation = Explanation(kind="attention", error=problem)
    asked = [(e.facts["question"], e.facts["answer"]) for e in host.ledger.of("attention_asked")]
    wish = config.attention.attention_backend
    if wish:
        explanation.facts["--attention-backend"] = wish
    for question, answer in asked:
        explanation.facts["question"] = {k: v for k, v in question.items() if v is not None}
        explanation.answer = answer
        explanation.why = f"{current_platform.device_name} named it" + (f" for {wish}" if wish else "")
    answers = {answer for _, answer in asked}
    for plugin in host.plugins(ATTENTION_BACKENDS):
        state, reason = "available", ""
        if plugin.value in answers:
            state, reason = "won", explanation.why
        elif asked:
            refusal = _supports(host, plugin.name, AttentionQuestion(**asked[0][0]))
            state = "refuses" if refusal else "not named"
            reason = refusal or f"it could serve; --attention-backend {plugin.name} asks for it"
        explanation.candidates.append(
            Candidate(
                name=plugin.name, state=state, reason=reason, target=plugin.value,
                owner=f"{plugin.distribution} {plugin.version}",
            )
        )  # fmt: skip
    for answer in answers - {plugin.value for plugin in host.plugins(ATTENTION_BACKENDS)}:
        owner = host.platform_choice.distribution if host.platform_choice else ""
        explanation.candidates.insert(
            0, Candidate(name=answer, state="won", reason=explanation.why, owner=owner, target=answer)
        )
    if not built:
        explanation.answer = f"{current_platform.device_name} decides for each question that a layer asks"
        explanation.notes.append("--model CHECKPOINT asks it the questions of that checkpoint")
    elif config.parallel.tensor_parallel_size > 1:
        explanation.notes.append("the question is that of one worker; each of several has fewer heads")
    return explanation


def _supports(host: PluginHost, name: str, question: Any) -> str:
    """Return why a backend that was not named could not serve, or ""."""
    try:
        return host.load(ATTENTION_BACKENDS, name).supports(question) or ""
    except Exception as error:
        return f"{type(error).__name__}: {error}"


if __name__ == "__main__":
    sys.exit(main())
