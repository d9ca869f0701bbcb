"""What a start waits for is said through the real command line: classes that hang while they are constructed."""

from __future__ import annotations

from pathlib import Path

from plugin_packages import Site, run_graftlm

SLOW = """
    import logging
    import threading
    import time

    from graftlm.contracts.stats import StatLogger
    from graftlm.plugins import slow_calls
    from graftlm.worker.cpu_worker import CpuWorker

    slow_calls.FIRST_S = 0.1
    said = []

    class Listener(logging.Handler):
        def emit(self, record):
            said.append(record.getMessage())

    slow_calls.logger.addHandler(Listener())

    def wait_until_told(hook, times=1):
        deadline = time.monotonic() + 60
        while sum(hook in line for line in said) < times and time.monotonic() < deadline:
            time.sleep(0.01)

    class SlowWorker(CpuWorker):
        def __init__(self, *args, **kwargs):
            wait_until_told("hook start of SlowWorker")
            super().__init__(*args, **kwargs)

        def init_device(self):
            wait_until_told("hook start of SlowWorker", times=2)
            super().init_device()

    class SlowLogger(StatLogger):
        def __init__(self, config):
            wait_until_told("hook StatLogger.__init__")

        def record(self, step, finished):
            pass
"""


def test_who_is_waited_for_while_an_object_is_made(tmp_path: Path, tiny_llama: Path) -> None:
    """A worker, its device and a stat logger: each is named with its process, and the start goes on."""
    site = Site(tmp_path / "site").write(
        "slow-pkg",
        entry_points={
            "workers": {"slow_worker": "slow_pkg:SlowWorker"},
            "stat_logger_plugins": {"slow_logger": "slow_pkg:SlowLogger"},
        },
        files={"slow_pkg.py": SLOW},
    )
    done = run_graftlm(
        "run", str(tiny_llama), "-p", "hi", "--max-tokens", "1", "--worker-cls", "slow_worker", env=site.environment
    )

    said = [line for line in done.stderr.splitlines() if "plugin_slow" in line]
    assert done.returncode == 0, done.stderr
    starts = [line for line in said if "hook start of SlowWorker" in line]
    assert len(starts) == 2
    assert all("slow_worker of slow-pkg 1.0" in line and "'engine core'" in line for line in starts)
    assert any("slow_logger of slow-pkg 1.0" in line and "hook StatLogger.__init__" in line for line in said)
