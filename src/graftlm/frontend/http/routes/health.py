"""GET /health and /version."""

from __future__ import annotations

import msgspec
from fastapi import APIRouter
from starlette.requests import Request
from starlette.responses import Response

from graftlm.frontend.http.errors import RETRY_AFTER_S
from graftlm.frontend.http.openapi import READING, answers
from graftlm.frontend.http.schemas.responses import Health, Version
from graftlm.frontend.http.state import Phase, state_of
from graftlm.version import __version__

router = APIRouter(tags=["server"])

_WORKS = answers(Health, description="The engine works.")


@router.get("/health", responses={**_WORKS, 503: {**_WORKS[200], "description": "It does not; `reason` says why."}})
async def health(request: Request) -> Response:
    """Tell whether the engine works; needs no API key."""
    phase, reason = state_of(request).health()
    ready = phase == Phase.READY
    return Response(
        msgspec.json.encode(Health(str(phase), None if ready else reason)),
        status_code=200 if ready else 503,
        media_type="application/json",
        headers=None if ready else {"Retry-After": str(RETRY_AFTER_S)},
    )


@router.get("/version", responses={**answers(Version, description="The engine's version."), **READING})
async def version() -> Response:
    """Tell the engine's version."""
    return Response(msgspec.json.encode(Version(__version__)), media_type="application/json")
