"""Checkpoint files from strangers, mutated: what cannot be read is said, and nothing else ever comes of it."""

from __future__ import annotations

import dataclasses
import json
import random
from pathlib import Path
from typing import Any

import pytest

from graftlm.config.errors import ConfigError
from graftlm.config.hf_config import HFConfig
from graftlm.contracts.errors import StartupError
from graftlm.engine.checkpoint_values import check_divisible, check_values, resolve_max_model_len
from graftlm.frontend.chat_template import ChatTemplate
from graftlm.frontend.gguf_tokenizer import build_gguf_tokenizer
from graftlm.models.checkpoints import gguf_loader, read_facts
from graftlm.models.checkpoints.gguf import read_gguf
from graftlm.models.checkpoints.gguf_metadata import check_metadata

VALUES = ["text", "", -1, 0, 3, 2**40, 1.5, float("nan"), [], ["a"], [1], [1.5], True, [[1]]]


def read_everything(path: Path) -> None:
    """Do with a checkpoint what a front end does before it starts anything."""
    facts = read_facts(path)
    hf_config = HFConfig(facts.hf_config)
    check_values(hf_config)
    resolve_max_model_len(None, hf_config)
    check_divisible(1, hf_config)
    if facts.tokenizer is not None and facts.format == "gguf":
        build_gguf_tokenizer(read_gguf(path).metadata, source=str(path))
    if facts.chat_template is not None:
        ChatTemplate(facts.chat_template)


def mutate(data: bytes, end: int, rng: random.Random) -> bytes:
    """Change a few bytes before `end`: other values, extreme numbers, bytes too many or too few, an early end."""
    changed = bytearray(data)
    for _ in range(rng.choice([1, 1, 2, 4])):
        place = rng.randrange(end)
        match rng.randrange(5):
            case 0:
                changed[place] = rng.randrange(256)
            case 1:
                changed[place] ^= 1 << rng.randrange(8)
            case 2:
                changed[place : place + 8] = rng.choice([b"\xff" * 8, bytes(8), (2**63 - 1).to_bytes(8, "little")])
            case 3:
                del changed[place : place + rng.randrange(1, 9)]
            case 4:
                changed[place:place] = rng.randbytes(rng.randrange(1, 9))
    return bytes(changed[: rng.randrange(len(changed))] if rng.random() < 0.1 else changed)


def test_a_mutated_gguf_header_is_read_or_refused(tiny_gguf: Path, tmp_path: Path) -> None:
    """Fifteen hundred mutations: no other exception, no endless loop, no memory for a length that lies."""
    good, rng, file = tiny_gguf.read_bytes(), random.Random(7), tmp_path / "m.gguf"
    end = min(tensor.offset for tensor in read_gguf(tiny_gguf).tensors.values())
    refused = 0
    for _ in range(1500):
        file.write_bytes(mutate(good, end, rng))
        try:
            read_everything(file)
        except (StartupError, ConfigError):
            refused += 1

    assert refused > 500, "the mutations must hurt"


def test_a_gguf_whose_metadata_lie_is_refused(tiny_gguf: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Every entry, with every kind of value that it should not have."""
    good = read_gguf(tiny_gguf)
    more = ["llama.rope.scaling.type", "tokenizer.ggml.scores", "tokenizer.ggml.unknown_token_id",
            "llama.attention.key_length", "llama.expert_count", "tokenizer.ggml.eot_token_id"]  # fmt: skip
    for key in [*good.metadata, *more]:
        for value in VALUES:
            metadata: dict[str, Any] = {**good.metadata, key: value}
            if key in ("tokenizer.ggml.scores", "tokenizer.ggml.unknown_token_id"):
                metadata["tokenizer.ggml.model"] = "llama"
            lying = dataclasses.replace(good, metadata=metadata)
            monkeypatch.setattr(gguf_loader, "read_gguf", lambda path, lying=lying: lying)
            try:
                check_metadata(tiny_gguf, metadata)
                facts = gguf_loader.GGUFLoader().read_facts(tiny_gguf)
                check_values(facts.hf_config)
                build_gguf_tokenizer(metadata, source="x")
                ChatTemplate(facts.chat_template or "")
            except (StartupError, ConfigError):
                continue


def test_a_mutated_safetensors_header_is_read_or_refused(tiny_llama: Path, tmp_path: Path) -> None:
    """The weights' header, and the small files beside it."""
    rng = random.Random(11)
    for file in tiny_llama.iterdir():
        (tmp_path / file.name).write_bytes(file.read_bytes())
    for name in ("model.safetensors", "config.json", "tokenizer_config.json", "generation_config.json"):
        good = (tmp_path / name).read_bytes()
        end = 3000 if name == "model.safetensors" else len(good)
        for _ in range(200):
            (tmp_path / name).write_bytes(mutate(good, end, rng))
            try:
                read_everything(tmp_path)
            except (StartupError, ConfigError):
                continue
        (tmp_path / name).write_bytes(good)


def test_config_entries_of_any_kind_are_taken_or_refused(tiny_llama: Path) -> None:
    """What a config may say wrongly, entry by entry."""
    good = json.loads((tiny_llama / "config.json").read_text())
    for key in good:
        for value in [*VALUES, None, {"a": 1}]:
            hf_config = HFConfig({**good, key: value})
            try:
                check_values(hf_config)
                resolve_max_model_len(None, hf_config)
                check_divisible(2, hf_config)
            except ConfigError:
                continue
