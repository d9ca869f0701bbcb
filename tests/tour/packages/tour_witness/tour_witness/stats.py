"""A stat logger that writes down its making and each finished request."""

from __future__ import annotations

import tour_witness
from graftlm.config.engine_config import EngineConfig
from graftlm.contracts.stats import RequestStats, StatLogger, StepStats


class WitnessStats(StatLogger):
    def __init__(self, config: EngineConfig) -> None:
        super().__init__(config)
        tour_witness.write("stat logger built", architecture=config.model.architecture)

    def record(self, step: StepStats | None, finished: list[RequestStats]) -> None:
        for request in finished:
            tour_witness.write("request finished", tokens=request.num_output_tokens)
