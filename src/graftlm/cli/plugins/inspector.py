"""The helper process of `graftlm plugins explain`: applies the plan as a worker would, and builds what is asked.

Run as `python -m graftlm.cli.plugins.inspector` with a msgpack request on stdin. It serves nothing; what is
said of ops and of attention is the business of its neighbours.
"""

from __future__ import annotations

import os
import sys

import msgspec

from graftlm.cli.failures import sentence
from graftlm.cli.plugins.explanation import Explanation
from graftlm.cli.plugins.helper import Inspection, InspectionRequest
from graftlm.config.engine_config import EngineConfig
from graftlm.plugins import Role, current_host
from graftlm.processes.exit_guard import guard_exits


def main() -> int:
    answer = os.dup(1)
    os.dup2(2, 1)  # what plugins print must not get into the answer
    guard_exits()
    request = msgspec.msgpack.decode(sys.stdin.buffer.read(), type=InspectionRequest)
    try:
        result = answer_to(request)
    except Exception as error:
        result = Inspection(error=sentence(error))
    with os.fdopen(answer, "wb") as stream:
        stream.write(msgspec.msgpack.encode(result))
    return 0


def answer_to(request: InspectionRequest) -> Inspection:
    """Apply the plan, take a worker's role, do what a worker does until its model is built, and find out."""
    from graftlm.platforms.bootstrap import apply_plan_in_child
    from graftlm.platforms.hooks import call_hook

    apply_plan_in_child(request.plan)
    host = current_host()
    host.take_role(Role.WORKER)
    config = EngineConfig.from_bytes(request.config)
    call_hook("register_triton_kernel_overrides")
    problem = _build(config) if request.has_model else ""
    match request.question:
        case "op":
            from graftlm.cli.plugins.inspect_op import explain_op

            return explain_op(host, config, request.name, problem=problem, built=request.has_model)
        case "kernel":
            from graftlm.cli.plugins.inspect_kernels import explain_kernels

            return explain_kernels(config, request.name, problem=problem, built=request.has_model)
        case "attention":
            from graftlm.cli.plugins.inspect_attention import explain_attention

            explanation = explain_attention(host, config, request.name, problem=problem, built=request.has_model)
            return Inspection(explanation=explanation)
        case "communicator":
            answer = str(call_hook("get_device_communicator_cls"))
            return Inspection(explanation=Explanation(kind="communicator", answer=answer))
    raise ValueError(f"unknown question {request.question!r}")


def _build(config: EngineConfig) -> str:
    """Build the model without its weights, and the sampler, as the first worker does; the ledger tells the rest.

    Returns why a start would be refused, or "". What can be built is built, whatever was refused.
    """
    import torch

    from graftlm.distributed.groups import built_as_rank
    from graftlm.models.kept_weights import foreseen_kept_weights
    from graftlm.models.loader import build_model, hand_out_weights, naming_checkpoint
    from graftlm.platforms import current_platform
    from graftlm.worker.model_runner import build_sampler

    device, failures = torch.device(current_platform.device_type), list[Exception]()
    try:
        with built_as_rank(0, config.parallel.world_size), naming_checkpoint(config):
            model = build_model(config, device, failures=failures)
            if config.model.quantization or config.model.format == "gguf":
                with foreseen_kept_weights(model):
                    hand_out_weights(model, config)
    except Exception as error:
        failures.append(error)
    try:
        build_sampler(config, device, failures=failures)
    except Exception as error:
        failures.append(error)
    return "; ".join(dict.fromkeys(map(sentence, failures)))


if __name__ == "__main__":
    sys.exit(main())
