"""/metrics: the names that vLLM's users chart, with numbers that add up."""

from __future__ import annotations

from collections.abc import Iterator

import httpx
import pytest
from http_harness import HttpServer, byte_tokenizer
from prometheus_client.parser import text_string_to_metric_families

from graftlm.config import EngineConfig
from graftlm.contracts.stats import RequestStats, StepStats
from graftlm.frontend.http.metrics import PrometheusMetrics

NAMES = {
    "num_requests_running", "num_requests_waiting", "kv_cache_usage_perc", "prompt_tokens", "generation_tokens",
    "prefix_cache_queries", "prefix_cache_hits", "num_preemptions", "request_success", "cache_config_info",
    "time_to_first_token_seconds", "inter_token_latency_seconds", "request_time_per_output_token_seconds",
    "e2e_request_latency_seconds", "request_prompt_tokens", "request_generation_tokens", "iteration_tokens_total",
}  # fmt: skip


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[HttpServer]:
    with HttpServer(tokenizer=byte_tokenizer(tmp_path_factory.mktemp("tok"))) as running:
        yield running


def samples_of(text: str) -> dict[str, float]:
    """Map NAME or NAME{le=…}/{finished_reason=…} to the value."""
    samples = {}
    for family in text_string_to_metric_families(text):
        for sample in family.samples:
            extra = [
                sample.labels[label] for label in ("le", "finished_reason", "plugin") if label in sample.labels
            ]
            samples["/".join([sample.name, *extra])] = sample.value
    return samples


def test_a_server_tells_what_it_did(server: HttpServer) -> None:
    """Every charted name is there from the start, and requests move the numbers."""
    server.post("/v1/completions", prompt="abcd", max_tokens=5)
    response = httpx.get(f"{server.url}/metrics")
    families = {family.name for family in text_string_to_metric_families(response.text)}
    samples = samples_of(response.text)

    assert {f"graftlm:{name}" for name in NAMES} <= families
    assert response.headers["content-type"].startswith("text/plain")
    assert 'model_name="talker"' in response.text
    assert samples["graftlm:generation_tokens_total"] == 5
    assert samples["graftlm:request_success_total/length"] == 1
    assert samples["graftlm:request_success_total/stop"] == 0
    assert samples["graftlm:request_generation_tokens_sum"] == 5
    assert samples["graftlm:time_to_first_token_seconds_count"] == 1
    assert samples["graftlm:inter_token_latency_seconds_count"] == 4
    assert 'block_size="16"' in response.text
    assert "process_resident_memory_bytes" in response.text


def test_counters_add_up_and_gauges_keep_the_last() -> None:
    """Steps and finished requests, as a stat logger gets them."""
    metrics = PrometheusMetrics(EngineConfig())
    step = StepStats(
        num_running=3, num_waiting=2, kv_cache_usage=0.25, num_prompt_tokens=10, num_generation_tokens=3,
        num_preemptions=1, prefix_cache_queries=8, prefix_cache_hits=4,
    )  # fmt: skip
    metrics.record(step, [])
    metrics.record(StepStats(num_running=1, num_generation_tokens=1), [])
    metrics.record(None, [_request(e2e=1.5, ttft=0.5, tokens=5, latencies=[0.25] * 4), _request(e2e=0.1)])
    samples = samples_of(metrics.render().decode())

    assert samples["graftlm:num_requests_running"] == 1
    assert samples["graftlm:num_requests_waiting"] == 0
    assert samples["graftlm:prompt_tokens_total"] == 10
    assert samples["graftlm:generation_tokens_total"] == 4
    assert samples["graftlm:prefix_cache_hits_total"] == 4
    assert samples["graftlm:num_preemptions_total"] == 1
    assert samples["graftlm:iteration_tokens_total_count"] == 2
    assert samples["graftlm:iteration_tokens_total_bucket/1.0"] == 1
    assert samples["graftlm:iteration_tokens_total_bucket/16.0"] == 2
    assert samples["graftlm:request_time_per_output_token_seconds_sum"] == 0.25
    assert samples["graftlm:inter_token_latency_seconds_bucket/0.1"] == 0
    assert samples["graftlm:inter_token_latency_seconds_bucket/0.25"] == 4
    assert samples["graftlm:inter_token_latency_seconds_bucket/+Inf"] == 4
    assert samples["graftlm:e2e_request_latency_seconds_count"] == 2


def test_a_request_that_ended_before_its_first_token_has_no_token_times() -> None:
    """Aborted while waiting: it counts as ended, and nothing else is made up."""
    metrics = PrometheusMetrics(EngineConfig())
    metrics.record(None, [_request(e2e=0.1, reason="abort")])
    samples = samples_of(metrics.render().decode())

    assert samples["graftlm:request_success_total/abort"] == 1
    assert samples["graftlm:time_to_first_token_seconds_count"] == 0
    assert samples["graftlm:request_time_per_output_token_seconds_count"] == 0


def _request(
    *, e2e: float, ttft: float | None = None, tokens: int = 0, latencies: list[float] | None = None,
    reason: str = "stop",
) -> RequestStats:  # fmt: skip
    return RequestStats(
        request_id="r", finish_reason=reason, num_prompt_tokens=3, num_cached_tokens=0, num_output_tokens=tokens,
        e2e_latency_s=e2e, time_to_first_token_s=ttft, inter_token_latencies_s=latencies or [],
    )  # fmt: skip
