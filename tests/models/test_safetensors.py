"""Hugging Face directories: one file or shards, what they say, and what is said when a piece is missing."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file

from graftlm.config.engine_config import EngineConfig
from graftlm.contracts.errors import StartupError
from graftlm.models.checkpoints import iterate_weights, read_facts
from graftlm.models.checkpoints.errors import BrokenCheckpoint, UnsupportedCheckpoint
from graftlm.models.sources import resolve_model
from graftlm.models.sources.errors import ModelNotFound


@pytest.fixture
def checkpoint(tiny_llama: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(tiny_llama, tmp_path / "model"))


@pytest.fixture
def sharded(checkpoint: Path) -> Path:
    """The checkpoint as two files with an index."""
    tensors = load_file(checkpoint / "model.safetensors")
    names = sorted(tensors)
    weight_map = {}
    for number, part in enumerate((names[:9], names[9:]), start=1):
        file = f"model-{number:05}-of-00002.safetensors"
        save_file({name: tensors[name] for name in part}, checkpoint / file, metadata={"format": "pt"})
        weight_map |= dict.fromkeys(part, file)
    (checkpoint / "model.safetensors").unlink()
    (checkpoint / "model.safetensors.index.json").write_text(json.dumps({"weight_map": weight_map}))
    return checkpoint


def weights_of(path: Path) -> dict[str, torch.Tensor]:
    config = EngineConfig()
    config.model.path, config.model.format = str(path), read_facts(path).format
    return dict(iterate_weights(config))  # type: ignore[arg-type]


def test_facts_are_those_of_the_files(checkpoint: Path) -> None:
    """Config, generation config, tokenizer and chat template are found where save_pretrained puts them."""
    facts = read_facts(checkpoint)

    assert facts.format == "safetensors"
    assert facts.hf_config["architectures"] == ["LlamaForCausalLM"]
    assert facts.generation_config["eos_token_id"] == facts.hf_config["eos_token_id"]
    assert facts.tokenizer == str(checkpoint / "tokenizer.json")
    assert facts.chat_template is not None and "<|im_start|>" in facts.chat_template


def test_a_chat_template_of_its_own_file_wins(checkpoint: Path) -> None:
    """chat_template.jinja is what newer checkpoints carry; a list of templates gives its default."""
    config = json.loads((checkpoint / "tokenizer_config.json").read_text())
    config["chat_template"] = [{"name": "tools", "template": "t"}, {"name": "default", "template": "d"}]
    (checkpoint / "tokenizer_config.json").write_text(json.dumps(config))
    assert read_facts(checkpoint).chat_template == "d"

    (checkpoint / "chat_template.jinja").write_text("j")

    assert read_facts(checkpoint).chat_template == "j"


def test_shards_are_one_checkpoint(sharded: Path, tiny_llama: Path) -> None:
    """All tensors of all shards come, and equal those of the single file."""
    expected = load_file(tiny_llama / "model.safetensors")

    found = weights_of(sharded)

    assert found.keys() == expected.keys()
    assert all(torch.equal(found[name], tensor) for name, tensor in expected.items())


def test_tensors_are_mapped_and_not_read(tmp_path: Path, checkpoint: Path) -> None:
    """Yielding a large tensor does not take its memory; cutting a part takes that part only."""
    save_file({"model.embed_tokens.weight": torch.ones(16_000, 1_000)}, checkpoint / "model.safetensors")
    before = private_bytes()

    weight = weights_of(checkpoint)["model.embed_tokens.weight"]
    part = weight.narrow(0, 0, 100).clone()

    assert part.sum() == 100_000
    assert private_bytes() - before < 16 << 20


def private_bytes() -> int:
    """Memory that is this process's own: without pages of files."""
    fields = dict(line.split(":") for line in Path("/proc/self/smaps_rollup").read_text().splitlines()[1:])
    return 1024 * int(fields["Anonymous"].split()[0])


def test_a_missing_shard_is_named(sharded: Path) -> None:
    """A file that the index names and that is not there is one clear error."""
    (sharded / "model-00002-of-00002.safetensors").unlink()

    with pytest.raises(BrokenCheckpoint, match=r"not there: model-00002-of-00002\.safetensors"):
        read_facts(sharded)

    (sharded / "model.safetensors.index.json").unlink()

    with pytest.raises(BrokenCheckpoint, match="no index"):
        read_facts(sharded)


def test_a_truncated_file_is_found_before_any_worker_starts(checkpoint: Path) -> None:
    """The header is held against the file's length when the facts are read."""
    file = checkpoint / "model.safetensors"
    file.write_bytes(file.read_bytes()[:-100])

    with pytest.raises(BrokenCheckpoint, match=r"model\.safetensors.*truncated.*fetch it again"):
        read_facts(checkpoint)

    file.write_bytes(b"not a header at all")

    with pytest.raises(BrokenCheckpoint, match=r"model\.safetensors.*header is damaged"):
        read_facts(checkpoint)


def test_weights_in_another_form_are_named(checkpoint: Path) -> None:
    """A directory with pickled weights only says what it has and what is wanted."""
    (checkpoint / "model.safetensors").rename(checkpoint / "pytorch_model.bin")

    with pytest.raises(UnsupportedCheckpoint, match=r"no \.safetensors file \(it has pytorch_model\.bin\)"):
        read_facts(checkpoint)


def test_a_broken_config_is_named(checkpoint: Path) -> None:
    """config.json that is no JSON is one clear error with the file's name."""
    (checkpoint / "config.json").write_text("{")

    with pytest.raises(BrokenCheckpoint, match=r"config\.json"):
        read_facts(checkpoint)


def test_what_no_loader_reads_is_said_so(tmp_path: Path) -> None:
    """A directory without a config, and an unknown --load-format, name what could be."""
    (tmp_path / "notes.txt").write_text("hello")

    with pytest.raises(UnsupportedCheckpoint, match=r"gguf, safetensors.*found notes\.txt"):
        read_facts(tmp_path)
    with pytest.raises(StartupError, match=r"--load-format='ggu' is unknown; did you mean 'gguf'"):
        read_facts(tmp_path, "ggu")


def test_hidden_files_are_named_last(tmp_path: Path) -> None:
    """Where no model is, the files that somebody may have meant are shown, not `.git`."""
    for name in (".bashrc", ".cache", ".git", ".profile", ".ssh", ".vimrc", "README.md"):
        (tmp_path / name).touch()

    with pytest.raises(UnsupportedCheckpoint, match=r"found README\.md, \.bashrc"):
        read_facts(tmp_path)
    with pytest.raises(ModelNotFound, match=r"near it: README\.md, \.bashrc"):
        resolve_model(str(tmp_path / "xy"))
