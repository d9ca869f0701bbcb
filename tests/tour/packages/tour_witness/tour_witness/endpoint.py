"""Routes under /plugins/witness/."""

from __future__ import annotations

import os
from typing import Any

from fastapi import APIRouter

import tour_witness
from graftlm.contracts.endpoint import EndpointPlugin
from graftlm.contracts.engine import EngineClient


class WitnessEndpoint(EndpointPlugin):
    name = "witness"

    def attach_router(self, router: APIRouter) -> None:
        tour_witness.write("endpoint attached")
        router.add_api_route("/pid", os.getpid)

    async def init_state(self, engine: EngineClient, settings: dict[str, Any]) -> None:
        tour_witness.write("endpoint initialized", ready=engine.ready is not None)
