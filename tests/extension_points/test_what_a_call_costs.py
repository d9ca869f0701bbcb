"""`graftlm bench plugins`, the calls: installed packages of every kind under a short load, and called directly."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from plugin_packages import DUMMY_PLATFORM, Site, build_wheels, run_graftlm

from graftlm.cli.bench.backend_calls import attention_rows, quantization_rows
from graftlm.cli.bench.timed_load import RouteRequest, parse_request, serving_costs
from graftlm.config.arguments import UsageError
from graftlm.testing import FakeDistribution, plugin_host

#: A model and a stat logger whose calls take at least as long as they sleep.
_OWN = """
    import time
    from graftlm.contracts.stats import StatLogger
    from graftlm.executor.uni import UniExecutor
    from graftlm.models.llama import LlamaForCausalLM

    class OwnLlama(LlamaForCausalLM):
        def compute_logits(self, hidden_states):
            time.sleep(0.002)
            return super().compute_logits(hidden_states)

    class OwnExecutor(UniExecutor):
        pass

    class Sleepy(StatLogger):
        def record(self, step, finished):
            time.sleep(0.003)
"""
_COMPLETIONS, _TOKENS = 4, 32


def use(site: Site, monkeypatch: pytest.MonkeyPatch) -> None:
    for name, value in site.environment.items():
        monkeypatch.setenv(name, value)


def calls_of(found: dict[str, Any]) -> dict[tuple[str, str, str, str], dict[str, Any]]:
    return {(row["plugin"], row["kind"], row["hook"], row["process"]): row for row in found["calls"]}


def test_each_kind_of_plugin_is_priced_per_call_while_it_serves(
    site: Site, example_wheels: dict[str, Path], tiny_llama: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Ops, attention, linear methods, models, stat loggers, routes and listeners; what is not called says why."""
    site.install(*example_wheels.values()).write(
        "own-parts",
        entry_points={
            "models": {"OwnForCausalLM": "own_parts:OwnLlama", "OtherForCausalLM": "nowhere:Model"},
            "executors": {"own": "own_parts:OwnExecutor"},
            "stat_logger_plugins": {"sleepy": "own_parts:Sleepy"},
            "general_plugins": {"start": "builtins:dict"},
        },
        files={"own_parts.py": _OWN},
    )
    use(site, monkeypatch)
    flags = [
        "--attention-backend=GATHER", "--quantization=int8_weight_only", "--op-providers=handmade",
        "--distributed-executor-backend=own", "--enable-plugin=echo",
        '--hf-overrides={"architectures": ["OwnForCausalLM"]}',
    ]  # fmt: skip
    found = serving_costs(
        [str(tiny_llama), *flags],
        requests=_COMPLETIONS,
        route_requests=[
            RouteRequest("POST", "/plugins/echo/echo", '{"text": "hi"}'),
            RouteRequest("GET", "/plugins/echo/nothing"),
        ],
    )
    calls = calls_of(found)
    core, front = "engine core", "front end"
    silu = "graftlm-handmade-ops:graftlm.layers.activation.SiluAndMul"
    steps = calls["own-parts:OwnForCausalLM", "model", "forward, inherited", core]["calls"]
    echo = "graftlm-echo-endpoint:echo"

    assert steps >= 2 * _TOKENS
    assert calls["own-parts:own", "executor", "execute_step, inherited", core]["calls"] >= steps
    assert calls["own-parts:OwnForCausalLM", "model", "compute_logits", core]["median_ns"] >= 2e6
    assert calls["graftlm-gather-attention:GATHER", "attention backend", "attend", core]["calls"] == 2 * steps
    assert calls["graftlm-gather-attention:GATHER", "attention backend", "write_cache", core]["calls"] == 2 * steps
    assert calls["graftlm-int8-weights:int8_weight_only", "linear method", "apply", core]["calls"] == 8 * steps
    assert calls[silu, "op", "silu_and_mul", core]["calls"] == 2 * steps
    norm = ("graftlm-handmade-ops:rms_norm.handmade", "op implementation", "rms_norm.handmade", core)
    assert calls[norm]["calls"] == 5 * steps
    assert calls["own-parts:sleepy", "stat logger", "record", front]["median_ns"] >= 3e6
    assert calls["own-parts:sleepy", "stat logger", "handing over", front]["calls"] >= steps
    assert calls[echo, "listener", "EngineClient.on_step", front]["calls"] >= steps
    assert calls[echo, "endpoint", "GET /plugins/echo/engine", front]["calls"] == _COMPLETIONS
    assert calls[echo, "endpoint", "POST /plugins/echo/echo", front]["calls"] == _COMPLETIONS
    assert calls["graftlm", "core route", "GET /v1/models", front]["calls"] >= _COMPLETIONS
    assert all(row["clock_ns"] > 0 for row in found["calls"])
    asked = {row["route"]: row for row in found["requests"]}
    assert asked["POST /plugins/echo/echo"]["median_ns"] > 0
    assert "HTTP 404" in asked["GET /plugins/echo/nothing"]["problem"]
    assert found["not_called"]["own-parts:OtherForCausalLM"] == "not needed by this model and these flags"
    assert found["not_called"]["own-parts:start"] == "called at the start only"
    assert found["not_timed"] == []


def test_every_rank_prices_its_collectives_its_worker_and_its_kernels(
    site: Site, tiny_llama: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A platform's communicator is called by both workers as often; so is what it replaces by name."""
    site.install(*build_wheels([DUMMY_PLATFORM], tmp_path / "wheels"))
    use(site, monkeypatch)
    found = serving_costs([str(tiny_llama), "--tensor-parallel-size=2"], requests=1, route_requests=[])
    calls = calls_of(found)
    named = "graftlm-dummy-platform:dummy"

    for rank in ("worker 0", "worker 1"):
        steps = calls[named, "worker", "execute_step, inherited", rank]["calls"]
        assert calls[named, "communicator", "all_reduce, inherited", rank]["calls"] >= 4 * steps
        platform = "graftlm-dummy-platform:dummy_platform_plugin"
        assert calls[platform, "attention backend", "attend, inherited", rank]["calls"] == 2 * steps
        assert calls[platform, "kernel function", "dummy_decode", rank]["calls"] > 0
        ops = "graftlm-dummy-platform:dummy_custom_ops"
        assert calls[ops, "op", "rotary_embedding", rank]["calls"] == 2 * steps


def test_backends_and_methods_are_called_directly_beside_the_engines_own(
    example_wheels: dict[str, Path], monkeypatch: pytest.MonkeyPatch, site: Site
) -> None:
    """Each installed one on the same cases; one that fails or does not suit says why in its row."""
    site.install(example_wheels["gather_attention"], example_wheels["int8_weights"])
    monkeypatch.syspath_prepend(str(site.folder))
    site.write("odd", entry_points={}, files={"odd_parts.py": _ODD})
    odd = FakeDistribution(
        "odd-parts",
        {
            "attention_backends": {"ODD": "odd_parts:Odd"},
            "quantization_methods": {"odd": "odd_parts:OddConfig"},
        },
    )
    with plugin_host("graftlm-gather-attention", "graftlm-int8-weights", odd, role="worker"):
        attention = {(row["backend"], row["case"]): row for row in attention_rows(7)}
        methods = {row["method"]: row for row in quantization_rows(7)}

    for backend in ("TORCH_PAGED", "GATHER"):
        assert attention[backend, "1 decode of 64 keys"]["attend_ns"] > 0
        assert attention[backend, "prefill of 33 tokens"]["write_ns"] > 0
    assert attention["ODD", "1 decode of 64 keys"]["problem"] == "not on Mondays"
    assert methods["int8_weight_only"]["ns"] > 0
    assert methods["int8_weight_only"]["plain_ns"] > 0
    assert methods["odd"]["problem"] == "RuntimeError: no bits"


_ODD = """
    from graftlm.contracts.quantization import QuantizationConfig
    from graftlm.ops.attention.torch_paged import TorchPagedAttention

    class Odd(TorchPagedAttention):
        name = "ODD"

        @classmethod
        def supports(cls, question):
            return "not on Mondays"

    class OddConfig(QuantizationConfig):
        name = "odd"

        @classmethod
        def from_checkpoint(cls, hf_config):
            raise RuntimeError("no bits")

        def get_linear_method(self, layer, prefix):
            return None
"""


def test_the_table_shows_every_part(site: Site, tiny_llama: Path) -> None:
    """Without --json the command prints the start, the direct calls, the load, and what was not called."""
    site.write(
        "own-parts",
        entry_points={"stat_logger_plugins": {"sleepy": "own_parts:Sleepy"}, "models": {"XForCausalLM": "x:X"}},
        files={"own_parts.py": _OWN},
    )
    words = ["--rounds=1", "--calls=7", "--requests=1", "--no-progress"]
    done = run_graftlm("bench", "plugins", str(tiny_llama), *words, env=site.environment)

    assert done.returncode == 0, done.stderr
    for title in (
        "milliseconds at start", "ops on the smallest", "attention backends on", "quantization methods on a",
        "calls while serving", "ns of a request", "not called while serving",
    ):  # fmt: skip
        assert title in done.stdout
    assert "handing over" in done.stdout
    assert "own-parts:XForCausalLM" in done.stdout


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ("/plugins/echo", "no METHOD /PATH"),
        ("GET plugins", "no METHOD /PATH"),
        ("POST /x {no", "its body is no JSON"),
    ],
)
def test_a_request_that_cannot_be_sent_is_refused_with_an_example(text: str, problem: str) -> None:
    """Before anything is launched."""
    with pytest.raises(UsageError, match=problem) as error:
        parse_request(text)
    assert "POST /plugins/NAME/ROUTE" in str(error.value)
    assert json.loads(parse_request('post /plugins/a/b {"k": 1}').body) == {"k": 1}
