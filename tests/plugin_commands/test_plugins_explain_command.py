"""`graftlm plugins explain`: who won, who else asked, why not they; here, and of a running server."""

from __future__ import annotations

import json

import pytest
from plugin_packages import Site, run_graftlm
from server import Server


def won(explanation):
    """Return the names of the candidates that won."""
    return [c["name"] for c in explanation["candidates"] if c["state"] == "won"]


def test_explain_platform_tells_what_each_detector_said(installed, example_wheels, ask):
    """The dummy won; the CPU answered, the others declined, each with its reason."""
    installed.install(*example_wheels)
    code, (told,), _ = ask("explain", "platform")
    candidates = {c["name"]: c for c in told["candidates"]}

    assert code == 0
    assert told["answer"] == "dummy_platform_plugin of graftlm-dummy-platform 0.1.0"
    assert told["facts"]["class"] == "graftlm_dummy_platform.platform:DummyPlatform"
    assert won(told) == ["dummy_platform_plugin"]
    assert candidates["cpu"]["state"] == "answered"
    assert candidates["rocm"]["state"] == "declined" and candidates["rocm"]["reason"]


def test_explain_platform_when_none_can_be_taken(installed, ask):
    """Two that answer: nobody won, the error says why, the code is 1."""
    for name in ("one", "two"):
        installed.write(
            f"{name}-platform", entry_points={"platform_plugins": {name: f"{name}_platform:detect"}},
            files={f"{name}_platform.py": f"def detect():\n    return 'a.platform:Class', 'I am {name}'\n"},
        )  # fmt: skip
    code, (told,), _ = ask("explain", "platform")

    assert code == 1
    assert "one, two" in told["error"] and won(told) == []
    reasons = [c["reason"] for c in told["candidates"] if c["name"] in ("one", "two")]
    assert reasons == [f"I am {name}; --platform {name} asks for it" for name in ("one", "two")]


def test_explain_model_tells_whose_class_it_is(installed, example_wheels, ask):
    """Registered by a general plugin, or built in; with its facts."""
    installed.install(*example_wheels)
    _, (registered,), _ = ask("explain", "model", "MyOPTForCausalLM")
    _, (built_in,), _ = ask("explain", "model", "LlamaForCausalLM")

    assert registered["answer"] == "graftlm_dummy_model.my_opt:MyOPTForCausalLM of graftlm-dummy-model"
    assert registered["why"] == "registered by a general plugin"
    assert built_in["answer"] == "graftlm.models.llama:LlamaForCausalLM of graftlm"
    assert built_in["facts"]["supports_tensor_parallel"] is True
    assert "supports_lora" not in built_in["facts"]  # what nothing uses is not promised


def test_explain_model_names_a_disabled_provider(installed, ask):
    """An architecture that only a disabled plugin has: nobody, and why not."""
    installed.write(
        "idle-model", entry_points={"models": {"IdleForCausalLM": "idle_model:Net"}}, files={"idle_model.py": ""}
    )
    code, (told,), _ = ask("explain", "model", "IdleForCausalLM", "--disable-plugin", "IdleForCausalLM")

    assert code == 1
    assert told["error"] == "no enabled plugin provides it"
    assert told["candidates"][0]["state"] == "disabled"


def test_explain_op_goes_through_the_order_of_choice(installed, example_wheels, ask):
    """On the dummy platform: the replacement, its own method; switched off, the reference."""
    installed.install(*example_wheels)
    code, (on,), errors = ask("explain", "op", "RotaryEmbedding")
    _, (off,), _ = ask("explain", "op", "rotary_embedding", "--custom-ops", "all,-rotary_embedding")

    assert code == 0, errors
    assert won(on) == ["graftlm_dummy_platform.rotary.DummyRotaryEmbedding", "forward_oot"]
    assert on["why"] == "own forward_oot for DummyDevice"
    assert on["facts"]["switches"] == "all (platform dummy_platform_plugin)"
    assert {c["name"]: c["state"] for c in on["candidates"]}["graftlm.layers.rotary.RotaryEmbedding"] == "replaced"
    assert won(off)[-1] == "forward_native" and off["why"] == "switched off by -rotary_embedding"


def test_explain_op_knows_the_providers(installed, ask):
    """One that is listed is asked, one that is not says how it would be, one that is disabled says so."""
    for name in ("acme", "other", "off"):
        installed.write(
            f"{name}-ops", entry_points={"op_implementations": {f"rms_norm.{name}": f"{name}_ops:Norm"}},
            files={f"{name}_ops.py": ""},
        )  # fmt: skip
    words = ("explain", "op", "RMSNorm", "--op-providers", "acme", "--disable-plugin", "rms_norm.off")
    _, (told,), _ = ask(*words)
    candidates = {c["name"]: c for c in told["candidates"]}

    assert candidates["rms_norm.acme"]["state"] == "asked when built"
    assert candidates["rms_norm.other"]["reason"].endswith("--op-providers other would")
    assert candidates["rms_norm.off"]["state"] == "disabled"


def test_explain_op_says_who_refused_and_why(installed, ask, tiny_llama):
    """Of a checkpoint, here and of a server: the reason is the implementation's own; those behind are not asked."""
    norm = """
        from graftlm.ops import OpImplementation

        class Norm(OpImplementation):
            @classmethod
            def supports(cls, *, device, dtype, shape):
                return {answer!r}

            def __call__(self, x, residual=None):
                return x if residual is None else (x, residual)
    """
    for name, answer in (("acme", "it wants rows of 7"), ("best", True), ("last", True)):
        installed.write(
            f"{name}-ops", entry_points={"op_implementations": {f"rms_norm.{name}": f"{name}_ops:Norm"}},
            files={f"{name}_ops.py": norm.format(answer=answer)},
        )  # fmt: skip
    flags = ("--op-providers", "acme,best,last")
    code, (told,), errors = ask("explain", "op", "RMSNorm", *flags, "--model", str(tiny_llama))
    candidates = {c["name"]: (c["state"], c.get("reason")) for c in told["candidates"]}

    assert code == 0, errors
    assert told["answer"].endswith("its rms_norm.best runs") and told["why"] == "provider rms_norm.best"
    assert candidates["rms_norm.acme"] == ("refused", "it wants rows of 7")
    assert candidates["rms_norm.best"] == ("won", "supports() agreed")
    assert candidates["rms_norm.last"] == ("not asked", "rms_norm.best came first")

    with Server([str(tiny_llama), *flags], env=installed.environment) as server:
        _, (told,), _ = ask("explain", "op", "rms_norm", "--url", server.base_url)
    assert [(c["state"], c["name"]) for c in told["candidates"]] == [
        ("won", "rms_norm.best"), ("refused", "rms_norm.acme")
    ]  # fmt: skip
    assert told["candidates"][1]["reason"] == "it wants rows of 7; in engine core (5 objects)"


def test_explain_attention_asks_the_checkpoints_question(ask, tiny_opt, installed):
    """The platform names a backend for it; one that was not named says whether it could serve."""
    installed.write(
        "narrow-attention", entry_points={"attention_backends": {"NARROW": "narrow_attention:Narrow"}},
        files={"narrow_attention.py": """
            from graftlm.ops.attention.torch_paged import TorchPagedAttention

            class Narrow(TorchPagedAttention):
                name = "NARROW"

                @classmethod
                def supports(cls, question):
                    return f"it has no heads of {question.head_size}"
        """},
    )  # fmt: skip
    code, (told,), errors = ask("explain", "attention", "--model", str(tiny_opt))
    candidates = {c["name"]: c for c in told["candidates"]}

    assert code == 0, errors
    (winner,) = won(told)
    assert winner in ("TORCH_PAGED", "NATIVE_CPU"), "the latter where the kernels are installed"
    assert told["answer"] == candidates[winner]["target"]
    assert told["facts"]["question"]["num_heads"] == 4
    assert candidates["NARROW"] | {"state": "refuses", "reason": "it has no heads of 16"} == candidates["NARROW"]


def test_explain_a_plugin_and_any_name(zoo, ask):
    """A plugin with its target, roles and settings; a bare name finds whatever is called so."""
    _, (plugin,), _ = ask("explain", "plugin", "works")
    _, found, _ = ask("explain", "OPTForCausalLM")
    _, (point,), _ = ask("explain", "graftlm.endpoint_plugins")

    assert plugin["answer"] == "active" and plugin["facts"]["target"] == "zoo_works:register"
    assert plugin["facts"]["roles"] == ["engine", "frontend", "inspector", "worker"]
    assert point["kind"] == "extension point" and "/plugins/<name>/" in point["answer"]
    assert [e["kind"] for e in found] == ["plugin", "model"]


@pytest.mark.parametrize(
    ("words", "code", "part"),
    [
        (["RMSNrm"], 1, "nothing called 'RMSNrm'; did you mean 'RMSNorm'"),
        (["op", "rms_nrm"], 1, "no op called 'rms_nrm'; did you mean 'rms_norm'"),
        (["platfrom", "x"], 2, "did you mean 'platform'"),
        ([], 2, "required: WHAT; a kind, a name or both; the kinds are platform, model, op,"),
        (["op"], 2, "explain op needs a name"),
        (["a", "b", "c"], 2, "a kind and a name"),
        (["platform", "--url", "nonsense"], 1, "it is no web address"),
    ],
)
def test_explain_refuses_in_one_line(installed, words, code, part):
    """A name that is nothing, a kind that is none: the nearest, and no traceback."""
    done = run_graftlm("plugins", "explain", *words, env=installed.environment)

    assert done.returncode == code
    assert part in done.stderr.strip().splitlines()[-1] and "Traceback" not in done.stderr


def test_explain_asks_a_running_server(example_wheels, tmp_path, tiny_llama):
    """With --url the answers are what that server did, from the ledgers of its processes."""
    site = Site(tmp_path / "site").install(*example_wheels)
    with Server([str(tiny_llama), "--api-key", "k"], env=site.environment) as server:

        def told(*words):
            done = run_graftlm("plugins", "explain", *words, "--json", "--url", server.base_url, "--api-key", "k")
            assert done.returncode == 0, done.stderr
            return json.loads(done.stdout)[0]

        assert told("platform")["answer"].startswith("dummy_platform_plugin of")
        op = told("op", "RotaryEmbedding")
        assert won(op) == ["graftlm_dummy_platform.rotary.DummyRotaryEmbedding", "forward_oot"]
        assert "in engine core" in op["candidates"][0]["reason"]
        assert told("attention")["answer"] == "graftlm_dummy_platform.attention:DummyAttentionBackend"
        assert told("model", "LlamaForCausalLM")["facts"]["served here"] == "asked for LlamaForCausalLM"
        assert told("register_dummy_model")["answer"] == "active"
        keyless = run_graftlm("plugins", "explain", "platform", "--url", server.base_url)
        assert keyless.returncode == 1 and "--api-key" in keyless.stderr


def test_explain_kernel_tells_who_replaced_a_function(installed, example_wheels, ask):
    """The platform's hook runs in a helper, as in a worker; a slip is answered with the nearest name."""
    installed.install(*example_wheels)
    _, (one,), _ = ask("explain", "kernel", "paged_attention.decode")
    _, (all_of_them,), _ = ask("explain", "kernel")
    code, _, errors = ask("explain", "kernel", "paged_attention.decod")

    assert one["answer"] == "graftlm_dummy_platform.kernels:dummy_decode of graftlm-dummy-platform"
    assert [(c["name"], c["owner"]) for c in all_of_them["candidates"] if c.get("owner")] == [
        ("paged_attention.decode", "graftlm-dummy-platform")
    ]
    assert "sampling.best_token" in won(all_of_them)
    assert code == 1 and "paged_attention.decode" in errors
