"""The token embedding and the projection back to the vocabulary, both shared by vocabulary rows.

They know which rows are this rank's; the last ranks' missing rows are zeros, cut off by LogitsProcessor.
"""

from __future__ import annotations

import torch

from graftlm.contracts.errors import ModelMismatch
from graftlm.contracts.quantization import QuantizationConfig
from graftlm.contracts.weights import Weight
from graftlm.distributed.groups import tp_all_reduce, tp_rank, tp_size
from graftlm.layers.parameters import as_tensor, build_dtype, check_shape, empty_parameter, give_rows, narrow
from graftlm.layers.quantization import linear_method_for
from graftlm.ops.pluggable import PluggableLayer


class VocabParallelEmbedding(PluggableLayer):
    """Rows of a matrix [vocabulary, embedding_dim] by token id."""

    #: Whether hidden states meet this matrix too, at the end of a step.
    gives_logits = False

    def __init__(
        self,
        num_embeddings: int,
        embedding_dim: int,
        *,
        quant_config: QuantizationConfig | None = None,
        prefix: str = "",
    ) -> None:
        super().__init__()
        self.prefix = prefix or type(self).__name__
        self.num_embeddings = num_embeddings
        self.embedding_dim = embedding_dim
        self.rows = -(-num_embeddings // tp_size())
        self.start = min(tp_rank() * self.rows, num_embeddings)
        self.real_rows = min(self.rows, num_embeddings - self.start)
        self.linear_method = linear_method_for(self, quant_config=quant_config, prefix=prefix)
        self.linear_method.create_weights(
            self, input_size=embedding_dim, output_size=self.rows, dtype=build_dtype()
        )
        self.given_formats: set[str] = set()
        """The block formats in which the method was given rows."""
        self._waiting = {"weight"}

    def load_weight(self, weight: Weight, shard: str | int | None = None) -> None:
        """Take this rank's rows of a checkpoint matrix [vocabulary, embedding_dim]."""
        check_shape(f"{self.prefix}.weight", weight, (self.num_embeddings, self.embedding_dim))
        own = narrow(weight, 0, start=self.start, length=self.real_rows)
        give_rows(self, own, row_offset=0)
        if self.real_rows < self.rows:
            padding = torch.zeros(self.rows - self.real_rows, self.embedding_dim, dtype=build_dtype())
            self.linear_method.load_weight(self, padding, row_offset=self.real_rows)
        self._waiting.discard("weight")

    @property
    def weight_shape(self) -> tuple[int, int]:
        """This rank's matrix [output_size, input_size], as its LinearMethod knows it."""
        return self.rows, self.embedding_dim

    def unloaded(self) -> list[str]:
        """Return what no checkpoint tensor has filled yet."""
        return sorted(self._waiting)

    def process_weights_after_loading(self) -> None:
        self.linear_method.process_weights_after_loading(self)

    def forward(self, ids: torch.Tensor) -> torch.Tensor:
        """Return [tokens, embedding_dim] for ids [tokens], whole on every rank."""
        if tp_size() == 1:
            return self.linear_method.embed(self, ids)
        local = ids - self.start
        elsewhere = (local < 0) | (local >= self.real_rows)
        x = self.linear_method.embed(self, local.masked_fill_(elsewhere, 0))
        return tp_all_reduce(x.masked_fill_(elsewhere[:, None], 0))

    def extra_repr(self) -> str:
        return f"{self.num_embeddings} x {self.embedding_dim}, rows {self.start}:{self.start + self.real_rows}"


class ParallelLMHead(VocabParallelEmbedding):
    """The projection of hidden states to this rank's part of the vocabulary."""

    gives_logits = True

    def __init__(
        self,
        num_embeddings: int,
        embedding_dim: int,
        *,
        bias: bool = False,
        quant_config: QuantizationConfig | None = None,
        prefix: str = "",
    ) -> None:
        super().__init__(num_embeddings, embedding_dim, quant_config=quant_config, prefix=prefix)
        self.bias = empty_parameter(self.rows) if bias else None
        if bias:
            self._waiting.add("bias")

    @property
    def tied(self) -> bool:
        return "matrix_owner" in self.__dict__

    def tie_weights(self, embedding: VocabParallelEmbedding) -> ParallelLMHead:
        """Use the embedding's matrix, packed or not, instead of an own one; returns self."""
        if (embedding.num_embeddings, embedding.embedding_dim) != (self.num_embeddings, self.embedding_dim):
            raise ModelMismatch(
                f"{self.prefix} [{self.num_embeddings}, {self.embedding_dim}] cannot be tied to {embedding.prefix} "
                f"[{embedding.num_embeddings}, {embedding.embedding_dim}]; untie them or correct the config"
            )
        bias = self.bias
        self._parameters.clear()
        self._modules.clear()
        self.bias = bias
        # Past nn.Module's registration: the matrix must have one owner and one name.
        self.__dict__["matrix_owner"] = embedding
        self.linear_method = embedding.linear_method
        embedding.gives_logits = True
        self._waiting.discard("weight")
        return self

    def load_weight(self, weight: Weight, shard: str | int | None = None) -> None:
        """As the embedding's; a tied head ignores the copy that some checkpoints carry."""
        if not self.tied:
            super().load_weight(weight, shard)

    def load_bias(self, bias: Weight, shard: str | int | None = None) -> None:
        """Take this rank's part of a checkpoint bias [vocabulary]."""
        if self.bias is None:
            raise ModelMismatch(f"{self.prefix}: the checkpoint has a bias and the model was built without one")
        check_shape(f"{self.prefix}.bias", bias, (self.num_embeddings,))
        self.bias.data.zero_()
        own = as_tensor(bias, self.bias.dtype).narrow(0, self.start, self.real_rows)
        self.bias.data[: self.real_rows].copy_(own)
        self._waiting.discard("bias")

    def process_weights_after_loading(self) -> None:
        if not self.tied:
            super().process_weights_after_loading()

    def forward(self, hidden_states: torch.Tensor) -> torch.Tensor:
        """Return this rank's logits [rows, vocabulary share] of hidden_states [rows, embedding_dim]."""
        owner = self.__dict__.get("matrix_owner", self)
        return self.linear_method.apply(owner, hidden_states, self.bias)
