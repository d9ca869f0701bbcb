"""GET /metrics."""

from __future__ import annotations

from fastapi import APIRouter
from prometheus_client import CONTENT_TYPE_LATEST
from starlette.requests import Request
from starlette.responses import Response

from graftlm.frontend.http.openapi import READING, text
from graftlm.frontend.http.state import state_of

router = APIRouter(tags=["server"])


@router.get("/metrics", responses={**text(description="Numbers for Prometheus."), **READING})
async def metrics(request: Request) -> Response:
    """Tell the numbers that Prometheus collects."""
    return Response(state_of(request).metrics.render(), headers={"content-type": CONTENT_TYPE_LATEST})
