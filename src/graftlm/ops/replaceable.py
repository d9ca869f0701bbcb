"""The engine's layer classes that a plugin may replace, by path, so that a misspelt one is told; imports no torch.

It does not know the classes of others: their modules alone say what is in them.
"""

from __future__ import annotations

from collections.abc import Iterator

from graftlm.ops.names import BUILT_IN_OPS
from graftlm.plugins.plugin import BUILT_IN_PACKAGES
from graftlm.plugins.spelling import nearest_names

_CLASSES = {
    "graftlm.layers.activation": (
        "GELU", "GeluAndMul", "NewGELU", "QuickGELU", "ReLU", "ReLUSquared", "SiLU", "SiluAndMul", "Tanh",
    ),
    "graftlm.layers.attention": ("Attention",),
    "graftlm.layers.embedding": ("ParallelLMHead", "VocabParallelEmbedding"),
    "graftlm.layers.linear": (
        "ColumnParallelLinear", "LinearBase", "MergedColumnParallelLinear", "QKVParallelLinear",
        "ReplicatedLinear", "RowParallelLinear",
    ),
    "graftlm.layers.logits": ("LogitsProcessor",),
    "graftlm.layers.norm": ("LayerNorm", "RMSNorm"),
    "graftlm.layers.quantization.unquantized": ("LinearOp",),
    "graftlm.layers.rotary": ("LinearScalingRotaryEmbedding", "Llama3RotaryEmbedding", "RotaryEmbedding"),
    "graftlm.ops.sampling.adjust": ("AdjustLogits",),
    "graftlm.ops.sampling.choose": ("ChooseTokens",),
    "graftlm.ops.sampling.logprobs": ("RankedLogprobs",),
}  # fmt: skip

#: Equal to what the engine's modules define once they are imported; a test holds them together.
REPLACEABLE_CLASSES: tuple[str, ...] = tuple(f"{m}.{name}" for m, names in _CLASSES.items() for name in names)


def spellings(module: str, qualname: str) -> Iterator[str]:
    """Yield the entry-point names that mean the class `qualname` of `module`."""
    package, _, _ = module.rpartition(".")
    for place in (module, package) if package == "graftlm.layers" else (module,):
        yield f"{place}.{qualname}"
        yield f"{place}:{qualname}"


def is_ours(path: str) -> bool:
    """Tell whether a class path leads into the engine's own packages, whose classes are known here."""
    return path.partition(":")[0].partition(".")[0] in BUILT_IN_PACKAGES


def wrong_class(path: str) -> str:
    """Say why an entry-point name that `is_ours` replaces nothing, with the nearest classes, or ""."""
    known = {s: f"{m}.{name}" for m, names in _CLASSES.items() for name in names for s in spellings(m, name)}
    if path in known:
        return ""
    bare = {p.rpartition(".")[2]: p for p in REPLACEABLE_CLASSES}
    near = nearest_names(path.replace(":", ".").rpartition(".")[2], bare)
    cure = f"did you mean {' or '.join(repr(bare[name]) for name in near)}?" if near else _some()
    return f"{path!r} is no layer class of the engine, so it replaces nothing; {cure}"


def wrong_op(op: str) -> str:
    """Say which op somebody most likely meant who implements one of an unknown name, or "".

    An op that is near no op of the engine may be one that a plugin brings.
    """
    near = [] if op in BUILT_IN_OPS else nearest_names(op, BUILT_IN_OPS, cutoff=0.75)
    cure = " or ".join(map(repr, near))
    return f"the engine has no op {op!r}, so nothing asks for it; did you mean {cure}?" if near else ""


def _some() -> str:
    return f"it has {', '.join(p.rpartition('.')[2] for p in REPLACEABLE_CLASSES)}"
