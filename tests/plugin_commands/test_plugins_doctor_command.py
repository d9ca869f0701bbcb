"""`graftlm plugins doctor`: every installed plugin is imported and checked, and none takes the doctor with it."""

from __future__ import annotations

import time
from pathlib import Path

import pytest
from plugin_packages import run_graftlm

SICK = {
    "raises": (
        "general_plugins",
        "def target():\n    raise RuntimeError('no driver')\n",
        "RuntimeError: no driver",
    ),
    "missing": ("general_plugins", "", "has no target"),
    "aborts": ("general_plugins", "import os\ndef target():\n    os.abort()\n", "it called os.abort()"),
    "leaves": ("general_plugins", "import os\nos._exit(3)\n", "it called os._exit(3)"),
    "crashes": (
        "general_plugins",
        "import os, signal\ndef target():\n    os.kill(os.getpid(), signal.SIGKILL)\n",
        "was killed by SIGKILL",
    ),
    "ends": ("general_plugins", "import ctypes\nctypes.CDLL(None).exit(3)\n", "ended with exit code 3"),
    "exits": ("general_plugins", "import sys\nsys.exit(4)\n", "sys.exit(4)"),
    "hangs": ("general_plugins", "import time\ndef target():\n    time.sleep(600)\n", "it took more than 15 s"),
    "number": ("platform_plugins", "target = 7\n", "it must be callable"),
    "answers": (
        "platform_plugins",
        "def target():\n    return 8\n",
        "returned 8; it must return None, a class path",
    ),
    "nowhere": ("platform_plugins", "def target():\n    return 'no.such:Platform'\n", "there is no module no"),
    "no_model": ("models", "class target:\n    pass\n", "has no forward, compute_logits, load_weights"),
    "no_logger": (
        "stat_logger_plugins",
        "class target:\n    pass\n",
        "must subclass graftlm.contracts.stats.StatLogger",
    ),
    "no_endpoint": ("endpoint_plugins", "def target():\n    return 1\n", "it must make an EndpointPlugin"),
    "late": (
        "lora_resolvers",
        "from graftlm.models import ModelRegistry\nModelRegistry.register_model('Late', 'late:X')\ntarget = 1\n",
        "comes too late",
    ),
}


@pytest.fixture
def hospital(installed):
    """One distribution for each illness."""
    for name, (point, source, _) in SICK.items():
        installed.write(
            name.replace("_", "-"), entry_points={point: {name: f"sick_{name}:target"}},
            files={f"sick_{name}.py": source},
        )  # fmt: skip
    return installed


def test_each_illness_is_found_and_harms_nobody_else(hospital, ask):
    """Imports, types, answers, exits, crashes, hangs and late registrations, in one run."""
    code, told, _ = ask("doctor", "--timeout", "15")
    rows = {row["name"]: row for row in told["plugins"]}

    assert code == 1
    for name, (_, _, problem) in SICK.items():
        assert rows[name]["state"] == "broken", name
        assert problem in " ".join(rows[name]["broken"]), (name, rows[name])
    assert told["start"].startswith("refused: ")


def test_a_plugin_that_ends_the_helper_itself_is_the_only_one_blamed(installed, ask):
    """It kills whoever examines it; those after it are examined all the same, and what it wrote is no verdict."""
    bodies = {
        "a-killer": "import os, signal; os.kill(os.getppid(), signal.SIGTERM)",
        "b-scribbler": "import os\n    [os.writev(fd, [b'x']) for fd in range(3, 99)]",
        "c-interrupt": "raise KeyboardInterrupt",
        "d-sound": "pass",
    }
    for name, body in bodies.items():
        package = name.replace("-", "_")
        installed.write(
            name, entry_points={"general_plugins": {name: f"{package}:register"}},
            files={f"{package}.py": f"def register():\n    {body}\n"},
        )  # fmt: skip
    _, told, _ = ask("doctor", "--no-plugins")
    rows = {row["name"]: row for row in told["plugins"]}

    assert rows["a-killer"]["broken"] == [
        "it ended the helper process that examines plugins, which was killed by SIGTERM"
    ]
    assert rows["c-interrupt"]["broken"] == ["KeyboardInterrupt: "]
    assert rows["d-sound"]["state"] == "sound"


def test_refused_and_doubled_plugins_are_broken(installed, ask):
    """An API range, a manifest that is none, and one architecture of two distributions."""
    for name, manifest in (("old-api", 'api = "<1.0"\n'), ("bad-toml", "api = \n")):
        package = name.replace("-", "_")
        installed.write(
            name, entry_points={"general_plugins": {name: f"{package}:register"}},
            files={f"{package}/__init__.py": "1/0", f"{package}/graftlm_plugin.toml": manifest},
        )  # fmt: skip
    for name in ("twin-a", "twin-b"):
        package = name.replace("-", "_")
        installed.write(
            name, entry_points={"models": {"TwinForCausalLM": f"{package}:LlamaForCausalLM"}},
            files={f"{package}.py": "from graftlm.models.llama import LlamaForCausalLM\n"},
        )  # fmt: skip
    code, told, _ = ask("doctor")
    problems = {row["distribution"]: " ".join(row["broken"]) for row in told["plugins"]}

    assert code == 1
    assert "<1.0, and this graftlm has 1.0" in problems["old-api"]
    assert "is not valid" in problems["bad-toml"]
    assert "claimed by twin-b 1.0 too" in problems["twin-a"] and "twin-a" in problems["twin-b"]
    assert "TwinForCausalLM" in told["start"]


def test_warnings_do_not_fail(installed, ask):
    """torch in the front end, registrations that reach no worker, a group that no point has; all said, code 0."""
    installed.write(
        "heavy", entry_points={"general_plugins": {"heavy": "heavy:register"}, "model": {"X": "heavy:X"}},
        files={"heavy.py": "def register():\n    import torch\n"},
    )  # fmt: skip
    installed.write(
        "lonely", entry_points={"stat_logger_plugins": {"lonely": "lonely:Log"}},
        files={"lonely.py": """
            from graftlm.contracts.stats import StatLogger
            from graftlm.models import ModelRegistry

            ModelRegistry.register_model("LonelyForCausalLM", "lonely:Net")

            class Log(StatLogger):
                pass
        """},
    )  # fmt: skip
    code, told, _ = ask("doctor")
    rows = {row["name"]: row for row in told["plugins"]}

    assert code == 0, told
    assert rows["heavy"]["state"] == "warning" and rows["heavy"]["torch_ms"] > 0
    assert "imports torch" in rows["heavy"]["warnings"][0]
    assert "LonelyForCausalLM in the front end only" in rows["lonely"]["warnings"][0]
    assert "'graftlm.model', which no extension point has" in " ".join(told["warnings"])


def test_what_a_plugin_leaves_running_is_named(installed, ask):
    """Threads and processes that nobody ends are warnings, and nothing of them outlives the doctor."""
    installed.write(
        "restless", entry_points={"general_plugins": {"restless": "restless:register"}},
        files={"restless.py": """
            import os, subprocess, sys, threading, time
            from graftlm.cli.plugins import left_running

            left_running.GRACE_S = 3.0  # the machine may be busy with something else

            def register():
                threading.Thread(target=time.sleep, args=(600,), name="poller").start()
                threading.Thread(target=time.sleep, args=(600,), name="watcher", daemon=True).start()
                threading.Thread(target=time.sleep, args=(0.05,), name="done soon").start()
                code = "import time; time.sleep(600)"
                subprocess.Popen([sys.executable, "-c", code, "restless"])
                if os.fork() == 0:
                    time.sleep(600)
                    os._exit(0)
        """},
    )  # fmt: skip
    installed.write(
        "tidy", entry_points={"general_plugins": {"tidy": "tidy:register"}},
        files={"tidy.py": """
            import subprocess, sys, threading

            def register():
                thread = threading.Thread(target=int, name="joined")
                thread.start()
                thread.join()
                subprocess.run([sys.executable, "-c", ""], check=True)
        """},
    )  # fmt: skip
    code, told, _ = ask("doctor")
    rows = {row["name"]: row for row in told["plugins"]}

    assert code == 0, told
    assert rows["tidy"]["state"] == "sound", rows["tidy"]
    threads, processes = rows["restless"]["warnings"]
    assert "2 threads running: poller, watcher (daemon);" in threads and "daemon=True" in threads
    assert "2 processes running: " in processes
    assert "-c import time; time.sleep(600) restless" in processes and "a fork of the process" in processes
    deadline = time.monotonic() + 60
    while [p for p in Path("/proc").glob("[0-9]*/cmdline") if b"time.sleep(600)\0restless" in _read(p)]:
        assert time.monotonic() < deadline, "it outlives the doctor"
        time.sleep(0.05)  # it was killed, and has to notice


def _read(path):
    try:
        return path.read_bytes()
    except OSError:
        return b""


def test_sound_plugins_and_the_engines_own(installed, example_wheels):
    """The examples are sound, the detector's answer is shown; the last lines sum up, and the code is 0."""
    installed.install(example_wheels[0])
    done = run_graftlm("plugins", "doctor", env=installed.environment)

    assert done.returncode == 0, done.stdout
    assert "graftlm_dummy_platform.platform:DummyPlatform" in done.stdout
    assert "4 plugins checked, 0 broken" in done.stdout and "--all checks them" in done.stdout
    assert done.stdout.splitlines()[-1] == "a start is not refused"
