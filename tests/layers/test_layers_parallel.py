"""Tensor-parallel layers: each rank loads its share, and the shares together are the whole layer."""

from __future__ import annotations

from typing import Any

import pytest
import torch
import torch.nn.functional as F
from layer_fakes import FakeQuantized, on_each_rank, whole_numbers

from graftlm.distributed import groups
from graftlm.layers import (
    ColumnParallelLinear,
    LogitsProcessor,
    MergedColumnParallelLinear,
    ParallelLMHead,
    QKVParallelLinear,
    ReplicatedLinear,
    RowParallelLinear,
    VocabParallelEmbedding,
)
from graftlm.layers.parameters import ShapeMismatch

SIZES = [1, 2, 4]
FORMATS = [pytest.param(lambda w: w, id="plain"), pytest.param(FakeQuantized, id="quantized")]


@pytest.mark.parametrize("size", SIZES)
@pytest.mark.parametrize("kept", FORMATS)
def test_column_parallel_outputs_are_the_whole_layers_side_by_side(
    monkeypatch: pytest.MonkeyPatch, size: int, kept: Any
) -> None:
    """Rows of the matrix and of the bias are shared."""
    weight, bias, x = whole_numbers(8, 12), whole_numbers(8), torch.randn(3, 12)

    def work() -> torch.Tensor:
        layer = ColumnParallelLinear(12, 8)
        layer.load_weight(kept(weight))
        layer.load_bias(bias)
        assert layer.unloaded() == []
        return layer(x)

    outputs = on_each_rank(monkeypatch, size, work)

    torch.testing.assert_close(torch.cat(outputs, dim=-1), F.linear(x, weight, bias))


@pytest.mark.parametrize("size", SIZES)
@pytest.mark.parametrize("kept", FORMATS)
def test_row_parallel_outputs_add_up_to_the_whole_layers(
    monkeypatch: pytest.MonkeyPatch, size: int, kept: Any
) -> None:
    """Columns are shared, also where a rank's share is no whole block; one rank adds the bias."""
    weight, bias, x = whole_numbers(5, 24), whole_numbers(5), torch.randn(3, 24)

    def work() -> torch.Tensor:
        layer = RowParallelLinear(24, 5, reduce_results=False)
        layer.load_weight(kept(weight))
        layer.load_bias(bias)
        return layer(x.chunk(groups.tp_size(), dim=-1)[groups.tp_rank()])

    outputs = on_each_rank(monkeypatch, size, work)

    torch.testing.assert_close(sum(outputs), F.linear(x, weight, bias))


@pytest.mark.parametrize(("size", "kv_heads"), [(1, 2), (2, 2), (4, 2), (4, 1), (2, 4)])
@pytest.mark.parametrize("fused", [False, True])
def test_qkv_gives_each_rank_its_heads(
    monkeypatch: pytest.MonkeyPatch, size: int, kv_heads: int, fused: bool
) -> None:
    """Key-value heads fewer than ranks are copied; q, k and v come apart or as one tensor."""
    heads, head_size, hidden = 4, 6, 10
    q, k, v = (whole_numbers(n * head_size, hidden) for n in (heads, kv_heads, kv_heads))
    x = torch.randn(2, hidden)

    def work() -> tuple[torch.Tensor, ...]:
        layer = QKVParallelLinear(hidden, head_size, heads, kv_heads, bias=False)
        if fused:
            layer.load_weight(torch.cat((q, k, v)))
        else:
            for shard, weight in (("v", v), ("q", q), ("k", k)):
                layer.load_weight(weight, shard)
        assert layer.unloaded() == []
        return layer(x).split([layer.q_size, layer.kv_size, layer.kv_size], dim=-1)

    parts = on_each_rank(monkeypatch, size, work)

    torch.testing.assert_close(torch.cat([part[0] for part in parts], dim=-1), F.linear(x, q))
    copies = max(1, size // kv_heads)
    for index, weight in ((1, k), (2, v)):
        owned = [part[index] for part in parts[::copies]]
        torch.testing.assert_close(torch.cat(owned, dim=-1), F.linear(x, weight))


@pytest.mark.parametrize("size", [1, 2])
def test_merged_columns_keep_their_matrices_apart(monkeypatch: pytest.MonkeyPatch, size: int) -> None:
    """Each rank has its share of the first matrix above its share of the second."""
    gate, up, x = whole_numbers(8, 4), whole_numbers(12, 4), torch.randn(3, 4)

    def work() -> tuple[torch.Tensor, ...]:
        layer = MergedColumnParallelLinear(4, [8, 12], bias=False)
        layer.load_weight(FakeQuantized(up), 1)
        assert layer.unloaded() == ["weight (0)"]
        layer.load_weight(gate, 0)
        return layer(x).split(layer.output_sizes, dim=-1)

    parts = on_each_rank(monkeypatch, size, work)

    for index, weight in enumerate((gate, up)):
        torch.testing.assert_close(torch.cat([p[index] for p in parts], dim=-1), F.linear(x, weight))


@pytest.mark.parametrize("size", [1, 2, 3, 4])
def test_embedding_and_tied_head_share_one_matrix_by_vocabulary(monkeypatch: pytest.MonkeyPatch, size: int) -> None:
    """A vocabulary that does not divide leaves padding, which the logits do not show."""
    vocab, hidden = 7, 4
    weight, ids, x = whole_numbers(vocab, hidden), torch.tensor([6, 0, 3, 3]), torch.randn(2, hidden)

    def work() -> tuple[torch.Tensor, torch.Tensor]:
        # The collectives are made by hand below.
        monkeypatch.setattr("graftlm.layers.embedding.tp_all_reduce", lambda part: part)
        embedding = VocabParallelEmbedding(vocab, hidden)
        head = ParallelLMHead(vocab, hidden).tie_weights(embedding)
        embedding.load_weight(FakeQuantized(weight))
        head.load_weight(torch.zeros(1))
        assert list(dict(head.named_parameters())) == [] and head.unloaded() == []
        return embedding(ids), head(x)

    parts = on_each_rank(monkeypatch, size, work)

    torch.testing.assert_close(sum(part[0] for part in parts), weight[ids])
    joined = torch.cat([part[1] for part in parts], dim=-1)
    monkeypatch.setattr("graftlm.layers.logits.tp_gather", lambda part: joined)
    logits = LogitsProcessor(vocab)(lambda hidden_states: hidden_states, x)
    torch.testing.assert_close(logits, F.linear(x, weight))


def test_logits_exist_on_rank_0_only(monkeypatch: pytest.MonkeyPatch) -> None:
    """The others have nothing to sample from."""
    monkeypatch.setattr("graftlm.layers.logits.tp_gather", lambda part: None)
    head = ParallelLMHead(5, 4, bias=True)
    head.load_weight(whole_numbers(5, 4))
    assert head.unloaded() == ["bias"]
    head.load_bias(whole_numbers(5))

    assert LogitsProcessor(5)(head, torch.randn(1, 4)) is None


def test_what_does_not_fit_is_an_error_with_both_numbers(monkeypatch: pytest.MonkeyPatch) -> None:
    """Shapes, shards, biases and group sizes."""
    layer = ReplicatedLinear(4, 6, bias=False, prefix="model.project_in")
    with pytest.raises(ShapeMismatch, match=r"model\.project_in\.weight: .* \[6, 5\], the model expects \[6, 4\]"):
        layer.load_weight(torch.zeros(6, 5))
    with pytest.raises(ValueError, match="there is none"):
        layer.load_bias(torch.zeros(6))
    with pytest.raises(ValueError, match=r"no shard 'q'; it has \[None\]"):
        layer.load_weight(torch.zeros(6, 4), "q")
    with pytest.raises(ValueError, match="cannot be tied"):
        ParallelLMHead(5, 4).tie_weights(VocabParallelEmbedding(5, 3))
    with pytest.raises(ValueError, match=r"num_heads=9 cannot be shared by 2 .* divide it: \[1, 3, 9\]"):
        on_each_rank(monkeypatch, 2, lambda: QKVParallelLinear(8, 4, 9, 3, prefix="attn"))
