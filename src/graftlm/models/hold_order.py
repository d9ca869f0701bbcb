"""The order to a warm parent to hold a model; imports no torch, since it is written where there is none."""

from __future__ import annotations

import msgspec


class HoldOrder(msgspec.Struct, kw_only=True):
    """A plan of built-in plugins only, and the configuration, each as a child gets it."""

    plan: bytes
    config: bytes
