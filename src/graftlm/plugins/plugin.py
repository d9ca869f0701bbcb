"""The facts of one plugin, as its metadata states them; knows nothing of loading it."""

from __future__ import annotations

import re

import msgspec

#: The distribution and package of the engine itself, which nothing runs without.
ENGINE = "graftlm"

#: Distributions whose plugins are the engine's own: selection flags leave them on.
BUILT_IN_DISTRIBUTIONS = frozenset({ENGINE, "graftlm-kernels"})

#: Top-level packages of those distributions.
BUILT_IN_PACKAGES = frozenset({ENGINE, "graftlm_kernels"})


def normalized(distribution: str) -> str:
    """Spell a distribution's name as package indexes compare it."""
    return re.sub(r"[-_.]+", "-", distribution).lower()


class Plugin(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """One entry point in one of our groups, with what the distribution's manifest adds to it.

    `key` and `opt_in` are its point's; `roles` are the roles it may run in; `named` tells that the user asked for
    it, so that its failure stops the start; `refused` holds why it cannot be imported by this engine.
    """

    point: str
    name: str
    value: str
    distribution: str
    version: str
    key: bool = False
    opt_in: bool = False
    built_in: bool = False
    roles: tuple[str, ...] = ()
    before: tuple[str, ...] = ()
    after: tuple[str, ...] = ()
    replaces: tuple[str, ...] = ()
    named: bool = False
    refused: str = ""

    @property
    def label(self) -> str:
        """What people see and may type: distribution:name."""
        return f"{self.distribution}:{self.name}"

    @property
    def left_out_by(self) -> str:
        """What --disable-plugin takes to do without it; the kernels share one library, and go together."""
        return self.distribution if self.package in BUILT_IN_PACKAGES - {ENGINE} else self.label

    @property
    def identity(self) -> str:
        """What no other plugin has."""
        return f"{self.point}={self.label}"

    @property
    def description(self) -> str:
        """For errors and logs."""
        return f"{self.name!r} of {self.distribution} {self.version}"

    @property
    def package(self) -> str:
        """The top-level package of its target."""
        return self.value.partition(":")[0].partition(".")[0].strip()

    def is_of(self, distribution: str) -> bool:
        """Tell whether it belongs to that distribution, however its name is spelled."""
        return normalized(distribution) == normalized(self.distribution)

    def answers_to(self, name: str) -> bool:
        """Tell whether `name` (bare, or distribution:name) means this plugin."""
        if name == self.name:
            return True
        distribution, separator, bare = name.partition(":")
        return bool(separator) and bare == self.name and self.is_of(distribution)
