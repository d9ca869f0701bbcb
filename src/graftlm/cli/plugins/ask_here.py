"""Explains what a server with the same flags would do here: asks the registries, and a helper process for the rest.

The helper imports torch and builds what has to be built; this process does neither.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import msgspec

from graftlm.cli.plugins import described
from graftlm.cli.plugins.explanation import Candidate, Explanation, owner_of
from graftlm.cli.plugins.helper import Inspection, InspectionRequest, inspect
from graftlm.config.arguments import Arguments
from graftlm.config.errors import ConfigError
from graftlm.contracts.errors import GraftlmError
from graftlm.contracts.points import ALL_POINTS
from graftlm.layers.quantization import quantization_names, quantization_registry
from graftlm.models.registry import ModelRegistry
from graftlm.ops.kernel_functions import kernel_names
from graftlm.ops.names import BUILT_IN_OPS, parse_switches
from graftlm.plugins.errors import PluginError

if TYPE_CHECKING:
    from graftlm.config.engine_config import EngineConfig
    from graftlm.plugins.host import PluginHost

_ON_PURPOSE = (ConfigError, GraftlmError, PluginError)


class Asked:
    """This installation under the given flags: what was decided, and on demand the configuration."""

    def __init__(self, host: PluginHost, arguments: Arguments) -> None:
        self.host = host
        self.arguments = arguments
        self.has_model = "model.model" in arguments.values

    @property
    def description(self) -> dict[str, Any]:
        return {**self.host.describe(), "events": self.host.events()}

    @functools.cached_property
    def config(self) -> EngineConfig:
        """The configuration of a start: resolved where a model is given, else as far as the platform's hooks go."""
        from graftlm.engine.configure import configure
        from graftlm.platforms.hooks import call_hook

        config = self.arguments.engine_config()
        if self.has_model:
            return configure(config, self.host, progress=False)
        choice = self.host.platform_choice
        platform = f"platform {choice.name if choice is not None else 'unknown'}"
        with config.stage(platform):
            call_hook("apply_config_platform_defaults", config)
        if not {"all", "none"} & set(config.compilation.custom_ops):
            base = "none" if config.compilation.backend == "inductor" else "all"
            with config.stage("engine"):
                config.compilation.custom_ops = [*config.compilation.custom_ops, base]
        with config.stage(platform):
            call_hook("check_and_update_config", config)
        return config

    def inspect(self, question: str, name: str = "") -> Inspection:
        """Ask the helper process; a configuration that cannot be made is an answer too."""
        try:
            config = self.config
        except Exception as error:
            if self.has_model or isinstance(error, _ON_PURPOSE):
                return Inspection(error=f"{type(error).__name__}: {error}")
            return Inspection(
                error=f"the platform's hooks need a model ({type(error).__name__}: {error}); give one with --model"
            )
        request = InspectionRequest(
            question=question, name=name, config=config.to_bytes(), has_model=self.has_model
        )
        return inspect(self.host, request)

    def known_names(self) -> set[str]:
        """Name everything that could be explained, for a near miss."""
        from graftlm import layers

        names = described.names_in(self.description) | set(ModelRegistry.names()) | set(BUILT_IN_OPS)
        names |= set(kernel_names())
        return names | set(layers.__all__) | set(quantization_names()) | {p.name for p in ALL_POINTS}


def explain_here(asked: Asked, kind: str, name: str) -> list[Explanation]:
    """Explain one thing; any kind where `kind` is empty. An empty list: there is nothing of that name."""
    if kind:
        return _KINDS[kind](asked, name)
    found = described.explain_plugins(asked.description, name)
    found += _point(name)
    if name in ModelRegistry.names():
        found += _model(asked, name)
    if _is_op(name):
        found += _op(asked, name)
    if name in kernel_names():
        found += _kernel(asked, name)
    if name in quantization_names():
        found += _quantization(asked, name)
    return found


def _platform(asked: Asked, name: str) -> list[Explanation]:
    return [described.explain_platform(asked.description)]


def _plugin(asked: Asked, name: str) -> list[Explanation]:
    found = described.explain_plugins(asked.description, name)
    for explanation in found:
        explanation.facts |= _declared(asked.host, explanation.name, point=explanation.facts["point"])
    return found


def _declared(host: PluginHost, label: str, *, point: str) -> dict[str, Any]:
    """What metadata and manifest say of a plugin; nothing of an entry point in a group that no point has."""
    plugin = next((p for p in host.known_plugins if (p.point, p.label) == (point, label)), None)
    if plugin is None:
        return {}
    return {
        "roles": list(plugin.roles), "before": list(plugin.before), "after": list(plugin.after),
        "replaces": list(plugin.replaces), "settings": host.settings(label),
        "imported": host.points[point].imported,
    }  # fmt: skip


def _point(name: str) -> list[Explanation]:
    found = [point for point in ALL_POINTS if name in (point.name, point.group)]
    return [
        Explanation(kind="extension point", name=p.group, answer=p.doc, why=f"imported {p.imported}") for p in found
    ]


def _model(asked: Asked, name: str) -> list[Explanation]:
    try:
        target, owner = ModelRegistry.origin(name) if name in ModelRegistry.names() else ("", "")
        explanation = described.explain_model(asked.description, name, winner=target)
        if not explanation.candidates and not target:
            return []
        if not target:
            explanation.error = "no enabled plugin provides it"
            return [explanation]
        explanation.answer = f"{target} of {owner}"
        explanation.facts |= msgspec.to_builtins(ModelRegistry.spec(name))
    except _ON_PURPOSE as error:
        explanation = described.explain_model(asked.description, name)
        explanation.answer, explanation.error = "", str(error)
        for candidate in explanation.candidates:
            candidate.state = "claims it" if candidate.state == "won" else candidate.state
    return [explanation]


def _op(asked: Asked, name: str) -> list[Explanation]:
    inspection = asked.inspect("op", name)
    if inspection.unknown:
        return []
    explanation = inspection.explanation or Explanation(kind="op", name=name)
    explanation.error = explanation.error or inspection.error
    explanation.candidates += _left_out(asked, inspection.names)
    if not inspection.error:
        custom_ops = asked.config.compilation.custom_ops
        explanation.facts["switches"] = (
            f"{','.join(custom_ops)} ({asked.config.owner_of('compilation.custom_ops')})"
        )
        for op in inspection.names[:1]:
            switches = parse_switches(custom_ops)
            explanation.facts["switched"] = f"{'on' if switches.enabled(op) else 'off'} by {switches.reason(op)}"
    return [explanation]


def _kernel(asked: Asked, name: str) -> list[Explanation]:
    inspection = asked.inspect("kernel", name)
    if inspection.unknown:
        return []
    explanation = inspection.explanation or Explanation(kind="kernel", name=name)
    explanation.error = explanation.error or inspection.error
    return [explanation]


def _left_out(asked: Asked, names: list[str]) -> list[Candidate]:
    """Return plugins that would have asked for an op of these names and paths, had they been enabled."""
    found = []
    for decision in asked.host.decisions:
        plugin = decision.plugin
        op = plugin.name.rpartition(".")[0] if plugin.point == "op_implementations" else plugin.name
        if decision.enabled or plugin.point not in ("custom_ops", "op_implementations"):
            continue
        if op in names:
            owner = f"{plugin.distribution} {plugin.version}"
            found.append(
                Candidate(
                    name=plugin.name, state=decision.state, reason=decision.reason, owner=owner, target=plugin.value
                )
            )
    return found


def _attention(asked: Asked, name: str) -> list[Explanation]:
    inspection = asked.inspect("attention", name)
    explanation = inspection.explanation or Explanation(kind="attention")
    explanation.error = explanation.error or inspection.error
    rows = described.rows_of(asked.description, "attention_backends")
    known = {c.target for c in explanation.candidates}
    explanation.candidates += [
        Candidate(name=r["name"], state=r["state"], reason=r["reason"], owner=owner_of(r), target=r["target"])
        for r in rows
        if r["target"] not in known and r["state"] in ("disabled", "refused", "failed")
    ]
    return [explanation]


def _quantization(asked: Asked, name: str) -> list[Explanation]:
    """Methods, who brings each, and which the checkpoint or a flag asks for; needs no torch."""
    from graftlm.platforms import current_platform as platform

    explanation = Explanation(kind="quantization", name=name)
    wanted = name
    try:
        if asked.has_model and not name:
            wanted = asked.config.model.quantization or ""
            explanation.answer = wanted or "none: the checkpoint has plain weights"
            explanation.why = f"asked for by {asked.config.owner_of('model.quantization')}"
        elif asked.arguments.values.get("model.quantization") and not name:
            wanted = asked.arguments.values["model.quantization"]
            explanation.why = "asked for by user"
    except _ON_PURPOSE as error:
        explanation.error = str(error)
    for method in quantization_names():
        refusal = _refusal(platform, method)
        state = "won" if method == wanted else "refused" if refusal else "available"
        explanation.candidates.append(
            Candidate(name=method, state=state, reason=refusal, owner=_quantization_owner(asked, method))
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
    if name and chosen is None and name not in {c.name for c in explanation.candidates}:
        return []
    explanation.facts["runs on"] = ", ".join(platform.supported_quantization) or f"{platform.device_name}: all"
    keeper = _quantization_owner(asked, "gguf") if "gguf" in quantization_names() else ""
    explanation.facts["GGUF blocks (gguf, q8_0, q4_0)"] = f"kept by {keeper}" if keeper else "become plain weights"
    return [explanation]


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


def _is_op(name: str) -> bool:
    """Tell, without torch, whether a name may be an op's or a layer's."""
    from graftlm import layers

    return name in BUILT_IN_OPS or name in layers.__all__ or name.startswith("graftlm.layers.")


_KINDS: dict[str, Callable[[Asked, str], list[Explanation]]] = {
    "platform": _platform, "model": _model, "op": _op, "kernel": _kernel, "attention": _attention,
    "quantization": _quantization, "plugin": _plugin,
}  # fmt: skip
