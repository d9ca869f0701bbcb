"""Imported by a warm parent of the tests: a busy machine may hold up whoever has connected and is to ask."""

from __future__ import annotations

from graftlm.processes.warm import lender

lender._PATIENCE_S = 60.0
