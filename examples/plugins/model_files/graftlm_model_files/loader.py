"""The loader of checkpoints as numpy archives: config.json and tokenizer.json as usual, weights in weights.npz.

The front end imports this module to read facts, so torch is imported only where tensors are made.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

from graftlm.contracts.checkpoint import CheckpointFacts, ModelLoader
from graftlm.contracts.errors import StartupError

if TYPE_CHECKING:
    from graftlm.config.engine_config import EngineConfig
    from graftlm.contracts.weights import Weight

WEIGHTS = "weights.npz"


class NpzLoader(ModelLoader):
    """Reads a directory with weights.npz."""

    format = "npz"

    def claims(self, path: Path) -> bool:
        return (path / WEIGHTS).is_file()

    def read_facts(self, path: Path) -> CheckpointFacts:
        if not (path / "config.json").is_file():
            raise StartupError(
                f"the checkpoint {str(path)!r} has no config.json beside its {WEIGHTS}; add the model's"
            )
        tokenizer = path / "tokenizer.json"
        return CheckpointFacts(
            path=str(path),
            format=self.format,
            hf_config=_read(path / "config.json"),
            generation_config=_read(path / "generation_config.json"),
            tokenizer=str(tokenizer) if tokenizer.is_file() else None,
            chat_template=_read(path / "tokenizer_config.json").get("chat_template"),
        )

    def iterate_weights(self, config: EngineConfig) -> Iterator[tuple[str, Weight]]:
        import numpy as np
        import torch

        with np.load(Path(config.model.path) / WEIGHTS) as arrays:
            for name in arrays.files:
                yield name, torch.from_numpy(arrays[name])


def _read(file: Path) -> dict[str, Any]:
    return json.loads(file.read_text(encoding="utf-8")) if file.is_file() else {}
