"""Flags of vLLM that are called otherwise here, or are not needed: what to write instead.

It knows no parser; what is called the same in both is not here.
"""

from __future__ import annotations

from collections.abc import Collection

_ENGINE = "--max-num-batched-tokens"
_BENCH_SERVE = "--metric-percentiles"

#: vLLM's flag → the flag of ours that a command must know for the advice to hold, and the advice.
_ADVICE = {
    "--additional-config": ("--plugin-config", "--plugin-config NAME.KEY=VALUE sets what a plugin reads"),
    "--compilation-config": ("--custom-ops", "there are --custom-ops none,+rms_norm and --compilation-backend"),
    "-cc": ("--custom-ops", "there are --custom-ops none,+rms_norm and --compilation-backend"),
    "--ir-op-priority": ("--op-providers", "--op-providers a,b names who is asked first"),
    "--worker-extension-cls": ("--worker-cls", "--worker-cls names a subclass of the worker"),
    "--uvicorn-log-level": ("--log-level", "--log-level LEVEL, or LOGGER=LEVEL"),
    "--enforce-eager": ("--compilation-backend", "models are eager unless --compilation-backend says otherwise"),
    "--enable-chunked-prefill": (_ENGINE, "prompts are always chunked, by --max-num-batched-tokens"),
    "--trust-remote-code": ("--plugins", "no code of a checkpoint is run; `graftlm plugins new model NAME`"),
    "--host": ("--url", "--url http://HOST:PORT names the server"),
    "--port": ("--url", "--url http://HOST:PORT names the server"),
    "--backend": (_BENCH_SERVE, "every OpenAI-compatible server is asked alike, by --endpoint completions or chat"),
    "--endpoint-type": (_BENCH_SERVE, "--endpoint completions or chat"),
    "--dataset-name": (_BENCH_SERVE, "prompts are random, or those of --dataset-path FILE"),
    "--percentile-metrics": (_BENCH_SERVE, "all metrics are shown, with the --metric-percentiles asked for"),
    "--save-result": ("--json", "--json FILE writes every figure"),
    "--save-detailed": ("--json", "--json FILE writes every figure"),
    "--result-dir": ("--json", "--json FILE writes every figure"),
    "--result-filename": ("--json", "--json FILE writes every figure"),
    "--output-json": ("--json", "--json FILE writes every figure"),
}


def advice_for(flag: str, known: Collection[str]) -> str:
    """Return what a command with the `known` flags has instead of vLLM's `flag`, or an empty string."""
    needed, advice = _ADVICE.get(flag.partition(".")[0], ("", ""))
    return advice if needed in known else ""
