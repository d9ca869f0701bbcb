"""What the helper process of `graftlm plugins explain` says of an op: who replaces its class, and what runs.

It goes through the order of choice as `ops/dispatch.py` does; it builds nothing itself.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from graftlm.cli.failures import sentence
from graftlm.cli.plugins.explanation import Candidate, Explanation
from graftlm.cli.plugins.helper import Inspection
from graftlm.cli.plugins.inspect_attention import ask_for_no_model
from graftlm.cli.plugins.inspect_steps import part_in_kept_steps
from graftlm.cli.plugins.inspect_weights import add_instruction_sets, add_who_multiplies
from graftlm.contracts.points import CUSTOM_OPS, OP_IMPLEMENTATIONS

if TYPE_CHECKING:
    from graftlm.config.engine_config import EngineConfig
    from graftlm.contracts.platform import Platform
    from graftlm.ops.pluggable import PluggableLayer
    from graftlm.plugins.host import PluginHost

_ASKED = "supports() is asked with the layer's shape"


def explain_op(host: PluginHost, config: EngineConfig, name: str, *, problem: str, built: bool) -> Inspection:
    """Say which class is built for an op, and which of its methods runs; `built`: in the model of `config`, too."""
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
        explanation.error = sentence(error)
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
    if not built:
        explanation.notes.append(ask_for_no_model(config, construct=False))
    running = [c.name for c in explanation.candidates if c.state in ("won", "asked when built")]
    if built and switch == "linear":
        add_who_multiplies(host, config, explanation)
    add_instruction_sets(explanation)
    explanation.facts["in kept decode steps"] = part_in_kept_steps(host, chosen, running)
    return Inspection(explanation=explanation, names=[n for n in (switch, path, path.replace(":", ".")) if n])


def _find_layer(name: str) -> type[PluggableLayer] | None:
    from graftlm import layers
    from graftlm.layers.quantization import unquantized  # noqa: F401 - it registers the op `linear`
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
        state, reason = "asked when built", _ASKED
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
        explanation.notes.append(
            "the model was not built to its end" if explanation.error else "this model builds none"
        )
        return
    explanation.facts["built"] = [
        f"{e.facts['count']} × {e.facts['method']} ({e.facts['reason']})" for e in choices
    ]
    explanation.facts["format"] = ", ".join(dict.fromkeys(e.facts["format"] for e in choices))
    if swap := swaps.get(explanation.name):
        explanation.facts["swapped"] = f"{swap['count']} × {swap['replacement']}"
    methods = list(dict.fromkeys(e.facts["method"] for e in choices))
    explanation.answer = (
        f"{explanation.answer.partition(' is built')[0]} is built, and its {', '.join(methods)} runs"
    )
    explanation.why = "; ".join(dict.fromkeys(e.facts["reason"] for e in choices))
    refusals: dict[str, list[str]] = {}
    for event in host.ledger.of("op_refused", op=switch):
        refusals.setdefault(event.facts["implementation"], []).append(event.facts["reason"])
    for candidate in explanation.candidates:
        if candidate.name in methods:
            candidate.state = "won"
            if candidate.name in refusals:
                candidate.reason = f"refused for other shapes: {'; '.join(refusals[candidate.name])}"
            elif candidate.reason == _ASKED:
                candidate.reason = "supports() agreed"
        elif candidate.name in refusals:
            candidate.state, candidate.reason = "refused", "; ".join(refusals[candidate.name])
        elif candidate.state == "asked when built":
            candidate.state, candidate.reason = "not asked", f"{', '.join(methods)} came first"
