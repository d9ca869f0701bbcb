"""Answers /v1/completions: runs the prompts and writes OpenAI's text choices.

It does not know HTTP. A whole answer is the stream's pieces put together.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import AsyncIterator, Sequence
from typing import TYPE_CHECKING, Any

from msgspec import UNSET

from graftlm.contracts.request import FinishReason, TokenLogprobs
from graftlm.frontend.choice_stream import TextUpdate
from graftlm.frontend.http.answers import Call, UsageCounter, build_writer
from graftlm.frontend.http.logprobs import CompletionLogprobsWriter, joined
from graftlm.frontend.http.prompts import encode
from graftlm.frontend.http.schemas.completion_request import CompletionRequest
from graftlm.frontend.http.schemas.responses import Completion, CompletionChoice, CompletionLogprobs

if TYPE_CHECKING:
    from graftlm.frontend.async_llm import AsyncLLM


class CompletionAnswer:
    """One call; build it with `prepare`."""

    def __init__(
        self, llm: AsyncLLM, body: CompletionRequest, prompts: list[tuple[str, list[int]]], call: Call
    ) -> None:
        self.call = call
        self._llm = llm
        self._body = body
        self._prompts = prompts
        self._n = body.n or 1
        self._usage = UsageCounter()
        self._writer = build_writer(call, "text_completion", include_usage=body.include_usage)
        self._choices: dict[int, _ChoiceWriter] = {}
        self._kept: dict[int, list[CompletionChoice]] = defaultdict(list)
        self._waits_for_prompt = bool(body.echo) and body.logprobs is not None
        self._prompt_places: dict[int, list[TokenLogprobs]] = {}
        self._held: dict[int, list[TextUpdate]] = defaultdict(list)

    @classmethod
    async def prepare(cls, llm: AsyncLLM, body: CompletionRequest, *, model: str) -> CompletionAnswer:
        """Turn the prompts into ids; raises RequestError."""
        body.check()
        prompts: list[tuple[str, list[int]]] = []
        for prompt in body.prompt:
            if isinstance(prompt, str):
                prompts.append((prompt, await encode(llm, prompt)))
            else:
                prompts.append((_text_of(llm, prompt) if body.echo else "", prompt))
        return cls(llm, body, prompts, Call("cmpl", model=model))

    def streams(self) -> Sequence[AsyncIterator[TextUpdate]]:
        body = self._body
        decided: dict[str, Any] = {"max_tokens": body.wanted_max_tokens, "logprobs": body.logprobs}
        if body.echoes_only:
            decided = {"max_tokens": 1, "min_tokens": 0}
        if self._waits_for_prompt:
            decided["prompt_logprobs"] = body.logprobs
        params = body.sampling_params(**decided)
        return [
            self._llm.generate(ids, params, request_id=self.call.request_id(place), priority=body.priority or 0)
            for place, (_, ids) in enumerate(self._prompts)
        ]

    def chunks(self, place: int, update: TextUpdate) -> list[bytes]:
        return [self._writer.choice(choice) for choice in self._write(place, update)]

    def last_chunk(self) -> bytes:
        return self._writer.usage(self._usage.usage(count_outputs=not self._body.echoes_only))

    def keep(self, place: int, update: TextUpdate) -> None:
        for choice in self._write(place, update):
            self._kept[choice.index].append(choice)

    def whole(self) -> Completion:
        choices = [_put_together(self._kept[index]) for index in sorted(self._kept)]
        usage = self._usage.usage(count_outputs=not self._body.echoes_only)
        return Completion(
            id=self.call.id, created=self.call.created, model=self.call.model, choices=choices, usage=usage
        )

    def _write(self, place: int, update: TextUpdate) -> list[CompletionChoice]:
        """Write an update, and what waited for it: only the first choice brings the prompt's log-probabilities."""
        self._usage.count(place, update)
        updates = [update]
        if self._waits_for_prompt and place not in self._prompt_places:
            if not update.prompt_logprobs and len(self._prompts[place][1]) > 1:
                self._held[place].append(update)
                return []
            self._prompt_places[place] = update.prompt_logprobs
            updates += self._held.pop(place, [])
        written = (self._choice(place, u.index).write(u, self._prompt_places.get(place, [])) for u in updates)
        return [choice for choice in written if choice is not None]

    def _choice(self, place: int, index: int) -> _ChoiceWriter:
        number = place * self._n + index
        writer = self._choices.get(number)
        if writer is None:
            text, ids = self._prompts[place]
            writer = _ChoiceWriter(self._llm, self._body, number, prompt_text=text, prompt_ids=ids)
            self._choices[number] = writer
        return writer


class _ChoiceWriter:
    """Writes one choice, piece by piece."""

    def __init__(
        self, llm: AsyncLLM, body: CompletionRequest, index: int, *, prompt_text: str, prompt_ids: list[int]
    ) -> None:
        self._index = index
        self._prompt_text = prompt_text
        self._prompt_ids = prompt_ids
        self._is_first = True
        self._echoes = bool(body.echo)
        self._echoes_only = body.echoes_only
        self._with_ids = bool(body.return_token_ids)
        self._logprobs = (
            None if body.logprobs is None else CompletionLogprobsWriter(llm.tokenizer, num_top=body.logprobs)
        )

    def write(self, update: TextUpdate, prompt_places: list[TokenLogprobs]) -> CompletionChoice | None:
        """Return what is new, or None when nothing is to be told yet."""
        first, self._is_first = self._is_first, False
        text, token_ids, finish_reason = update.text, update.token_ids, update.finish_reason
        if self._echoes_only:
            text, token_ids, finish_reason = "", [], str(FinishReason.LENGTH)
        choice = CompletionChoice(
            index=self._index,
            text=text,
            logprobs=self._write_logprobs(update, prompt_places, with_prompt=first and self._echoes),
            finish_reason=finish_reason,
            stop_reason=None if self._echoes_only else update.stop_reason,
        )
        if first and self._echoes:
            choice.text = self._prompt_text + text
        if self._with_ids:
            choice.token_ids = token_ids
            choice.prompt_token_ids = self._prompt_ids if first else UNSET
        if choice.text or finish_reason or choice.logprobs is not None or (self._with_ids and (token_ids or first)):
            return choice
        return None

    def _write_logprobs(
        self, update: TextUpdate, prompt_places: list[TokenLogprobs], *, with_prompt: bool
    ) -> CompletionLogprobs | None:
        if self._logprobs is None:
            return None
        parts = [self._logprobs.write_prompt(self._prompt_ids, prompt_places)] if with_prompt else []
        if not self._echoes_only and update.logprobs:
            parts.append(self._logprobs.write(update.logprobs))
        return joined(parts) if parts else None


def _text_of(llm: AsyncLLM, token_ids: list[int]) -> str:
    return "" if llm.tokenizer is None else llm.tokenizer.decode(token_ids)


def _put_together(pieces: list[CompletionChoice]) -> CompletionChoice:
    first, last = pieces[0], pieces[-1]
    logprobs = [piece.logprobs for piece in pieces if piece.logprobs is not None]
    return CompletionChoice(
        index=first.index,
        text="".join(piece.text for piece in pieces),
        logprobs=joined(logprobs) if logprobs else None,
        finish_reason=last.finish_reason,
        stop_reason=last.stop_reason,
        token_ids=UNSET if first.token_ids is UNSET else [i for piece in pieces for i in piece.token_ids or []],
        prompt_token_ids=first.prompt_token_ids,
    )
