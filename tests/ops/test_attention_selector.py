"""The platform is asked once for each distinct attention question, and wrong answers are refused by name."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from graftlm.contracts.attention import AttentionBackend
from graftlm.contracts.platform import AttentionQuestion
from graftlm.ops.attention.selector import InvalidAttentionBackend, backends_in_use, get_attn_backend
from graftlm.ops.attention.torch_paged import TorchPagedAttention

Install = Callable[..., Any]


def question(**different: Any) -> AttentionQuestion:
    facts = {
        "num_heads": 4, "num_kv_heads": 2, "head_size": 16, "dtype": "float32", "kv_cache_dtype": "float32",
        "block_size": None,
    }  # fmt: skip
    return AttentionQuestion(**{**facts, **different})


class Unfinished(AttentionBackend):
    """Has no methods."""

    name = "UNFINISHED"


def test_equal_questions_are_asked_once(worker_host: Install) -> None:
    """Thirty layers of one geometry make one question; another head size is another question."""
    host = worker_host()
    for _ in range(30):
        assert get_attn_backend(question()) is TorchPagedAttention
    get_attn_backend(question(head_size=32))
    get_attn_backend(question(), "TORCH_PAGED")

    asked = host.platform.questions
    assert [(selected, q.head_size) for selected, q in asked] == [(None, 16), (None, 32), ("TORCH_PAGED", 16)]
    assert [e.facts["question"]["head_size"] for e in host.ledger.of("attention_asked")] == [16, 32, 16]
    assert len(host.ledger.of("hook_called", hook="get_attn_backend_cls")) == 3


def test_a_refusal_is_asked_for_once(worker_host: Install) -> None:
    """Layers that may do with another number format ask in vain first, and all of them hear the same."""
    host = worker_host(platform={"backend_answer": None})
    for _ in range(30):
        with pytest.raises(InvalidAttentionBackend):
            get_attn_backend(question())

    assert len(host.platform.questions) == 1
    assert backends_in_use() == []


def test_a_choice_that_the_platform_does_not_take_is_a_warning(worker_host: Install, caplog: Any) -> None:
    """The platform has the last word, and the user hears of it; a wish that came true is no news."""
    worker_host()
    get_attn_backend(question(), "TORCH_PAGED")
    assert "attention backend not taken" not in caplog.text
    get_attn_backend(question(), "acme.attention:Fast")

    (record,) = [r for r in caplog.records if "attention backend not taken" in r.message]
    assert "--attention-backend=acme.attention:Fast" in record.getMessage()


@pytest.mark.parametrize("answer", ["", None])
def test_no_answer_names_the_device(worker_host: Install, answer: Any) -> None:
    """As vLLM's users know the sentence, with the cure behind it."""
    worker_host(platform={"backend_answer": answer})

    with pytest.raises(ValueError, match=r"^Invalid attention backend for fake device: .*--attention-backend"):
        get_attn_backend(question())


@pytest.mark.parametrize(
    ("answer", "problem"),
    [
        (TorchPagedAttention, "must name a class as module:Class"),
        ("graftlm.ops.attention.selector:get_attn_backend", "must be a subclass of"),
        ("graftlm.layers.norm:RMSNorm", "must be a subclass of"),
        ("test_attention_selector:Unfinished", "does not implement __init__, attend, kv_cache_shape, write_cache"),
    ],
)
def test_a_wrong_type_is_refused(worker_host: Install, answer: Any, problem: str) -> None:
    """The error names what was answered and what it must be."""
    worker_host(platform={"backend_answer": answer})

    with pytest.raises(ValueError, match=f"Invalid attention backend for fake device: .*{problem}"):
        get_attn_backend(question())


def test_a_backend_may_refuse_the_question(worker_host: Install) -> None:
    """Its reason is in the error."""
    worker_host()

    with pytest.raises(ValueError, match="it has no sliding window"):
        get_attn_backend(question(sliding_window=128))
