"""A detector that is asked and sees nothing."""

from __future__ import annotations

import tour_witness


def detect() -> None:
    tour_witness.write("detector called")
