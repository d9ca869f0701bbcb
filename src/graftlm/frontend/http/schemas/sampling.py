"""The fields that completions and chat completions share, and their translation into SamplingParams.

It does not know prompts or messages. The checkpoint's generation_config.json is not consulted: a field that is
not sent has OpenAI's default (temperature 1, top_p 1, no penalties), whatever the checkpoint recommends.
"""

from __future__ import annotations

from typing import Annotated, Any

from pydantic import Field, PlainValidator, WithJsonSchema

from graftlm.contracts.errors import NotYetSupported
from graftlm.contracts.sampling import SamplingParams
from graftlm.frontend.http.errors import InvalidField
from graftlm.frontend.http.schemas.strict import StrictModel, TokenId, wrong_shape

MAX_TOKENS = 2**31 - 1
MAX_STOP_STRINGS = 64


def _check_stop(value: Any) -> list[str] | None:
    if value is None:
        return None
    strings = [value] if isinstance(value, str) else value
    if not isinstance(strings, list) or not all(isinstance(s, str) for s in strings):
        raise wrong_shape("a string or a list of strings ends the output")
    if len(strings) > MAX_STOP_STRINGS:
        raise wrong_shape(f"at most {MAX_STOP_STRINGS} stop strings are possible")
    if not all(strings):
        raise wrong_shape("an empty string would end every output at once")
    if not all(is_sendable(s) for s in strings):
        raise wrong_shape("a stop string has a lone surrogate, which no output can have")
    return strings


def is_sendable(text: str) -> bool:
    """Tell whether `text` is Unicode text (JSON can smuggle in lone surrogates)."""
    try:
        text.encode("utf-8")
    except UnicodeEncodeError:
        return False
    return True


_STOP_SCHEMA = {
    "anyOf": [
        {"type": "string", "minLength": 1},
        {"type": "array", "items": {"type": "string", "minLength": 1}, "maxItems": MAX_STOP_STRINGS},
        {"type": "null"},
    ]
}
Stop = Annotated[list[str] | None, PlainValidator(_check_stop), WithJsonSchema(_STOP_SCHEMA)]
TokenIdText = Annotated[str, Field(pattern=r"^[0-9]{1,9}$")]


class StreamOptions(StrictModel):
    """How a stream is written; only with `stream`."""

    include_usage: bool | None = Field(None, description="Send a last chunk with the usage, and no choices.")
    include_obfuscation: bool | None = Field(None, description="Accepted when false; chunks are not padded.")


class SamplingFields(StrictModel):
    """What both generating routes take."""

    model: str | None = Field(None, description="One of the names of /v1/models; default: the first.")
    n: int | None = Field(None, ge=1, le=128, description="Outputs for each prompt; default 1.")
    temperature: float | None = Field(None, ge=0, le=100, description="0 is greedy; default 1.")
    top_p: float | None = Field(None, gt=0, le=1, description="Nucleus sampling; default 1 keeps all.")
    top_k: int | None = Field(None, ge=-1, le=MAX_TOKENS, description="Keep the k best tokens; 0 and -1 keep all.")
    min_p: float | None = Field(None, ge=0, le=1, description="Least probability relative to the best token's.")
    seed: int | None = Field(
        None, ge=-(2**63), le=2**63 - 1, description="Seed of this request; default: the server's."
    )
    stop: Stop = Field(None, description="Strings that end the output.")
    stop_token_ids: list[TokenId] | None = Field(
        None, max_length=1024, description="Token ids that end the output."
    )
    ignore_eos: bool | None = Field(None, description="Go on after the model's end of sequence.")
    include_stop_str_in_output: bool | None = Field(None, description="Leave the stop string in the text.")
    max_tokens: int | None = Field(
        None, ge=0, le=MAX_TOKENS, description="Most tokens of each output; 0 only where echo asks for the prompt."
    )
    min_tokens: int | None = Field(None, ge=0, le=MAX_TOKENS, description="Least tokens of each output.")
    presence_penalty: float | None = Field(
        None, ge=-2, le=2, description="Against tokens that were generated before; default 0."
    )
    frequency_penalty: float | None = Field(
        None, ge=-2, le=2, description="Against them, for each time that they were; default 0."
    )
    repetition_penalty: float | None = Field(None, ge=1e-3, le=1e6, description="1 changes nothing.")
    logit_bias: dict[TokenIdText, Annotated[float, Field(ge=-100, le=100)]] | None = Field(
        None, max_length=1024, description="Token id -> added to its logit."
    )
    stream: bool | None = Field(None, description="Send server-sent events as tokens come.")
    stream_options: StreamOptions | None = Field(
        None, description="include_usage: a last chunk with the usage; only with stream."
    )
    return_token_ids: bool | None = Field(None, description="Add the token ids of prompt and output.")
    priority: int | None = Field(
        None, ge=-(2**31), le=2**31 - 1,
        description="Lower is served first; only with --scheduling-policy priority.",
    )  # fmt: skip
    user: str | None = Field(None, description="Accepted; not used.")
    metadata: dict[str, Any] | None = Field(None, description="Accepted; not used.")
    store: bool | None = Field(None, description="Accepted; nothing is stored.")
    service_tier: str | None = Field(None, description="Accepted; there is one tier.")
    safety_identifier: str | None = Field(None, description="Accepted; not used.")
    prompt_cache_key: str | None = Field(None, description="Accepted; equal prefixes are always reused.")

    @property
    def include_usage(self) -> bool:
        return bool(self.stream_options and self.stream_options.include_usage)

    def check_stream_options(self) -> None:
        """Refuse wishes about a stream that would have no effect."""
        if self.stream_options is None:
            return
        if not self.stream:
            raise InvalidField("stream_options is not possible: it needs stream=true", param="stream_options")
        if self.stream_options.include_obfuscation:
            raise NotYetSupported("stream_options.include_obfuscation", what="padding of chunks")

    def sampling_params(self, **decided: Any) -> SamplingParams:
        """Build the engine's wishes; `decided` are values that the route settled itself."""
        sent = {name: value for name in _PASSED if (value := getattr(self, name)) is not None}
        if self.logit_bias is not None:
            sent["logit_bias"] = {int(token_id): bias for token_id, bias in self.logit_bias.items()}
        return SamplingParams(**{**sent, **decided})


_PASSED = tuple(
    name for name in SamplingParams.__struct_fields__
    if name in SamplingFields.model_fields and name not in ("logit_bias", "max_tokens")
)  # fmt: skip
