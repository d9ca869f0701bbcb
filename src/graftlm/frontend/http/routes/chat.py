"""POST /v1/chat/completions."""

from __future__ import annotations

from fastapi import APIRouter
from starlette.requests import Request
from starlette.responses import Response

from graftlm.frontend.http.answers import respond
from graftlm.frontend.http.chat import ChatAnswer
from graftlm.frontend.http.openapi import GENERATING, answers
from graftlm.frontend.http.schemas.chat_request import ChatRequest
from graftlm.frontend.http.schemas.responses import ChatChunk, ChatCompletion
from graftlm.frontend.http.state import state_of

router = APIRouter(tags=["generate"])


@router.post(
    "/v1/chat/completions",
    responses={
        **answers(ChatCompletion, description="The answers, or a stream of them.", stream_of=ChatChunk),
        **GENERATING,
    },
)
async def create_chat_completion(body: ChatRequest, request: Request) -> Response:
    """Answer a conversation.

    A field that is not sent has OpenAI's default (max_tokens: to the context's end); the checkpoint's
    generation_config.json is not consulted.
    """
    state = state_of(request)
    llm = state.engine()
    answer = await ChatAnswer.prepare(llm, body, model=state.model_name(body.model))
    return await respond(answer, state=state, request=request, stream=bool(body.stream))
