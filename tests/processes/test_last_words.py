"""What a process that crashed in native code says to its parent, and what the parent makes of it."""

from __future__ import annotations

import signal
from pathlib import Path

import pytest
from plugin_packages import Site, run_graftlm

from graftlm.processes.failure import ChildFailed
from graftlm.processes.launch import start_child

CRASHING = """
    import ctypes

    from graftlm.layers.norm import RMSNorm

    class CrashingNorm(RMSNorm):
        def forward_cpu(self, x, residual=None):
            ctypes.string_at(0)
"""


@pytest.mark.parametrize("method", ["spawn", "forkserver"])
def test_the_stack_of_a_crash_is_the_parents_to_print(method, capfd):
    """Whole, once, with the name of the process, and before anybody is told of the death."""
    child = start_child("worker 3", start_method=method)
    child.run("child_functions:crash", b"")
    child.wait_ready(60)
    with pytest.raises(ChildFailed) as caught:
        child.receive()
    printed = capfd.readouterr().err
    child.stop()

    assert child.exit_code() == -signal.SIGSEGV
    assert printed.count("worker 3: Fatal Python error: Segmentation fault") == 1
    assert 'child_functions.py", line' in printed and "in crash" in printed
    assert str(caught.value) == (
        f"worker 3: process {child.pid} was killed by SIGSEGV (a crash in native code, the stack above says whose, "
        "or `graftlm plugins doctor`)"
    )


def test_a_process_that_a_child_forks_crashes_on_its_own(capfd):
    """Its stack is on standard error at once, and is not taken for that of the child."""
    child = start_child("forker")
    child.run("child_functions:crash", b"forks")
    child.wait_ready(60)
    with pytest.raises(ChildFailed):
        child.receive()
    printed = capfd.readouterr().err
    child.stop()

    assert printed.count("Segmentation fault") == 2
    assert printed.count("forker: Fatal Python error: Segmentation fault") == 1


def test_a_child_that_is_let_go_may_still_crash(capfd):
    """Nothing waits for it, and its stack is not lost."""
    child = start_child("late")
    child.run("child_functions:crash_when_let_go", b"")
    child.wait_ready(60)
    child.stop(60)

    assert "late: Fatal Python error: Segmentation fault" in capfd.readouterr().err


@pytest.mark.parametrize(
    ("workers", "method", "process"), [(1, "forkserver", "engine core"), (2, "spawn", "worker ")]
)
def test_the_plugin_is_named_whose_code_crashed(tmp_path: Path, tiny_llama: Path, workers, method, process):
    """With file, line and how to do without it, in the last line that the terminal shows."""
    site = Site(tmp_path / "site").write(
        "acme-norm",
        entry_points={"custom_ops": {"graftlm.layers.norm.RMSNorm": "acme_norm.ops:CrashingNorm"}},
        files={"acme_norm/__init__.py": "", "acme_norm/ops.py": CRASHING},
    )
    flags = (f"-tp={workers}", f"--start-method={method}")
    done = run_graftlm("run", str(tiny_llama), "-p", "hi", *flags, env=site.environment)

    last = done.stderr.strip().splitlines()[-1]
    assert done.returncode == 1
    assert process in last and "was killed by SIGSEGV (a crash in native code, called by plugin " in last
    assert "'graftlm.layers.norm.RMSNorm' of acme-norm 1.0, " in last and "ops.py line 8 in forward_cpu" in last
    assert "--disable-plugin acme-norm:graftlm.layers.norm.RMSNorm leaves it out)" in last
