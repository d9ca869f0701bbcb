"""`graftlm preload` as a user meets it: what it says, when it ends, what it refuses."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
from pathlib import Path

import pytest
from light_parents import order_for, wait_until, with_path
from plugin_packages import Site, run_graftlm
from warm_servers import Warm

from graftlm.processes.failure import ChildFailed
from graftlm.processes.liveness import is_running
from graftlm.processes.warm.place import log_path
from graftlm.processes.warm.starting import start_warm_parent

ARCHITECTURE = """
    from graftlm.models.llama import LlamaForCausalLM

    class WarmArchitecture(LlamaForCausalLM):
        pass
"""


@pytest.fixture
def parents(tmp_path: Path):
    """A folder of its own for one test's warm parents."""
    found = Warm(tmp_path / "warm")
    yield found
    found.stop()


def test_preload_starts_shows_and_stops_a_parent(parents, tiny_llama):
    """It returns when the parent is warm; --status, the doctor and --stop know it by its model.

    Flags of the server, such as a port, are taken, so that a command line of `serve` can be used as it is.
    """
    done = parents.command(str(tiny_llama), "--time-limit", "90m", "--port", "8123", "--api-key", "key")
    assert done.returncode == 0, done.stderr
    assert f"holds torch, the kernels and the weights of {tiny_llama} in" in done.stdout
    assert "ends after 1 h 30 min" in done.stdout or "ends after 1 h 29 min" in done.stdout
    (facts,) = parents.status()
    assert facts["state"] == "ready" and facts["memory_bytes"] > 50 << 20 and facts["taken"] == 0
    doctor = run_graftlm("doctor", "--json", env=parents.environment)
    (told,) = json.loads(doctor.stdout)["warm_parents"]
    assert f"warm parent {facts['pid']}, ready" in told and "; 0 processes taken" in told

    assert parents.command("--stop", "another").returncode == 1
    assert is_running(facts["pid"])
    assert f"the warm parent {facts['pid']}" in parents.command("--stop", str(tiny_llama)).stdout
    assert not is_running(facts["pid"])
    assert json.loads(parents.command("--stop", "--json").stdout) == []
    assert parents.command("--status").stdout.strip() == "there is no warm parent"
    assert parents.command("--stop").returncode == 0


def test_preload_replaces_the_parent_of_the_same_checkpoint(parents, tiny_llama):
    """One for each checkpoint, however it is spelled; the new flags count."""
    first = parents.preload(str(tiny_llama))
    second = parents.preload(f"{tiny_llama}/", "--dtype", "bfloat16")

    assert [facts["pid"] for facts in parents.status()] == [second["pid"]]
    assert not is_running(first["pid"])


def test_preload_in_the_foreground_ends_with_its_command(parents, tiny_llama):
    """SIGINT and SIGTERM, and even SIGKILL of the command, leave no parent behind."""
    for number in (signal.SIGINT, signal.SIGKILL):
        command = subprocess.Popen(
            [sys.executable, "-m", "graftlm", "preload", str(tiny_llama), "--foreground"],
            env={**os.environ, **parents.environment}, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True,
        )  # fmt: skip
        assert command.stdout is not None
        assert "ready" in command.stdout.readline()
        (facts,) = parents.status()
        command.send_signal(number)

        assert command.wait(60) == (0 if number is signal.SIGINT else -number)
        wait_until(lambda pid=facts["pid"]: not is_running(pid), "the end of the parent")
        command.stdout.close()


def test_a_model_of_a_plugin_leaves_its_weights_to_serve(tmp_path, tiny_llama):
    """A parent runs no plugin code: it holds torch and the kernels, and says what it does not hold."""
    model = Path(shutil.copytree(tiny_llama, tmp_path / "model"))
    config = (model / "config.json").read_text()
    (model / "config.json").write_text(config.replace("LlamaForCausalLM", "WarmArchitecture"))
    site = Site(tmp_path / "site").write(
        "warm-model",
        entry_points={"models": {"WarmArchitecture": "warm_model:WarmArchitecture"}},
        files={"warm_model.py": ARCHITECTURE},
    )
    parents = Warm(tmp_path / "warm", site.environment)
    try:
        done = parents.command(str(model))
        assert done.returncode == 0, done.stderr
        assert "the weights are not held: without plugins, Model architectures" in done.stderr
        with parents.serve(str(model)) as server:
            assert server.said("engine core starts warm")
            assert len(server.complete()) == 12
            assert not server.said("weights are")
    finally:
        parents.stop()


@pytest.mark.parametrize(
    ("words", "part"),
    [
        (["--time-limit", "soon"], "--time-limit='soon': it is no such time"),
        (["--time-limit", "0"], "--time-limit='0': it is no such time"),
        (["--time-limit", "0.01s"], "from 1s to 30d"),
        (["no-such-folder/model"], "no-such-folder/model"),
        (["--status", "--stop"], "not allowed with"),
        (["--no-such-flag"], "unknown flag --no-such-flag"),
    ],
)
def test_preload_refuses_what_cannot_be(parents, words, part):
    """One sentence, and no process left behind."""
    done = parents.command(*words)

    assert done.returncode in (1, 2)
    assert part in done.stderr.strip().splitlines()[-1]
    assert "Traceback" not in done.stderr
    assert not list(parents.folder.glob("*"))


def test_preload_refuses_a_folder_that_others_could_use(parents, tiny_llama):
    """Neither listens in it nor looks for parents there; `serve` starts cold and warns."""
    parents.folder.mkdir(mode=0o755)
    parents.folder.chmod(0o755)
    for words in ((str(tiny_llama),), ("--status",), ("--stop",)):
        done = parents.command(*words)
        assert done.returncode == 1
        assert "is open to others (mode 0755)" in done.stderr and "GRAFTLM_PRELOAD_DIR" in done.stderr
    with parents.serve(str(tiny_llama)) as server:
        assert server.said("warm parents are not used")
    parents.folder.chmod(0o700)


@pytest.mark.parametrize("error", ["RuntimeError", "SystemExit"])
def test_a_module_that_fails_is_told_with_its_cure(folder, tmp_path, error):
    """By the name that was asked for, without a traceback, and how one does without it where one can."""
    (tmp_path / "broken_kernels.py").write_text(f"raise {error}('these are broken')\n")
    order = order_for(folder, modules=("broken_kernels",))
    for flags, cure in (({}, "again"), ({"broken_kernels": "--disable-plugin x"}, "--disable-plugin x")):
        order.left_out_by = flags
        launched = start_warm_parent(order, environment=with_path(tmp_path))

        with pytest.raises(ChildFailed, match=r"^broken_kernels cannot be imported .*these are broken.*") as caught:
            launched.wait_ready(lambda text: None)
        assert caught.value.cause.endswith(cure) and not caught.value.traceback
        assert launched.process.wait(10) == 1
        launched.let_go()
        assert "Traceback" not in log_path(folder, order.key).read_text()
