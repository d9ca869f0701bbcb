from __future__ import annotations

import os
import sys

from graftlm.processes import threads


def test_workers_share_the_cores(monkeypatch):
    """The usable cores are divided among the workers, at least one each; a user's wish wins."""
    monkeypatch.delenv("OMP_NUM_THREADS", raising=False)
    monkeypatch.setattr(threads, "usable_cores", lambda: 4)

    assert [threads.threads_of_worker(n) for n in (1, 2, 3, 8)] == [4, 2, 1, 1]
    assert threads.thread_environment(2, 3)["OMP_NUM_THREADS"] == "3"
    monkeypatch.setenv("OMP_NUM_THREADS", "2")
    assert threads.thread_environment(1)["OMP_NUM_THREADS"] == "2"
    assert "OMP_NUM_THREADS" not in threads.quiet_environment()


def test_container_share_cuts_the_cores(monkeypatch, tmp_path):
    """A container's CPU quota counts, rounded up, not the machine's cores."""
    quota = tmp_path / "cpu.max"
    monkeypatch.setattr(threads, "_CPU_MAX", quota)
    quota.write_text("150000 100000\n")
    assert threads._container_share() == 2
    quota.write_text("max 100000\n")
    assert threads._container_share() is None


def test_a_program_that_computes_waits_passively_unless_told_otherwise(monkeypatch):
    """Set before torch is imported, never over the user's own setting, and not at all afterwards."""
    for name in ("OMP_WAIT_POLICY", "OPENBLAS_NUM_THREADS", "OMP_NUM_THREADS"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("TOKENIZERS_PARALLELISM", "true")
    monkeypatch.setitem(sys.modules, "torch", sys)
    threads.settle_this_process()
    assert "OMP_WAIT_POLICY" not in os.environ

    monkeypatch.delitem(sys.modules, "torch")
    threads.settle_this_process()

    assert os.environ["OMP_WAIT_POLICY"] == "passive"
    assert os.environ["OPENBLAS_NUM_THREADS"] == "1"
    assert os.environ["TOKENIZERS_PARALLELISM"] == "true"
    assert "OMP_NUM_THREADS" not in os.environ
