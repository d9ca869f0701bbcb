"""The lock file: names, versions and file hashes of the enabled plugins, and whether they are still the same.

It decides nothing: what differs is an error, entry by entry. It imports no plugin.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import msgspec

from graftlm.plugins.errors import LockDiffers, UnreadableLock
from graftlm.plugins.fingerprint import distribution_facts
from graftlm.plugins.plan import DistributionFacts

if TYPE_CHECKING:
    from graftlm.plugins.selection import Decision

DEFAULT_NAME = "graftlm-plugins.lock"


class LockedPlugin(msgspec.Struct, frozen=True):
    """One enabled plugin: its point=distribution:name, and what its entry point names."""

    plugin: str
    target: str


class Lock(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What is locked; `distributions` have version and file hash."""

    format: int = 1
    plugins: tuple[LockedPlugin, ...] = ()
    distributions: tuple[DistributionFacts, ...] = ()


def make_lock(decisions: Sequence[Decision]) -> Lock:
    """Lock the enabled plugins of this installation."""
    enabled = [d.plugin for d in decisions if d.enabled]
    return Lock(
        plugins=tuple(sorted((LockedPlugin(p.identity, p.value) for p in enabled), key=lambda p: p.plugin)),
        distributions=distribution_facts(enabled),
    )


def write_lock(lock: Lock, path: str | Path) -> None:
    """Write it as JSON that a person can compare."""
    Path(path).write_text(json.dumps(msgspec.to_builtins(lock), indent=2) + "\n", encoding="utf-8")


def read_lock(path: str | Path) -> Lock:
    try:
        return msgspec.json.decode(Path(path).read_bytes(), type=Lock)
    except OSError as error:
        raise UnreadableLock(str(path), problem=error.strerror or str(error)) from error
    except msgspec.MsgspecError as error:
        raise UnreadableLock(str(path), problem=f"it is no lock file ({error})") from error


def check_lock(path: str | Path, decisions: Sequence[Decision]) -> None:
    """Raise LockDiffers unless the enabled plugins and their files are exactly those of the file."""
    if lines := differences(read_lock(path), make_lock(decisions), decisions):
        raise LockDiffers(str(path), differences=lines)


def differences(locked: Lock, present: Lock, decisions: Sequence[Decision]) -> list[str]:
    """Say, entry by entry, what is not as it was locked."""
    states = {d.plugin.identity: f"{d.state}: {d.reason}" for d in decisions if not d.enabled}
    ours = {p.plugin: p.target for p in present.plugins}
    theirs = {p.plugin: p.target for p in locked.plugins}
    lines = [f"plugin {name}: enabled here, and not locked" for name in sorted(ours.keys() - theirs.keys())]
    for name in sorted(theirs.keys() - ours.keys()):
        lines.append(f"plugin {name}: locked, and here it is {states.get(name, 'not installed')}")
    for name in sorted(ours.keys() & theirs.keys()):
        if ours[name] != theirs[name]:
            lines.append(f"plugin {name}: {theirs[name]} is locked, and here it is {ours[name]}")
    here = {d.name: d for d in present.distributions}
    for dist in locked.distributions:
        found = here.get(dist.name)
        if found is not None and found.version != dist.version:
            lines.append(
                f"distribution {dist.name}: version {dist.version} is locked, {found.version} is installed"
            )
        elif found is not None and found.files != dist.files:
            hashes = f"{dist.files or 'none'} is locked, here it is {found.files or 'none'}"
            lines.append(f"distribution {dist.name}: its files differ (hash {hashes})")
    return lines
