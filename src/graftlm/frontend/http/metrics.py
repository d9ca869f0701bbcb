"""What /metrics says: the names that vLLM's users chart, with the prefix `graftlm:`.

It is fed on the event loop with every step, so it only adds numbers up; Prometheus' shapes are built when asked.
It does not know where the numbers come from.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING

from prometheus_client import CollectorRegistry, ProcessCollector, generate_latest
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from graftlm.contracts.request import FinishReason
from graftlm.contracts.stats import RequestStats, StepStats
from graftlm.frontend.http.histogram import Histogram, one_two_five

if TYPE_CHECKING:
    from graftlm.config.engine_config import EngineConfig
    from graftlm.frontend.async_llm import AsyncLLM

PREFIX = "graftlm:"
_SECONDS = [0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 25, 50, 100, 250, 500, 1000]
_TOKEN_SECONDS = [0.0005, 0.001, 0.0025, 0.005, 0.0075, 0.01, 0.025, 0.05, 0.075, 0.1, 0.25, 0.5, 1, 2.5, 5, 10]
_POWERS = [float(2**exponent) for exponent in range(15)]


class PrometheusMetrics(Collector):
    """All numbers of one server; `record` has the shape of a StatLogger's."""

    def __init__(self, config: EngineConfig) -> None:
        self._config = config
        model = config.model
        self._labels = {"model_name": next(iter(model.served_model_name), model.model)}
        self._last = StepStats()
        self._totals: Counter[str] = Counter()
        self._finished: Counter[str] = Counter({str(reason): 0 for reason in FinishReason})
        self._plugin_errors: Counter[str] = Counter()
        self._plugin_seconds: dict[str, float] = {}
        self._llm: AsyncLLM | None = None
        largest = model.max_model_len or 131_072
        self._ttft = _histogram("time_to_first_token_seconds", "Seconds to the first token.", _SECONDS)
        self._itl = _histogram("inter_token_latency_seconds", "Seconds between tokens.", _TOKEN_SECONDS)
        self._tpot = _histogram(
            "request_time_per_output_token_seconds", "Mean seconds per token after the first.", _TOKEN_SECONDS
        )
        self._e2e = _histogram("e2e_request_latency_seconds", "Seconds from request to last token.", _SECONDS)
        self._prompt = _histogram("request_prompt_tokens", "Prompt tokens of a request.", one_two_five(largest))
        self._generation = _histogram(
            "request_generation_tokens", "Generated tokens of a request.", one_two_five(largest)
        )
        self._max_tokens = _histogram("request_params_max_tokens", "max_tokens asked for.", one_two_five(largest))
        self._n = _histogram("request_params_n", "n asked for.", [1, 2, 5, 10, 20, 50, 100])
        self._step_tokens = _histogram(
            "iteration_tokens_total", "Tokens of a step, those found in the prefix cache included.", _POWERS
        )
        self._registry = CollectorRegistry()
        self._registry.register(self)
        ProcessCollector(registry=self._registry)

    def record(self, step: StepStats | None, finished: Sequence[RequestStats]) -> None:
        """Take the numbers of one step and the requests that ended in it."""
        if step is not None:
            self._record_step(step)
        for request in finished:
            self._record_request(request)

    def set_engine(self, llm: AsyncLLM) -> None:
        """Take the engine, once it is ready, for what it alone knows: cache, plugins, stat loggers."""
        self._llm = llm

    def count_plugin_error(self, plugin: str) -> None:
        self._plugin_errors[plugin] += 1

    def count_plugin_call(self, plugin: str, seconds: float) -> None:
        self._plugin_seconds[plugin] = self._plugin_seconds.get(plugin, 0.0) + seconds

    def render(self) -> bytes:
        """Return the text that Prometheus reads."""
        return generate_latest(self._registry)

    def collect(self) -> Iterator[Metric]:
        """Build Prometheus' families of everything."""
        last = self._last
        yield self._gauge("num_requests_running", "Requests in progress.", last.num_running)
        yield self._gauge("num_requests_waiting", "Requests not yet started.", last.num_waiting)
        yield self._gauge("kv_cache_usage_perc", "Share of the KV cache in use, 0 to 1.", last.kv_cache_usage)
        for name, documentation in _COUNTERS.items():
            yield self._counter(name, documentation, self._totals[name])
        family = CounterMetricFamily(
            PREFIX + "request_success", "Requests that ended, by reason.", labels=[*self._labels, "finished_reason"]
        )
        for reason, count in self._finished.items():
            family.add_metric([*self._labels.values(), reason], count)
        yield family
        histograms = (
            self._ttft, self._itl, self._tpot, self._e2e, self._prompt, self._generation, self._max_tokens,
            self._n, self._step_tokens,
        )  # fmt: skip
        for histogram in histograms:
            yield histogram.family(self._labels)
        yield self._cache_config_info()
        yield from self._plugin_families()

    def _record_step(self, step: StepStats) -> None:
        self._last = step
        totals = self._totals
        totals["prompt_tokens"] += step.num_prompt_tokens
        totals["generation_tokens"] += step.num_generation_tokens
        totals["num_preemptions"] += step.num_preemptions
        totals["prefix_cache_queries"] += step.prefix_cache_queries
        totals["prefix_cache_hits"] += step.prefix_cache_hits
        if num_tokens := step.num_prompt_tokens + step.num_generation_tokens:
            self._step_tokens.observe(num_tokens)

    def _record_request(self, request: RequestStats) -> None:
        self._finished[request.finish_reason] += 1
        self._e2e.observe(request.e2e_latency_s)
        self._prompt.observe(request.num_prompt_tokens)
        self._generation.observe(request.num_output_tokens)
        self._n.observe(request.n)
        if request.max_tokens is not None:
            self._max_tokens.observe(request.max_tokens)
        for latency in request.inter_token_latencies_s:
            self._itl.observe(latency)
        if request.time_to_first_token_s is not None:
            self._ttft.observe(request.time_to_first_token_s)
            if request.num_output_tokens > 1:
                decode_s = request.e2e_latency_s - request.time_to_first_token_s
                self._tpot.observe(decode_s / (request.num_output_tokens - 1))

    def _gauge(self, name: str, documentation: str, value: float) -> GaugeMetricFamily:
        family = GaugeMetricFamily(PREFIX + name, documentation, labels=list(self._labels))
        family.add_metric(list(self._labels.values()), value)
        return family

    def _counter(self, name: str, documentation: str, value: float) -> CounterMetricFamily:
        family = CounterMetricFamily(PREFIX + name, documentation, labels=list(self._labels))
        family.add_metric(list(self._labels.values()), value)
        return family

    def _cache_config_info(self) -> GaugeMetricFamily:
        facts = {name: str(value) for name, value in self._config.cache.values().items()}
        if self._llm is not None and (ready := self._llm.client.ready) is not None:
            facts |= {"num_blocks": str(ready.num_blocks), "block_size": str(ready.block_size)}
        facts["num_gpu_blocks"] = facts["num_blocks"]
        family = GaugeMetricFamily(
            PREFIX + "cache_config_info", "Facts about the KV cache, as labels.", labels=[*self._labels, *facts]
        )
        family.add_metric([*self._labels.values(), *facts.values()], 1)
        return family

    def _plugin_families(self) -> Iterator[Metric]:
        labels = ("plugin", "point", "distribution", "version", "state")
        states = GaugeMetricFamily(
            PREFIX + "plugin_state", "Installed plugins: 1 for the state each is in.", labels=labels
        )
        host = self._llm.host if self._llm is not None else None
        seconds = dict(self._plugin_seconds)
        for row in host.describe()["plugins"] if host is not None else ():
            label = f"{row['distribution']}:{row['name']}"
            states.add_metric([label, *(row[fact] for fact in labels[1:])], 1)
            seconds[label] = seconds.get(label, 0.0) + row["ms"] / 1000
        for event in host.events() if host is not None else ():
            if event["event"] == "hook_called":  # of the platform, in any process
                seconds[event["plugin"]] = seconds.get(event["plugin"], 0.0) + event["facts"]["ms"] / 1000
        yield states
        errors = CounterMetricFamily(
            PREFIX + "plugin_errors", "Exceptions that a plugin's code let out while serving.", labels=["plugin"]
        )
        stat_loggers = self._llm.stats.describe() if self._llm is not None else []
        dropped = CounterMetricFamily(
            PREFIX + "plugin_dropped_records", "Records that a stat logger was too slow to take.", labels=["plugin"]
        )
        counts = Counter(self._plugin_errors)
        for entry in stat_loggers:
            label = entry["label"]
            counts[label] += entry["errors"]
            dropped.add_metric([label], entry["dropped"])
            seconds[label] = seconds.get(label, 0.0) + entry["seconds"]
        for label, count in counts.items():
            errors.add_metric([label], count)
        yield errors
        yield dropped
        calls = CounterMetricFamily(
            PREFIX + "plugin_call_seconds",
            "Seconds spent importing and calling a plugin's code.",
            labels=["plugin"],
        )
        for label, total in seconds.items():
            if total:
                calls.add_metric([label], total)
        yield calls


_COUNTERS = {
    "prompt_tokens": "Prompt tokens computed, or found in the prefix cache.",
    "generation_tokens": "Tokens generated.",
    "num_preemptions": "Requests stopped for memory and started again.",
    "prefix_cache_queries": "Prompt tokens looked up in the prefix cache.",
    "prefix_cache_hits": "Prompt tokens found in the prefix cache.",
}


def _histogram(name: str, documentation: str, bounds: Sequence[float]) -> Histogram:
    return Histogram(PREFIX + name, documentation, bounds)
