"""The base of every request body: unknown fields and wrong types are errors, never guesses.

It does not know the routes. `http/validation.py` turns its complaints into sentences.
"""

from __future__ import annotations

from typing import Annotated, Any, ClassVar

from pydantic import BaseModel, ConfigDict, Field, model_validator
from pydantic_core import PydanticCustomError

from graftlm.plugins.spelling import nearest_names

MAX_TOKEN_ID = 2**31 - 1


def _integral(value: Any) -> Any:
    """Take 4.0 for 4, as JSON does not tell them apart."""
    return int(value) if type(value) is float and value.is_integer() else value


TokenId = Annotated[int, Field(ge=0, le=MAX_TOKEN_ID)]


def check_token_ids(value: list[Any], *, shape: str) -> list[int]:
    """Return `value` if all are token ids; `shape` is the complaint if not. It may be long: no loop in Python."""
    kinds = set(map(type, value))
    if float in kinds:
        value = [_integral(token_id) for token_id in value]
        kinds = set(map(type, value))
    if kinds - {int}:
        raise wrong_shape(shape)
    if value and (min(value) < 0 or max(value) > MAX_TOKEN_ID):
        raise wrong_shape(f"a token id is 0 to {MAX_TOKEN_ID}")
    return value


class StrictModel(BaseModel):
    """A JSON object with known fields only; null means that a field was not sent."""

    model_config = ConfigDict(extra="forbid", strict=True, allow_inf_nan=False, regex_engine="rust-regex")

    _integers: ClassVar[tuple[str, ...]] = ()

    @classmethod
    def __pydantic_init_subclass__(cls, **kwargs: Any) -> None:
        cls._integers = tuple(n for n, field in cls.model_fields.items() if field.annotation in (int, int | None))

    @model_validator(mode="before")
    @classmethod
    def _check_names(cls, data: Any) -> Any:
        if not isinstance(data, dict):
            return data
        if unknown := [name for name in data if name not in cls.model_fields]:
            field = str(unknown[0])
            near = nearest_names(field, cls.model_fields, most=2, cutoff=0.55)
            cure = f"; did you mean {' or '.join(repr(n) for n in near)}?" if near else ""
            raise PydanticCustomError(
                "unknown_field", "unknown field {field}{cure}", {"field": field, "cure": cure}
            )
        whole = {name: _integral(data[name]) for name in cls._integers if type(data.get(name)) is float}
        return {**data, **whole} if whole else data


def not_yet(what: str) -> PydanticCustomError:
    """Build the complaint about something that this server cannot do yet."""
    return PydanticCustomError("not_yet_supported", "{what}", {"what": what})


def wrong_shape(problem: str) -> PydanticCustomError:
    """Build a complaint in one sentence of our own."""
    return PydanticCustomError("wrong_shape", "{problem}", {"problem": problem})
