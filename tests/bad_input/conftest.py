"""Checkpoints with one thing wrong each, made without torch from a good one."""

from __future__ import annotations

import json
import shutil
import sys
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import pytest

TESTS = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(TESTS / "models"))  # the fake hub

Spoil = Callable[[dict[str, Any]], object]


@pytest.fixture
def spoiled(tiny_llama: Path, tmp_path: Path) -> Callable[..., str]:
    """Copy the good checkpoint with something wrong: config entries, tensors, or whole files (None: gone)."""

    def spoil(
        *, config: Mapping[str, Any] | None = None, without: str = "", tensors: Spoil | None = None,
        files: Mapping[str, bytes | None] | None = None,
    ) -> str:  # fmt: skip
        path = tmp_path / "spoiled"
        shutil.copytree(tiny_llama, path)
        if config is not None or without:
            entries = json.loads((path / "config.json").read_text())
            entries.update(config or {})
            entries.pop(without, None)
            (path / "config.json").write_text(json.dumps(entries))
        if tensors is not None:
            from safetensors.numpy import load_file, save_file

            loaded = load_file(path / "model.safetensors")
            tensors(loaded)
            save_file(loaded, path / "model.safetensors")
        for name, content in (files or {}).items():
            (path / name).unlink(missing_ok=True)
            if content is not None:
                (path / name).write_bytes(content)
        return str(path)

    return spoil


@pytest.fixture(scope="session")
def tiny_gguf(tiny_llama: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A good GGUF file of 400 kB."""
    from gguf_files import write_llama_gguf

    path = tmp_path_factory.mktemp("gguf") / "tiny.gguf"
    write_llama_gguf(path, tiny_llama)
    return path
