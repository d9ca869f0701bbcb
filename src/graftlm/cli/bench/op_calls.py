"""Calls every op on its own example: as it is chosen, as each plugin would compute it, and as its reference.

Attention backends and quantization methods follow, on cases of theirs.

    python -m graftlm.cli.bench.op_calls CALLS [SERVE OPTION …]

It runs in a process of its own, which imports torch, and prints one line of JSON. The options that choose plugins
and ops hold as they would for `graftlm serve`. It verifies nothing.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Collection, Iterator
from contextlib import contextmanager
from dataclasses import replace
from typing import Any

import torch

import graftlm.layers
import graftlm.ops.sampling
from graftlm.cli.bench.backend_calls import attention_rows, nanoseconds, quantization_rows
from graftlm.cli.startup import start_plugins
from graftlm.config.arguments import read_selection
from graftlm.config.engine_config import EngineConfig
from graftlm.config.options import engine_options
from graftlm.contracts.points import OP_IMPLEMENTATIONS
from graftlm.ops.build import building
from graftlm.ops.custom_op import CustomOp, op_registry
from graftlm.ops.examples import OpExample, tensors_in
from graftlm.ops.verify import provider_of
from graftlm.plugins import Role

_OP_OPTIONS = [
    option for option in engine_options() if option.path in ("compilation.custom_ops", "compilation.op_providers")
]


@CustomOp.register("bench_nothing")
class Nothing(CustomOp):
    """Computes nothing, so that its call costs what every op's call does."""

    def forward_native(self, x: torch.Tensor) -> torch.Tensor:
        return x


def main() -> None:
    calls, argv = int(sys.argv[1]), sys.argv[2:]
    torch.set_num_threads(1)
    selection = read_selection(argv, more=_OP_OPTIONS)
    host = start_plugins(selection)
    host.take_role(Role.WORKER)
    config = EngineConfig()
    for option in _OP_OPTIONS:
        if option.path in selection.values:
            setattr(config.compilation, option.field, selection.values[option.path])
    with as_built(config):
        nothing, x = Nothing(), torch.zeros(1)
        dispatch_ns = nanoseconds(nothing, (x,), calls) - nanoseconds(nothing.forward_native, (x,), calls)
        rows = [measure(op, example, calls) for op, example in smallest_examples()]
    others = set(host.available(OP_IMPLEMENTATIONS)) - {row["method"] for row in rows}
    rows += not_chosen(others, config, calls)
    with torch.inference_mode():
        backends = list(attention_rows(calls))
        methods = list(quantization_rows(calls))
    print(
        json.dumps(
            {
                "dispatch_ns": dispatch_ns,
                "calls": sorted(rows, key=lambda row: str(row["op"])),
                "attention": backends,
                "quantization": methods,
            }
        )
    )


@contextmanager
def as_built(config: EngineConfig) -> Iterator[None]:
    """Let ops be chosen as for a model of this configuration."""
    with torch.inference_mode(), building(config, dtype=torch.float32, device=torch.device("cpu")):
        yield


def not_chosen(names: Collection[str], config: EngineConfig, calls: int) -> list[dict[str, Any]]:
    """Measure the implementations of ops that nothing chose, as if each provider were asked first."""
    rows = []
    for provider in sorted({name.rpartition(".")[2] for name in names}):
        first = replace(config.compilation, op_providers=[provider])
        with as_built(replace(config, compilation=first)):
            for op, example in smallest_examples():
                if op.choice.method in names:
                    rows.append({**measure(op, example, calls), "chosen": False})
    return rows


def smallest_examples() -> Iterator[tuple[CustomOp, OpExample]]:
    """Yield one object of every registered op with the smallest of its examples that is not empty."""
    for name in graftlm.layers.__all__:
        getattr(graftlm.layers, name)  # loaded on first use; what is an op registers itself
    generator = torch.Generator().manual_seed(0)
    for name in op_registry.names():
        for op in op_registry.get(name).example_ops():
            op.prepare_example(generator, torch.float32)
            examples = [e for e in op.example_inputs(generator, torch.float32) if size_of(e) > 0]
            if examples:
                yield op, min(examples, key=size_of)
            break


def size_of(example: OpExample) -> int:
    sizes = [tensor.numel() for _, tensor in tensors_in(example.args)]
    return min(sizes, default=0) and sum(sizes)


def measure(op: CustomOp, example: OpExample, calls: int) -> dict[str, Any]:
    """Return what a call of `op` costs, and of its reference; it may overwrite the example again and again."""
    return {
        "op": op.name,
        "method": op.choice.method,
        "provider": provider_of(op).plugin,
        "example": example.label,
        "chosen": True,
        "ns": nanoseconds(op, example.args, calls),
        "native_ns": nanoseconds(op.forward_native, example.args, calls),
    }


if __name__ == "__main__":
    main()
