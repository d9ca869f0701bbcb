"""How many blocks the KV cache gets: what fits, never more than can be used, never less than one request needs.

It does not know who measured the memory.
"""

from __future__ import annotations

import logging
from collections.abc import Sequence

from graftlm.config.engine_config import EngineConfig
from graftlm.contracts.errors import StartupError
from graftlm.contracts.executor import WorkerReport

logger = logging.getLogger(__name__)


def agreed_block_size(reports: Sequence[WorkerReport]) -> int:
    """Return the block size that all workers decided on; raises StartupError if they differ."""
    sizes = {report.rank: report.block_size for report in reports}
    if len(set(sizes.values())) != 1:
        said = ", ".join(f"worker {rank}: {size}" for rank, size in sizes.items())
        raise StartupError(
            f"the workers do not agree on a block size ({said}); choose one with --block-size, or correct "
            "Platform.update_block_size_for_backend, which must answer the same on every rank"
        )
    return reports[0].block_size


def plan_num_blocks(config: EngineConfig, reports: Sequence[WorkerReport]) -> int:
    """Return the number of blocks of each worker's KV cache; raises StartupError if one request does not fit."""
    block_size = agreed_block_size(reports)
    max_model_len = config.model.max_model_len
    assert max_model_len is not None, "the configuration is resolved"
    blocks_per_request = -(-max_model_len // block_size)
    num_blocks = min(
        _memory(config, report) // report.kv_cache_spec.block_bytes for report in reports
    )  # every rank keeps the same blocks, so the smallest decides
    if num_blocks < blocks_per_request:
        _refuse(config, reports, num_blocks=num_blocks, blocks_per_request=blocks_per_request)
    usable = config.scheduler.max_num_seqs * blocks_per_request
    chosen = min(num_blocks, usable)
    block_bytes = max(report.kv_cache_spec.block_bytes for report in reports)
    logger.info(
        "kv cache sized num_blocks=%d block_size=%d tokens=%d bytes_per_worker=%d limited_by=%s",
        chosen, block_size, chosen * block_size, chosen * block_bytes,
        "memory" if chosen < usable else "max_num_seqs",
    )  # fmt: skip
    return chosen


def _memory(config: EngineConfig, report: WorkerReport) -> int:
    asked = config.cache.kv_cache_memory_bytes
    return report.available_memory if asked is None else asked


def _refuse(
    config: EngineConfig, reports: Sequence[WorkerReport], *, num_blocks: int, blocks_per_request: int
) -> None:
    block_size = reports[0].block_size
    tightest = min(reports, key=lambda report: _memory(config, report) // report.kv_cache_spec.block_bytes)
    memory = _memory(config, tightest)
    needed = blocks_per_request * tightest.kv_cache_spec.block_bytes
    fits = num_blocks * block_size
    shorter = f"lower --max-model-len to {fits} or less" if fits else "free memory on the device"
    if config.cache.kv_cache_memory_bytes is not None:
        raise StartupError(
            f"--kv-cache-memory-bytes={memory} holds {fits} tokens, but one sequence of --max-model-len="
            f"{config.model.max_model_len} needs {needed} bytes; raise --kv-cache-memory-bytes to {needed} or more"
            + (f", or {shorter}" if fits else "")
        )
    raise StartupError(
        f"the {memory} bytes that the KV cache of worker {tightest.rank} may take hold {fits} tokens, but one "
        f"sequence of --max-model-len={config.model.max_model_len} needs {needed} bytes; raise "
        f"--memory-utilization (now {config.cache.memory_utilization}), set --kv-cache-memory-bytes={needed}, "
        f"or {shorter}"
    )
