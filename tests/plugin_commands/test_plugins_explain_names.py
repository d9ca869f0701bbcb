"""`graftlm plugins explain KIND NAME`: a name that is none is an error, one that lost says to whom and why."""

from __future__ import annotations

import json

import pytest
from plugin_packages import EXAMPLES, Site, build_wheels, run_graftlm
from server import Server


@pytest.fixture(scope="module")
def everything(tmp_path_factory):
    """A folder with one plugin or more of most kinds: the example packages."""
    names = ("dummy_platform", "gather_attention", "int8_weights", "json_stats", "echo_endpoint", "model_files")
    wheels = build_wheels([EXAMPLES / name for name in names], tmp_path_factory.mktemp("wheels"))
    return Site(tmp_path_factory.mktemp("everything") / "site").install(*wheels)


@pytest.mark.parametrize(
    ("kind", "wrong", "part"),
    [
        ("platform", "zzz", "no platform called 'zzz'; it has cpu, cuda, dummy_platform_plugin, rocm, tpu, xpu"),
        ("attention", "GATER", "has no attention backend called 'GATER'; did you mean 'GATHER'?"),
        ("quantization", "int8", "has no quantization method called 'int8'; did you mean 'dummy_int8'"),
        ("model", "LlamaForCausalL", "has no model called 'LlamaForCausalL'; did you mean 'LlamaForCausalLM'"),
        ("communicator", "troch", "has no communicator called 'troch'; did you mean 'torch'?"),
        ("stat_logger", "json_line", "has no stat logger called 'json_line'; did you mean 'json_lines'?"),
        ("endpoint", "ecko", "has no endpoint plugin called 'ecko'; did you mean 'echo'?"),
        ("plugin", "json_lins", "has no plugin called 'json_lins'; did you mean 'json_lines'"),
    ],
)
def test_a_name_that_is_none_is_an_error_with_the_nearest(everything, kind, wrong, part):
    """Of the same kind, in one line, with the code of every other unknown name."""
    done = run_graftlm("plugins", "explain", kind, wrong, env=everything.environment)

    assert done.returncode == 1, done.stdout
    assert part in done.stderr.strip().splitlines()[-1] and not done.stdout


@pytest.mark.parametrize(
    ("words", "answer", "why"),
    [
        (["platform", "cpu"], "answered; instead: dummy_platform_plugin of", "--platform cpu asks for it"),
        (["platform", "graftlm:rocm"], "declined; instead: dummy_platform_plugin of", "no /dev/kfd"),
        (["worker", "cpu"], "not taken; instead: dummy of", "--worker-cls cpu asks for it"),
        (["communicator", "torch"], "not taken; instead: dummy of", "a platform names one in"),
        (
            ["executor", "uni", "-tp", "2"],
            "not taken; instead: mp of graftlm",
            "--distributed-executor-backend uni",
        ),
        (["attention", "GATHER"], "available; DummyDevice decides for each question", ""),
        (["quantization", "dummy_int8"], "available; no method is asked for", "--quantization dummy_int8 asks"),
        (["stat_logger", "json_lines"], "takes part", "installed"),
        (["endpoint", "echo", "--enable-plugin", "echo"], "takes part", "named"),
        (["endpoint_plugins", "echo"], "disabled", "--enable-plugin echo"),
    ],
)
def test_one_that_lost_says_to_whom_and_why(everything, words, answer, why):
    """Without an error, since the question was about it."""
    done = run_graftlm("plugins", "explain", *words, "--json", env=everything.environment)
    (told,) = json.loads(done.stdout)

    assert done.returncode == 0, done.stderr
    assert told["answer"].startswith(answer) and why in told["why"]
    assert told["name"] == words[1].rpartition(":")[2]


def test_what_a_checkpoint_decides_is_found_out_with_it(everything, tiny_llama):
    """The source, the loader, the attention backend and the provider that were not taken, each against who was."""

    def told(*words):
        model = ("--model", str(tiny_llama), "--json")
        done = run_graftlm("plugins", "explain", *words, *model, env=everything.environment)
        assert done.returncode == 0, done.stderr
        return json.loads(done.stdout)[0]

    assert told("source", "demo")["answer"] == "not taken; instead: local of graftlm 0.1.0"
    assert told("loader", "gguf")["answer"] == "not taken; instead: safetensors of graftlm 0.1.0"
    gather = told("attention", "GATHER")
    assert gather["answer"].startswith("not named; instead: graftlm_dummy_platform.attention:")
    assert [c["name"] for c in gather["candidates"]] == ["DUMMY", "GATHER"]
    assert told("attention", "DUMMY")["why"] == "DummyDevice named it"
    refused = told("attention", "GATHER", "--attention-backend", "GATHER")
    assert refused["why"] == "it could serve, and the platform chose otherwise"


def test_an_op_may_be_asked_of_by_its_provider(installed, ask):
    """`op.provider` explains the op, and that one of its candidates."""
    installed.write(
        "acme-ops",
        entry_points={"op_implementations": {"rms_norm.acme": "acme_ops:Norm"}},
        files={"acme_ops.py": ""},
    )
    code, (told,), errors = ask("explain", "op", "rms_norm.acme")

    assert code == 0, errors
    assert told["name"] == "rms_norm.acme" and told["answer"].startswith("not asked; instead: ")
    assert "--op-providers acme would" in told["why"]


def test_attention_of_several_workers_is_asked_with_the_heads_of_one(ask, tiny_llama):
    """What layers ask depends on the number of workers; the note says so."""
    (one,), (two,) = (
        ask("explain", "attention", "--model", str(tiny_llama), "-tp", size)[1] for size in ("1", "2")
    )

    assert one["facts"]["question"]["num_heads"] == 2 * two["facts"]["question"]["num_heads"]
    assert one["facts"]["question"]["num_kv_heads"] == 2 * two["facts"]["question"]["num_kv_heads"]
    assert "each of the 2 workers" in two["notes"][0] and "notes" in one and not one["notes"]


def test_a_server_is_asked_by_name_in_the_same_words(everything, tiny_llama):
    """With --url: unknown names are errors there, too, and one that lost says to whom."""
    with Server([str(tiny_llama), "-tp", "2"], env=everything.environment) as server:

        def explain(*words):
            done = run_graftlm("plugins", "explain", *words, "--json", "--url", server.base_url)
            return json.loads(done.stdout)[0] if done.stdout else done

        for kind in ("platform", "op", "kernel", "model", "attention", "worker", "stat_logger", "plugin", "loader"):
            done = explain(kind, "nosuch")
            assert done.returncode == 1 and "called 'nosuch'" in done.stderr, kind
        assert explain("platform", "cpu")["answer"].startswith("answered; instead: dummy_platform_plugin of")
        assert explain("worker", "cpu")["answer"].startswith("not taken; instead: dummy of")
        assert explain("communicator")["answer"].startswith("dummy of")
        assert explain("executor", "uni")["answer"].startswith("not taken; instead: mp of")
        assert explain("loader")["answer"].startswith("safetensors of")
        assert explain("source")["answer"].startswith("local of")
        assert explain("stat_logger", "json_lines")["answer"] == "takes part"
        assert explain("attention", "GATHER")["why"]
        assert explain("op", "rms_norm")["candidates"] and not explain("op", "GeluAndMul")["candidates"]
