from __future__ import annotations

import os
import sys

import pytest

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


@pytest.mark.parametrize(
    ("workers", "asked", "variable", "parts"),
    [
        (1, 4, None, None),
        (2, None, None, None),
        (
            1,
            1024,
            None,
            ["1 worker with 1024", "4 usable cores, ", "--threads-per-worker", "4 or less"],
        ),
        (2, 3, None, ["2 workers with 3", "4 usable cores", "2 or less"]),
        (8, None, None, ["8 workers with 1", "--tensor-parallel-size=4 or less"]),
        (2, None, "9", ["2 workers with 9", "OMP_NUM_THREADS to 2 or less"]),
    ],
)
def test_more_threads_than_cores_are_told_with_the_cure(monkeypatch, workers, asked, variable, parts):
    """By flag, by variable, and as a product with the workers; as many as there are is no matter."""
    monkeypatch.delenv("OMP_NUM_THREADS", raising=False)
    if variable is not None:
        monkeypatch.setenv("OMP_NUM_THREADS", variable)
    monkeypatch.setattr(threads, "usable_cores", lambda: 4)

    said = threads.crowding(workers, asked)

    assert (said is None) is (parts is None)
    assert all(part in (said or "") for part in parts or ()), said


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
