"""A plugin that ends its process, or keeps it: every command says which plugin it was."""

from __future__ import annotations

import pytest
from plugin_packages import run_graftlm


def write_plugin(site, body, *, point="general_plugins", manifest=""):
    """Install a plugin `leaver` whose module is `body`; its target is `target`."""
    site.write(
        "leaver-pkg", entry_points={point: {"leaver": "leaver_pkg:target"}},
        files={"leaver_pkg/__init__.py": body, "leaver_pkg/graftlm_plugin.toml": manifest},
    )  # fmt: skip
    return site.environment


@pytest.mark.parametrize(
    ("body", "call"),
    [
        ("import os\nos._exit(3)\n", "os._exit(3)"),
        ("import os\ndef target():\n    os._exit(0)\n", "os._exit(0)"),
        ("import os\ndef target():\n    os.abort()\n", "os.abort()"),
        ("import sys\ndef target():\n    sys.exit(4)\n", "sys.exit(4)"),
    ],
    ids=["at import", "when called", "abort", "sys.exit"],
)
@pytest.mark.parametrize("words", [("plugins", "list"), ("plugins", "explain", "plugin", "leaver"), ("doctor",)])
def test_a_general_plugin_ends_no_command(installed, body, call, words):
    """It failed like any other, the command does its work, and the sentence tells what it called."""
    done = run_graftlm(*words, env=write_plugin(installed, body))

    assert done.returncode == 0, done.stderr
    assert "failed" in done.stdout
    assert f"it called {call}, and only graftlm ends its processes" in done.stdout


@pytest.mark.parametrize("words", [("plugins", "list"), ("plugins", "explain", "platform"), ("serve", "demo")])
def test_a_detector_ends_no_command(installed, words):
    """A platform plugin that fails stops a start, by name, and never with code 0."""
    env = write_plugin(installed, "import os\ndef target():\n    os._exit(0)\n", point="platform_plugins")
    done = run_graftlm(*words, env=env)

    assert done.returncode == 1
    said = (done.stdout if "explain" in words else done.stderr).splitlines()
    assert any("'leaver' of leaver-pkg 1.0 failed" in line and "os._exit(0)" in line for line in said)


def test_a_worker_is_not_ended_either(installed, tiny_llama):
    """In a child of the server the same holds: named, it stops the start with the sentence of its kind."""
    body = "import os\ndef target():\n    os._exit(5)\n"
    env = write_plugin(installed, body, manifest='[plugin.leaver]\nroles = ["worker"]\n')
    done = run_graftlm("run", str(tiny_llama), "-p", "hello", "--enable-plugin", "leaver", env=env)

    last = done.stderr.strip().splitlines()[-1]
    assert done.returncode == 1
    assert "'leaver' of leaver-pkg 1.0 failed in process 'engine core'" in last and "os._exit(5)" in last


def test_a_process_that_a_plugin_forks_ends_as_it_likes(installed, ask):
    """Only the engine's own processes are guarded."""
    body = """
        import os

        def target():
            child = os.fork()
            if child == 0:
                os._exit(7)
            if os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) != 7:
                raise RuntimeError("the child did not end")
    """
    write_plugin(installed, body)
    _, told, errors = ask("list")

    (row,) = [row for row in told["plugins"] if row["name"] == "leaver"]
    assert row["state"] == "active", (row, errors)


FORKING = """
    import os

    def target():
        if os.fork() == 0:
            {in_the_child}
"""


@pytest.mark.parametrize("in_the_child", ["return None", "raise RuntimeError('lost')"], ids=["returns", "raises"])
def test_a_process_that_a_plugin_forks_does_not_come_back(installed, tiny_llama, in_the_child):
    """It would be a second engine on the same sockets: it ends where the call ends, by name, in every process."""
    env = write_plugin(installed, FORKING.format(in_the_child=in_the_child))
    done = run_graftlm("run", str(tiny_llama), "-p", "hello", "--max-tokens", "2", env=env)

    assert done.returncode == 0, done.stderr
    said = [line for line in done.stderr.splitlines() if "plugin_forked 'leaver' of leaver-pkg 1.0" in line]
    assert len(said) == 2, "one of the front end, one of the engine core"
    assert all("came back from the call and ends here" in line for line in said)


def test_a_crash_shows_whose_code_it_was(installed):
    """Nothing can be done about native code; the stack that is printed holds the plugin's file."""
    env = write_plugin(installed, "import ctypes\ndef target():\n    ctypes.string_at(0)\n")
    listed = run_graftlm("plugins", "list", env=env)
    traced = run_graftlm("plugins", "trace", "--", "plugins", "list", env=env)
    examined = run_graftlm("plugins", "doctor", env=env)

    assert listed.returncode < 0 and "leaver_pkg/__init__.py" in listed.stderr
    assert traced.returncode == 139 and "the command was killed by SIGSEGV" in traced.stderr
    assert (
        "leaver-pkg:leaver (general_plugins): the process that examined it was killed by SIGSEGV" in examined.stdout
    )
    assert examined.stdout.splitlines()[-1].startswith(
        "a start is refused: the process that tried was killed by SIGSEGV"
    )


def test_a_pool_of_threads_that_ends_by_itself_is_no_matter(installed):
    """The interpreter ends idle pools; nobody is warned of them, and exit functions run."""
    body = """
        import atexit, sys, time
        from concurrent.futures import ThreadPoolExecutor
        from graftlm.cli import leaving

        leaving.GRACE_S = 60.0  # the machine may be busy with something else
        POOL = ThreadPoolExecutor(1)

        def target():
            POOL.submit(time.sleep, 0.01).result()
            atexit.register(print, "left in order", file=sys.stderr)
    """
    done = run_graftlm("plugins", "list", env=write_plugin(installed, body))

    assert done.returncode == 0
    assert "left in order" in done.stderr and "still running" not in done.stderr
