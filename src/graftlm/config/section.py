"""A section of the configuration: typed fields that can be frozen and that know their names.

It does not know who sets a value; `EngineConfig.stage` records that.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from typing import Any

from graftlm.config.errors import ConfigFrozen, UnknownOption
from graftlm.plugins.spelling import nearest_names


def option(
    default: Any = dataclasses.MISSING,
    *,
    help: str,
    factory: Any = dataclasses.MISSING,
    flag: str | None = None,
    aliases: Sequence[str] = (),
    choices: Sequence[str] | None = None,
    synonyms: Mapping[str, str] | None = None,
    hidden: bool = False,
) -> Any:
    """Declare a field that a user may set.

    `flag` is the spelling on the command line (default: the field's name with dashes), `aliases` are
    other spellings of it, `synonyms` other words for its choices; `hidden` fields are decided by the engine and
    have no flag.
    """
    metadata = {
        "help": help, "flag": flag, "aliases": tuple(aliases), "choices": choices, "synonyms": dict(synonyms or {}),
        "hidden": hidden,
    }  # fmt: skip
    if factory is not dataclasses.MISSING:
        return dataclasses.field(default_factory=factory, metadata=metadata)
    return dataclasses.field(default=default, metadata=metadata)


class Section:
    """The base of every section: unknown names are errors, and so is a change after `freeze`."""

    def __setattr__(self, name: str, value: Any) -> None:
        if name not in self.field_names():
            raise UnknownOption(name, where=type(self).__name__, known=self.field_names())
        if self.__dict__.get("_frozen", False):
            raise ConfigFrozen(f"{type(self).__name__}.{name}", value=value)
        object.__setattr__(self, name, value)

    @classmethod
    def field_names(cls) -> tuple[str, ...]:
        return tuple(f.name for f in dataclasses.fields(cls))  # type: ignore[arg-type]

    @classmethod
    def nearest(cls, name: str) -> list[str]:
        return nearest_names(name, cls.field_names())

    def freeze(self) -> None:
        """Refuse every later change; lists become tuples so that they cannot be changed in place."""
        for name in self.field_names():
            value = getattr(self, name)
            if isinstance(value, list):
                object.__setattr__(self, name, tuple(value))
        object.__setattr__(self, "_frozen", True)

    @property
    def frozen(self) -> bool:
        return bool(self.__dict__.get("_frozen", False))

    def values(self) -> dict[str, Any]:
        return {name: getattr(self, name) for name in self.field_names()}
