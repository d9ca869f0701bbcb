"""What goes over the channel between a multiprocess executor and one of its workers."""

from __future__ import annotations

import msgspec

from graftlm.contracts.step import StepPlan, StepResult


class WorkerStart(msgspec.Struct, kw_only=True):
    """The worker's first orders; `config` is decoded only after the plan has been applied."""

    config: bytes
    rank: int
    local_rank: int
    distributed_init_method: str


class InitializeKVCache(msgspec.Struct, tag="kv_cache"):
    num_blocks: int


class ExecuteStep(msgspec.Struct, tag="step"):
    plan: StepPlan


class Leave(msgspec.Struct, tag="leave"):
    """End in order."""


Command = InitializeKVCache | ExecuteStep | Leave

encode = msgspec.msgpack.Encoder().encode
decode_command = msgspec.msgpack.Decoder(Command).decode
decode_result = msgspec.msgpack.Decoder(StepResult | None).decode
