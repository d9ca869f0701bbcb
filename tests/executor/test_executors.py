from __future__ import annotations

import os
import signal
import threading
import time
from pathlib import Path

import psutil
import pytest
from fake_worker import CRASH, HANG, make_config

from graftlm.contracts.errors import EngineDead, StartupError
from graftlm.contracts.sampling import SamplingParams
from graftlm.contracts.step import NewRequest, StepPlan
from graftlm.executor import build_executor
from graftlm.executor.multiprocess import MultiprocessExecutor
from graftlm.executor.uni import UniExecutor
from graftlm.processes.liveness import is_running


def plan_of(*token_ids: int, step_id: int = 0) -> StepPlan:
    new = NewRequest(
        request_id="r", token_ids=list(token_ids), num_prompt_tokens=len(token_ids), params=SamplingParams(),
        block_ids=[0],
    )  # fmt: skip
    return StepPlan(step_id=step_id, num_scheduled_tokens={"r": len(token_ids)}, new=[new])


def gone(pids: list[int]) -> bool:
    deadline = time.monotonic() + 30
    while time.monotonic() < deadline:
        if not any(Path(f"/proc/{pid}").exists() for pid in pids):
            return True
        time.sleep(0.02)
    return False


def children_at_work() -> list[int]:
    """Return the started children of this process; a fork server may stay."""
    children = psutil.Process().children()
    return [child.pid for child in children if is_running(child.pid) and "--name" in _command_line(child)]


def _command_line(process: psutil.Process) -> list[str]:
    try:
        return process.cmdline()
    except psutil.Error:  # it has just ended
        return []


class Failures:
    """Collects what an executor reports from its threads."""

    def __init__(self):
        self.causes = []
        self.came = threading.Event()

    def __call__(self, cause):
        self.causes.append(cause)
        self.came.set()


@pytest.fixture
def started(host):
    """Start executors that end with the test: `started(config)` returns executor, reports, failures."""
    running = []

    def start(config):
        executor, failures = build_executor(config), Failures()
        running.append(executor)
        reports = executor.start(on_failure=failures, on_status=lambda text: None)
        executor.initialize_kv_cache(4)
        return executor, reports, failures

    yield start
    for executor in running:
        executor.shutdown()


def test_one_rank_runs_in_process_and_more_in_processes_of_their_own(host):
    """Unset, the backend follows the number of ranks; uni with two ranks is refused with the cure."""
    assert type(build_executor(make_config())) is UniExecutor
    assert type(build_executor(make_config(ranks=2))) is MultiprocessExecutor
    with pytest.raises(StartupError, match="use mp"):
        build_executor(make_config(ranks=2, backend="uni"))


@pytest.mark.parametrize("options", [{}, {"ranks": 2}, {"ranks": 2, "start_method": "forkserver"}])
def test_step_comes_back_from_rank_0(started, options):
    """Every executor brings its workers up, reports them in rank order, and returns rank 0's result."""
    executor, reports, failures = started(make_config(**options))
    result = executor.execute_step(plan_of(5, 6, 7))

    assert [report.rank for report in reports] == list(range(options.get("ranks", 1)))
    assert result.sampled_token_ids == {"r": [8]}
    executor.shutdown()
    executor.shutdown()
    assert gone([report.pid for report in reports if report.pid != os.getpid()])
    assert failures.causes == []


def test_class_path_names_an_executor(host):
    """A class path names any subclass of Executor; another class is refused."""
    path = "graftlm.executor.uni:UniExecutor"
    assert type(build_executor(make_config(backend=path))) is UniExecutor
    with pytest.raises(StartupError, match="must subclass"):
        build_executor(make_config(backend="fake_worker:FakeWorker"))


@pytest.mark.parametrize("rank", [0, 1])
def test_failure_of_any_rank_at_start_stops_all(host, rank):
    """A rank that fails while it starts ends the start with its cause, and no worker stays."""
    executor = build_executor(make_config(ranks=2, fail="load_model", rank=rank))
    with pytest.raises(StartupError, match=rf"worker {rank}: ZeroDivisionError: in load_model"):
        executor.start(on_failure=lambda cause: None, on_status=lambda text: None)

    deadline = time.monotonic() + 30
    while children_at_work() and time.monotonic() < deadline:
        time.sleep(0.02)
    assert not children_at_work()


def test_error_for_the_user_passes_unchanged(host):
    """A StartupError of a worker reaches the caller word for word."""
    executor = build_executor(make_config(ranks=2, fail="load_model", rank=1, expected=True))
    with pytest.raises(StartupError, match=r"^the checkpoint lacks model.norm.weight; fetch it again$"):
        executor.start(on_failure=lambda cause: None, on_status=lambda text: None)


@pytest.mark.parametrize("options", [{}, {"ranks": 2}])
def test_failure_in_a_step_is_the_end(started, options):
    """A worker that raises makes the step raise EngineDead with the rank and its exception."""
    executor, _, failures = started(make_config(**options))
    last = options.get("ranks", 1) - 1
    with pytest.raises(EngineDead, match=rf"worker {last}: ValueError: cannot compute r"):
        executor.execute_step(plan_of(CRASH))

    assert failures.causes == [], "the exception has told"


def test_the_exception_of_a_step_has_told_however_late_it_is_read(started, monkeypatch):
    """The worker that raised has ended by then; that it is gone is no second failure."""
    executor, _, failures = started(make_config(ranks=2))
    select, failing = executor._selector.select, executor._workers[1]

    def select_late():
        failing.exit_code(30)
        failures.came.wait(0.5)  # which it must not
        return select()

    monkeypatch.setattr(executor._selector, "select", select_late)
    with pytest.raises(EngineDead, match="worker 1: ValueError: cannot compute r"):
        executor.execute_step(plan_of(CRASH))

    assert failures.causes == []


@pytest.mark.parametrize("victim", [0, 1])
def test_death_while_idle_is_reported_at_once(started, victim):
    """SIGKILL of a waiting worker calls on_failure, once, with rank and signal."""
    _, reports, failures = started(make_config(ranks=2))
    os.kill(reports[victim].pid, signal.SIGKILL)

    assert failures.came.wait(30)
    time.sleep(0.1)
    assert failures.causes == [
        f"worker {victim}: process {reports[victim].pid} was killed by SIGKILL "
        "(by hand, or by the system because memory ran out)"
    ]


@pytest.mark.parametrize("victim", [0, 1])
def test_death_while_another_hangs_is_no_hang(started, victim):
    """SIGKILL of either worker in a step that never ends is seen at once, and shutdown leaves nothing."""
    executor, reports, _ = started(make_config(ranks=2))
    threading.Timer(0.3, os.kill, (reports[victim].pid, signal.SIGKILL)).start()
    with pytest.raises(EngineDead, match=rf"worker {victim}: process \d+ was killed by SIGKILL"):
        executor.execute_step(plan_of(HANG))

    executor.shutdown()
    assert gone([report.pid for report in reports])


def test_death_ends_a_step_though_the_channel_stays_open(started):
    """A child of the dead worker has its channel, too, and lives on: the step ends all the same, with the cause."""
    executor, reports, failures = started(make_config(ranks=2, forks=True))
    ended: list[BaseException] = []

    def step() -> None:
        try:
            executor.execute_step(plan_of(HANG))
        except EngineDead as error:
            ended.append(error)

    thread = threading.Thread(target=step)
    thread.start()
    worker = psutil.Process(reports[1].pid)
    while not (forked := worker.children()):
        time.sleep(0.02)
    worker.kill()
    thread.join(30)

    assert [str(error).partition(" (")[0] for error in ended] == [
        f"worker 1: process {worker.pid} was killed by SIGKILL"
    ]
    assert failures.causes == []
    forked[0].kill()


def test_wrong_worker_class_is_refused(host):
    """A worker_cls without a worker's methods is an error that names what it lacks."""
    from graftlm.config import EngineConfig

    config = EngineConfig()
    config.parallel.worker_cls = "collections:OrderedDict"
    config.freeze()
    with pytest.raises(StartupError, match=r"--worker-cls='collections:OrderedDict' cannot be a worker: it has no"):
        build_executor(config).start(on_failure=lambda cause: None, on_status=lambda text: None)
