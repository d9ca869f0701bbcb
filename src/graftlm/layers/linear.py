"""Linear layers whose matrices are shared by the ranks of a tensor-parallel group.

They know which rows or columns are this rank's; how a matrix is kept and multiplied is its LinearMethod's business.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence

import torch

from graftlm.contracts.errors import ModelMismatch
from graftlm.contracts.quantization import QuantizationConfig
from graftlm.contracts.weights import Weight
from graftlm.distributed.groups import divide, tp_all_gather, tp_all_reduce, tp_rank, tp_size
from graftlm.layers.parameters import as_tensor, build_dtype, check_shape, empty_parameter, give_rows, narrow
from graftlm.layers.quantization import linear_method_for
from graftlm.ops.pluggable import PluggableLayer

Shard = str | int | None


@dataclasses.dataclass(frozen=True, slots=True)
class Piece:
    """One checkpoint matrix inside a layer's: `total` rows in the file, of which this rank keeps some."""

    shard: Shard
    total: int
    start: int
    rows: int
    offset: int
    """Where these rows lie in this rank's matrix."""


class LinearBase(PluggableLayer):
    """What all linear layers share: one weight, an optional bias, and the record of what was loaded."""

    def __init__(
        self,
        input_size: int,
        output_size: int,
        *,
        bias: bool,
        quant_config: QuantizationConfig | None,
        prefix: str,
        pieces: list[Piece],
    ) -> None:
        """Sizes are this rank's."""
        super().__init__()
        self.prefix = prefix or type(self).__name__
        self.input_size = input_size
        self.output_size = output_size
        self.pieces = pieces
        self.linear_method = linear_method_for(self, quant_config=quant_config, prefix=prefix)
        self.linear_method.create_weights(self, input_size=input_size, output_size=output_size, dtype=build_dtype())
        self.bias = empty_parameter(output_size) if bias else None
        self.given_formats: set[str] = set()
        """The block formats in which the method was given rows."""
        self._waiting: dict[str, set[Shard]] = {"weight": {p.shard for p in pieces}}
        if bias:
            self._waiting["bias"] = {p.shard for p in pieces}

    def load_weight(self, weight: Weight, shard: Shard = None) -> None:
        """Take this rank's part of a checkpoint matrix [rows, columns]; without `shard`, of all of them fused."""
        pieces = self._pieces_of(shard)
        check_shape(f"{self.prefix}.weight", weight, (sum(p.total for p in pieces), self._checkpoint_columns()))
        begin = 0
        for piece in pieces:
            rows = narrow(weight, 0, start=begin + piece.start, length=piece.rows)
            give_rows(self, self._own_columns(rows), row_offset=piece.offset)
            self._waiting["weight"].discard(piece.shard)
            begin += piece.total

    def load_bias(self, bias: Weight, shard: Shard = None) -> None:
        """Take this rank's part of a checkpoint bias [rows]."""
        if self.bias is None:
            raise ModelMismatch(
                f"{self.prefix}: the checkpoint has a bias and the model's config says there is none"
            )
        pieces = self._pieces_of(shard)
        check_shape(f"{self.prefix}.bias", bias, (sum(p.total for p in pieces),))
        values = as_tensor(bias, self.bias.dtype)
        begin = 0
        for piece in pieces:
            part = values.narrow(0, begin + piece.start, piece.rows)
            self.bias.data.narrow(0, piece.offset, piece.rows).copy_(part)
            self._waiting["bias"].discard(piece.shard)
            begin += piece.total

    @property
    def weight_shape(self) -> tuple[int, int]:
        """This rank's matrix [output_size, input_size], as its LinearMethod knows it."""
        return self.output_size, self.input_size

    def unloaded(self) -> list[str]:
        """Return what no checkpoint tensor has filled yet, such as "weight (k)"."""
        return [
            kind if shard is None else f"{kind} ({shard})"
            for kind, shards in self._waiting.items()
            for shard in sorted(shards, key=str)
        ]

    def process_weights_after_loading(self) -> None:
        self.linear_method.process_weights_after_loading(self)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.linear_method.apply(self, x, self.bias)

    def extra_repr(self) -> str:
        return f"{self.input_size} -> {self.output_size}, bias={self.bias is not None}"

    def _checkpoint_columns(self) -> int:
        return self.input_size

    def _own_columns(self, weight: Weight) -> Weight:
        return weight

    def _pieces_of(self, shard: Shard) -> list[Piece]:
        if shard is None:
            return self.pieces
        found = [p for p in self.pieces if p.shard == shard]
        if not found:
            known = [p.shard for p in self.pieces]
            raise ValueError(f"{self.prefix} has no shard {shard!r}; it has {known}")
        return found


class ReplicatedLinear(LinearBase):
    """A linear layer that every rank has whole."""

    def __init__(
        self,
        input_size: int,
        output_size: int,
        *,
        bias: bool = True,
        quant_config: QuantizationConfig | None = None,
        prefix: str = "",
    ) -> None:
        pieces = [Piece(None, output_size, 0, output_size, 0)]
        super().__init__(
            input_size, output_size, bias=bias, quant_config=quant_config, prefix=prefix, pieces=pieces
        )


class ColumnParallelLinear(LinearBase):
    """A linear layer whose outputs are shared by the ranks; each computes its own, `gather_output` joins them."""

    def __init__(
        self,
        input_size: int,
        output_size: int,
        *,
        bias: bool = True,
        gather_output: bool = False,
        quant_config: QuantizationConfig | None = None,
        prefix: str = "",
        pieces: list[Piece] | None = None,
    ) -> None:
        """Sizes are the whole layer's; `pieces` is for subclasses that join several matrices."""
        self.gather_output = gather_output
        if pieces is None:
            pieces = even_pieces([output_size], prefix=prefix, shards=[None])
        rows = sum(p.rows for p in pieces)
        super().__init__(input_size, rows, bias=bias, quant_config=quant_config, prefix=prefix, pieces=pieces)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y = self.linear_method.apply(self, x, self.bias)
        return tp_all_gather(y) if self.gather_output else y


class MergedColumnParallelLinear(ColumnParallelLinear):
    """Several column-parallel layers over one input as one matrix; shards are 0, 1, …"""

    def __init__(
        self,
        input_size: int,
        output_sizes: list[int],
        *,
        bias: bool = True,
        gather_output: bool = False,
        quant_config: QuantizationConfig | None = None,
        prefix: str = "",
    ) -> None:
        if gather_output and len(output_sizes) > 1 and tp_size() > 1:
            raise ValueError(
                f"{prefix}: gather_output would mix the merged outputs of the ranks; gather them apart"
            )
        super().__init__(
            input_size,
            sum(output_sizes),
            bias=bias,
            gather_output=gather_output,
            quant_config=quant_config,
            prefix=prefix,
            pieces=even_pieces(output_sizes, prefix=prefix, shards=list(range(len(output_sizes)))),
        )
        self.output_sizes = [p.rows for p in self.pieces]


class QKVParallelLinear(ColumnParallelLinear):
    """The query, key and value projections as one matrix; shards are "q", "k" and "v".

    `num_heads`, `num_kv_heads`, `q_size` and `kv_size` are this rank's. With fewer key-value heads than ranks,
    ranks share copies of them.
    """

    def __init__(
        self,
        hidden_size: int,
        head_size: int,
        total_num_heads: int,
        total_num_kv_heads: int | None = None,
        *,
        bias: bool = True,
        quant_config: QuantizationConfig | None = None,
        prefix: str = "",
    ) -> None:
        kv_heads = total_num_kv_heads or total_num_heads
        ranks = tp_size()
        copies = divide(ranks, kv_heads, what="tensor_parallel_size") if kv_heads < ranks else 1
        self.head_size = head_size
        self.num_heads = divide(total_num_heads, ranks, what=f"{prefix} num_heads")
        self.num_kv_heads = 1 if copies > 1 else divide(kv_heads, ranks, what=f"{prefix} num_kv_heads")
        self.q_size = self.num_heads * head_size
        self.kv_size = self.num_kv_heads * head_size
        q_start, kv_start = tp_rank() * self.q_size, tp_rank() // copies * self.kv_size
        q_total, kv_total = total_num_heads * head_size, kv_heads * head_size
        pieces = [
            Piece("q", q_total, q_start, self.q_size, 0),
            Piece("k", kv_total, kv_start, self.kv_size, self.q_size),
            Piece("v", kv_total, kv_start, self.kv_size, self.q_size + self.kv_size),
        ]
        super().__init__(
            hidden_size,
            q_total + 2 * kv_total,
            bias=bias,
            quant_config=quant_config,
            prefix=prefix,
            pieces=pieces,
        )


class RowParallelLinear(LinearBase):
    """A linear layer whose inputs are shared by the ranks; their partial sums are added by an all-reduce."""

    def __init__(
        self,
        input_size: int,
        output_size: int,
        *,
        bias: bool = True,
        reduce_results: bool = True,
        quant_config: QuantizationConfig | None = None,
        prefix: str = "",
    ) -> None:
        """Sizes are the whole layer's; the input is this rank's share, as a column-parallel layer left it."""
        self.total_input_size = input_size
        self.reduce_results = reduce_results
        own = divide(input_size, tp_size(), what=f"{prefix} input_size")
        self.input_start = tp_rank() * own
        pieces = [Piece(None, output_size, 0, output_size, 0)]
        super().__init__(own, output_size, bias=bias, quant_config=quant_config, prefix=prefix, pieces=pieces)
        self.adds_bias = tp_rank() == 0

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        # One rank adds the bias, or the all-reduce would add it once per rank.
        y = self.linear_method.apply(self, x, self.bias if self.adds_bias else None)
        return tp_all_reduce(y) if self.reduce_results else y

    def _checkpoint_columns(self) -> int:
        return self.total_input_size

    def _own_columns(self, weight: Weight) -> Weight:
        return narrow(weight, 1, start=self.input_start, length=self.input_size)


def even_pieces(sizes: list[int], *, prefix: str, shards: Sequence[Shard]) -> list[Piece]:
    """Share each of several matrices evenly between the ranks and lay this rank's parts one below the other."""
    pieces: list[Piece] = []
    offset = 0
    for shard, size in zip(shards, sizes, strict=True):
        rows = divide(size, tp_size(), what=f"{prefix} output_size")
        pieces.append(Piece(shard, size, tp_rank() * rows, rows, offset))
        offset += rows
    return pieces
