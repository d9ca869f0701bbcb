"""The options a user may set, read off the typed sections: their names, spellings, types and conversions.

It sets values on sections and records who asked; it knows neither argparse nor YAML, and never asks whether a
value can be served (`engine/configure.py` does).
"""

from __future__ import annotations

import dataclasses
import functools
import json
import re
import types
import typing
from collections.abc import Callable, Iterable, Mapping
from typing import Any

from graftlm.config.engine_config import Change, EngineConfig
from graftlm.config.errors import ConfigError, InvalidOption, UnknownOption
from graftlm.config.section import Section
from graftlm.config.server_config import ServerConfig
from graftlm.config.vllm_flags import advice_for

_SUFFIXES = {"": 1, "k": 2**10, "m": 2**20, "g": 2**30, "t": 2**40}


@dataclasses.dataclass(frozen=True)
class Option:
    """One field of a section that has a flag."""

    section: str
    field: str
    kind: type
    optional: bool
    help: str
    default: Any
    flag: str
    aliases: tuple[str, ...] = ()
    choices: tuple[str, ...] | None = None
    synonyms: Mapping[str, str] = dataclasses.field(default_factory=dict)

    @property
    def path(self) -> str:
        return f"{self.section}.{self.field}"

    @property
    def names(self) -> tuple[str, ...]:
        """Spellings in a file or as a keyword argument, with underscores."""
        flags = (self.flag, *(a for a in self.aliases if a.startswith("--")))
        return tuple(flag.lstrip("-").replace("-", "_") for flag in flags)

    @property
    def splits_commas(self) -> bool:
        """Lists whose help says so are comma-separated; the others may hold commas and are repeated."""
        return self.kind is list and "comma-separated" in self.help

    @property
    def is_bytes(self) -> bool:
        return self.field.endswith("_bytes")

    def translated(self, text: str) -> str:
        """Return the choice that another word stands for; every other text as it is."""
        return self.synonyms.get(text, text)

    def parse(self, text: str, *, any_choice: bool = False) -> Any:
        """Convert what was typed; raises InvalidOption. `any_choice`: somebody else judged the choice."""
        try:
            value = self._parse(self.translated(text))
        except ValueError as error:
            raise InvalidOption(self.flag, text, problem=str(error)) from None
        self._check_empty(value)
        if not any_choice:
            self._check_choice(value)
        return value

    def check(self, value: Any) -> Any:
        """Return a typed value (of a file, of a keyword argument) as the section keeps it; raises InvalidOption."""
        if value is None and self.optional:
            return None
        if self.kind is list:
            parts = value if isinstance(value, list | tuple) else [value]
            if not all(isinstance(part, str | int | float) and not isinstance(part, bool) for part in parts):
                raise InvalidOption(self.flag, value, problem="it must be a list of strings")
            pieces = [piece for part in parts for piece in self._pieces(str(part))]
            self._check_empty(pieces)
            return pieces
        if isinstance(value, str) and self.kind is not str:
            return self.parse(value)
        if self.kind is float and type(value) is int:
            value = float(value)
        if self.kind is str and type(value) in (int, float) and self.choices is None:
            value = str(value)
        if type(value) is not self.kind:
            raise InvalidOption(self.flag, value, problem=f"it must be {self._wanted}")
        self._check_empty(value)
        value = self.translated(value) if isinstance(value, str) else value
        self._check_choice(value)
        return value

    def _parse(self, text: str) -> Any:
        match self.kind:
            case t if t is list:
                return self._pieces(text)
            case t if t is dict:
                return parse_json_object(text)
            case t if t is bool:
                return parse_bool(text)
            case t if t is int:
                return parse_bytes(text) if self.is_bytes else _number(int, text, "a whole number")
            case t if t is float:
                return _number(float, text, "a number")
        return text

    def _pieces(self, text: str) -> list[str]:
        if not self.splits_commas:
            return [text]
        return [piece.strip() for piece in text.split(",") if piece.strip()]

    def _check_empty(self, value: Any) -> None:
        """An empty text is a shell variable that was not set, never a name, a key or a path."""
        if (value == "" and self.default != "") or (self.kind is list and "" in value):
            raise InvalidOption(self.flag, "", problem="it is empty", cure="give a value, or leave it out")

    def _check_choice(self, value: Any) -> None:
        if self.choices is not None and value not in self.choices:
            raise InvalidOption(self.flag, value, problem="no such choice", cure=f"use {' or '.join(self.choices)}")

    @property
    def _wanted(self) -> str:
        words: dict[type, str] = {int: "a whole number", float: "a number", bool: "true or false",
                                  dict: "a mapping", list: "a list", str: "text"}  # fmt: skip
        return words[self.kind]


def parse_bytes(text: str) -> int:
    """Convert '512m', '1.5GiB' or '4096' to bytes; suffixes are powers of 1024."""
    match = re.fullmatch(r"(\d+(?:\.\d+)?)\s*([kmgt]?)(?:i?b)?", text.strip().lower())
    if match is None:
        raise ValueError("it is no size; use a number of bytes, or one with k, m, g or t, such as 512m")
    return int(float(match[1]) * _SUFFIXES[match[2]])


def parse_bool(text: str) -> bool:
    match text.strip().lower():
        case "true" | "yes" | "on" | "1":
            return True
        case "false" | "no" | "off" | "0":
            return False
    raise ValueError("it is neither true nor false")


def parse_json_object(text: str) -> dict[str, Any]:
    try:
        value = json.loads(text)
    except json.JSONDecodeError as error:
        raise ValueError(f"it is no JSON ({error}); quote it for the shell, such as '{{\"key\": 1}}'") from None
    except RecursionError:
        raise ValueError("its JSON is nested too deep") from None
    if not isinstance(value, dict):
        raise ValueError("it must be a JSON object, such as '{\"key\": 1}'")
    return value


@functools.cache
def engine_options() -> tuple[Option, ...]:
    """Every option of the engine, in the order of the sections."""
    return tuple(o for name, section in EngineConfig.section_types().items() for o in _options(name, section))


@functools.cache
def server_options() -> tuple[Option, ...]:
    return tuple(_options("server", ServerConfig))


def options_by_name(options: Iterable[Option]) -> dict[str, Option]:
    return {name: option for option in options for name in option.names}


def read_options(given: Mapping[str, Any], options: Iterable[Option], *, where: str) -> dict[str, Any]:
    """Turn names (dashes or underscores) and typed values into `{path: value}`; unknown names are errors."""
    known = options_by_name(options)
    values: dict[str, Any] = {}
    for name, value in given.items():
        option = known.get(str(name).replace("-", "_"))
        if option is None:
            spelled = str(name).replace("_", "-")
            names = [n.replace("_", "-") for n in known]
            advice = advice_for(f"--{spelled}", [f"--{n}" for n in names])
            raise UnknownOption(spelled, where=where, known=names, cure=advice)
        if option.path in values:
            raise ConfigError(f"{where} sets {option.flag} twice")
        try:
            values[option.path] = option.check(value)
        except InvalidOption as error:
            raise error.given_in(where) from None
    return values


def read_environment(get: Callable[[str], str | None], options: Iterable[Option]) -> dict[str, Any]:
    """Return `{path: value}` of the options that environment variables set."""
    from graftlm.config.environment import VARIABLES

    known = options_by_name(options)
    values: dict[str, Any] = {}
    for variable in VARIABLES.values():
        option = known.get(variable.option or "")
        text = get(variable.name) if option is not None else None
        if option is not None and text is not None:
            try:
                values[option.path] = option.parse(text)
            except InvalidOption as error:
                raise error.given_in(variable.name) from None
    return values


def apply_values(config: EngineConfig, values: Mapping[str, Any], *, owner: str = "user") -> None:
    """Set `{path: value}` on the sections and record `owner`, also where the value equals the default."""
    before = len(config.changes)
    with config.stage(owner):
        for path, value in values.items():
            section, field = path.split(".")
            setattr(getattr(config, section), field, value)
    recorded = {change.path for change in config.changes[before:]}
    config.changes.extend(Change(path, value, owner) for path, value in values.items() if path not in recorded)


def _options(section: str, owner: type[Section]) -> Iterable[Option]:
    hints = typing.get_type_hints(owner)
    for field in dataclasses.fields(owner):  # type: ignore[arg-type]
        meta = field.metadata
        if meta["hidden"]:
            continue
        kind, optional = _kind(hints[field.name])
        default = field.default if field.default_factory is dataclasses.MISSING else field.default_factory()
        yield Option(
            section=section,
            field=field.name,
            kind=kind,
            optional=optional,
            help=meta["help"],
            default=default,
            flag=meta["flag"] or "--" + field.name.replace("_", "-"),
            aliases=meta["aliases"],
            choices=tuple(meta["choices"]) if meta["choices"] else None,
            synonyms=meta["synonyms"],
        )


def _kind(hint: Any) -> tuple[type, bool]:
    """Reduce a type to the plain class that decides conversion, and whether None is allowed."""
    origin = typing.get_origin(hint)
    if origin in (typing.Union, types.UnionType):
        inner = [arg for arg in typing.get_args(hint) if arg is not type(None)]
        return _kind(inner[0])[0], True
    if origin is typing.Literal:
        return str, False
    return (origin or hint), False


def _number(kind: type[int] | type[float], text: str, wanted: str) -> int | float:
    try:
        return kind(text)
    except ValueError:
        raise ValueError(f"it is not {wanted}") from None
