"""Says where to look when the command line of a sub-command is wrong; it knows none of them."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

from graftlm.config.arguments import UnknownFlag, UsageError


def with_hint(
    error: UsageError, *, command: str, name: str, siblings: Iterable[str], load: Callable[[str], Any]
) -> UsageError:
    """Return the error of `graftlm COMMAND NAME` with a hint: who else takes the flag, else the help.

    `load` imports the module of a sibling, which has a `build_parser()`.
    """
    if isinstance(error, UnknownFlag):
        owners = [sibling for sibling in siblings if error.flag in load(sibling).build_parser().flags()]
        if owners:
            named = " and ".join(f"`graftlm {command} {owner}`" for owner in owners)
            takes = "takes" if len(owners) == 1 else "take"
            return UsageError(
                f"unknown flag {error.flag}; {named} {takes} it (see `graftlm {command} {owners[0]} --help`)"
            )
    if "--help" in str(error):
        return error
    return UsageError(f"{error} (see `graftlm {command} {name} --help`)")
