"""What the front end's text tests share: small vocabularies, and the scripted engine that plugin authors have."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from graftlm.testing.engine import Script
from graftlm.testing.engine import ScriptedEngineClient as ScriptedClient

__all__ = ["CORPUS", "Script", "ScriptedClient", "sentencepiece_metadata"]

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
