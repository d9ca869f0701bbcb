"""The switch names of the built-in ops and the grammar of `--custom-ops`; imports no torch.

It does not know the op classes: the configuration is validated with it before any of them is imported.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable

from graftlm.config.engine_config import BASE_MODES
from graftlm.plugins.spelling import nearest_names

#: The sampler's ops, which are built apart from the model's.
SAMPLING_OPS: tuple[str, ...] = ("adjust_logits", "choose_tokens", "ranked_logprobs")

#: Equal to the real registry once graftlm.ops and graftlm.layers are imported; a test holds them together.
BUILT_IN_OPS: tuple[str, ...] = (
    *SAMPLING_OPS,
    "gelu",
    "gelu_and_mul",
    "gelu_new",
    "layer_norm",
    "linear",
    "quick_gelu",
    "relu",
    "relu2",
    "rms_norm",
    "rotary_embedding",
    "silu",
    "silu_and_mul",
    "tanh",
)


class InvalidOpSwitch(ValueError):
    """A list of op switches that means nothing or two things."""

    def __init__(self, switches: Iterable[str], *, problem: str, cure: str) -> None:
        super().__init__(f"custom_ops={','.join(switches)!r}: {problem}; {cure}")


@dataclasses.dataclass(frozen=True, slots=True)
class OpSwitches:
    """One base mode and its exceptions."""

    base: str = "all"
    on: frozenset[str] = frozenset()
    off: frozenset[str] = frozenset()

    @property
    def default_on(self) -> bool:
        return self.base == "all"

    def enabled(self, name: str) -> bool:
        return name in self.on or (self.default_on and name not in self.off)

    def reason(self, name: str) -> str:
        """Say which switch decides about the op `name`."""
        if name in self.on:
            return f"+{name}"
        return f"-{name}" if name in self.off else self.base


def parse_switches(
    switches: Iterable[str], *, default_base: str = "all", known: Iterable[str] | None = None
) -> OpSwitches:
    """Read a list of `all`, `none`, `+name`, `-name`; with `known`, refuse names that are not in it."""
    entries = [entry.strip() for entry in switches if entry.strip()]
    bases = {entry for entry in entries if entry in BASE_MODES}
    if len(bases) > 1:
        raise InvalidOpSwitch(entries, problem="it names two base modes", cure="keep one of all and none")
    wrong = [entry for entry in entries if entry not in BASE_MODES and (entry[0] not in "+-" or len(entry) < 2)]
    if wrong:
        raise InvalidOpSwitch(
            entries,
            problem=f"{wrong[0]!r} is no op switch",
            cure="write all or none once, and +name or -name for each exception",
        )
    on = frozenset(entry[1:] for entry in entries if entry[0] == "+")
    off = frozenset(entry[1:] for entry in entries if entry[0] == "-")
    if both := sorted(on & off):
        raise InvalidOpSwitch(entries, problem=f"+{both[0]} and -{both[0]} contradict", cure="keep one of them")
    if known is not None:
        _refuse_unknown(entries, on | off, sorted(known))
    return OpSwitches(bases.pop() if bases else default_base, on, off)


def _refuse_unknown(entries: list[str], names: frozenset[str], known: list[str]) -> None:
    for name in sorted(names):
        if name not in known:
            near = nearest_names(name, known) or known
            raise InvalidOpSwitch(
                entries, problem=f"there is no op {name!r}", cure=f"did you mean {' or '.join(near)}?"
            )
