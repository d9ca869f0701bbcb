"""Incremental detokenization, against decoding the whole."""

from __future__ import annotations

import pytest
from checkpoints import EOS_ID, VOCAB_SIZE, write_tokenizer
from hypothesis import given, settings
from hypothesis import strategies as st
from text_fakes import sentencepiece_metadata

from graftlm.config import EngineConfig
from graftlm.contracts.checkpoint import CheckpointFacts
from graftlm.frontend.detokenizer import build_detokenizer
from graftlm.frontend.gguf_tokenizer import build_gguf_tokenizer
from graftlm.frontend.tokenizer import Tokenizer, load_tokenizer

UNICODE = st.text(st.characters(exclude_categories=["Cs"]), max_size=40)


@pytest.fixture(scope="module")
def byte_level(tmp_path_factory: pytest.TempPathFactory) -> Tokenizer:
    path = tmp_path_factory.mktemp("tokenizer")
    write_tokenizer(path)
    facts = CheckpointFacts(path="", format="", hf_config={}, tokenizer=str(path / "tokenizer.json"))
    tokenizer = load_tokenizer(EngineConfig(), facts)
    assert tokenizer is not None
    return tokenizer


@pytest.fixture(scope="module")
def sentencepiece(tmp_path_factory: pytest.TempPathFactory) -> Tokenizer:
    _, metadata = sentencepiece_metadata(tmp_path_factory.mktemp("sentencepiece"))
    return build_gguf_tokenizer(metadata, source="test.gguf")


def stream(tokenizer: Tokenizer, token_ids: list[int], *, at_once: int = 1) -> list[str]:
    detokenizer = build_detokenizer(tokenizer)
    pieces = [detokenizer.feed(token_ids[i : i + at_once]) for i in range(0, len(token_ids), at_once)]
    return [*pieces, detokenizer.finish()]


@given(st.lists(st.integers(0, VOCAB_SIZE - 1), max_size=60), st.integers(1, 7))
@settings(deadline=None)
def test_any_ids_stream_to_the_text_of_the_whole(byte_level: Tokenizer, token_ids: list[int], at_once: int) -> None:
    """Random ids, special tokens and broken UTF-8 among them, give exactly what decoding them at once gives."""
    assert "".join(stream(byte_level, token_ids, at_once=at_once)) == byte_level.decode(token_ids)


@given(UNICODE)
@settings(deadline=None)
def test_incomplete_characters_are_held_back(byte_level: Tokenizer, text: str) -> None:
    """While a character's bytes arrive one by one, every piece is a part of the text and never a stand-in."""
    seen = ""
    for piece in stream(byte_level, byte_level.encode(text)):
        seen += piece
        assert text.startswith(seen)
    assert seen == text


def test_special_tokens_give_no_text(byte_level: Tokenizer) -> None:
    """An end-of-sequence id among the others adds nothing."""
    ids = byte_level.encode("the end")

    assert "".join(stream(byte_level, [*ids, EOS_ID])) == "the end"


@given(st.lists(st.sampled_from(["the", " cat", " sat", "é", "日本", "🎉", "\n", "  ", "12"]), max_size=12))
@settings(deadline=None)
def test_byte_fallback_vocabularies_stream_well_formed_text(sentencepiece: Tokenizer, words: list[str]) -> None:
    """A SentencePiece vocabulary, whose decoder drops the first space, streams to the text of the whole."""
    ids = sentencepiece.encode("".join(words), add_special_tokens=False)

    assert "".join(stream(sentencepiece, ids)) == sentencepiece.decode(ids)


def test_text_goes_on_where_the_prompt_ended(sentencepiece: Tokenizer) -> None:
    """The space before the first word is kept when something stands before it."""
    prompt = sentencepiece.encode("the cat", add_special_tokens=False)
    more = sentencepiece.encode("sat", add_special_tokens=False)
    detokenizer = build_detokenizer(sentencepiece, prompt)

    assert detokenizer.feed(more) + detokenizer.finish() == " sat"


def test_endless_special_tokens_and_broken_bytes_cost_nothing_that_grows(sentencepiece: Tokenizer) -> None:
    """The window stays short whatever the model makes, so that cost stays linear."""
    detokenizer = build_detokenizer(sentencepiece)
    broken = sentencepiece.backend.token_to_id("<0xE3>")
    for token_id in [sentencepiece.eos_token_id, broken] * 200:
        detokenizer.feed([token_id])

    assert len(detokenizer._window) <= 32  # type: ignore[attr-defined]


def test_a_token_of_one_byte_shows_its_byte(byte_level: Tokenizer) -> None:
    """Log-probabilities need the bytes of a token that is half a character."""
    first, *_ = byte_level.encode("é")

    assert byte_level.token_bytes(first) == b"\xc3"
    assert byte_level.token_text(first) == "\ufffd"
