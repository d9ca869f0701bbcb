"""The compiled kernels as Python sees them: number formats as codes, threads, packed matrices over tensors.

It does not know ops or layers. Tensors are passed as addresses, since anything richer costs more than the kernels.
"""

from __future__ import annotations

import torch

from graftlm.contracts.errors import StartupError
from graftlm.ops.build import find_build
from graftlm.processes.threads import threads_of_worker
from graftlm_kernels import _native

#: torch's number formats as the kernels count them; also the float formats of packed weights.
DTYPE_CODES: dict[torch.dtype, int] = {torch.float32: 0, torch.bfloat16: 1, torch.float16: 2}
#: Block formats that stay as they are: their code and the bytes of a block of 32 weights.
BLOCK_FORMATS: dict[str, tuple[int, int]] = {"Q4_0": (4, 18), "Q4_1": (5, 20), "Q8_0": (8, 34)}
BLOCK_COLUMNS = 32
#: Numbers of a head that the native side has room for.
MAX_HEAD_SIZE = 1024


def use_threads() -> None:
    """Compute with this worker's share of the cores; outside of a model's build, with as many threads as torch.

    Raises StartupError where GRAFTLM_KERNELS_PATH asks for what this machine cannot run.
    """
    instruction_set()
    build = find_build()
    if build is None:
        _native.set_num_threads(torch.get_num_threads())
        return
    parallel = build.config.parallel
    _native.set_num_threads(threads_of_worker(parallel.world_size, parallel.threads_per_worker))


def take_over() -> None:
    """As `use_threads`, where the bulk of a model's work is done here: what is left to torch needs one thread.

    A second team of threads would take the cores from the first, at every barrier.
    """
    use_threads()
    if find_build() is not None:
        torch.set_num_threads(1)


def refusal(device: torch.device, dtype: torch.dtype) -> str | None:
    """Return why no kernel computes with these, or None."""
    if device.type != "cpu":
        return f"the kernels compute on the CPU, not on {device.type}"
    if dtype not in DTYPE_CODES:
        return f"{dtype} is not one of float32, bfloat16 and float16"
    return None


def head_refusal(head_size: int) -> str | None:
    """Return why no kernel computes heads of this size, or None."""
    if 1 <= head_size <= MAX_HEAD_SIZE:
        return None
    return f"its heads have 1 to {MAX_HEAD_SIZE} numbers, not {head_size}"


def instruction_set() -> str:
    """Return the path that runs on this machine: "avx512", "avx2" or "generic"."""
    try:
        path: str = _native.path()
    except RuntimeError as error:  # the native side knows which processor this is, and says it
        raise StartupError(f"GRAFTLM_KERNELS_PATH: {error}") from error
    return path


class PackedWeight:
    """A matrix [output, input] in the kernels' own order."""

    def __init__(self, code: int, *, output_size: int, input_size: int) -> None:
        self.output_size = output_size
        self.input_size = input_size
        self.matrix = _native.PackedMatrix(code, output_size, input_size)
        # Bound once: a look-up less per call.
        self._multiply = self.matrix.multiply

    @property
    def num_bytes(self) -> int:
        num_bytes: int = self.matrix.nbytes
        return num_bytes

    def load(self, rows: torch.Tensor, *, offset: int) -> None:
        """Pack rows of plain numbers in the matrix's own format, or of blocks as [rows, bytes]."""
        if rows.stride(-1) != 1:
            rows = rows.contiguous()
        stride = rows.stride(0) * rows.element_size()
        self.matrix.pack_rows(offset, rows.shape[0], rows.data_ptr(), stride)

    def multiply(self, x: torch.Tensor, bias: torch.Tensor | None = None) -> torch.Tensor:
        """Return x [tokens, input] times the matrix transposed, plus bias: [tokens, output]."""
        y = torch.empty((x.size(0), self.output_size), dtype=x.dtype)
        self.multiply_into(x, bias, y, y.data_ptr(), self.output_size)
        return y

    def multiply_into(
        self, x: torch.Tensor, bias: torch.Tensor | None, y: torch.Tensor, address: int, stride: int
    ) -> None:
        """As `multiply`, into memory of `y` that begins at `address`, rows `stride` numbers apart."""
        if x.stride(1) != 1:
            x = x.contiguous()
        code = DTYPE_CODES[x.dtype]
        if bias is None:
            self._multiply(x.data_ptr(), code, x.stride(0), x.size(0), 0, 0, address, code, stride)
        else:
            self._multiply(
                x.data_ptr(), code, x.stride(0), x.size(0), bias.data_ptr(), DTYPE_CODES[bias.dtype],
                address, code, stride,
            )  # fmt: skip

    def rows(self, ids: torch.Tensor, dtype: torch.dtype) -> torch.Tensor:
        """Return rows `ids` as plain numbers: [tokens, input]."""
        ids = ids.to(torch.int64).contiguous()
        found = torch.empty((ids.numel(), self.input_size), dtype=dtype)
        self.matrix.gather(ids.data_ptr(), ids.numel(), found.data_ptr(), DTYPE_CODES[dtype])
        return found.view(*ids.shape, self.input_size)
