"""The base of every request body: unknown fields and wrong types are errors, never guesses.

It does not know the routes. `http/validation.py` turns its complaints into sentences.
"""

from __future__ import annotations

import difflib
from typing import Annotated, Any

from pydantic import BaseModel, ConfigDict, Field, model_validator
from pydantic_core import PydanticCustomError

MAX_TOKEN_ID = 2**31 - 1

TokenId = Annotated[int, Field(ge=0, le=MAX_TOKEN_ID)]


class StrictModel(BaseModel):
    """A JSON object with known fields only; null means that a field was not sent."""

    model_config = ConfigDict(extra="forbid", strict=True, allow_inf_nan=False, regex_engine="rust-regex")

    @model_validator(mode="before")
    @classmethod
    def _refuse_unknown_fields(cls, data: Any) -> Any:
        if isinstance(data, dict) and (unknown := [name for name in data if name not in cls.model_fields]):
            field = str(unknown[0])
            near = difflib.get_close_matches(field, cls.model_fields, n=2, cutoff=0.5)
            cure = f"; did you mean {' or '.join(repr(n) for n in near)}?" if near else ""
            raise PydanticCustomError(
                "unknown_field", "unknown field {field}{cure}", {"field": field, "cure": cure}
            )
        return data


def not_yet(what: str) -> PydanticCustomError:
    """Build the complaint about something that this server cannot do yet."""
    return PydanticCustomError("not_yet_supported", "{what}", {"what": what})


def wrong_shape(problem: str) -> PydanticCustomError:
    """Build a complaint in one sentence of our own."""
    return PydanticCustomError("wrong_shape", "{problem}", {"problem": problem})
