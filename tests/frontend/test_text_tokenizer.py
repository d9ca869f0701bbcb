"""Tokenizers of both kinds of checkpoint, against the reference libraries."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import pytest
from checkpoints import BOS_ID, EOS_ID, write_tokenizer
from text_fakes import sentencepiece_metadata

from graftlm.config import EngineConfig
from graftlm.contracts.checkpoint import CheckpointFacts
from graftlm.contracts.errors import RequestError, StartupError
from graftlm.frontend.gguf_tokenizer import PRE_TOKENIZERS, build_gguf_tokenizer
from graftlm.frontend.tokenizer import Tokenizer, load_tokenizer

TEXTS = [
    "Hello, world!", "  two  spaces   and\ttabs\n\n\nnewlines \r\n end ", "", " ", "\n", "don't I'LL we've y'all's",
    "3.14159 and 1,000,000 or 0x1F; 2024-11-29T21:45Z", "x = [i**2 for i in range(10)]  # squares\n\treturn x",
    "def f(a: int) -> str:\n    if a != 0:\n        print(f'{a!r:>10}')\n", "naïve café Ünïcödé ÅÄÖ åäö ß",
    "日本語のテキスト。 中文字符，标点！ 한국어 문장", "مرحبا بالعالم  שלום עולם  नमस्ते दुनिया", "Привет, мир!",
    "🎉👩‍👩‍👧‍👦 flags 🇩🇪🇫🇷 skin 👍🏽 ☃️", "e\u0301 combining \u200b zero width \u00a0 nbsp \u3000 wide", "½ ² ٣ Ⅷ ①",
    "<|im_start|>user\nHi<|im_end|>\n<|im_start|>assistant\n", "a<|im_end|>b <|endoftext|> <|unknown|>",
    "{\"key\": [1, 2.5, null, true], \"s\": \"\\u00e9\"}", "https://a.org/?b=c&d=%20#e", "\x00\x01\x7f\ufeff",
    "aaaaaaaaaaaaaaaaaaaaaaaaaaaa" * 20, "!!!???...---===+++***&&&", "CamelCaseAndSHOUTINGandsnake_case_words",
]  # fmt: skip


def load(place: Path | str) -> Tokenizer:
    tokenizer = load_tokenizer(
        EngineConfig(), CheckpointFacts(path="", format="", hf_config={}, tokenizer=str(place))
    )
    assert tokenizer is not None
    return tokenizer


@pytest.mark.demo
def test_the_demo_vocabulary_is_that_of_the_reference(demo_path: Path) -> None:
    """Ids and text equal those of transformers' tokenizer from the same GGUF file, with the published splitting.

    transformers ignores `tokenizer.ggml.pre`; the model was published with digits split off one by one first,
    which makes a difference only at digits that are no ASCII and at several spaces before one.
    """
    from tokenizers import pre_tokenizers
    from transformers import AutoTokenizer

    reference = AutoTokenizer.from_pretrained(str(demo_path.parent), gguf_file=demo_path.name)
    plain = [reference.encode(text) for text in TEXTS]
    reference.backend_tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
        [pre_tokenizers.Digits(individual_digits=True), pre_tokenizers.ByteLevel(add_prefix_space=False)]
    )
    ours = load(demo_path)

    for text, as_it_comes in zip(TEXTS, plain, strict=True):
        ids = ours.encode(text)
        assert ids == reference.encode(text), text
        if not any(char.isnumeric() and not char.isascii() for char in text):
            assert ids == as_it_comes, text
        assert ours.decode(ids) == reference.decode(ids, skip_special_tokens=True), text
        assert ours.decode(ids, skip_special_tokens=False) == text
    assert (ours.bos_token_id, ours.eos_token_id) == (reference.bos_token_id, reference.eos_token_id)
    assert ours.vocab_size == len(reference)


@pytest.mark.demo
def test_the_demo_vocabulary_is_whole(demo_path: Path) -> None:
    """49,152 tokens and their merges, built from the header."""
    tokenizer = load(demo_path)

    assert tokenizer.vocab_size == 49_152
    assert tokenizer.encode("in  12") == tokenizer.encode("in") + tokenizer.encode("  ") + tokenizer.encode("12")


def test_a_sentencepiece_vocabulary_gives_sentencepiece_ids(tmp_path: Path) -> None:
    """Merges recovered from the scores, byte fallback and the space in front equal the sentencepiece library's."""
    model, metadata = sentencepiece_metadata(tmp_path)
    ours = build_gguf_tokenizer(metadata, source="test.gguf")

    for text in [text for text in TEXTS if text and "\x00" not in text and "<|" not in text]:
        assert ours.encode(text, add_special_tokens=False) == model.encode(text), text
        assert ours.encode(text) == [model.bos_id(), *model.encode(text)]
        assert ours.decode(ours.encode(text)) == text


@pytest.mark.parametrize("name", sorted(PRE_TOKENIZERS))
def test_every_known_pre_tokenizer_keeps_the_text(name: str) -> None:
    """Each rule of the table is a valid pattern, and decoding gives the text back."""
    tokenizer = build_gguf_tokenizer(byte_metadata(pre=name), source="test.gguf")

    for text in TEXTS:
        expected = text.replace("e\u0301", "é") if name == "qwen2" else text
        ids = tokenizer.encode(text, add_special_tokens=False)
        assert tokenizer.decode(ids, skip_special_tokens=False) == expected


def byte_metadata(**changes: Any) -> dict[str, Any]:
    from tokenizers.pre_tokenizers import ByteLevel

    tokens = [*sorted(ByteLevel.alphabet()), "<s>", "</s>", "<think>"]
    metadata = {
        "tokenizer.ggml.model": "gpt2", "tokenizer.ggml.pre": "gpt-2", "tokenizer.ggml.tokens": tokens,
        "tokenizer.ggml.token_type": [1] * 256 + [3, 3, 4], "tokenizer.ggml.merges": [],
        "tokenizer.ggml.bos_token_id": 256, "tokenizer.ggml.eos_token_id": 257,
    }  # fmt: skip
    return metadata | {f"tokenizer.ggml.{key}": value for key, value in changes.items()}


def test_bos_and_eos_are_added_where_the_file_wants_them() -> None:
    """add_bos_token and add_eos_token decide; llama-bpe begins with BOS when they are silent."""
    both = build_gguf_tokenizer(byte_metadata(add_bos_token=True, add_eos_token=True), source="x")
    llama = build_gguf_tokenizer(byte_metadata(pre="llama-bpe"), source="x")
    silent = build_gguf_tokenizer(byte_metadata(), source="x")

    assert both.encode("a")[0] == 256 and both.encode("a")[-1] == 257
    assert llama.encode("a")[0] == 256 and len(llama.encode("a")) == 2
    assert len(silent.encode("a")) == 1
    assert len(both.encode("a", add_special_tokens=False)) == 1


def test_user_defined_tokens_stay_whole_and_visible() -> None:
    """A user-defined token is one id and keeps its text; a control token gives none."""
    tokenizer = build_gguf_tokenizer(byte_metadata(), source="x")

    ids = tokenizer.encode("a<think>b</s>")
    assert ids[1] == 258 and ids[-1] == 257
    assert tokenizer.decode(ids) == "a<think>b"


@pytest.mark.parametrize(
    ("changes", "says"),
    [
        ({"pre": "smolm"}, "near: smollm"),
        ({"model": "bert"}, "'bert'"),
        ({"tokens": []}, "tokenizer.ggml.tokens"),
        ({"merges": None}, "tokenizer.ggml.merges"),
        ({"model": "llama"}, "tokenizer.ggml.scores"),
    ],
)
def test_what_cannot_be_built_is_refused_with_the_cure(changes: dict[str, Any], says: str) -> None:
    """An unknown or broken vocabulary is one error that names the value and --tokenizer."""
    with pytest.raises(StartupError, match=says) as caught:
        build_gguf_tokenizer(byte_metadata(**changes), source="broken.gguf")

    assert "broken.gguf" in str(caught.value) and "--tokenizer" in str(caught.value)


def test_a_directory_brings_its_special_tokens(tmp_path: Path) -> None:
    """tokenizer_config.json names them, as text or as an object; the tokenizer knows their ids."""
    write_tokenizer(tmp_path)
    settings = json.loads((tmp_path / "tokenizer_config.json").read_text())
    settings["eos_token"] = {"content": "<|eos|>", "lstrip": False}
    (tmp_path / "tokenizer_config.json").write_text(json.dumps(settings))

    tokenizer = load(tmp_path)
    assert (tokenizer.bos_token_id, tokenizer.eos_token_id) == (BOS_ID, EOS_ID)
    assert tokenizer.special_tokens["pad_token"] == "<|pad|>"


def test_a_missing_tokenizer_is_named(tmp_path: Path) -> None:
    """A path that leads nowhere, and a file that is no tokenizer, are start-up errors."""
    (tmp_path / "tokenizer.json").write_text("{}")

    with pytest.raises(StartupError, match="nowhere"):
        load(tmp_path / "nowhere")
    with pytest.raises(StartupError, match=r"not a tokenizer\.json"):
        load(tmp_path)


def test_half_a_surrogate_pair_is_the_callers_fault(tmp_path: Path) -> None:
    """JSON can carry text that is no Unicode; it is refused, not passed on."""
    write_tokenizer(tmp_path)

    with pytest.raises(RequestError, match="surrogate"):
        load(tmp_path).encode("a\ud800")


def test_no_torch_and_no_transformers_are_needed() -> None:
    """The text side imports neither, in a fresh interpreter."""
    import subprocess

    code = (
        "import sys, graftlm.frontend.tokenizer, graftlm.frontend.gguf_tokenizer, graftlm.frontend.async_llm, "
        "graftlm.frontend.llm; print([m for m in ('torch', 'transformers', 'gguf') if m in sys.modules])"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)

    assert done.stdout.strip() == "[]", done.stderr
