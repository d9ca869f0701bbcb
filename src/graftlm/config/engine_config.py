"""The engine's configuration: what was asked for, what was decided, and who decided it.

It holds plain data only and imports no torch; how it is resolved is `engine/configure.py`'s business.
"""

from __future__ import annotations

import contextlib
import copy
import dataclasses
from collections.abc import Iterator
from typing import Any, Literal

import msgspec

from graftlm.config.hf_config import HFConfig
from graftlm.config.section import Section, option

#: What an op does that no switch names.
BASE_MODES = ("all", "none")

DType = Literal["auto", "float32", "bfloat16", "float16"]


@dataclasses.dataclass
class ModelConfig(Section):
    """Which model, and how its numbers are kept."""

    model: str = option("demo", help="Model: 'demo', a Hugging Face directory, a .gguf file or a hub id.")
    served_model_name: list[str] = option(
        factory=list, help="Name the API answers to (repeatable); default: the model as typed."
    )
    tokenizer: str | None = option(None, help="Tokenizer directory or file; default: the checkpoint's own.")
    chat_template: str | None = option(
        None, help="Chat template, as a file or as text; default: the checkpoint's own."
    )
    revision: str | None = option(None, help="Branch, tag or commit of a hub model.")
    dtype: DType = option(
        "auto",
        choices=("auto", "float32", "bfloat16", "float16"),
        synonyms={"half": "float16", "float": "float32"},
        help="Number format of computation, also half and float; float32 is always the dequantized reference.",
    )
    max_model_len: int | None = option(
        None, help="Longest prompt plus output, in tokens; default: what the model was made for."
    )
    quantization: str | None = option(
        None,
        help="Quantization method; q8_0 and q4_0 quantize plain weights while they are loaded; default: what the "
        "checkpoint says.",
    )
    load_format: str = option("auto", help="Checkpoint format: auto, safetensors, gguf, or a plugin's.")
    seed: int = option(0, help="Seed of requests that bring none of their own.")
    hf_overrides: dict[str, Any] = option(
        factory=dict, help="JSON object merged over the checkpoint's config.json."
    )

    path: str = option("", help="Where the model source put the checkpoint.", hidden=True)
    format: str = option("", help="The checkpoint's format, once known.", hidden=True)
    architecture: str = option("", help="The architecture, once resolved.", hidden=True)
    hf_config: dict[str, Any] = option(
        factory=dict, help="The checkpoint's config, in Hugging Face's words, overrides applied.", hidden=True
    )

    @property
    def num_heads(self) -> int:
        return int(self.hf_config["num_attention_heads"])

    @property
    def num_kv_heads(self) -> int:
        return int(self.hf_config.get("num_key_value_heads") or self.num_heads)

    @property
    def hidden_size(self) -> int:
        return int(self.hf_config["hidden_size"])

    @property
    def head_size(self) -> int:
        return int(self.hf_config.get("head_dim") or self.hidden_size // self.num_heads)

    @property
    def num_layers(self) -> int:
        return int(self.hf_config["num_hidden_layers"])

    @property
    def vocab_size(self) -> int:
        return int(self.hf_config["vocab_size"])


@dataclasses.dataclass
class CacheConfig(Section):
    """The paged KV cache."""

    block_size: int | None = option(
        None, help="Tokens in a block of the KV cache; default: what the platform's backends like."
    )
    kv_cache_memory_bytes: int | None = option(
        None, help="Memory of the KV cache on each worker, in bytes (suffixes k, m, g); default: measured."
    )
    memory_utilization: float = option(
        0.5, aliases=("--gpu-memory-utilization",),
        help="Largest share of the device's free memory that the KV cache may take.",
    )  # fmt: skip
    kv_cache_dtype: str = option(
        "auto",
        help="Number format of the KV cache; auto: float16 beside quantized weights, else as the model computes.",
        choices=("auto", "float32", "bfloat16", "float16"),
    )  # fmt: skip
    enable_prefix_caching: bool = option(True, help="Reuse the KV cache of equal prefixes.")
    num_blocks: int | None = option(None, help="Blocks of the KV cache, once allocated.", hidden=True)


@dataclasses.dataclass
class SchedulerConfig(Section):
    """How much is computed in one step, and for whom first."""

    max_num_seqs: int = option(64, help="Most requests in progress at once.")
    max_num_batched_tokens: int = option(2048, help="Token budget of one step (prefills are chunked).")
    itl_slo: float | None = option(
        None,
        help="Longest wait of a stream for its next token while prompts of others are computed, as a multiple of "
        "the usual wait; less lets new requests wait longer. Default: 3, unless more requests wait than run.",
    )
    scheduling_policy: str = option(
        "fcfs", help="Order of requests: first come first served, or by their priority (lower first).",
        choices=("fcfs", "priority"),
    )  # fmt: skip
    scheduler_cls: str | None = option(
        None, help="Scheduler, by a plugin's name or as module:Class; default: the engine's own."
    )


@dataclasses.dataclass
class ParallelConfig(Section):
    """Processes and threads."""

    tensor_parallel_size: int = option(1, aliases=("-tp",), help="Workers that share each layer.")
    distributed_executor_backend: str | None = option(
        None,
        help="Where workers live: uni (inside the engine core), mp (a process each), a plugin or a class path.",
    )
    worker_cls: str = option(
        "auto", help="Worker class, by a plugin's name or as module:Class; auto is the platform's."
    )
    start_method: str = option(
        "spawn", help="How child processes are started: a fresh interpreter each, or a fork server.",
        choices=("spawn", "forkserver"),
    )  # fmt: skip
    threads_per_worker: int | None = option(
        None, help="Compute threads of each worker; default: the usable cores divided by the workers."
    )
    preload: bool = option(
        True, help="Take the engine's processes from a warm parent of `graftlm preload`, where one fits."
    )
    distributed_init_method: str = option("", help="Rendezvous of the workers.", hidden=True)

    @property
    def world_size(self) -> int:
        return self.tensor_parallel_size


@dataclasses.dataclass
class CompilationConfig(Section):
    """Which implementation of an op runs."""

    backend: str = option(
        "eager", flag="--compilation-backend", help="Compiler of the model's graph: eager (none) or inductor."
    )
    custom_ops: list[str] = option(
        factory=list, help="Op switches: one base mode (all or none) and +name / -name, comma-separated."
    )
    verify_ops: bool = option(
        False, help="At start-up, compare each replaced or provided op with its reference; refuse a wrong one."
    )
    op_providers: list[str] = option(
        factory=list,
        help="Providers of op implementations that are asked before the platform's own, comma-separated.",
    )

    @property
    def base_mode(self) -> str | None:
        """Whether ops without a switch run ("all") or not ("none"); None while nobody has said."""
        return next((entry for entry in self.custom_ops if entry in BASE_MODES), None)

    def set_base_mode(self, mode: str) -> None:
        """Replace the base mode of `custom_ops`; the switches `+name` and `-name` stay as they are."""
        self.custom_ops = [mode, *(entry for entry in self.custom_ops if entry not in BASE_MODES)]


@dataclasses.dataclass
class AttentionConfig(Section):
    """How attention is computed."""

    attention_backend: str | None = option(
        None, help="Attention backend by name or module:Class; default: the platform's choice."
    )


@dataclasses.dataclass
class PluginConfig(Section):
    """Which plugins may take part. See `graftlm plugins`."""

    plugins: list[str] | None = option(None, help="Load exactly these plugins (comma-separated names).")
    enable_plugin: list[str] = option(factory=list, help="Enable one more plugin (comma-separated, repeatable).")
    disable_plugin: list[str] = option(
        factory=list, help="Leave these plugins, or all of a distribution, out (repeatable)."
    )
    no_plugins: bool = option(False, help="Safe mode: no plugins but the engine's own.")
    platform: str | None = option(None, help="Choose the platform by name instead of detecting it.")
    allow_platform_fallback: bool = option(
        False, help="Serve on the next best platform when a platform plugin fails."
    )
    plugins_locked: str | None = option(
        None, help="Refuse to start unless the plugins are exactly those of this file of `graftlm plugins lock`."
    )
    plugin_config: list[str] = option(factory=list, help="A plugin's own setting, as NAME.KEY=VALUE (repeatable).")


@dataclasses.dataclass
class ObservabilityConfig(Section):
    """What is said about a run."""

    log_level: list[str] = option(
        factory=list,
        help="Log level: LEVEL, or LOGGER=LEVEL such as plugin.NAME=debug (comma-separated, repeatable).",
    )
    log_format: str = option("text", help="Log lines as text or as JSON.", choices=("text", "json"))
    disable_log_stats: bool = option(False, help="Do not log throughput every ten seconds.")
    time_plugin_calls: bool = option(
        False,
        help="Time each call into a plugin's code, and write what it took into the ledger at the end; serving is "
        "slower. `graftlm bench plugins` uses it.",
    )


class Change(msgspec.Struct, frozen=True):
    """One value, changed by one owner: 'default', 'user', 'platform NAME', 'plugin NAME' or 'engine'."""

    path: str
    value: Any
    owner: str


@dataclasses.dataclass
class EngineConfig:
    """The whole configuration of one engine: asked once, resolved once, then frozen."""

    model: ModelConfig = dataclasses.field(default_factory=ModelConfig)
    cache: CacheConfig = dataclasses.field(default_factory=CacheConfig)
    scheduler: SchedulerConfig = dataclasses.field(default_factory=SchedulerConfig)
    parallel: ParallelConfig = dataclasses.field(default_factory=ParallelConfig)
    compilation: CompilationConfig = dataclasses.field(default_factory=CompilationConfig)
    attention: AttentionConfig = dataclasses.field(default_factory=AttentionConfig)
    plugins: PluginConfig = dataclasses.field(default_factory=PluginConfig)
    observability: ObservabilityConfig = dataclasses.field(default_factory=ObservabilityConfig)
    changes: list[Change] = dataclasses.field(default_factory=list)

    @classmethod
    def section_types(cls) -> dict[str, type[Section]]:
        return {
            "model": ModelConfig, "cache": CacheConfig, "scheduler": SchedulerConfig,
            "parallel": ParallelConfig, "compilation": CompilationConfig, "attention": AttentionConfig,
            "plugins": PluginConfig, "observability": ObservabilityConfig,
        }  # fmt: skip

    def sections(self) -> dict[str, Section]:
        return {name: getattr(self, name) for name in self.section_types()}

    @contextlib.contextmanager
    def stage(self, owner: str) -> Iterator[None]:
        """Record each value changed inside the block as set by `owner`."""
        before = {name: copy.deepcopy(section.values()) for name, section in self.sections().items()}
        yield
        for name, section in self.sections().items():
            for key, value in section.values().items():
                if value != before[name][key]:
                    self.changes.append(Change(f"{name}.{key}", copy.deepcopy(value), owner))

    def owner_of(self, path: str) -> str:
        """Tell who set `section.field` last."""
        return next((c.owner for c in reversed(self.changes) if c.path == path), "default")

    def asked_by_user(self, path: str) -> Any:
        """Return what the user set `section.field` to, or None; the value may be another by now."""
        return next((c.value for c in reversed(self.changes) if c.path == path and c.owner == "user"), None)

    def freeze(self) -> None:
        for section in self.sections().values():
            section.freeze()
        self.changes = tuple(self.changes)  # type: ignore[assignment]

    def to_bytes(self) -> bytes:
        """Encode for a child process."""
        data: dict[str, Any] = {name: section.values() for name, section in self.sections().items()}
        return msgspec.msgpack.encode({**data, "changes": list(self.changes)})

    @classmethod
    def from_bytes(cls, data: bytes) -> EngineConfig:
        """Decode what `to_bytes` made; the result is frozen."""
        raw = msgspec.msgpack.decode(data)
        raw["model"]["hf_config"] = HFConfig(raw["model"]["hf_config"])
        sections: dict[str, Any] = {n: t(**raw[n]) for n, t in cls.section_types().items()}
        config = cls(**sections, changes=msgspec.convert(raw["changes"], list[Change]))
        config.freeze()
        return config
