"""POST /tokenize and /detokenize, in the shapes vLLM's users know."""

from __future__ import annotations

import msgspec
from fastapi import APIRouter
from starlette.requests import Request
from starlette.responses import Response

from graftlm.frontend.http.errors import InvalidField
from graftlm.frontend.http.openapi import GENERATING, answers
from graftlm.frontend.http.prompts import encode, encode_conversation
from graftlm.frontend.http.schemas.responses import Detokenized, Tokenized
from graftlm.frontend.http.schemas.tokenize_request import DetokenizeRequest, TokenizeRequest
from graftlm.frontend.http.state import state_of
from graftlm.frontend.text_assets import NoTokenizer

router = APIRouter(tags=["tokens"])


@router.post("/tokenize", responses={**answers(Tokenized, description="The token ids."), **GENERATING})
async def tokenize(body: TokenizeRequest, request: Request) -> Response:
    """Turn a text, or a conversation through the chat template, into token ids."""
    state = state_of(request)
    llm = state.engine()
    state.model_name(body.model)
    body.check()
    if body.messages is not None:
        ids = await encode_conversation(llm, body.messages, body, add_special_tokens=bool(body.add_special_tokens))
    else:
        ids = await encode(llm, body.prompt or "", add_special_tokens=body.add_special_tokens is not False)
    texts = [llm.tokenizer.token_text(i) for i in ids] if body.return_token_strs and llm.tokenizer else None
    tokenized = Tokenized(count=len(ids), max_model_len=state.max_model_len, tokens=ids, token_strs=texts)
    return Response(msgspec.json.encode(tokenized), media_type="application/json")


@router.post("/detokenize", responses={**answers(Detokenized, description="The text."), **GENERATING})
async def detokenize(body: DetokenizeRequest, request: Request) -> Response:
    """Turn token ids into text; special tokens are left out."""
    state = state_of(request)
    llm = state.engine()
    state.model_name(body.model)
    if llm.tokenizer is None:
        raise NoTokenizer("tokens")
    limit = state.config.model.vocab_size
    if body.tokens and max(body.tokens) >= limit:
        raise InvalidField(
            f"tokens has the id {max(body.tokens)}; ids of this model are 0 to {limit - 1}", param="tokens"
        )
    text = llm.tokenizer.decode(body.tokens)
    return Response(msgspec.json.encode(Detokenized(text)), media_type="application/json")
