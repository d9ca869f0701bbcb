"""What a caller may wish about the tokens of one request."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import msgspec

from graftlm.contracts.errors import InvalidParameter


class SamplingParams(msgspec.Struct, kw_only=True, omit_defaults=True, forbid_unknown_fields=True):
    """The sampling wishes of one request, in the field's usual names.

    `temperature` 0 is greedy. `top_k` 0 or -1 keeps all tokens. `max_tokens` None goes to the end of the
    context. `seed` None takes one made from the server's and the request's number. `logprobs` k returns the k best
    tokens at each place and the chosen one. The random stream depends on seed and position only.
    """

    n: int = 1
    temperature: float = 1.0
    top_p: float = 1.0
    top_k: int = 0
    min_p: float = 0.0
    seed: int | None = None
    max_tokens: int | None = 16
    min_tokens: int = 0
    stop: list[str] = []
    stop_token_ids: list[int] = []
    ignore_eos: bool = False
    include_stop_str_in_output: bool = False
    presence_penalty: float = 0.0
    frequency_penalty: float = 0.0
    repetition_penalty: float = 1.0
    logit_bias: dict[int, float] = {}
    logprobs: int | None = None
    prompt_logprobs: int | None = None

    def __post_init__(self) -> None:
        if isinstance(self.stop, str):
            self.stop = [self.stop]
        self._check_types()
        _check(1 <= self.n <= 128, "n", self.n, "use 1 to 128")
        _check(
            _finite(self.temperature) and 0 <= self.temperature <= 100,
            "temperature",
            self.temperature,
            "use 0 to 100",
        )
        _check(_finite(self.top_p) and 0 < self.top_p <= 1, "top_p", self.top_p, "use a value above 0, up to 1")
        _check(self.top_k >= -1, "top_k", self.top_k, "use 0 or -1 for all tokens, or a positive count")
        _check(_finite(self.min_p) and 0 <= self.min_p <= 1, "min_p", self.min_p, "use 0 to 1")
        _check(self.seed is None or -(2**63) <= self.seed < 2**64, "seed", self.seed, "use a 64-bit whole number")
        _check(self.max_tokens is None or self.max_tokens >= 1, "max_tokens", self.max_tokens, "use 1 or more")
        _check(self.min_tokens >= 0, "min_tokens", self.min_tokens, "use 0 or more")
        _check(
            self.max_tokens is None or self.min_tokens <= self.max_tokens,
            "min_tokens", self.min_tokens, f"it is above max_tokens={self.max_tokens}",
        )  # fmt: skip
        _check(all(self.stop), "stop", self.stop, "an empty string would end every output at once")
        for name in ("presence_penalty", "frequency_penalty"):
            value = getattr(self, name)
            _check(_finite(value) and -2 <= value <= 2, name, value, "use -2 to 2")
        _check(
            _finite(self.repetition_penalty) and 1e-3 <= self.repetition_penalty <= 1e6,
            "repetition_penalty", self.repetition_penalty, "use 0.001 to 1000000; 1 changes nothing",
        )  # fmt: skip
        for token_id, bias in self.logit_bias.items():
            _check(_finite(bias) and -100 <= bias <= 100, f"logit_bias[{token_id}]", bias, "use -100 to 100")
        for name in ("logprobs", "prompt_logprobs"):
            value = getattr(self, name)
            _check(value is None or 0 <= value <= 20, name, value, "use 0 to 20")

    def _check_types(self) -> None:
        """Name the field: from Python, anything may come."""
        for names, holds, cure in _TYPES:
            for name in names:
                value = getattr(self, name)
                _check(holds(value), name, value, cure)


def _is_whole(value: object) -> bool:
    return type(value) is int


def _is_number(value: object) -> bool:
    return type(value) in (int, float)


_TYPES: tuple[tuple[tuple[str, ...], Callable[[Any], bool], str], ...] = (
    (("n", "top_k", "min_tokens"), _is_whole, "use a whole number"),
    (
        ("seed", "max_tokens", "logprobs", "prompt_logprobs"),
        lambda value: value is None or _is_whole(value),
        "use a whole number or None",
    ),
    (
        ("temperature", "top_p", "min_p", "presence_penalty", "frequency_penalty", "repetition_penalty"),
        _is_number,
        "use a number",
    ),
    (("ignore_eos", "include_stop_str_in_output"), lambda value: type(value) is bool, "use True or False"),
    (
        ("stop",),
        lambda value: isinstance(value, list) and all(isinstance(text, str) for text in value),
        "use a list of texts",
    ),
    (
        ("stop_token_ids",),
        lambda value: isinstance(value, list) and all(map(_is_whole, value)),
        "use a list of token ids",
    ),
    (
        ("logit_bias",),
        lambda value: (
            isinstance(value, dict) and all(map(_is_whole, value)) and all(map(_is_number, value.values()))
        ),
        "use a dictionary of token ids to numbers",
    ),
)


def _finite(value: float) -> bool:
    """Tell whether a number is one that a float can hold: a whole number of Python's may be any size."""
    try:
        return math.isfinite(value)
    except OverflowError:
        return False


def _check(holds: bool, name: str, value: object, cure: str) -> None:
    if not holds:
        raise InvalidParameter(name, value, cure=cure)
