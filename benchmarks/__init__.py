"""Measurements that compare graftlm with others and with its own past.

A *peer* is something that can be started and sent prompts: graftlm, another server, or `transformers`. `rounds`
starts peers in turn and sends each the same `loads`; `evidence` says what a difference is worth; `tables` shows it.

    python -m benchmarks.peers          graftlm beside llama.cpp, vLLM and transformers
    python -m benchmarks.regression     this commit beside an earlier one
    python -m benchmarks.client_check   our client beside another one
    python -m benchmarks.plugins        what installed plugin packages cost
    python -m benchmarks.itl_slo        how long streams wait while long prompts arrive
    python -m benchmarks.busy_core      what is left beside a busy core
    python -m benchmarks.streams        what a token costs with more streams
    python -m benchmarks.all_reduce     one sum between ranks: shared memory beside torch.distributed
    python -m benchmarks.export         a checkpoint as safetensors, for those that read no GGUF
"""

import importlib.util

if importlib.util.find_spec("psutil") is None:
    raise SystemExit("the benchmarks need what the tests need: run `python -m pip install --editable '.[test]'`")
