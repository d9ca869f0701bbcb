from __future__ import annotations

import pytest
from fake_worker import CRASH, make_config

from graftlm.contracts.errors import EngineDead, StartupError
from graftlm.contracts.executor import WorkerReport
from graftlm.contracts.request import EngineRequest, FinishReason
from graftlm.contracts.sampling import SamplingParams
from graftlm.contracts.worker import KVCacheSpec
from graftlm.engine.cache_size import plan_num_blocks
from graftlm.engine.core import build_core
from graftlm.engine.inprocess import InProcessEngineClient


def request(request_id: str = "a", *token_ids: int, max_tokens: int = 3) -> EngineRequest:
    return EngineRequest(
        request_id=request_id,
        prompt_token_ids=list(token_ids or (100, 101)),
        params=SamplingParams(temperature=0, max_tokens=max_tokens),
    )


def report(rank: int = 0, *, memory: int = 1024 * 100, block_size: int = 16) -> WorkerReport:
    spec = KVCacheSpec(
        num_layers=1, num_kv_heads=1, head_size=8, dtype="float32", block_size=block_size, block_bytes=1024
    )
    return WorkerReport(rank=rank, pid=1, block_size=block_size, kv_cache_spec=spec, available_memory=memory)


def config_with(**values):
    config = make_config()
    for section in config.sections().values():
        object.__setattr__(section, "_frozen", False)
    for path, value in values.items():
        section, _, name = path.partition("__")
        setattr(getattr(config, section), name, value)
    return config


def test_smallest_worker_decides_the_blocks():
    """The number of blocks is what fits on the worker with the least memory."""
    assert plan_num_blocks(make_config(), [report(0), report(1, memory=1024 * 40 + 5)]) == 40


def test_never_more_blocks_than_can_be_used():
    """With memory to spare, max_num_seqs sequences of full length decide."""
    config = config_with(scheduler__max_num_seqs=2)

    assert plan_num_blocks(config, [report(memory=2**40)]) == 2 * 512 // 16


def test_bytes_that_the_user_names_win():
    """--kv-cache-memory-bytes is taken as it stands, whatever was measured."""
    assert plan_num_blocks(config_with(cache__kv_cache_memory_bytes=1024 * 50), [report(memory=0)]) == 50


def test_cache_below_one_request_is_refused_with_numbers_and_cure():
    """The error names the bytes, the tokens they hold, the bytes needed, and both ways out."""
    config = config_with(cache__kv_cache_memory_bytes=1024 * 10)
    with pytest.raises(StartupError) as caught:
        plan_num_blocks(config, [report()])

    assert str(caught.value) == (
        "--kv-cache-memory-bytes=10240 holds 160 tokens, but one sequence of --max-model-len=512 needs 32768 "
        "bytes; raise --kv-cache-memory-bytes to 32768 or more, or lower --max-model-len to 160 or less"
    )
    with pytest.raises(StartupError, match=r"worker 1 may take hold 0 tokens.*--kv-cache-memory-bytes=32768"):
        plan_num_blocks(make_config(), [report(), report(1, memory=100)])


def test_workers_must_agree_on_the_block_size():
    """Two block sizes are an error that names each worker's."""
    with pytest.raises(StartupError, match=r"worker 0: 16, worker 1: 32.*--block-size"):
        plan_num_blocks(make_config(), [report(0), report(1, block_size=32)])


@pytest.fixture
def core(host):
    core = build_core(make_config(), on_failure=lambda cause: None)
    yield core
    core.shutdown()


def run_to_end(core) -> dict[str, list]:
    updates = {}
    while core.has_work:
        for update in core.step().updates:
            updates.setdefault(update.request_id, []).append(update)
    return updates


def test_requests_step_to_their_ends(core):
    """Each request gets its tokens step by step, and its last update says why it ended."""
    core.add_request(request("a"))
    core.add_request(request("b", 200, max_tokens=2))
    updates = run_to_end(core)

    assert [t for u in updates["a"] for t in u.new_token_ids] == [102, 103, 104]
    assert [t for u in updates["b"] for t in u.new_token_ids] == [201, 202]
    assert updates["a"][-1].finish_reason == FinishReason.LENGTH
    assert not core.has_work


def test_abort_is_told_and_frees(core):
    """An aborted request gets a last update, even when nothing else runs."""
    core.add_request(request("a", max_tokens=100))
    core.step()
    core.abort(["a", "nobody"])
    updates = run_to_end(core)

    assert [u.finish_reason for u in updates["a"]] == [FinishReason.ABORT]
    assert core.scheduler.num_free_blocks == core.num_blocks


def test_impossible_request_ends_alone(core):
    """A request that cannot be served ends with an error in its update; its neighbours go on."""
    core.add_request(request("long", *range(600)))
    core.add_request(request("a"))
    core.add_request(request("a"))
    updates = run_to_end(core)

    assert updates["long"][0].finish_reason == FinishReason.ERROR
    assert "600 tokens" in updates["long"][0].error
    assert {u.finish_reason for u in updates["a"]} == {None, FinishReason.ERROR, FinishReason.LENGTH}


def test_failed_start_leaves_no_worker(host):
    """When the cache cannot be sized the executor is shut down before the error goes up."""
    with pytest.raises(StartupError, match="worker 0 may take hold 16 tokens"):
        build_core(make_config(memory=[1024]), on_failure=lambda cause: None)


@pytest.mark.parametrize("ranks", [1, 2])
def test_in_process_engine_serves_all(host, ranks):
    """The offline engine serves all requests, tells every update, and takes aborts from the listener."""
    client = InProcessEngineClient(make_config(ranks=ranks))
    seen, steps = [], []
    client.on_step(steps.append)

    def on_update(update):
        seen.append(update)
        if update.request_id == "b" and update.finish_reason is None:
            client.abort(["b"])

    client.generate_all([request("a"), request("b", max_tokens=50)], on_update)
    client.shutdown()

    ends = {u.request_id: u.finish_reason for u in seen if u.finish_reason}
    assert ends == {"a": FinishReason.LENGTH, "b": FinishReason.ABORT}
    assert sum(s.num_generation_tokens for s in steps) == sum(len(u.new_token_ids) for u in seen)
    assert len(client.ready.pids) == (0 if ranks == 1 else 2)


def test_in_process_engine_is_left_clean_by_an_interruption(host):
    """Ctrl-C in the listener aborts what runs; the engine serves the next call."""
    client = InProcessEngineClient(make_config())

    def interrupt(update):
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        client.generate_all([request("a", max_tokens=50)], interrupt)
    seen = []
    client.generate_all([request("b")], seen.append)
    client.shutdown()

    assert {u.request_id for u in seen} == {"b"}


def test_in_process_engine_dies_once(host):
    """After a worker failed every call says so with the cause."""
    client = InProcessEngineClient(make_config())
    for _ in range(2):
        with pytest.raises(EngineDead, match="ValueError: cannot compute a"):
            client.generate_all([request("a", CRASH)], lambda update: None)
    assert "cannot compute a" in client.dead
    client.shutdown()
