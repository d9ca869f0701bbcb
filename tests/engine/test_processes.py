from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import socket
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import pytest
from fake_worker import CRASH, HANG, make_config

from graftlm.contracts.errors import EngineClosing, EngineDead, GraftlmError, InvalidParameter, StartupError
from graftlm.contracts.request import EngineRequest, FinishReason
from graftlm.contracts.sampling import SamplingParams
from graftlm.engine import client as engine_client
from graftlm.engine import core_child
from graftlm.engine.client import ProcessEngineClient, prestart
from graftlm.engine.core_socket import CoreSocket
from graftlm.processes.liveness import is_running


def request(request_id: str = "a", *token_ids: int, max_tokens: int = 3) -> EngineRequest:
    return EngineRequest(
        request_id=request_id,
        prompt_token_ids=list(token_ids or (100, 101)),
        params=SamplingParams(temperature=0, max_tokens=max_tokens),
    )


def survivors(pids) -> list[int]:
    deadline = time.monotonic() + 30
    while any(is_running(pid) for pid in pids) and time.monotonic() < deadline:
        time.sleep(0.02)
    return [pid for pid in pids if is_running(pid)]


@pytest.fixture(autouse=True)
def temporary_files(tmp_path, monkeypatch):
    """Give the test a temporary directory of its own, and check that nothing stays in it."""
    place = Path(tempfile.mkdtemp(prefix="t", dir="/tmp"))
    monkeypatch.setattr(tempfile, "tempdir", str(place))
    monkeypatch.setenv("TMPDIR", str(place))
    yield place
    assert list(place.iterdir()) == []
    place.rmdir()


def run(host, scenario, *, uvloop: bool = False, **options):
    """Run `scenario(client)` with a started engine, and check that shutdown leaves no process."""

    async def main():
        client = ProcessEngineClient(make_config(**options), host)
        try:
            await client.start()
            return await asyncio.wait_for(scenario(client), 120)
        finally:
            pids = client.pids.values()
            await asyncio.wait_for(client.shutdown(), 60)
            assert survivors(pids) == []

    if uvloop:
        import uvloop as loops

        return loops.run(main())
    return asyncio.run(main())


def test_a_front_end_that_comes_late_is_told_no_step_that_is_over(host):
    """While it was busy with imports, the steps of a start have queued up: only what is true now is told."""

    async def main():
        told = []
        client = ProcessEngineClient(make_config(), host)
        try:
            client.begin()
            queue, last = client._core.child.channel._socket, b"allocating the KV cache"
            deadline = time.monotonic() + 120
            while not queue.recv(1 << 20, socket.MSG_PEEK).partition(last)[2]:  # until READY is behind it
                assert time.monotonic() < deadline
                time.sleep(0.05)
            await client.start(on_status=told.append)
            return told
        finally:
            await client.shutdown()

    assert asyncio.run(main()) == ["ready"]


class SocketThatIsLate(CoreSocket):
    """Cannot be met for the first second."""

    def __init__(self, address, *, on_message):
        super().__init__(f"{address}-not-yet", on_message=on_message)
        self.address = address

    def attach(self, loop):
        super().attach(loop)
        loop.call_later(1, self._socket.bind, self.address)


def test_what_is_asked_at_once_is_not_lost(host, monkeypatch):
    """The core may say that it is ready before its socket has met ours, which takes requests from then on only."""
    monkeypatch.setattr(engine_client, "CoreSocket", SocketThatIsLate)

    async def scenario(client):
        return await asyncio.wait_for(collect(client, request()), 60)

    assert run(host, scenario)[-1].finish_reason == FinishReason.LENGTH


async def collect(client, engine_request, first: asyncio.Event | None = None):
    """Return the updates; sets `first` when there is one."""
    updates = []
    async for update in client.generate(engine_request):
        updates.append(update)
        if first is not None:
            first.set()
    return updates


async def running(client, engine_request) -> asyncio.Task:
    """Return a task that collects the updates, of which there has been one."""
    first = asyncio.Event()
    task = asyncio.create_task(collect(client, engine_request, first))
    await first.wait()
    return task


@pytest.mark.parametrize(
    "options", [{}, {"uvloop": True}, {"ranks": 2}, {"ranks": 2, "start_method": "forkserver"}], ids=str
)
def test_requests_stream_from_the_core(host, options):
    """Requests at once stream their own tokens; statistics arrive; READY tells pids, blocks and ledgers."""
    steps = []

    async def scenario(client):
        client.on_step(steps.append)
        many = [collect(client, request(f"r{n}", 100 * n, max_tokens=n)) for n in range(1, 9)]
        return await asyncio.gather(*many), client.ready, await client.call_utility("num_free_blocks")

    streams, ready, free = run(host, scenario, **options)
    for n, updates in enumerate(streams, 1):
        assert [t for u in updates for t in u.new_token_ids] == [100 * n + 1 + i for i in range(n)]
        assert updates[-1].finish_reason == FinishReason.LENGTH
    assert sum(stats.num_generation_tokens for stats in steps) == sum(range(9))
    ranks = options.get("ranks", 1)
    assert set(ready.pids) == {"engine core"} | ({"worker 0", "worker 1"} if ranks == 2 else set())
    assert len(ready.ledgers) == len(ready.pids)
    assert free == ready.num_blocks == 100
    assert set(host.children) == set(ready.pids)


def test_core_with_workers_elsewhere_imports_no_torch(host):
    """With two ranks the engine core maps no torch library."""

    async def scenario(client):
        return Path(f"/proc/{client.pids['engine core']}/maps").read_text()

    assert "torch" not in run(host, scenario, ranks=2)


def test_leaving_a_stream_frees_its_request(host):
    """A consumer that goes away aborts its request: no block stays taken."""

    async def scenario(client):
        stream = client.generate(request("a", max_tokens=400))
        await anext(stream)
        await stream.aclose()
        async with asyncio.timeout(60):  # its 400 tokens would take 200 s
            while await client.call_utility("num_free_blocks") < client.ready.num_blocks:
                await asyncio.sleep(0.02)

    run(host, scenario, sleep_s=0.5)


def test_abort_ends_the_stream(host):
    """abort gives the stream a last update with finish_reason abort."""

    async def scenario(client):
        seen = []
        async for update in client.generate(request("a", max_tokens=400)):
            seen.append(update)
            if len(seen) == 3:
                await client.abort(["a", "unknown"])
        return seen

    assert run(host, scenario, sleep_s=0.2)[-1].finish_reason == FinishReason.ABORT


def test_misuse_is_answered(host):
    """A request id in use and an unknown utility are errors of the caller only."""

    async def scenario(client):
        stream = client.generate(request("a", max_tokens=400))
        await anext(stream)
        with pytest.raises(InvalidParameter):
            await collect(client, request("a"))
        with pytest.raises(GraftlmError, match="unknown utility 'nonsense'"):
            await client.call_utility("nonsense")
        await stream.aclose()
        return await collect(client, request("b"))

    assert run(host, scenario, sleep_s=0.005)


def test_shutdown_ends_streams(host):
    """Streams in progress end with EngineClosing, and a later request is refused with it."""

    async def scenario(client):
        stream = await running(client, request("a", max_tokens=400))
        await client.shutdown()
        for attempt in (stream, collect(client, request("b"))):
            with pytest.raises(EngineClosing):
                await attempt
        return client.dead

    assert run(host, scenario, sleep_s=0.2, ranks=2) is None


def test_shutdown_does_not_wait_for_a_long_step(host):
    """A step that would take a quarter of an hour holds shutdown up for moments."""

    async def scenario(client):
        stream = asyncio.create_task(collect(client, request("a", HANG)))
        await asyncio.sleep(0.2)
        await asyncio.wait_for(client.shutdown(), 60)
        with pytest.raises(EngineClosing):
            await stream

    run(host, scenario, ranks=2)


@pytest.mark.parametrize("busy", [False, True], ids=["idle", "busy"])
@pytest.mark.parametrize("victim", ["engine core", "worker 0", "worker 1"])
def test_death_reaches_everybody_at_once(host, victim, busy):
    """SIGKILL of any process of the engine ends streams, tells listeners, and leaves nothing running."""
    told = []

    async def scenario(client):
        client.on_death(told.append)
        streams = [await running(client, request(f"r{n}", max_tokens=400)) for n in range(busy * 3)]
        os.kill(client.pids[victim], signal.SIGKILL)
        async with asyncio.timeout(60):  # 400 tokens take 80 s
            while client.dead is None:
                await asyncio.sleep(0.01)
        for attempt in (*streams, collect(client, request("late"))):
            with pytest.raises(EngineDead, match=f"{victim}: process .* was killed by SIGKILL"):
                await attempt
        return client.dead

    dead = run(host, scenario, ranks=2, sleep_s=0.2)
    assert told == [dead]


def test_shutdown_kills_a_worker_that_cannot_notice_that_its_core_is_gone(host):
    """One that is stopped, or hangs and lets no thread run, would be left for ever."""

    async def scenario(client):
        os.kill(client.pids["worker 1"], signal.SIGSTOP)
        os.kill(client.pids["engine core"], signal.SIGKILL)

    run(host, scenario, ranks=2)


def test_exception_in_a_step_is_the_cause(host):
    """A worker's exception is what every stream hears, also those that did not cause it."""

    async def scenario(client):
        innocent = await running(client, request("a", max_tokens=400))
        for attempt in (collect(client, request("b", CRASH)), innocent):
            with pytest.raises(EngineDead, match="worker 0: ValueError: cannot compute b"):
                await attempt

    run(host, scenario, sleep_s=0.2)


def test_front_end_hears_why_a_start_failed(host):
    """What a worker, or the sizing of the cache, says at start-up arrives as one StartupError."""
    with pytest.raises(StartupError, match=r"^the checkpoint lacks model.norm.weight; fetch it again$"):
        run(host, None, ranks=2, fail="load_model", rank=1, expected=True)
    with pytest.raises(StartupError, match=r"^engine core: ZeroDivisionError: in init_device$"):
        run(host, None, fail="init_device")
    with pytest.raises(StartupError, match=r"one sequence of --max-model-len=512 needs 32768 bytes"):
        run(host, None, memory=[1024])


@pytest.mark.parametrize("after_s", [0.0, 0.1, 0.4])
def test_start_can_be_given_up_at_any_moment(host, after_s):
    """Cancelling start and shutting down leaves nothing, whatever the core was doing."""

    async def main():
        client = ProcessEngineClient(make_config(ranks=2, load_s=1000), host)
        starting = asyncio.create_task(client.start())
        await asyncio.sleep(after_s)
        starting.cancel()
        await asyncio.gather(starting, return_exceptions=True)
        await asyncio.wait_for(client.shutdown(), 60)

    asyncio.run(main())
    assert survivors(family_of(os.getpid())) == []


def family_of(pid: int) -> list[int]:
    """Return all living descendants that are children of ours, without fork servers."""
    found = []
    with contextlib.suppress(FileNotFoundError, ProcessLookupError):  # a thread or a process that has just ended
        for task in Path(f"/proc/{pid}/task").iterdir():
            for child in (task / "children").read_text().split():
                if b"child\0--name" in Path(f"/proc/{child}/cmdline").read_bytes():
                    found += [int(child), *family_of(int(child))]
    return found


@pytest.mark.parametrize("victim", [0, 1, 2])
def test_death_while_starting_is_the_cause(host, victim):
    """SIGKILL of the core or a worker while the model loads ends the start with its name and signal."""

    async def main():
        client = ProcessEngineClient(make_config(ranks=2, load_s=1000), host)
        starting = asyncio.create_task(client.start())
        while len(family := family_of(os.getpid())) < 3:
            await asyncio.sleep(0.05)
        await asyncio.sleep(0.3)
        os.kill(family[victim], signal.SIGKILL)
        name = ("engine core", "worker 0", "worker 1")[victim]
        with pytest.raises(StartupError, match=rf"^{name}: process {family[victim]} was killed by SIGKILL"):
            await asyncio.wait_for(starting, 60)
        await client.shutdown()
        assert survivors(family) == []

    asyncio.run(main())


FRONT_END = """
import asyncio, sys
sys.path.insert(0, {path!r})
from fake_worker import make_config
from graftlm.engine.client import ProcessEngineClient
from graftlm.platforms.bootstrap import bootstrap_frontend
from graftlm.plugins.selection import Selection

async def main():
    host = bootstrap_frontend(Selection(no_plugins=True), platform="cpu")
    client = ProcessEngineClient(make_config(ranks=2, load_s={load_s}), host)
    starting = asyncio.create_task(client.start())
    while not client.pids:
        await asyncio.sleep(0.01)
    print(client.pids["engine core"], flush=True)
    await starting
    print(*client.pids.values(), flush=True)
    await asyncio.sleep(1000)

asyncio.run(main())
"""


@pytest.mark.parametrize("ready", [True, False])
def test_everything_ends_with_the_front_end(temporary_files, ready):
    """SIGKILL of the front end, while it serves or while workers still load, ends core and workers."""
    script = FRONT_END.format(path=str(Path(__file__).parent.parent / "executor"), load_s=0 if ready else 1000)
    front_end = subprocess.Popen([sys.executable, "-c", script], stdout=subprocess.PIPE, text=True)
    core = int(front_end.stdout.readline())
    family = [core]
    if ready:
        family = [int(pid) for pid in front_end.stdout.readline().split()]
    else:
        while len(family) < 3:
            time.sleep(0.05)
            family = [core, *(int(p) for p in Path(f"/proc/{core}/task/{core}/children").read_text().split())]
        time.sleep(0.3)
    front_end.kill()
    front_end.wait()
    front_end.stdout.close()

    assert len(family) == 3
    assert survivors(family) == []


def test_process_started_ahead_is_taken_if_it_suits(host, monkeypatch):
    """prestart's process becomes the core when the guess was right, and is replaced when it was not."""
    for guess, taken in ((1, True), (2, False)):
        prestart(num_workers=guess)
        early = core_child._ahead[1].child.pid

        async def scenario(client):
            return client.pids["engine core"]

        assert (run(host, scenario) == early) is taken
        assert survivors([early]) == []


def test_socket_path_is_short_enough(monkeypatch):
    """A temporary directory too long for a socket is passed over for /tmp."""
    monkeypatch.setattr(tempfile, "gettempdir", lambda: "/tmp/" + "x" * 120)
    directory = core_child.make_socket_directory()
    Path(directory).rmdir()

    assert directory.startswith("/tmp/graftlm-")
    assert len(directory) + len("/core") <= core_child.MAX_SOCKET_PATH_BYTES
