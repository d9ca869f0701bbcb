"""Answers /v1/chat/completions: renders the conversation, runs it and writes OpenAI's messages.

It does not know HTTP. A whole answer is the stream's pieces put together.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import AsyncIterator, Sequence
from typing import TYPE_CHECKING

from msgspec import UNSET

from graftlm.frontend.choice_stream import TextUpdate
from graftlm.frontend.http.answers import Call, UsageCounter, build_writer
from graftlm.frontend.http.logprobs import chat_logprobs
from graftlm.frontend.http.prompts import encode_conversation
from graftlm.frontend.http.schemas.chat_request import ChatRequest
from graftlm.frontend.http.schemas.responses import (
    AnswerMessage,
    ChatChoice,
    ChatChunkChoice,
    ChatCompletion,
    ChatLogprobs,
    Delta,
)

if TYPE_CHECKING:
    from graftlm.frontend.async_llm import AsyncLLM


class ChatAnswer:
    """One call; build it with `prepare`."""

    def __init__(self, llm: AsyncLLM, body: ChatRequest, prompt_token_ids: list[int], call: Call) -> None:
        self.call = call
        self._llm = llm
        self._body = body
        self._prompt_token_ids = prompt_token_ids
        self._with_ids = bool(body.return_token_ids)
        self._usage = UsageCounter()
        self._writer = build_writer(call, "chat.completion.chunk", include_usage=body.include_usage)
        self._begun: set[int] = set()
        self._kept: dict[int, list[ChatChunkChoice]] = defaultdict(list)

    @classmethod
    async def prepare(cls, llm: AsyncLLM, body: ChatRequest, *, model: str) -> ChatAnswer:
        """Render and encode the conversation; raises RequestError."""
        body.check()
        prompt_token_ids = await encode_conversation(llm, body.messages, body)
        return cls(llm, body, prompt_token_ids, Call("chatcmpl", model=model))

    def streams(self) -> Sequence[AsyncIterator[TextUpdate]]:
        body = self._body
        params = body.sampling_params(max_tokens=body.wanted_max_tokens, logprobs=body.num_logprobs)
        request_id = self.call.request_id(0)
        return [
            self._llm.generate(self._prompt_token_ids, params, request_id=request_id, priority=body.priority or 0)
        ]

    def chunks(self, place: int, update: TextUpdate) -> list[bytes]:
        is_very_first = not self._begun
        choice = self._write(place, update)
        if choice is None:
            return []
        if is_very_first and self._with_ids:
            return [self._writer.choice(choice, prompt_token_ids=self._prompt_token_ids)]
        return [self._writer.choice(choice)]

    def last_chunk(self) -> bytes:
        return self._writer.usage(self._usage.usage())

    def keep(self, place: int, update: TextUpdate) -> None:
        choice = self._write(place, update)
        if choice is not None:
            self._kept[choice.index].append(choice)

    def whole(self) -> ChatCompletion:
        return ChatCompletion(
            id=self.call.id,
            created=self.call.created,
            model=self.call.model,
            choices=[_put_together(self._kept[index]) for index in sorted(self._kept)],
            usage=self._usage.usage(),
            prompt_token_ids=self._prompt_token_ids if self._with_ids else UNSET,
        )

    def _write(self, place: int, update: TextUpdate) -> ChatChunkChoice | None:
        """Return what is new of the update's choice, or None when nothing is to be told yet."""
        self._usage.count(place, update)
        first = update.index not in self._begun
        self._begun.add(update.index)
        if not (first or update.text or update.finish_reason or update.logprobs or self._with_ids):
            return None
        delta = Delta(content=update.text) if update.text or first else Delta()
        if first:
            delta.role = "assistant"
        choice = ChatChunkChoice(
            index=update.index,
            delta=delta,
            logprobs=self._logprobs(update),
            finish_reason=update.finish_reason,
        )
        if update.finish_reason is not None:
            choice.stop_reason = update.stop_reason
        if self._with_ids:
            choice.token_ids = update.token_ids
        return choice

    def _logprobs(self, update: TextUpdate) -> ChatLogprobs | None:
        if not update.logprobs or self._body.num_logprobs is None:
            return None
        return chat_logprobs(self._llm.tokenizer, update.logprobs, num_top=self._body.num_logprobs)


def _put_together(pieces: list[ChatChunkChoice]) -> ChatChoice:
    last = pieces[-1]
    entries = [entry for piece in pieces if piece.logprobs is not None for entry in piece.logprobs.content]
    has_logprobs = any(piece.logprobs is not None for piece in pieces)
    return ChatChoice(
        index=last.index,
        message=AnswerMessage("".join(piece.delta.content or "" for piece in pieces)),
        logprobs=ChatLogprobs(entries) if has_logprobs else None,
        finish_reason=last.finish_reason,
        stop_reason=None if last.stop_reason is UNSET else last.stop_reason,
        token_ids=UNSET if last.token_ids is UNSET else [i for piece in pieces for i in piece.token_ids or []],
    )
