"""Flags of vLLM that are called otherwise here, are not needed, or have no counterpart: what to do instead.

It knows no parser; what is called the same in both is not here.
"""

from __future__ import annotations

from collections.abc import Collection

_ENGINE = "--max-num-batched-tokens"
_SERVE = "--root-path"
_BENCH_SERVE = "--metric-percentiles"

_NO_LORA = "LoRA adapters are not served yet: merge one into its checkpoint, and serve that"
_NO_TOOLS = "calling tools is not supported yet: the model's text comes as it is"
_ONE_AXIS = "no counterpart: there is one engine, whose workers share each layer by --tensor-parallel-size"
_NO_SWAP = "no counterpart: a request that the KV cache has no room for is computed again later"
_NO_TLS = "the server speaks plain HTTP: put a reverse proxy before it, see --root-path"

#: vLLM's flag → the flag of ours that a command must know for the advice to hold, and the advice; so for --no-….
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
    "--enable-lora": (_ENGINE, _NO_LORA),
    "--lora-modules": (_ENGINE, _NO_LORA),
    "--max-loras": (_ENGINE, _NO_LORA),
    "--max-cpu-loras": (_ENGINE, _NO_LORA),
    "--max-lora-rank": (_ENGINE, _NO_LORA),
    "--speculative-config": (_ENGINE, "speculative decoding is not supported yet: leave it out"),
    "--structured-outputs-config": (_ENGINE, "structured outputs are not supported yet: leave it out"),
    "--guided-decoding-backend": (_ENGINE, "structured outputs are not supported yet: leave it out"),
    "--enable-auto-tool-choice": (_SERVE, _NO_TOOLS),
    "--tool-call-parser": (_SERVE, _NO_TOOLS),
    "--reasoning-parser": (_SERVE, "reasoning is not taken apart yet: it comes with the model's text"),
    "--pipeline-parallel-size": (_ENGINE, _ONE_AXIS),
    "-pp": (_ENGINE, _ONE_AXIS),
    "--data-parallel-size": (_ENGINE, _ONE_AXIS),
    "-dp": (_ENGINE, _ONE_AXIS),
    "--enable-expert-parallel": (_ENGINE, _ONE_AXIS),
    "--api-server-count": (_ENGINE, _ONE_AXIS),
    "--swap-space": (_ENGINE, _NO_SWAP),
    "--preemption-mode": (_ENGINE, _NO_SWAP),
    "--cpu-offload-gb": (_ENGINE, "no counterpart: weights stay on the device; serve a smaller or quantized model"),
    "--num-gpu-blocks-override": ("--kv-cache-memory-bytes", "--kv-cache-memory-bytes SIZE says it in bytes"),
    "--device": ("--platform", "--platform NAME"),
    "--download-dir": (_ENGINE, "the variables GRAFTLM_CACHE and HF_HOME name the folders of fetched models"),
    "--hf-token": (_ENGINE, "the variable HF_TOKEN holds it"),
    "--rope-scaling": ("--hf-overrides", "--hf-overrides '{\"rope_scaling\": {…}}'"),
    "--rope-theta": ("--hf-overrides", "--hf-overrides '{\"rope_theta\": …}'"),
    "--task": (_ENGINE, "no counterpart: what is served generates text"),
    "--runner": (_ENGINE, "no counterpart: what is served generates text"),
    "--generation-config": (_ENGINE, "no counterpart: a field that a request leaves out has OpenAI's default"),
    "--override-generation-config": (_ENGINE, "no counterpart: requests bring their own parameters"),
    "--max-logprobs": (_ENGINE, "no counterpart: requests may ask for 20"),
    "--async-scheduling": (_ENGINE, "no counterpart: leave it out"),
    "--max-seq-len-to-capture": (_ENGINE, "no counterpart: leave it out"),
    "--ssl-keyfile": (_SERVE, _NO_TLS),
    "--ssl-certfile": (_SERVE, _NO_TLS),
    "--enable-log-requests": (_SERVE, "requests are not logged: /metrics counts them"),
    "--disable-log-requests": (_SERVE, "requests are not logged anyway: leave it out"),
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
    """Return what a command with the `known` flags has instead of vLLM's `flag`, or an empty string.

    vLLM takes underscores in the place of dashes.
    """
    name = flag.partition(".")[0].replace("_", "-")
    needed, advice = _ADVICE.get(name) or _ADVICE.get(f"--{name.removeprefix('--no-')}") or ("", "")
    return advice if needed in known else ""
