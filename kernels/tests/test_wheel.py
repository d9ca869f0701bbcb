"""What an installed wheel computes, beside NumPy, on every path; it needs neither torch nor graftlm."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import pytest
from graftlm_kernels import _native

FLOAT32, FLOAT16 = 0, 2
#: Format -> (its code, bytes of a block of 32 weights).
BLOCKS = {"Q4_0": (4, 18), "Q4_1": (5, 20), "Q8_0": (8, 34)}


@pytest.fixture(params=["avx512", "avx2", "generic"])
def path(request: pytest.FixtureRequest) -> Iterator[str]:
    """Each instruction set of this processor."""
    try:
        _native.use_path(request.param)
    except RuntimeError as error:
        pytest.skip(str(error))
    yield request.param
    _native.use_path("")


def address(array: np.ndarray) -> int:
    return int(array.ctypes.data)


def random_blocks(format: str, outputs: int, inputs: int) -> tuple[np.ndarray, np.ndarray]:
    """Return the bytes [outputs, …] of a matrix in blocks, and its numbers [outputs, inputs]."""
    random = np.random.default_rng(outputs)
    size = BLOCKS[format][1]
    blocks = random.integers(0, 256, (outputs * inputs // 32, size), dtype=np.uint8)
    blocks[:, :2] = random.normal(size=(len(blocks), 1)).astype(np.float16).view(np.uint8)
    scale = blocks[:, :2].copy().view(np.float16).astype(np.float32)  # [blocks, 1]
    if format == "Q8_0":
        numbers = blocks[:, 2:].view(np.int8) * scale
    else:
        if format == "Q4_1":
            blocks[:, 2:4] = random.normal(size=(len(blocks), 1)).astype(np.float16).view(np.uint8)
        packed = blocks[:, size - 16 :]
        whole = np.concatenate([packed & 15, packed >> 4], axis=1).astype(np.float32)  # [blocks, 32]
        least = blocks[:, 2:4].copy().view(np.float16).astype(np.float32) if format == "Q4_1" else -8 * scale
        numbers = whole * scale + least
    return blocks.reshape(outputs, -1), numbers.reshape(outputs, inputs)


def product(code: int, rows: np.ndarray, inputs: int, x: np.ndarray) -> np.ndarray:
    """Pack `rows` [outputs, …] and multiply x [count, inputs] with them: [count, outputs]."""
    outputs = len(rows)
    matrix = _native.PackedMatrix(code, outputs, inputs)
    matrix.pack_rows(0, outputs, address(rows), rows.strides[0])
    y = np.empty((len(x), outputs), np.float32)
    matrix.multiply(address(x), FLOAT32, inputs, len(x), 0, 0, address(y), FLOAT32, outputs)
    return y


@pytest.mark.parametrize("format", [*BLOCKS])
@pytest.mark.parametrize("rows", [1, 3, 8, 33])
def test_blocks_multiply_as_their_numbers_do(path: str, format: str, rows: int) -> None:
    """Activations lose what 16 bits do not hold, and nothing else."""
    blocks, numbers = random_blocks(format, 50, 96)
    x = np.random.default_rng(rows).normal(size=(rows, 96)).astype(np.float32)

    found = product(BLOCKS[format][0], blocks, 96, x)

    expected = x.astype(np.float64) @ numbers.T.astype(np.float64)
    assert np.abs(found - expected).max() < 1e-4 * np.abs(expected).max()


@pytest.mark.parametrize(("code", "dtype"), [(FLOAT32, np.float32), (FLOAT16, np.float16)])
def test_float_weights_multiply_as_they_are(path: str, code: int, dtype: type) -> None:
    """Of any size, in sums of float32."""
    random = np.random.default_rng(1)
    weight, x = random.normal(size=(37, 45)).astype(dtype), random.normal(size=(7, 45)).astype(np.float32)

    found = product(code, weight, 45, x)

    np.testing.assert_allclose(found, x @ weight.astype(np.float32).T, rtol=1e-4, atol=1e-4)


def test_norms_are_those_of_their_definition(path: str) -> None:
    """The residual becomes the sum."""
    random = np.random.default_rng(2)
    x, before, weight, bias = (random.normal(size=size).astype(np.float32) for size in ((5, 70), (5, 70), 70, 70))
    y, residual = np.empty_like(x), before.copy()
    total = x.astype(np.float64) + before

    _native.rms_norm(address(x), 70, address(residual), 70, address(weight), address(y), 5, 70, 1e-5, FLOAT32)
    np.testing.assert_allclose(
        y, total / np.sqrt((total**2).mean(1, keepdims=True) + 1e-5) * weight, rtol=1e-5, atol=1e-5
    )
    np.testing.assert_array_equal(residual, x + before)

    residual = before.copy()
    _native.layer_norm(
        address(x), 70, address(residual), 70, address(weight), address(bias), address(y), 5, 70, 1e-5, FLOAT32
    )
    normal = (total - total.mean(1, keepdims=True)) / np.sqrt(total.var(1, keepdims=True) + 1e-5)
    np.testing.assert_allclose(y, normal * weight + bias, rtol=1e-5, atol=1e-5)


def test_the_number_of_threads_changes_no_result() -> None:
    """Each output is computed by one thread, in one order."""
    blocks, _ = random_blocks("Q4_1", 300, 64)
    x = np.random.default_rng(3).normal(size=(20, 64)).astype(np.float32)
    results = []
    for threads in (1, 2, 3):
        _native.set_num_threads(threads)
        results.append(product(BLOCKS["Q4_1"][0], blocks, 64, x))
    _native.set_num_threads(1)

    assert all(np.array_equal(results[0], other) for other in results[1:])
