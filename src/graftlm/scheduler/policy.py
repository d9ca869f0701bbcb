"""Who comes first; it knows nothing of memory or budgets."""

from __future__ import annotations

from enum import StrEnum

from graftlm.scheduler.request import Request


class SchedulingPolicy(StrEnum):
    """The order of requests. The first is served first, the last is the first to lose its memory."""

    FCFS = "fcfs"
    PRIORITY = "priority"

    def key(self, request: Request) -> tuple[int, int]:
        """Return what requests are sorted by; keys differ between any two requests."""
        if self is SchedulingPolicy.PRIORITY:
            return request.priority, request.arrival_order
        return 0, request.arrival_order
