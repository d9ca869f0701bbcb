"""What plugin code raises: exceptions that are none, that cannot be printed, that cannot travel."""

from __future__ import annotations

import json
import os
import subprocess
import sys

import pytest
from plugin_packages import Site, run_graftlm

from graftlm.plugins import calling
from graftlm.plugins.errors import PluginRaises
from graftlm.plugins.ledger import plain
from graftlm.plugins.spelling import error_text
from graftlm.processes.shutdown import ShutdownInterrupt

RAISES = {
    "interrupt": "raise KeyboardInterrupt",
    "base": "raise BaseException('base')",
    "wordless": "raise Wordless",
    "surrogate": r"raise OSError('no \udcff here')",
    "long": "raise ValueError('y' * 100_000)",
}
WORDLESS = """
class Wordless(Exception):
    def __str__(self):
        raise RuntimeError("no words")
"""


def test_whatever_general_plugins_raise_they_are_failed_and_the_command_works(tmp_path) -> None:
    """Each is named with a short text that any process can read, and none ends the start in silence."""
    site = Site(tmp_path)
    for name, body in RAISES.items():
        source = f"{WORDLESS}\ndef register():\n    {body}\n"
        site.write(name, entry_points={"general_plugins": {name: f"{name}:register"}}, files={f"{name}.py": source})

    done = run_graftlm("plugins", "--json", env=site.environment)

    assert done.returncode == 0, done.stderr
    rows = {r["name"]: r for r in json.loads(done.stdout)["plugins"] if r["name"] in RAISES}
    assert {r["state"] for r in rows.values()} == {"failed"}
    assert "KeyboardInterrupt: , which is no Exception" in rows["interrupt"]["reason"]
    assert "BaseException: base, which is no Exception" in rows["base"]["reason"]
    assert "Wordless: its text cannot be had, RuntimeError in __str__" in rows["wordless"]["reason"]
    assert r"OSError: no \udcff here" in rows["surrogate"]["reason"]
    assert "98000 more characters" in rows["long"]["reason"]


def test_what_plugins_print_in_any_way_is_no_part_of_the_answer(tmp_path) -> None:
    """A library's banner and a started program's output go to stderr; stdout is JSON alone."""
    source = """
    def register():
        import os, subprocess, sys
        print("printed")
        sys.stdout.buffer.write(b"binary \\xff\\n")
        os.write(1, b"a banner of a native library\\n")
        subprocess.run(["echo", "a program"], check=True)
    """
    site = Site(tmp_path).write(
        "loud", entry_points={"general_plugins": {"loud": "loud:register"}}, files={"loud.py": source}
    )

    for command in (["plugins"], ["plugins", "explain", "loud"]):
        done = subprocess.run(
            [sys.executable, "-m", "graftlm", *command, "--json"], env={**os.environ, **site.environment},
            capture_output=True, stdin=subprocess.DEVNULL, timeout=60, check=True,
        )  # fmt: skip

        assert json.loads(done.stdout)
        for said in (b"printed", b"binary \xff", b"a banner", b"a program"):
            assert said in done.stderr


@pytest.mark.parametrize(
    "body", [RAISES["interrupt"], RAISES["base"], RAISES["wordless"], "import sys; sys.exit(0)"]
)
def test_a_detector_that_raises_anything_stops_the_start_by_name(tmp_path, body: str) -> None:
    """Neither silence with code 0 nor a traceback that names nobody: plugin, distribution, cure."""
    source = f"{WORDLESS}\ndef detect():\n    {body}\n"
    site = Site(tmp_path).write(
        "acme", entry_points={"platform_plugins": {"acme": "acme:detect"}}, files={"acme.py": source}
    )

    done = run_graftlm("plugins", env=site.environment)

    assert done.returncode == 1
    assert "platform plugin 'acme' of acme 1.0 failed at platform detection" in done.stderr
    assert "--platform cpu or --allow-platform-fallback" in done.stderr


def test_what_the_engine_and_the_event_loop_raise_passes_through_plugin_code() -> None:
    """A cancelled task, a closed generator and Ctrl-C in a terminal are no plugin's fault."""
    import asyncio
    import signal

    before = signal.signal(signal.SIGINT, signal.default_int_handler)  # a background job has it ignored
    try:
        for passing in (asyncio.CancelledError, GeneratorExit, KeyboardInterrupt):
            with pytest.raises(passing), calling("acme", "hook"):
                raise passing
    finally:
        signal.signal(signal.SIGINT, before)
    with pytest.raises(ShutdownInterrupt), calling("acme", "hook"):  # whoever handles the signals
        raise ShutdownInterrupt("SIGINT")
    with pytest.raises(PluginRaises, match="raise one instead"), calling("acme", "hook"):
        raise BaseException("base")


def test_facts_of_plugins_can_always_be_sent() -> None:
    """The ledger travels: text that is no UTF-8 and numbers of more than 64 bits become text that is."""
    import msgspec

    sent = msgspec.msgpack.decode(msgspec.msgpack.encode(plain({"a": "\udcff", "b": 2**80, "c": [-(2**70)]})))

    assert sent == {"a": r"\udcff", "b": str(2**80), "c": [str(-(2**70))]}


def test_the_text_of_an_exception_is_cut_and_says_so() -> None:
    """A megabyte in a message is no message."""
    assert len(error_text(ValueError("x" * 1_000_000))) < 2100
    assert error_text(ValueError("x")) == "ValueError: x"
