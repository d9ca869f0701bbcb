"""A kernel function that is replaced in vain, since another attention backend calls its own: it is said."""

from __future__ import annotations

import importlib.util
import json

import pytest
from plugin_packages import run_graftlm
from server import Server

REASON = "attention backend OWN calls its own kernels"
FILES = {
    "own_attention.py": """
        from graftlm.ops import override_kernel
        from graftlm.ops.attention.torch_paged import TorchPagedAttention, paged_decode, paged_prefill, paged_write

        class Own(TorchPagedAttention):
            name = "OWN"

            def __init__(self, *, num_heads, num_kv_heads, head_size, scale, prefix=""):
                self.num_heads, self.num_kv_heads = num_heads, num_kv_heads
                self.head_size, self.scale = head_size, scale
                self._write, self._decode, self._prefill = paged_write, paged_decode, paged_prefill

        def decode(query, kv, mask, scale):
            return paged_decode(query, kv, mask, scale)

        def register():
            override_kernel("paged_attention.decode", "own_attention:decode")
    """,
}


@pytest.fixture
def own(installed):
    """A backend that calls its own functions, and an override of one of the engine's."""
    points = {
        "attention_backends": {"OWN": "own_attention:Own"},
        "general_plugins": {"own_kernel": "own_attention:register"},
    }
    return installed.write("own-attention", entry_points=points, files=FILES)


def test_a_server_warns_once_and_tells_it_when_asked(own, tiny_llama):
    """The warning names function, owner, reason and cure; /plugins and explain --url tell the same."""
    with Server([str(tiny_llama), "--attention-backend", "OWN"], env=own.environment) as server:
        done = run_graftlm("plugins", "explain", "kernel", "--json", "--url", server.base_url)
    lines = [line for line in server.output.splitlines() if "kernel override not in use" in line]

    (told,) = json.loads(done.stdout)
    assert len(lines) == 1
    assert "kernel=paged_attention.decode function=own_attention:decode owner=own-attention" in lines[0]
    assert f"{REASON}; --attention-backend TORCH_PAGED calls them" in lines[0]
    assert told["answer"] == f"replaced by own_attention:decode of own-attention, but not in use: {REASON}"
    states = {(c["state"], c["name"], c.get("owner", "")) for c in told["candidates"]}
    assert states == {
        ("not in use", "paged_attention.decode", "own-attention"), ("lost", "paged_attention.decode", ""),
        ("not in use", "paged_attention.prefill", ""), ("not in use", "paged_attention.write", ""),
        ("won", "sampling.best_token", ""), ("won", "sampling.inverse_transform", ""),
    }  # fmt: skip


@pytest.mark.parametrize("model", [True, False], ids=["of a model", "of no model"])
def test_explain_says_that_it_is_not_in_use(own, ask, tiny_llama, model):
    """With the questions of a checkpoint, and without one with a plain question, which the note names."""
    words = ["--attention-backend", "OWN", *(["--model", str(tiny_llama)] if model else [])]
    code, (told,), errors = ask("explain", "kernel", "paged_attention.decode", *words)

    assert code == 0, errors
    assert told["answer"] == f"replaced by own_attention:decode of own-attention, but not in use: {REASON}"
    assert [c["state"] for c in told["candidates"]] == ["not in use", "lost"]
    assert "--attention-backend TORCH_PAGED calls them" in told["notes"]
    assert any("the platform named OWN for a layer of 8 heads" in note for note in told["notes"]) is not model


def test_the_reference_is_in_use_where_the_engine_computes(own, ask):
    """`explain op` of a kernel function answers, too."""
    code, (told,), errors = ask("explain", "op", "paged_attention.decode", "--attention-backend", "TORCH_PAGED")

    assert code == 0, errors
    assert told["kind"] == "kernel" and told["answer"] == "own_attention:decode of own-attention"
    assert [c["state"] for c in told["candidates"]] == ["won", "lost"]


@pytest.mark.skipif(
    importlib.util.find_spec("graftlm_kernels") is None, reason="the native kernels are not installed"
)
def test_the_native_kernels_say_so_themselves(installed, ask):
    """Where they compute attention, the named functions of the engine are not in use, replaced or not."""
    _, (told,), _ = ask("explain", "kernel", "paged_attention.prefill", "--platform", "cpu")

    assert told["answer"].endswith("not in use: attention backend NATIVE_CPU calls its own kernels")
