"""Servers that start from a warm parent: the same tokens, the same ledger, the right code, and each reason said."""

from __future__ import annotations

import json
import os
import shutil
import signal
import textwrap
import threading
import urllib.request
from pathlib import Path

import pytest
from light_parents import wait_until
from plugin_packages import Site, run_graftlm
from warm_servers import PROMPT, STARTS_COLD, WEIGHTS_TAKEN, Warm, WarmServer

from graftlm.processes.liveness import is_running

OP = """
    import torch
    from graftlm.layers.activation import SiluAndMul

    FACTOR = {factor}

    class ScaledSiluAndMul(SiluAndMul):
        def forward_native(self, x):
            return super().forward_native(x) * FACTOR

        forward_cpu = forward_native
"""
GENERAL = """
    import logging

    def register():
        logging.getLogger("plugin.warm_edit").info("version {factor} registers")
"""


def test_warm_and_cold_servers_say_the_same(warm, tiny_llama):
    """The same tokens, and ledgers equal event by event in both processes; the parent's weights are taken."""
    with warm.serve(str(tiny_llama)) as server:
        warm_ids, warm_ledgers = server.complete(), server.ledgers()
        assert server.said("engine core starts warm") and server.said(WEIGHTS_TAKEN)
    with warm.cold(str(tiny_llama)) as server:
        cold_ids, cold_ledgers = server.complete(), server.ledgers()

    assert warm_ids == cold_ids
    assert warm_ledgers.keys() == cold_ledgers.keys() == {"front end", "engine core"}
    for process, events in cold_ledgers.items():
        assert warm_ledgers[process] == events


@pytest.mark.parametrize(
    ("flags", "reason"),
    [
        (["--dtype", "bfloat16"], "model.dtype was 'float32' and is 'bfloat16'"),
        (["--custom-ops=-silu_and_mul"], "compilation.custom_ops was"),
    ],
)
def test_a_changed_flag_lets_the_weights_be_read_again(warm, tiny_llama, flags, reason):
    """Torch is warm, the model is another one, and the log says what made it so."""
    with warm.serve(str(tiny_llama), *flags) as server:
        warm_ids, ledger = server.complete(), server.ledgers()["engine core"]
        (said,) = server.said("weights are read here")
    with warm.cold(str(tiny_llama), *flags) as server:
        cold_ids, cold_ledger = server.complete(), server.ledgers()["engine core"]

    assert reason in said
    assert warm_ids == cold_ids
    assert ledger == cold_ledger


def test_flags_that_no_model_knows_change_nothing(warm, tiny_llama):
    """Scheduling, cache memory, names: the parent's weights are taken all the same."""
    flags = ["--max-num-seqs=3", "--kv-cache-memory-bytes=8m", "--served-model-name=other", "--seed=5"]
    with warm.serve(str(tiny_llama), *flags, "--threads-per-worker=1") as server:
        assert server.said(WEIGHTS_TAKEN)


def test_nobody_need_start_warm(warm, tiny_llama):
    """--no-preload starts as if there were no parent, and asks none."""
    with warm.serve(str(tiny_llama), "--no-preload") as server:
        assert len(server.complete()) == 12
        assert not server.said("warm")


def test_a_changed_variable_starts_cold_and_says_why(warm, tiny_llama):
    """What torch reads while it is imported cannot be told to a process that has it."""
    with warm.serve(str(tiny_llama), TORCH_SHOW_CPP_STACKTRACES="1") as server:
        (said,) = server.said(STARTS_COLD)
        assert len(server.complete()) == 12

    assert "$TORCH_SHOW_CPP_STACKTRACES was unset and is '1'" in said
    assert "graftlm preload" in said


def test_another_checkpoint_has_torch_warm(warm, tiny_llama, tiny_opt):
    """The parent of one model serves another, whose weights are read."""
    with warm.serve(str(tiny_opt)) as server:
        assert server.said("engine core starts warm") and server.said("weights are read here")
        ids = server.complete()
    with warm.cold(str(tiny_opt)) as server:
        assert server.complete() == ids


def test_run_starts_warm_too(warm, tiny_llama):
    """One answer in the terminal takes its engine from the parent as well."""
    done = run_graftlm(
        "run", str(tiny_llama), "-p", "hi", "--max-tokens=4", "--log-level=info", env=warm.environment
    )

    assert done.returncode == 0
    assert WEIGHTS_TAKEN in done.stderr


def test_two_servers_start_from_one_parent_at_once(warm, tiny_llama):
    """Each has processes of its own; neither disturbs the other's end."""
    servers = [WarmServer([str(tiny_llama)], env=warm.environment) for _ in range(2)]
    try:
        for server in servers:
            server.launch()
        for server in servers:
            server.wait_ready()
            assert server.said(WEIGHTS_TAKEN)
        first, second = (server.core_pid for server in servers)
        assert first != second
        ids = servers[0].complete()
        assert servers[0].stop() == 0
        assert not is_running(first) and is_running(second)
        assert servers[1].complete() == ids
    finally:
        for server in servers:
            server.stop()


def test_a_changed_checkpoint_is_noticed(warm, tiny_llama, tmp_path):
    """The same path with other files gives what is there now."""
    model = Path(shutil.copytree(tiny_llama, tmp_path / "model"))
    parents = Warm(tmp_path / "warm", warm.environment)
    parents.preload(str(model))
    try:
        os.utime(model / "config.json")
        with parents.serve(str(model)) as server:
            (said,) = server.said("weights are read here")
            assert len(server.complete()) == 12
    finally:
        parents.stop()

    assert "config.json has changed" in said


def test_an_edited_plugin_runs_as_it_is_now(warm, site, tiny_llama):
    """Six restarts, edits between some of them: every process runs what is on disk, and says it."""
    site.write(
        "warm-edit",
        entry_points={
            "custom_ops": {"graftlm.layers.activation.SiluAndMul": "warm_edit.op:ScaledSiluAndMul"},
            "general_plugins": {"warm_edit": "warm_edit.general:register"},
        },
        files={"warm_edit/__init__.py": "", "warm_edit/op.py": "", "warm_edit/general.py": ""},
    )
    seen: dict[int, list[int]] = {}
    try:
        for factor in (1, 1, -4, -4, 0, 1):
            _edit(site, factor)
            with warm.serve(str(tiny_llama)) as server:
                ids = server.complete()
                assert len(server.said(f"version {factor} registers")) == 2, "front end and engine core"
                assert server.said("plugin.warm_edit: ") == server.said(f"version {factor} registers")
                assert server.said("engine core starts warm")
                (reason,) = server.said("plugin code takes part")
                assert "'warm_edit' of warm-edit 1.0" in reason
            assert seen.setdefault(factor, ids) == ids
        with warm.cold(str(tiny_llama)) as server:
            assert server.complete() == seen[1]
    finally:
        shutil.rmtree(site.folder / "warm_edit-1.0.dist-info")
        shutil.rmtree(site.folder / "warm_edit")

    assert len({tuple(ids) for ids in seen.values()}) == 3


def _edit(site: Site, factor: int) -> None:
    for name, text in (("op", OP), ("general", GENERAL)):
        file = site.folder / "warm_edit" / f"{name}.py"
        new = textwrap.dedent(text).format(factor=factor)
        if file.read_text() != new:
            file.write_text(new)


def test_a_killed_parent_harms_no_server_and_the_next_starts_cold(warm, tiny_llama, tmp_path):
    """In the middle of an answer; the server then ends in order as ever."""
    parents = Warm(tmp_path / "warm", warm.environment)
    pid = parents.preload(str(tiny_llama))["pid"]
    with parents.serve(str(tiny_llama)) as server:
        pieces: list[bytes] = []
        streaming = threading.Thread(target=_stream, args=(server, pieces))
        streaming.start()
        wait_until(lambda: len(pieces) > 3, "tokens")
        os.kill(pid, signal.SIGKILL)
        streaming.join(60)
        assert pieces[-1] == b"data: [DONE]\n"
        core = server.core_pid
        assert len(server.complete()) == 12
        assert server.stop() == 0
        assert not is_running(core)
    with parents.serve(str(tiny_llama)) as server:
        assert len(server.complete()) == 12
        assert server.said(f"the warm parent {pid} of {tiny_llama} has been killed")
        assert not server.said("starts warm")
    with parents.serve(str(tiny_llama)) as server:
        assert not server.said("warm")  # once is enough

    assert parents.status() == []


def test_a_core_that_dies_after_its_parent_is_noticed(warm, tiny_llama, tmp_path):
    """Its server ends with the cause, though nobody can tell its exit code any more."""
    parents = Warm(tmp_path / "warm", warm.environment)
    pid = parents.preload(str(tiny_llama))["pid"]
    with parents.serve(str(tiny_llama)) as server:
        core = server.core_pid
        os.kill(pid, signal.SIGKILL)
        os.kill(core, signal.SIGKILL)
        assert server.process is not None
        assert server.process.wait(60) == 1
        assert server.said(f"process {core} ended without an exit code")


def _stream(server: WarmServer, pieces: list[bytes]) -> None:
    body = {"model": server.args[0], "prompt": PROMPT, "max_tokens": 200, "ignore_eos": True, "stream": True}
    request = urllib.request.Request(
        f"{server.base_url}/v1/completions", json.dumps(body).encode(), {"Content-Type": "application/json"}
    )
    with urllib.request.urlopen(request, timeout=60) as response:
        pieces.extend(line for line in response if line.strip())


def test_workers_start_warm_too(warm, tiny_llama):
    """With two ranks the core is a fresh process, which needs no torch, and each worker comes from the parent."""
    with warm.serve(str(tiny_llama), "-tp", "2") as server:
        ids, ledgers = server.complete(), server.ledgers()
        assert server.said("workers start warm")
        reasons = server.said("weights are read here")
    with warm.cold(str(tiny_llama), "-tp", "2") as server:
        assert server.complete() == ids
        assert server.ledgers() == ledgers

    assert len(reasons) == 2
    assert all("parallel.tensor_parallel_size was 1 and is 2" in reason for reason in reasons)
