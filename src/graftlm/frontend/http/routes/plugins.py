"""GET /plugins."""

from __future__ import annotations

import msgspec
from fastapi import APIRouter
from starlette.requests import Request
from starlette.responses import Response

from graftlm.frontend.http.openapi import READING, Responses, errors
from graftlm.frontend.http.state import state_of

router = APIRouter(tags=["server"])

_DESCRIBED: Responses = {
    200: {
        "description": "The plan, and every plugin with its state.",
        "content": {
            "application/json": {
                "schema": {
                    "type": "object",
                    "properties": {
                        "plan": {"type": "object"},
                        "plugins": {"type": "array", "items": {"type": "object"}},
                        "events": {"type": "array", "items": {"type": "object"}},
                    },
                    "required": ["plan", "plugins"],
                }
            }
        },
    }
}


@router.get("/plugins", responses={**_DESCRIBED, **READING, **errors(503)})
async def plugins(request: Request, *, events: bool = False) -> Response:
    """Tell which plugins there are, which run in which process, and what they registered.

    `events=true` adds the ledgers of all processes, in the order of time.
    """
    described = state_of(request).describe_plugins(events=events)
    return Response(msgspec.json.encode(described), media_type="application/json")
