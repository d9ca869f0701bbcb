"""`graftlm plugins explain` of a checkpoint or a server: what it takes, what it does not, and who fails."""

from __future__ import annotations

import pytest
from plugin_packages import run_graftlm
from server import Server

NORM = """
    from graftlm.ops import OpImplementation

    class Norm(OpImplementation):
        @classmethod
        def supports(cls, *, device, dtype, shape):
            raise ValueError("boom")

        def __call__(self, *args):
            raise NotImplementedError
"""


@pytest.fixture
def raising(installed):
    """An implementation of rms_norm whose supports() raises."""
    return installed.write(
        "acme-ops", entry_points={"op_implementations": {"rms_norm.acme": "acme_ops:Norm"}},
        files={"acme_ops.py": NORM},
    )  # fmt: skip


@pytest.mark.parametrize("op", ["silu_and_mul", "rms_norm", "choose_tokens"])
def test_an_implementation_that_raises_is_named_and_the_others_answer(raising, ask, tiny_llama, op):
    """A start would be refused, so the code is 1; what each op would run is told all the same."""
    code, (told,), _ = ask("explain", "op", op, "--model", str(tiny_llama), "--op-providers", "acme")

    assert code == 1
    assert told["error"].startswith(
        "ValueError: boom [raised by plugin 'rms_norm.acme' (distribution acme-ops 1.0)"
    )
    assert "its " in told["answer"] and told["facts"]["built"] and not told["notes"]
    refused = {c["name"]: c["reason"] for c in told["candidates"] if c["state"] == "refused"}
    assert refused == ({"rms_norm.acme": "it raised ValueError: boom"} if op == "rms_norm" else {})


def test_a_model_that_the_checkpoint_does_not_take_says_which_it_takes(ask, tiny_llama):
    """With --model and without a name, the answer is about the one that is served."""
    model = ("--model", str(tiny_llama))
    _, (other,), _ = ask("explain", "model", "OPTForCausalLM", *model)
    _, (taken,), _ = ask("explain", "model", "LlamaForCausalLM", *model)
    _, (nameless,), _ = ask("explain", "model", *model)
    code, _, errors = ask("explain", "model")

    assert other["answer"] == "not taken; instead: LlamaForCausalLM"
    assert other["why"] == "the checkpoint asks for LlamaForCausalLM"
    assert [c["state"] for c in other["candidates"]] == ["not taken"]
    assert taken["answer"] == "graftlm.models.llama:LlamaForCausalLM of graftlm"
    assert taken["why"] == "the checkpoint asks for LlamaForCausalLM"
    assert nameless == taken
    assert code == 2 and "explain model needs a name, such as LlamaForCausalLM" in errors


def test_a_checkpoint_that_cannot_be_served_is_an_error_of_the_answer(ask, tmp_path):
    """Who provides the architecture is told, and why the model has none."""
    code, (told,), _ = ask("explain", "model", "LlamaForCausalLM", "--model", str(tmp_path))

    assert code == 1
    assert told["answer"].startswith("graftlm.models.llama") and "no loader of" in told["error"]


def test_a_server_names_every_candidate_as_this_installation_does(installed, ask, tiny_llama):
    """Models, kernel functions, and attention backends with name, distribution and path, in columns."""
    with Server([str(tiny_llama), "--attention-backend", "TORCH_PAGED"], env=installed.environment) as server:
        url = ("--url", server.base_url)
        _, (model,), _ = ask("explain", "model", *url)
        _, (other,), _ = ask("explain", "model", "OPTForCausalLM", *url)
        _, (kernels,), _ = ask("explain", "kernel", *url)
        _, (decode,), _ = ask("explain", "kernel", "paged_attention.decode", *url)
        _, (attention,), _ = ask("explain", "attention", *url)
        text = run_graftlm("plugins", "explain", "attention", *url, env=installed.environment).stdout
    _, (here,), _ = ask("explain", "kernel", "--attention-backend", "TORCH_PAGED")

    assert model["name"] == "LlamaForCausalLM" and model["candidates"][0]["state"] == "won"
    assert other["answer"] == "not taken; instead: LlamaForCausalLM"
    assert kernels["candidates"] == here["candidates"] and kernels["answer"] == "the engine's own"
    assert decode["answer"] == "graftlm.ops.attention.torch_paged:paged_decode"
    winner, *others = attention["candidates"]
    assert (winner["state"], winner["name"]) == ("won", "TORCH_PAGED")
    assert winner["owner"] and winner["target"] == attention["answer"]
    rows = [line.split("  ") for line in text.splitlines() if line.startswith("    ")]
    assert len(rows) == 1 + len(others)


@pytest.mark.parametrize(
    ("flags", "said"),
    [
        (["--model", "demo"], "--model has no effect with --url"),
        (["--disable-plugin=x"], "--disable-plugin has no effect with --url"),
        (["--nonsense"], "unknown flag --nonsense"),
    ],
)
def test_a_flag_that_a_server_would_not_hear_of_is_refused(flags, said):
    """Before it is asked: a flag that changes nothing would look as if it did."""
    done = run_graftlm("plugins", "explain", "op", "linear", "--url", "http://127.0.0.1:9", *flags)

    assert done.returncode == 2 and said in done.stderr, done.stderr
