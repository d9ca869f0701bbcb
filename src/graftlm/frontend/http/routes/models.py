"""GET /v1/models and /v1/models/{model}."""

from __future__ import annotations

import msgspec
from fastapi import APIRouter
from starlette.requests import Request
from starlette.responses import Response

from graftlm.frontend.http.openapi import answers, errors
from graftlm.frontend.http.schemas.responses import ModelCard, ModelList
from graftlm.frontend.http.state import ServerState, state_of

router = APIRouter(tags=["models"])


@router.get(
    "/v1/models",
    responses={**answers(ModelList, description="The names this server answers to."), **errors(401, 500, 503)},
)
async def list_models(request: Request) -> Response:
    """List the served names; all of them are one model."""
    state = state_of(request)
    state.engine()
    return _json(ModelList(data=[_card(state, name) for name in state.served_names]))


@router.get(
    "/v1/models/{model:path}",
    responses={**answers(ModelCard, description="The model."), **errors(401, 404, 500, 503)},
)
async def retrieve_model(model: str, request: Request) -> Response:
    """Tell about one served name."""
    state = state_of(request)
    state.engine()
    return _json(_card(state, state.model_name(model)))


def _card(state: ServerState, name: str) -> ModelCard:
    return ModelCard(
        id=name, created=state.created, root=state.config.model.model, max_model_len=state.max_model_len
    )


def _json(struct: msgspec.Struct) -> Response:
    return Response(msgspec.json.encode(struct), media_type="application/json")
