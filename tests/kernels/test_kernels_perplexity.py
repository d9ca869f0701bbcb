"""Perplexity of the demo model on a fixed text: weights kept in blocks beside the same numbers in float32."""

from __future__ import annotations

import json
import math
import shutil
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch

from graftlm.plugins.current import find_host, hold_host

sys.path.append(str(Path(__file__).parents[1] / "worker"))

pytestmark = pytest.mark.demo

PATHS = ("avx512", "avx2", "generic")
TEXT = (
    "The history of the lighthouse begins long before electric light. On dark nights, people kept wood fires "
    "burning on hilltops so that sailors could find the entrance of the harbour. Later, towers were built of "
    "stone, and the fire was carried to the top of them. The most famous of these towers stood on an island "
    "near Alexandria, and travellers who saw it wrote that its light could be seen from many miles away. In "
    "the eighteenth century, lamps that burned oil replaced coal, and mirrors behind them gathered the light "
    "into a beam. A lens made of rings of glass, invented in France, made the beam so strong that a single "
    "lamp could warn ships beyond the horizon. The keeper of a lighthouse lived alone with his family, "
    "trimmed the wick every few hours, wound the clockwork that turned the lens, and wrote down the weather "
    "in a book. Today most of the lamps are automatic, and the keepers are gone, but the towers are still "
    "painted, because a ship's captain likes to see that someone cares."
)


@pytest.fixture(autouse=True)
def own_host() -> Iterator[None]:
    """Leave the process as it was: other tests ask what holds without a host."""
    before = find_host()
    yield
    hold_host(before)


def engine(path: Path, **options: Any) -> Any:
    from worker_runs import Engine

    return Engine(path, **options)


def token_ids(engine: Any, path: Path) -> list[int]:
    from graftlm.frontend.tokenizer import load_tokenizer
    from graftlm.models.checkpoints import read_facts

    tokenizer = load_tokenizer(engine.config, read_facts(path))
    assert tokenizer is not None
    return tokenizer.encode(TEXT)


def mean_logprob(engine: Any, ids: list[int]) -> float:
    """Mean log-probability of a text's tokens, each given those before it."""
    from worker_runs import greedy

    updates = engine.run([greedy("r0", ids, max_tokens=1, prompt_logprobs=0)])
    found = [entry for update in updates["r0"] for entry in update.prompt_logprobs or [] if entry is not None]
    assert len(found) == len(ids) - 1
    return sum(entry.logprob for entry in found) / len(found)


def each_path() -> Iterator[str]:
    """Choose each instruction path of this machine in turn, and at last the one that was chosen before."""
    from graftlm_kernels import _native

    for name in PATHS:
        try:
            _native.use_path(name)
        except RuntimeError:  # not on this machine
            continue
        yield name
    _native.use_path("")


def change(found: float, reference: float) -> float:
    """Relative change of perplexity between two mean log-probabilities."""
    return math.exp(reference - found) - 1


@pytest.fixture(scope="module")
def plain(demo_path: Path) -> tuple[list[int], float]:
    """The text's ids, and its mean log-probability with the demo's weights dequantized, in plain torch."""
    own = engine(demo_path, dtype="float32", custom_ops=["none"], attention_backend="TORCH_PAGED")
    ids = token_ids(own, demo_path)
    return ids, mean_logprob(own, ids)


@pytest.fixture(scope="module")
def dequantized(demo_path: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """The demo as a safetensors checkpoint of float32 weights (540 MB, removed again)."""
    from safetensors.torch import save_file

    from graftlm.config.engine_config import EngineConfig
    from graftlm.contracts.weights import QuantizedWeight
    from graftlm.models.checkpoints.gguf_loader import GGUFLoader

    path = tmp_path_factory.mktemp("demo") / "float32"
    path.mkdir()
    config = EngineConfig()
    config.model.path, config.model.hf_config = str(demo_path), GGUFLoader().read_facts(demo_path).hf_config
    tensors = {
        name: weight.dequantize(torch.float32) if isinstance(weight, QuantizedWeight) else weight
        for name, weight in GGUFLoader().iterate_weights(config)
    }
    save_file(tensors, path / "model.safetensors")
    (path / "config.json").write_text(json.dumps(config.model.hf_config))
    yield path
    shutil.rmtree(path)


def test_the_file_s_own_blocks_keep_the_perplexity(
    demo_path: Path, plain: tuple[list[int], float], path: str
) -> None:
    """Q4_1 with a Q8_0 vocabulary, chosen where no number format was asked for, on every instruction path."""
    ids, reference = plain
    kept = engine(demo_path)

    assert kept.config.model.quantization == "gguf"
    # The weights are the same and activations keep 15 bits, so much less than 1 % is left.
    assert abs(change(mean_logprob(kept, ids), reference)) < 0.001


@pytest.mark.parametrize("options", [{"dtype": "bfloat16"}, {"dtype": "float16"}, {"kv_cache_dtype": "bfloat16"}])
def test_half_precision_keeps_the_perplexity(
    demo_path: Path, plain: tuple[list[int], float], options: dict[str, str]
) -> None:
    """Of what is computed between the matrices, and of the KV cache, each beside float32."""
    ids, reference = plain

    assert abs(change(mean_logprob(engine(demo_path, **options), ids), reference)) < 0.01


@pytest.mark.parametrize(("method", "most"), [("q8_0", 0.01), ("q4_0", 0.25)])
def test_blocks_made_at_load_keep_the_perplexity_of_their_own_numbers(
    dequantized: Path, plain: tuple[list[int], float], method: str, most: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Kernels against the same blocks dequantized in plain torch; Q8_0 also within 1 % of the weights before."""
    ids, before = plain
    kept = [mean_logprob(engine(dequantized, quantization=method), ids) for _ in each_path()]
    monkeypatch.setattr("graftlm.layers.quantization.at_load.quantization_names", lambda: [method])

    own = engine(
        dequantized, quantization=method, dtype="float32", custom_ops=["none"], attention_backend="TORCH_PAGED"
    )
    reference = mean_logprob(own, ids)
    for found in kept:
        assert abs(change(found, reference)) < 0.001
        assert change(found, before) < most
