"""Packed matrices against plain torch: every format, row counts from none to hundreds, odd sizes, strides."""

from __future__ import annotations

import pytest
import torch
from graftlm_kernels.native import BLOCK_FORMATS, DTYPE_CODES, PackedWeight
from packed_cases import FLOATS, FORMATS, assert_close, make_matrix

ROWS = [0, 1, 2, 3, 4, 5, 6, 7, 13, 32, 130, 512]
#: Rounding of the results' own number format; sums are float32.
TOLERANCE = {torch.float32: 2e-6, torch.bfloat16: 2**-8, torch.float16: 2**-11}


@pytest.mark.parametrize("format", FORMATS)
@pytest.mark.parametrize(("outputs", "inputs"), [(1, 32), (7, 64), (16, 96), (17, 32), (100, 576), (257, 160)])
def test_a_product_equals_the_reference(path, format, outputs, inputs):
    """Integer kernels are exact for activations in whole numbers, float kernels up to the order of their sums."""
    torch.manual_seed(outputs)
    matrix = make_matrix(format, outputs, inputs)
    rows = ROWS if outputs == 100 or path != "generic" else ROWS[:8]
    for count in rows:
        x = torch.randn(count, inputs)

        assert_close(matrix.packed.multiply(x), matrix.expected(x), relative=2e-6)


@pytest.mark.parametrize("format", [*FLOATS])
@pytest.mark.parametrize("inputs", [1, 3, 33])
def test_float_matrices_take_any_number_of_columns(path, format, inputs):
    """Only quantized weights come in blocks."""
    matrix = make_matrix(format, 19, inputs)
    x = torch.randn(9, inputs)

    assert_close(matrix.packed.multiply(x), matrix.expected(x), relative=2e-6)


@pytest.mark.parametrize("dtype", [*FLOATS.values()])
@pytest.mark.parametrize("format", FORMATS)
def test_activations_and_results_may_have_any_number_format(path, format, dtype):
    """A model in bfloat16 multiplies quantized weights too; a bias comes in its format or in float32."""
    torch.manual_seed(3)
    matrix = make_matrix(format, 37, 64)
    for count in (1, 11):
        x = torch.randn(count, 64).to(dtype)
        for bias in (None, torch.randn(37).to(dtype), torch.randn(37)):
            expected = matrix.expected(x) + (0 if bias is None else bias.double())
            found = matrix.packed.multiply(x, bias)

            assert found.dtype is dtype
            assert_close(found, expected, relative=TOLERANCE[dtype])


@pytest.mark.parametrize("format", FORMATS)
def test_rows_of_the_input_may_lie_apart(path, format):
    """The output of a merged layer is cut into columns without a copy."""
    matrix = make_matrix(format, 24, 64)
    wide = torch.randn(10, 200)

    assert_close(matrix.packed.multiply(wide[:, 50:114]), matrix.expected(wide[:, 50:114]), relative=2e-6)
    assert_close(matrix.packed.multiply(wide[::3, :64]), matrix.expected(wide[::3, :64]), relative=2e-6)
    turned = torch.randn(64, 5).T
    assert_close(matrix.packed.multiply(turned), matrix.expected(turned), relative=2e-6)


@pytest.mark.parametrize("format", FORMATS)
def test_rows_may_be_packed_in_pieces(path, format):
    """Merged layers and shards fill a matrix part by part, at any row."""
    whole = make_matrix(format, 45, 64)
    pieces = make_matrix(format, 45, 64)
    for start, stop in ((0, 3), (3, 20), (20, 21), (21, 45)):
        pieces.packed.load(whole.rows[start:stop], offset=start)
    x = torch.randn(2, 64)

    assert torch.equal(pieces.packed.multiply(x), whole.packed.multiply(x))


@pytest.mark.parametrize(("format", "outputs"), [("bfloat16", 2003), ("Q4_0", 6003), ("Q8_0", 4003)])
def test_the_number_of_threads_changes_nothing_that_is_packed(format, outputs):
    """A thread packs some megabytes at a time: no row is lost where one ends, nor where pieces meet in a panel."""
    from graftlm_kernels import _native

    matrix = make_matrix(format, outputs, 4096)
    codes = {"bfloat16": DTYPE_CODES[torch.bfloat16], **{name: code for name, (code, _) in BLOCK_FORMATS.items()}}
    ids = torch.arange(outputs)
    for count in (1, 2, 3, 8, 64):
        _native.set_num_threads(count)
        packed = PackedWeight(codes[format], output_size=outputs + 20, input_size=4096)
        packed.load(matrix.rows[:5], offset=11)
        packed.load(matrix.rows[5:], offset=16)

        assert torch.equal(packed.rows(ids + 11, torch.float32), matrix.numbers)
        edges = torch.cat((torch.arange(11), torch.arange(outputs + 11, outputs + 20)))
        assert not packed.rows(edges, torch.float32).any()


@pytest.mark.parametrize("format", FORMATS)
def test_gathered_rows_are_the_dequantized_ones(path, format):
    """An embedding reads the same packed matrix as the projection to the vocabulary."""
    matrix = make_matrix(format, 83, 96)
    ids = torch.randint(0, 83, (50,))

    assert_close(matrix.packed.rows(ids, torch.float32), matrix.numbers[ids], relative=1e-7)
    assert matrix.packed.rows(ids[:0], torch.float32).shape == (0, 96)
    half = matrix.packed.rows(ids, torch.float16)
    assert_close(half, matrix.numbers[ids], relative=2**-11)


def test_wrong_rows_and_sizes_are_refused():
    """A wrong address would be read in silence: sizes are checked where they enter."""
    matrix = make_matrix("Q8_0", 10, 32)

    with pytest.raises(IndexError, match="row 10 of a matrix of 10"):
        matrix.packed.rows(torch.tensor([3, 10]), torch.float32)
    with pytest.raises(IndexError, match="rows 8:18 of a matrix of 10"):
        matrix.packed.load(matrix.rows, offset=8)
    with pytest.raises(ValueError, match="blocks of 32 columns, not 40"):
        make_matrix("Q4_0", 4, 40)


@pytest.mark.parametrize("format", FORMATS[3:])
def test_extreme_activations_do_not_overflow(path, format):
    """Sixteen bits hold eight steps of the largest 8-bit products, 32 bits all others; zeros have no scale."""
    matrix = make_matrix(format, 16, 64)
    x = torch.stack([torch.full((64,), 1e30), torch.full((64,), -3.0), torch.zeros(64), torch.full((64,), 1e-30)])
    matrix_of_extremes = make_matrix(format, 16, 64)
    rows = matrix_of_extremes.rows
    block_bytes = rows.shape[1] // 2
    for block in rows.view(16 * 2, block_bytes):
        block[4 if matrix.format == "Q4_1" else 2 :] = 0xFF if format != "Q8_0" else 0x81  # 15 and 15, or -127
    matrix_of_extremes.packed.load(rows, offset=0)

    for found, expected in zip(matrix.packed.multiply(x), matrix.expected(x), strict=True):
        assert_close(found, expected, relative=2e-6)
    largest = matrix_of_extremes.packed.multiply(torch.full((5, 64), 2.0))
    from graftlm.layers.quantization.block_weight import QuantizedGGUFWeight

    numbers = QuantizedGGUFWeight(matrix.format, rows).dequantize(torch.float32)
    assert_close(largest, torch.full((5, 64), 2.0).double() @ numbers.double().T, relative=2e-6)


@pytest.mark.parametrize("format", FORMATS)
def test_what_is_not_a_number_stays_so(path, format):
    """A request whose numbers left the range ends with an error: whole numbers must not hide it."""
    matrix = make_matrix(format, 16, 64)
    x = torch.randn(4, 64)
    x[1, 40], x[2, 3] = float("nan"), float("inf")

    found = matrix.packed.multiply(x)
    assert found[[0, 3]].isfinite().all()
    assert not found[[1, 2]].isfinite().any()


@pytest.mark.parametrize("format", [format for format in FORMATS if format not in FLOATS])
def test_a_weight_that_is_not_a_number_is_not_hidden(path, format):
    """A damaged scale or minimum shows in its own output, for one row and for many, and in no other."""
    torch.manual_seed(5)
    matrix = make_matrix(format, 24, 96)
    damaged = matrix.rows.clone()
    halves = damaged.view(24, 3, -1)
    halves[5, 1, :2] = torch.tensor([0x00, 0x7C])  # infinite
    halves[17, 2, 2 * (matrix.format == "Q4_1") :][:2] = torch.tensor([0x01, 0xFE])  # not a number
    others = [output for output in range(24) if output not in (5, 17)]
    for first in (0, 5):  # all at once, and the damaged ones after a good matrix
        packed = make_matrix(format, 24, 96).packed
        packed.load(matrix.rows, offset=0)
        packed.load(damaged[first:18], offset=first)
        for count in (1, 8, 30):
            x = torch.randn(count, 96)
            found = packed.multiply(x)

            assert not found[:, [5, 17]].isfinite().any()
            assert_close(found[:, others], matrix.expected(x)[:, others], relative=2e-6)


@pytest.mark.parametrize("format", FORMATS)
@pytest.mark.parametrize(("outputs", "rows"), [(300, 65), (1100, 1), (1100, 5)], ids=str)
def test_the_number_of_threads_changes_no_result(path, format, outputs, rows):
    """Each output is computed by one thread, in one order, whoever makes whole numbers of the activations."""
    from graftlm_kernels import _native

    matrix = make_matrix(format, outputs, 128)
    x = torch.randn(rows, 128)
    results = []
    for count in (1, 2, 4, 3):
        _native.set_num_threads(count)
        results.append(matrix.packed.multiply(x))

    assert all(torch.equal(results[0], other) for other in results[1:])
