"""POST /v1/completions."""

from __future__ import annotations

from fastapi import APIRouter
from starlette.requests import Request
from starlette.responses import Response

from graftlm.frontend.http.answers import respond
from graftlm.frontend.http.completions import CompletionAnswer
from graftlm.frontend.http.openapi import GENERATING, answers
from graftlm.frontend.http.schemas.completion_request import CompletionRequest
from graftlm.frontend.http.schemas.responses import Completion, CompletionChunk
from graftlm.frontend.http.state import state_of

router = APIRouter(tags=["generate"])


@router.post(
    "/v1/completions",
    responses={
        **answers(Completion, description="The outputs, or a stream of them.", stream_of=CompletionChunk),
        **GENERATING,
    },
)
async def create_completion(body: CompletionRequest, request: Request) -> Response:
    """Continue prompts.

    A field that is not sent has OpenAI's default (max_tokens 16); the checkpoint's generation_config.json is
    not consulted.
    """
    state = state_of(request)
    llm = state.engine()
    answer = await CompletionAnswer.prepare(llm, body, model=state.model_name(body.model))
    return await respond(answer, state=state, request=request, stream=bool(body.stream))
