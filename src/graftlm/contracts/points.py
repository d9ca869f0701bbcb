"""Every extension point of graftlm, one paragraph each; does not know who extends them.

An entry point of group `graftlm.<name>` in any installed distribution is a plugin of the point. Names that are
*keys* are unique over all distributions; names that are *labels* may repeat. *Opt-in* points take part only when
a plugin is named (`--enable-plugin`, `--plugins`); the others are on by default.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from graftlm.plugins.points import ALL_ROLES, ExtensionPoint, Role

if TYPE_CHECKING:
    from graftlm.contracts.attention import AttentionBackend
    from graftlm.contracts.checkpoint import ModelLoader, ModelSource
    from graftlm.contracts.communicator import DeviceCommunicator
    from graftlm.contracts.endpoint import EndpointPlugin
    from graftlm.contracts.executor import Executor
    from graftlm.contracts.quantization import QuantizationConfig
    from graftlm.contracts.scheduler import StepScheduler
    from graftlm.contracts.stats import StatLogger
    from graftlm.contracts.worker import Worker

_FRONTEND = frozenset({Role.FRONTEND})
_ENGINE = frozenset({Role.ENGINE})
_WORKER = frozenset({Role.WORKER})
_FACTS_AND_WORKER = frozenset({Role.FRONTEND, Role.INSPECTOR, Role.WORKER})

PLATFORM_PLUGINS: ExtensionPoint[Callable[[], Any]] = ExtensionPoint(
    "platform_plugins",
    key=False,
    roles=ALL_ROLES,
    imported="the detector in the front end, once per server; the class it names in every process",
    doc="A label for a detector: a callable without arguments that returns the path of a Platform class "
    "(module:Class) where it sees its device, else None; it may return (answer, reason) or a "
    "graftlm.platforms.Detection. An out-of-tree platform that answers beats the built-in ones; two are an error. "
    "One that raises never leads to another device in silence. On by default.",
)

GENERAL_PLUGINS: ExtensionPoint[Callable[[], None]] = ExtensionPoint(
    "general_plugins",
    key=False,
    roles=ALL_ROLES,
    imported="at bootstrap of each process, once, in the declared order",
    doc="A label for a callable without arguments that may register anything. It runs in every process, or in the "
    "roles that the manifest declares, as a transaction: when it raises, its registrations are undone. On by "
    "default.",
)

MODELS: ExtensionPoint[type[Any]] = ExtensionPoint(
    "models",
    key=True,
    roles=_FACTS_AND_WORKER,
    imported="when a checkpoint asks for that architecture",
    doc="The key is an architecture as config.json spells it; the target is the model class, constructed as "
    "Model(config=…, prefix=…) in workers. The front end asks an inspector for its facts, never imports it itself. "
    "On by default.",
)

CUSTOM_OPS: ExtensionPoint[type[Any]] = ExtensionPoint(
    "custom_ops",
    key=True,
    roles=_WORKER,
    imported="when the layer that it replaces is first built",
    doc="The key is the path of a CustomOp class, such as graftlm.layers.rotary.RotaryEmbedding; the target is a "
    "subclass that is built in its place. Subclasses of the key are not replaced. On by default.",
)

OP_IMPLEMENTATIONS: ExtensionPoint[Any] = ExtensionPoint(
    "op_implementations",
    key=True,
    roles=_WORKER,
    imported="when an op of that name is built and --op-providers or the platform lists the provider",
    doc="The key is `op.provider`, such as rms_norm.acme; the target implements the op and states what it "
    "supports. --op-providers, then the platform, list providers in order of preference. On by default.",
)

WORKERS: ExtensionPoint[type[Worker]] = ExtensionPoint(
    "workers",
    key=True,
    roles=_WORKER,
    imported="when the platform or --worker-cls names it",
    doc="The key is a name for --worker-cls; the target is a Worker class, which owns one device. On by default.",
)

COMMUNICATORS: ExtensionPoint[type[DeviceCommunicator]] = ExtensionPoint(
    "communicators",
    key=True,
    roles=_WORKER,
    imported="when the platform names it, in groups of more than one rank",
    doc="The key is a name; the target is a DeviceCommunicator class, the collectives of one group. On by default.",
)

ATTENTION_BACKENDS: ExtensionPoint[type[AttentionBackend]] = ExtensionPoint(
    "attention_backends",
    key=True,
    roles=_WORKER,
    imported="when the platform chooses it or --attention-backend names it",
    doc="The key is a name for --attention-backend; the target is an AttentionBackend class. On by default.",
)

QUANTIZATION_METHODS: ExtensionPoint[type[QuantizationConfig]] = ExtensionPoint(
    "quantization_methods",
    key=True,
    roles=_FACTS_AND_WORKER,
    imported="when a checkpoint or --quantization names the method",
    doc="The key is a quantization method; the target is its QuantizationConfig class. On by default.",
)

MODEL_LOADERS: ExtensionPoint[type[ModelLoader]] = ExtensionPoint(
    "model_loaders",
    key=True,
    roles=_FACTS_AND_WORKER,
    imported="when --load-format names it, or when a checkpoint's format is looked for",
    doc="The key is a checkpoint format; the target is a ModelLoader class, whose module imports no torch. "
    "On by default.",
)

MODEL_SOURCES: ExtensionPoint[type[ModelSource]] = ExtensionPoint(
    "model_sources",
    key=True,
    roles=_FRONTEND,
    imported="when MODEL has its scheme, or when no path of that name exists",
    doc="The key is a scheme; the target is a ModelSource class, which brings MODEL to this machine. On by "
    "default.",
)

LORA_RESOLVERS: ExtensionPoint[Any] = ExtensionPoint(
    "lora_resolvers",
    key=False,
    roles=_FRONTEND,
    opt_in=True,
    imported="by nothing yet: LoRA adapters are not served",
    doc="A label for a resolver, which is to find a LoRA adapter by name. Opt-in, since a request makes it act.",
)

LOGITS_PROCESSORS: ExtensionPoint[Any] = ExtensionPoint(
    "logits_processors",
    key=False,
    roles=frozenset({Role.FRONTEND, Role.WORKER}),
    opt_in=True,
    imported="by nothing yet",
    doc="A label for a logits processor, which is to change scores before sampling. Opt-in, since that changes "
    "answers.",
)

STAT_LOGGER_PLUGINS: ExtensionPoint[type[StatLogger]] = ExtensionPoint(
    "stat_logger_plugins",
    key=False,
    roles=_FRONTEND,
    imported="when AsyncLLM is built",
    doc="A label for a StatLogger subclass; every one is fed. One that raises is isolated and counted. On by "
    "default.",
)

ENDPOINT_PLUGINS: ExtensionPoint[Callable[[], EndpointPlugin]] = ExtensionPoint(
    "endpoint_plugins",
    key=False,
    roles=_FRONTEND,
    opt_in=True,
    imported="when the HTTP app is built",
    doc="A label for a callable that returns an EndpointPlugin, with routes under /plugins/<name>/. Opt-in, since "
    "it opens doors.",
)

IO_PROCESSOR_PLUGINS: ExtensionPoint[Callable[[], str | None]] = ExtensionPoint(
    "io_processor_plugins",
    key=True,
    roles=_FRONTEND,
    imported="by nothing yet",
    doc="The key is a name; the target is a callable that returns the path of an input/output processor class. "
    "On by default, and loaded by name only.",
)

TOOL_PARSERS: ExtensionPoint[type[Any]] = ExtensionPoint(
    "tool_parsers",
    key=True,
    roles=frozenset({Role.FRONTEND, Role.ENGINE}),
    imported="by nothing yet: tool calls are not parsed",
    doc="The key is a name; the target is to parse a model's tool calls. On by default.",
)

REASONING_PARSERS: ExtensionPoint[type[Any]] = ExtensionPoint(
    "reasoning_parsers",
    key=True,
    roles=frozenset({Role.FRONTEND, Role.ENGINE}),
    imported="by nothing yet: reasoning is not split off",
    doc="The key is a name; the target is to split a model's reasoning from its answer. On by default.",
)

SCHEDULERS: ExtensionPoint[type[StepScheduler]] = ExtensionPoint(
    "schedulers",
    key=True,
    roles=_ENGINE,
    provisional=True,
    imported="when --scheduler-cls names it",
    doc="The key is a name for --scheduler-cls; the target is a StepScheduler class, constructed as "
    "cls(config, num_blocks=…, block_size=…). Provisional: its contract may change. On by default.",
)

EXECUTORS: ExtensionPoint[type[Executor]] = ExtensionPoint(
    "executors",
    key=True,
    roles=_ENGINE,
    provisional=True,
    imported="when --distributed-executor-backend names it",
    doc="The key is a name for --distributed-executor-backend; the target is an Executor class. Provisional. "
    "On by default.",
)

ALL_POINTS: tuple[ExtensionPoint[Any], ...] = (
    PLATFORM_PLUGINS, GENERAL_PLUGINS, MODELS, CUSTOM_OPS, OP_IMPLEMENTATIONS, WORKERS, COMMUNICATORS,
    ATTENTION_BACKENDS, QUANTIZATION_METHODS, MODEL_LOADERS, MODEL_SOURCES, LORA_RESOLVERS, LOGITS_PROCESSORS,
    STAT_LOGGER_PLUGINS, ENDPOINT_PLUGINS, IO_PROCESSOR_PLUGINS, TOOL_PARSERS, REASONING_PARSERS, SCHEDULERS,
    EXECUTORS,
)  # fmt: skip
