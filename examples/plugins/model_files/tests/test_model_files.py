"""Source and loader by themselves; the engine's own tests serve a model with them."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
import torch
from graftlm_model_files.convert import convert
from graftlm_model_files.loader import NpzLoader
from graftlm_model_files.source import FolderSource
from safetensors.torch import save_file

from graftlm.config.engine_config import EngineConfig
from graftlm.contracts.errors import StartupError


@pytest.fixture
def checkpoint(tmp_path: Path) -> Path:
    """A directory as `save_pretrained` writes it, with one tensor."""
    place = tmp_path / "models" / "tiny"
    place.mkdir(parents=True)
    (place / "config.json").write_text(json.dumps({"architectures": ["X"]}))
    save_file({"a.weight": torch.arange(6.0).reshape(2, 3)}, place / "model.safetensors")
    return place


def test_a_converted_checkpoint_is_read(checkpoint: Path, tmp_path: Path) -> None:
    """The same facts and tensors as before the conversion."""
    archive = convert(checkpoint, tmp_path / "npz")
    loader, config = NpzLoader(), EngineConfig()
    config.model.path = str(archive)
    facts = loader.read_facts(archive)
    ((name, tensor),) = loader.iterate_weights(config)

    assert loader.claims(archive) and not loader.claims(checkpoint)
    assert (facts.format, facts.hf_config) == ("npz", {"architectures": ["X"]})
    assert name == "a.weight" and np.array_equal(tensor, np.arange(6.0).reshape(2, 3))


def test_a_name_is_looked_up_in_the_folders(checkpoint: Path) -> None:
    """With or without the scheme; a name that climbs out of its folder is refused."""
    source = FolderSource(str(checkpoint.parent))

    assert source.fetch("folder://tiny", revision=None, progress=False) == checkpoint.resolve()
    assert source.claims("tiny") and not source.claims("../models/tiny")
    with pytest.raises(StartupError, match=r"there is: tiny\).*folder\.folders"):
        source.fetch("folder://tinny", revision=None, progress=False)
