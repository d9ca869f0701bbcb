"""Memory of several workers: the weights are there once. Each holds its share of them, and nothing of the file."""

from __future__ import annotations

from pathlib import Path

import pytest
from gguf_files import write_llama_gguf
from live import LiveServer, memory_of

MIB = 1 << 20
#: What two processes may differ by without weights: allocators, buffers, the KV cache's first pages.
NOISE_BYTES = 12 * MIB


@pytest.fixture(scope="module")
def large_llama(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A Llama whose weights outweigh whatever else differs between two workers."""
    from checkpoints import make_tiny_llama

    return make_tiny_llama(
        tmp_path_factory.mktemp("large") / "llama", hidden_size=512, intermediate_size=2048, num_hidden_layers=6,
        num_attention_heads=8, num_key_value_heads=4, initializer_range=0.05,
    )  # fmt: skip


@pytest.fixture(params=["safetensors", "gguf"])
def checkpoint(request: pytest.FixtureRequest, large_llama: Path) -> Path:
    """The same weights in either format of file."""
    if request.param == "safetensors":
        return large_llama
    path = large_llama.with_suffix(".gguf")
    write_llama_gguf(path, large_llama)
    return path


def own_bytes(path: Path, ranks: int) -> list[int]:
    """Return what each computing process holds for itself after a few tokens, and check that the file is let go."""
    with LiveServer(str(path), "-tp", str(ranks), "--dtype", "float32", "--max-num-seqs", "4") as server:
        server.complete([5, 6, 7], max_tokens=8, temperature=0)
        processes = server.processes()
        names = [f"worker {rank}" for rank in range(ranks)] if ranks > 1 else ["engine core"]
        for name in names:
            assert resident(processes[name], ".safetensors") + resident(processes[name], ".gguf") < 4 * MIB
        return [memory_of(processes[name]).own for name in names]


def resident(pid: int, file: str) -> int:
    """Return the bytes of a mapped file that a process keeps in memory."""
    total, inside = 0, False
    for line in Path(f"/proc/{pid}/smaps").read_text().splitlines():
        if "-" in line.partition(" ")[0]:
            inside = line.endswith(file)
        elif inside and line.startswith("Rss:"):
            total += int(line.split()[1]) * 1024
    return total


def test_two_workers_hold_half_of_the_weights_each(checkpoint: Path, large_llama: Path) -> None:
    """Embedding and norms are small here; all matrices are divided."""
    weights = (large_llama / "model.safetensors").stat().st_size
    (alone,) = own_bytes(checkpoint, 1)
    halves = own_bytes(checkpoint, 2)

    assert weights > 80 * MIB
    for own in halves:
        assert abs(alone - own - weights / 2) < NOISE_BYTES, (alone / MIB, [half / MIB for half in halves])
