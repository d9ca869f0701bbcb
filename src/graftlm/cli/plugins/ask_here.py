"""Explains what a server with the same flags would do here: asks the registries, and a helper process for the rest.

The helper imports torch and builds what has to be built; this process does neither.
"""

from __future__ import annotations

import functools
from typing import TYPE_CHECKING, Any

import msgspec

from graftlm.cli.failures import sentence
from graftlm.cli.plugins import described
from graftlm.cli.plugins.ask_points import ON_PURPOSE, explain_point
from graftlm.cli.plugins.ask_quantization import explain_quantization
from graftlm.cli.plugins.explanation import Candidate, Explanation, about, owner_of
from graftlm.cli.plugins.helper import Inspection, InspectionRequest, inspect
from graftlm.config.arguments import Arguments
from graftlm.contracts.points import ALL_POINTS
from graftlm.layers.quantization import quantization_names
from graftlm.models.registry import ModelRegistry
from graftlm.ops.kernel_functions import kernel_names
from graftlm.ops.names import BUILT_IN_OPS, parse_switches

if TYPE_CHECKING:
    from graftlm.config.engine_config import EngineConfig
    from graftlm.plugins.host import PluginHost


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

    def problem(self) -> str:
        """Resolve the configuration of the given model, if any, and return why it has none, or ""."""
        try:
            _ = self.config if self.has_model else None
        except ON_PURPOSE as error:
            return str(error)
        return ""

    def inspect(self, question: str, name: str = "") -> Inspection:
        """Ask the helper process; a configuration that cannot be made is an answer too."""
        try:
            config = self.config
        except Exception as error:
            if self.has_model or isinstance(error, ON_PURPOSE):
                return Inspection(error=sentence(error))
            return Inspection(
                error=f"the platform's hooks need a model ({type(error).__name__}: {error}); give one with --model"
            )
        request = InspectionRequest(
            question=question, name=name, config=config.to_bytes(), has_model=self.has_model
        )
        return inspect(self.host, request)

    def known_names(self, kind: str = "") -> set[str]:
        """Name everything of a kind, or of all, that could be explained, for a near miss."""
        from graftlm import layers

        here = {
            "model": set(ModelRegistry.names()), "op": set(BUILT_IN_OPS) | set(layers.__all__),
            "kernel": set(kernel_names()), "quantization": set(quantization_names()),
            "": {point.name for point in ALL_POINTS},
        }  # fmt: skip
        described_names = described.names_in(self.description, kind)
        return described_names | (here.get(kind, set()) if kind else set().union(*here.values()))


def explain_here(asked: Asked, kind: str, name: str) -> list[Explanation]:
    """Explain one thing; any kind where `kind` is empty. An empty list: there is nothing of that name."""
    match kind:
        case "":
            return _anything(asked, name)
        case "plugin":
            return _plugin(asked, name)
        case "model":
            return _model(asked, name)
        case "op":
            return _op(asked, name)
        case "kernel":
            return _kernel(asked, name)
        case "platform":
            explanation = described.explain_platform(asked.description)
        case "attention":
            explanation = _attention(asked, name)
        case "quantization":
            explanation = explain_quantization(asked)
        case _:
            explanation = explain_point(asked, kind)
    return about(explanation, name)


def _anything(asked: Asked, name: str) -> list[Explanation]:
    found = _plugin(asked, name) + _point(name)
    if name in ModelRegistry.names():
        found += _model(asked, name)
    if _is_op(name):
        found += _op(asked, name)
    if name in kernel_names():
        found += _kernel(asked, name)
    if name in quantization_names():
        found += about(explain_quantization(asked), name)
    return found


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
    problem = asked.problem()  # from here on the ledger tells which architecture the given model takes
    try:
        target, owner = ModelRegistry.origin(name) if name in ModelRegistry.names() else ("", "")
        explanation = described.explain_model(asked.description, name, winner=target, owner=owner)
        if not explanation.candidates and not target:
            return []
        if not target:
            explanation.error = "no enabled plugin provides it"
            return [explanation]
        explanation.error = problem
        explanation.facts |= msgspec.to_builtins(ModelRegistry.spec(name))
        del explanation.facts["supports_lora"]  # no adapter is served yet, whatever the model supports
    except ON_PURPOSE as error:
        explanation = described.explain_model(asked.description, name)
        explanation.answer, explanation.error = "", str(error)
        for candidate in explanation.candidates:
            candidate.state = "claims it" if candidate.state == "won" else candidate.state
    return [explanation]


def _op(asked: Asked, name: str) -> list[Explanation]:
    op = name.rpartition(".")[0]
    of_provider = op and any(
        row["name"] == name for row in described.rows_of(asked.description, "op_implementations")
    )
    inspection = asked.inspect("op", op if of_provider else name)
    if inspection.unknown:
        return _kernel(asked, name) if name in kernel_names() else []
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
    return about(explanation, name if of_provider else "")


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


def _attention(asked: Asked, name: str) -> Explanation:
    inspection = asked.inspect("attention", name)
    explanation = inspection.explanation or Explanation(kind="attention")
    explanation.error = explanation.error or inspection.error
    rows = described.rows_of(asked.description, "attention_backends")
    known = {c.target for c in explanation.candidates}
    explanation.candidates += [
        Candidate(name=r["name"], state=r["state"], reason=r["reason"], owner=owner_of(r), target=r["target"])
        for r in rows
        if r["target"] not in known and (inspection.error or r["state"] in ("disabled", "refused", "failed"))
    ]
    return explanation


def _is_op(name: str) -> bool:
    """Tell, without torch, whether a name may be an op's or a layer's."""
    from graftlm import layers

    return name in BUILT_IN_OPS or name in layers.__all__ or name.startswith("graftlm.layers.")
