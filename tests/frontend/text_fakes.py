"""What the front end's text tests share: a scripted engine and small vocabularies."""

from __future__ import annotations

import asyncio
import dataclasses
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Any

from graftlm.contracts.engine import EngineReady
from graftlm.contracts.errors import EngineDead
from graftlm.contracts.request import EngineRequest, FinishReason, RequestUpdate
from graftlm.contracts.stats import StepStats

CORPUS = (
    "the cat sat on the mat and the dog sat on the log. the quick brown fox jumps over the lazy dog while "
    "it rains; a man, a plan, a canal: 1234 and 56 and 7. don't stop when they're here, we'll see. "
)


def sentencepiece_metadata(directory: Path) -> tuple[Any, dict[str, Any]]:
    """Train a small SentencePiece BPE model; return it and its vocabulary as a GGUF file would carry it."""
    import sentencepiece

    text = directory / "corpus.txt"
    text.write_text("\n".join(CORPUS[i:] for i in range(0, 60, 3)))
    sentencepiece.SentencePieceTrainer.train(
        input=str(text), model_prefix=str(directory / "spm"), model_type="bpe", vocab_size=400, byte_fallback=True,
        character_coverage=1.0, normalization_rule_name="identity", remove_extra_whitespaces=False,
        minloglevel=2, num_threads=1,
    )  # fmt: skip
    model = sentencepiece.SentencePieceProcessor(model_file=str(directory / "spm.model"))
    ids = range(model.vocab_size())

    def kind(i: int) -> int:
        return 2 if model.is_unknown(i) else 3 if model.is_control(i) else 6 if model.is_byte(i) else 1

    return model, {
        "tokenizer.ggml.model": "llama",
        "tokenizer.ggml.tokens": [model.id_to_piece(i) for i in ids],
        "tokenizer.ggml.scores": [model.get_score(i) for i in ids],
        "tokenizer.ggml.token_type": [kind(i) for i in ids],
        "tokenizer.ggml.bos_token_id": model.bos_id(),
        "tokenizer.ggml.eos_token_id": model.eos_id(),
        "tokenizer.ggml.unknown_token_id": model.unk_id(),
    }


@dataclasses.dataclass
class Script:
    """What the fake engine answers: these ids one a step, then this end."""

    token_ids: list[int]
    finish_reason: FinishReason | None = FinishReason.LENGTH
    error: str | None = None


class ScriptedClient:
    """An engine client without an engine: every request follows the script."""

    def __init__(self, script: Script | Callable[[EngineRequest], Script]) -> None:
        self._script = script if callable(script) else lambda _: script
        self.ready = EngineReady(num_blocks=10, block_size=16, max_model_len=64)
        self.dead: str | None = None
        self.requests: list[EngineRequest] = []
        self.aborted: list[str] = []
        self.left: list[str] = []
        self._listeners: list[Callable[[StepStats], None]] = []

    async def generate(self, request: EngineRequest) -> AsyncIterator[RequestUpdate]:
        self.requests.append(request)
        script = self._script(request)
        ended = False
        try:
            for position, token_id in enumerate(script.token_ids, start=1):
                await asyncio.sleep(0)
                if self.dead is not None:
                    raise EngineDead(self.dead)
                if request.request_id in self.aborted:
                    ended = True
                    yield RequestUpdate(request_id=request.request_id, finish_reason=FinishReason.ABORT)
                    return
                ended = position == len(script.token_ids) and script.finish_reason is not None
                yield RequestUpdate(
                    request_id=request.request_id, new_token_ids=[token_id], num_cached_tokens=3,
                    finish_reason=script.finish_reason if ended else None, error=script.error if ended else None,
                )  # fmt: skip
            while script.finish_reason is None:  # hangs, as an engine that is busy elsewhere
                await asyncio.sleep(0.001)
                if request.request_id in self.aborted:
                    ended = True
                    yield RequestUpdate(request_id=request.request_id, finish_reason=FinishReason.ABORT)
                    return
        finally:
            if not ended:
                self.left.append(request.request_id)

    async def abort(self, request_ids: list[str]) -> None:
        self.aborted.extend(request_ids)

    def on_step(self, listener: Callable[[StepStats], None]) -> None:
        self._listeners.append(listener)

    def step(self, stats: StepStats) -> None:
        for listener in self._listeners:
            listener(stats)

    async def shutdown(self) -> None:
        self.dead = self.dead or None
