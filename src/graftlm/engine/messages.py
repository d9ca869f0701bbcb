"""What goes between the front end and the engine core: tagged msgspec data, one message each way per step.

It does not know the socket it travels on.
"""

from __future__ import annotations

from typing import Any

import msgspec

from graftlm.contracts.request import EngineRequest, StepOutputs


class CoreStart(msgspec.Struct, kw_only=True):
    """The core's first orders; `config` is decoded only after the plan has been applied."""

    config: bytes
    address: str


class AddRequest(msgspec.Struct, tag="add"):
    request: EngineRequest


class AbortRequests(msgspec.Struct, tag="abort"):
    request_ids: list[str]


class CallUtility(msgspec.Struct, tag="utility"):
    """Ask the core for something beside requests; answered by a UtilityAnswer with the same call_id."""

    call_id: int
    name: str


class Shutdown(msgspec.Struct, tag="shutdown"):
    """End in order: abort what runs, end the workers, exit with code 0."""


ToCore = AddRequest | AbortRequests | CallUtility | Shutdown


class Hello(msgspec.Struct, tag="hello"):
    """The core is connected: the socket's name in the file system is needed no longer."""


class Outputs(msgspec.Struct, tag="outputs"):
    outputs: StepOutputs


class UtilityAnswer(msgspec.Struct, tag="answer"):
    call_id: int
    value: Any = None
    error: str | None = None


ToFrontEnd = Hello | Outputs | UtilityAnswer

encode = msgspec.msgpack.Encoder().encode
decode_to_core = msgspec.msgpack.Decoder(ToCore).decode
decode_to_front_end = msgspec.msgpack.Decoder(ToFrontEnd).decode
