"""The attention layer asks for its backend by the build's configuration, and rotates, writes and attends."""

from __future__ import annotations

import pytest
import torch

from graftlm.config.engine_config import AttentionConfig, CacheConfig, EngineConfig
from graftlm.contracts.attention import AttentionMetadata, ForwardContext
from graftlm.contracts.platform import AttentionQuestion
from graftlm.layers import Attention, get_rope
from graftlm.layers import attention as attention_module
from graftlm.layers.attention import NoKVCache
from graftlm.ops.attention.selector import InvalidAttentionBackend
from graftlm.ops.attention.torch_paged import TorchPagedAttention
from graftlm.ops.build import NoBuild, building


@pytest.fixture
def questions(monkeypatch: pytest.MonkeyPatch) -> list[tuple[object, object]]:
    """What layers ask; the answer is always the reference."""
    asked: list[tuple[object, object]] = []

    def answer(question: object, selected: object) -> type[TorchPagedAttention]:
        asked.append((question, selected))
        return TorchPagedAttention

    monkeypatch.setattr(attention_module, "get_attn_backend", answer)
    return asked


def test_the_question_holds_what_a_backend_must_know(questions: list[tuple[object, object]]) -> None:
    """Sizes of this rank, number formats resolved, block size and backend as the user chose them."""
    config = EngineConfig(
        cache=CacheConfig(block_size=32, kv_cache_dtype="bfloat16"),
        attention=AttentionConfig(attention_backend="TORCH_PAGED"),
    )
    with building(config, dtype=torch.float32, device=torch.device("cpu")):
        layer = Attention(4, 16, 0.25, 2, prefix="layers.0.attn")

    question, selected = questions[0]
    assert (question.num_heads, question.num_kv_heads, question.head_size) == (4, 2, 16)  # type: ignore[attr-defined]
    assert (question.dtype, question.kv_cache_dtype) == ("float32", "bfloat16")  # type: ignore[attr-defined]
    assert (question.block_size, selected) == (32, "TORCH_PAGED")  # type: ignore[attr-defined]
    assert layer.backend_cls is TorchPagedAttention and layer.kv_cache_dtype == "bfloat16"
    with pytest.raises(NoBuild, match=r"Attention model\.attn"):
        Attention(4, 16, 0.25, prefix="model.attn")


@pytest.mark.parametrize(
    ("quantization", "dtype", "asked", "expected"),
    [
        ("gguf", torch.float32, "auto", "float16"),
        ("gguf", torch.float32, "float32", "float32"),
        ("gguf", torch.bfloat16, "auto", "bfloat16"),
        (None, torch.float32, "auto", "float32"),
    ],
)
def test_the_cache_beside_quantized_weights_has_16_bits(
    questions: list[tuple[object, object]], quantization: str | None, dtype: torch.dtype, asked: str, expected: str
) -> None:
    """Unless another format was asked for, or the model computes in 16 bits itself."""
    config = EngineConfig(cache=CacheConfig(kv_cache_dtype=asked))
    config.model.quantization = quantization
    with building(config, dtype=dtype, device=torch.device("cpu")):
        assert Attention(4, 16, 0.25, 2).kv_cache_dtype == expected
    assert [question.kv_cache_dtype for question, _ in questions] == [expected]  # type: ignore[attr-defined]


def test_a_backend_without_a_16_bit_cache_gets_one_as_the_model_computes(monkeypatch: pytest.MonkeyPatch) -> None:
    """It refuses float16, and is asked again: a default of ours does not keep it from serving."""
    refused: list[str] = []

    def answer(question: AttentionQuestion, selected: object) -> type[TorchPagedAttention]:
        if question.kv_cache_dtype != "float32":
            refused.append(question.kv_cache_dtype)
            raise InvalidAttentionBackend("cpu", problem="float32 only", question=question)
        return TorchPagedAttention

    monkeypatch.setattr(attention_module, "get_attn_backend", answer)
    config = EngineConfig()
    config.model.quantization = "gguf"
    with building(config, dtype=torch.float32, device=torch.device("cpu")):
        assert Attention(4, 16, 0.25, 2).kv_cache_dtype == "float32"
    assert refused == ["float16"]


def test_rotation_inside_the_layer_equals_rotation_before_it(questions: list[tuple[object, object]]) -> None:
    """A model may leave the rotation to the layer, so that a backend can fuse it with the cache write."""
    torch.manual_seed(0)
    with building(EngineConfig(), dtype=torch.float32, device=torch.device("cpu")):
        rope = get_rope(16, max_position=64)
        inside = Attention(4, 16, 0.25, 2, rotary_emb=rope)
        before = Attention(4, 16, 0.25, 2)
    q, k, v = torch.randn(5, 128).split([64, 32, 32], dim=-1)
    positions = torch.arange(5)
    with pytest.raises(NoKVCache, match="initialize_kv_cache"):
        before(q, k, v, _context())
    for layer in (inside, before):
        layer.bind_kv_cache(torch.zeros(TorchPagedAttention.kv_cache_shape(4, 8, 2, 16)))

    expected = before(*rope(positions, q, k), v, _context())

    torch.testing.assert_close(inside(q, k, v, _context(), positions), expected)
    assert expected.shape == (5, 64)


def _context() -> ForwardContext:
    """One prompt of five tokens in block 2."""
    metadata = AttentionMetadata(
        num_requests=1,
        num_tokens=5,
        max_query_len=5,
        max_seq_len=5,
        query_start=torch.tensor([0, 5], dtype=torch.int32),
        seq_lens=torch.tensor([5], dtype=torch.int32),
        block_table=torch.tensor([[2]], dtype=torch.int32),
        slot_mapping=torch.arange(16, 21),
        query_lens_list=[5],
        seq_lens_list=[5],
    )
    TorchPagedAttention.build_metadata(metadata)
    return ForwardContext(attention=metadata)
