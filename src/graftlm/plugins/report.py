"""What a process tells its parent of its plugins when it is ready; compares nothing."""

from __future__ import annotations

import msgspec

from graftlm.plugins.ledger import LedgerEvent
from graftlm.plugins.plan import DistributionFacts


class Report(msgspec.Struct, kw_only=True):
    """What a process returns with READY.

    `general` holds, for each general plugin that was to run there, its state and what it registered, as text.
    """

    process: str
    roles: list[str]
    pid: int
    fingerprint: str
    distributions: tuple[DistributionFacts, ...] = ()
    general: dict[str, list[str]] = {}
    outcomes: dict[str, tuple[str, str, float]] = {}
    events: list[LedgerEvent] = []
