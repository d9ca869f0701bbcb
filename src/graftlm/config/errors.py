"""What can be wrong with a configuration.

ConfigError
├── UnknownOption            a name that no section has
├── InvalidOption            a value that cannot be
├── MissingCheckpointValue   the checkpoint's config lacks what its architecture needs
├── InvalidCheckpointValue   the checkpoint's config says what cannot be
└── ConfigFrozen             a change after the configuration was decided
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from graftlm.plugins.spelling import nearest_names


class ConfigError(ValueError):
    """A configuration that cannot be served; its text names the value and the cure."""


class UnknownOption(ConfigError):
    """`cure` is said instead of the nearest of the `known` names."""

    def __init__(self, name: str, *, where: str, known: Iterable[str], cure: str = "") -> None:
        near = nearest_names(name, known)
        cure = cure or (f"did you mean {' or '.join(repr(n) for n in near)}?" if near else "")
        super().__init__(f"unknown option {name!r} in {where}" + (f"; {cure}" if cure else ""))
        self.name = name


class InvalidOption(ConfigError):
    """`where` is the file or variable that gave the value, if it was no flag."""

    def __init__(self, option: str, value: Any, *, problem: str, cure: str = "", where: str = "") -> None:
        place = f" in {where}" if where else ""
        super().__init__(f"{option}={_shown(value)}{place}: {problem}" + (f"; {cure}" if cure else ""))
        self.option = option
        self.value = value
        self.problem = problem
        self.cure = cure

    def given_in(self, where: str) -> InvalidOption:
        """Return the same complaint about a value that `where` gave."""
        return InvalidOption(self.option, self.value, problem=self.problem, cure=self.cure, where=where)


class MissingCheckpointValue(ConfigError):
    def __init__(self, key: str) -> None:
        super().__init__(
            f"the checkpoint's config does not say {key!r}, which its architecture needs; "
            f"add it with --hf-overrides '{{\"{key}\": …}}', or name the right architecture there"
        )


class InvalidCheckpointValue(ConfigError):
    def __init__(self, key: str, value: Any, *, problem: str) -> None:
        super().__init__(
            f"the checkpoint's config says {key}={_shown(value)}: {problem}; correct the file, or give "
            f"another with --hf-overrides '{{\"{key}\": …}}'"
        )


class ConfigFrozen(ConfigError):
    def __init__(self, option: str, *, value: Any) -> None:
        super().__init__(
            f"{option} cannot be set to {value!r}: the configuration is frozen; "
            "change it in Platform.apply_config_platform_defaults or Platform.check_and_update_config"
        )


def _shown(value: Any) -> str:
    """Write a value so that a person finds it again, however long it is."""
    text = repr(value)
    return text if len(text) <= 200 else f"{text[:200]}… ({len(text)} characters)"
