"""Random weights of every format with their plain-torch meaning, and the exact result of integer kernels."""

from __future__ import annotations

import dataclasses

import torch
from graftlm_kernels.native import BLOCK_FORMATS, DTYPE_CODES, PackedWeight

from graftlm.layers.quantization.block_weight import QuantizedGGUFWeight

FLOATS = {"float32": torch.float32, "bfloat16": torch.bfloat16, "float16": torch.float16}
#: Those that end so see activations in 8 bits instead of 16.
NARROW = " x 8 bits"
FORMATS = [*FLOATS, *BLOCK_FORMATS, f"Q4_0{NARROW}", f"Q4_1{NARROW}"]


@dataclasses.dataclass
class Matrix:
    """A packed matrix, what was packed, and its numbers [outputs, inputs] in float32."""

    format: str
    packed: PackedWeight
    rows: torch.Tensor
    numbers: torch.Tensor
    is_narrow: bool

    def expected(self, x: torch.Tensor) -> torch.Tensor:
        """x [tokens, inputs] times the matrix, in float64; integer formats see x in whole numbers."""
        x = x.float()
        if self.format in BLOCK_FORMATS:
            x = in_whole_numbers(x, 127.0 if self.is_narrow else 32767.0)
        return x.double() @ self.numbers.double().T


def in_whole_numbers(x: torch.Tensor, steps: float) -> torch.Tensor:
    """Round x to so many steps with one scale per 32 neighbours, as the integer kernels do."""
    blocks = x.reshape(x.shape[0], x.shape[1] // 32, 32)
    most = blocks.abs().amax(-1, keepdim=True)
    inverse = torch.where(most > 0, torch.full_like(most, steps) / most, 0.0)  # `steps / most` would round twice
    return ((blocks * inverse).round() * (most / steps)).reshape(x.shape)


def make_matrix(format: str, outputs: int, inputs: int) -> Matrix:
    is_narrow, format = format.endswith(NARROW), format.removesuffix(NARROW)
    if format in FLOATS:
        rows = torch.randn(outputs, inputs).to(FLOATS[format])
        packed = PackedWeight(DTYPE_CODES[FLOATS[format]], output_size=outputs, input_size=inputs)
        numbers = rows.float()
    else:
        code, block_bytes = BLOCK_FORMATS[format]
        blocks = torch.randint(0, 256, (outputs * (inputs // 32), block_bytes), dtype=torch.uint8)
        blocks[:, :2] = (torch.randn(len(blocks), 1) * 0.02).half().view(torch.uint8)
        if format == "Q4_1":
            blocks[:, 2:4] = (torch.randn(len(blocks), 1) * 0.1).half().view(torch.uint8)
        rows = blocks.view(outputs, inputs // 32 * block_bytes)
        packed = PackedWeight(code, output_size=outputs, input_size=inputs)
        numbers = QuantizedGGUFWeight(format, rows).dequantize(torch.float32)
    packed.matrix.set_wide(not is_narrow)
    packed.load(rows, offset=0)
    return Matrix(format, packed, rows, numbers, is_narrow)


def assert_close(found: torch.Tensor, expected: torch.Tensor, *, relative: float) -> None:
    """Compare to the size of the expected numbers as a whole: single ones may cancel out."""
    assert found.shape == expected.shape
    assert torch.isfinite(found).all()
    scale = expected.abs().max().item() if expected.numel() else 0.0
    error = (found.double() - expected.double()).abs().max().item() if expected.numel() else 0.0
    assert error <= relative * max(scale, 1e-6), f"error {error:.3g} of {scale:.3g}"
