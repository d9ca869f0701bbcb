"""Calls every attention backend and quantization method that is installed, on the same small cases.

It is imported where a worker's plugins are loaded, and torch. The cases are those of the conformance suites; it
verifies nothing.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Iterator
from typing import Any

import torch

from graftlm.contracts.points import ATTENTION_BACKENDS
from graftlm.contracts.quantization import QuantizationConfig
from graftlm.layers.quantization import build_method, get_quantization_config, quantization_names
from graftlm.ops.refusal import provider_of_code
from graftlm.plugins import current_host
from graftlm.plugins.spelling import error_text
from graftlm.testing.attention_cases import AttentionCase
from graftlm.testing.quantized_layers import LayerCase, inputs, packed_cases, plain_cases

_ROUNDS = 7
#: Requests as (computed tokens, queries): one that decodes, and one whose prompt comes.
_ATTENTION_CASES = {"1 decode of 64 keys": [(63, 1)], "prefill of 33 tokens": [(0, 33)]}
_HEADS, _KV_HEADS, _HEAD_SIZE, _BLOCK_SIZE = 8, 4, 64, 32


def nanoseconds(call: Callable[..., Any], args: tuple[Any, ...], calls: int) -> float:
    """Return the median time of a call over several rounds."""
    times = []
    for _ in range(_ROUNDS):
        start = time.perf_counter_ns()
        for _ in range(max(1, calls // _ROUNDS)):
            call(*args)
        times.append((time.perf_counter_ns() - start) / max(1, calls // _ROUNDS))
    return statistics.median(times)


def attention_rows(calls: int) -> Iterator[dict[str, Any]]:
    """Yield a row for each backend and case: ns of `write_cache` and `attend`, or the reason why there are none."""
    host = current_host()
    for name in host.available(ATTENTION_BACKENDS):
        facts = {"backend": name, "plugin": host.find(ATTENTION_BACKENDS, name).label}
        for label, requests in _ATTENTION_CASES.items():
            case = AttentionCase(requests, _HEADS, _KV_HEADS, _HEAD_SIZE, _BLOCK_SIZE)
            try:
                yield {
                    **facts,
                    "case": label,
                    **_attention_ns(host.load(ATTENTION_BACKENDS, name), case, calls),
                }
            except Exception as error:  # a plugin's fault, or not meant for this machine: shown in its row
                yield {**facts, "case": label, "problem": error_text(error)}


def _attention_ns(backend_cls: Any, case: AttentionCase, calls: int) -> dict[str, Any]:
    if _BLOCK_SIZE not in backend_cls.supported_block_sizes():
        return {"problem": f"it has no blocks of {_BLOCK_SIZE} tokens"}
    if (refusal := backend_cls.supports(case.question())) is not None:
        return {"problem": refusal}
    backend, kv_cache = case.build(backend_cls), case.cache(backend_cls)
    step = case.fill(backend, kv_cache)
    return {
        "write_ns": nanoseconds(backend.write_cache, (step.key, step.value, kv_cache, step.metadata), calls),
        "attend_ns": nanoseconds(backend.attend, (step.query, kv_cache, step.metadata), calls),
    }


def quantization_rows(calls: int) -> Iterator[dict[str, Any]]:
    """Yield a row for each method: ns of `apply` on one token of a small layer, and of the plain method there."""
    for name in quantization_names():
        facts: dict[str, Any] = {"method": name}
        try:
            facts["plugin"] = provider_of_code(get_quantization_config(name)).plugin
            yield {**facts, **_apply_ns(build_method(name, {}), calls)}
        except Exception as error:  # as above
            yield {**facts, "problem": error_text(error)}


def _apply_ns(method: QuantizationConfig, calls: int) -> dict[str, Any]:
    """Time a layer filled with plain weights, or else with a file's blocks."""
    x = inputs(torch.float32, tokens=[1])[0]
    problem = ""
    for case in (plain_cases(torch.float32)[0], packed_cases()[0]):
        try:
            layer = _filled(case, method)
            return {
                "case": f"1 token, {case.args[0]} → {case.args[1]}",
                "ns": nanoseconds(layer.linear_method.apply, (layer, x, layer.bias), calls),
                "plain_ns": nanoseconds(torch.nn.functional.linear, (x, case.weight, layer.bias), calls),
            }
        except Exception as error:  # it may keep only what a file has packed
            problem = error_text(error)
    return {"problem": problem}


def _filled(case: LayerCase, method: QuantizationConfig) -> Any:
    return case.fill(case.build(method, dtype=torch.float32, hf_config={}))
