"""The process of one worker: it comes up, says READY, and does what the executor asks until it is told to leave.

An earlier order of the executor has applied the plan, so plugins are there before the config is decoded.
"""

from __future__ import annotations

import gc
import logging

import msgspec

from graftlm.config import environment
from graftlm.config.engine_config import EngineConfig
from graftlm.contracts.worker import Worker
from graftlm.executor.messages import ExecuteStep, InitializeKVCache, Leave, WorkerStart, decode_command, encode
from graftlm.executor.worker_start import start_worker
from graftlm.plugins import current_host
from graftlm.plugins.call_times import record_call_times
from graftlm.processes import startup_trace
from graftlm.processes.channel import Channel

logger = logging.getLogger(__name__)


def main(payload: bytes, channel: Channel) -> int:
    """Run the worker; an exception travels to the executor as a failure and ends the process."""
    start = msgspec.msgpack.decode(payload, type=WorkerStart)
    config = EngineConfig.from_bytes(start.config)
    worker, report = start_worker(
        config,
        rank=start.rank,
        local_rank=start.local_rank,
        distributed_init_method=start.distributed_init_method,
        on_status=channel.status,
    )
    environment.freeze()
    host = current_host()
    host.freeze()
    report.ledger = host.ledger_bytes()
    report.startup_trace = startup_trace.end_as_bytes()
    channel.ready(encode(report))
    gc.collect()
    gc.freeze()
    serve(worker, channel, time_calls=config.observability.time_plugin_calls)
    worker.shutdown()
    record_call_times()
    return 0


def serve(worker: Worker, channel: Channel, *, time_calls: bool = False) -> None:
    """Answer every command with one message; returns when told to leave or when the executor is gone."""
    while (message := channel.recv()) is not None:
        match decode_command(message):
            case ExecuteStep(plan):
                channel.send(encode(worker.execute_step(plan)))
            case InitializeKVCache(num_blocks):
                worker.initialize_kv_cache(num_blocks)
                if time_calls:
                    from graftlm.executor.timed_worker import time_worker

                    time_worker(worker)
                channel.send(encode(None))
            case Leave():
                return
