from __future__ import annotations

import signal
import subprocess
import sys
import time

import pytest

from graftlm.cli.run import answer
from graftlm.contracts.errors import StartupError


def test_an_answer_that_breaks_off_ends_its_line(capsys):
    """The error is not written behind the answer's last word; where there was none yet, no line is."""

    class Breaking:
        def stream(self, messages):
            yield from messages
            raise StartupError("the engine died")

    for pieces, printed in ((["Once", " upon"], "Once upon\n"), ([], "")):
        with pytest.raises(StartupError):
            answer(Breaking(), pieces)
        assert capsys.readouterr().out == printed


def test_one_prompt_is_answered_by_an_engine_of_ones_own(tiny_llama):
    """`graftlm run MODEL -p TEXT` prints the answer, beside it that it was cut, and leaves no process behind."""
    words = ["run", str(tiny_llama), "-p", "hello", "--temperature", "0", "--max-tokens", "4"]
    done = subprocess.run([sys.executable, "-m", "graftlm", *words], capture_output=True, timeout=90)

    assert done.returncode == 0, done.stderr
    assert done.stdout.strip()
    assert done.stderr == b"(cut at --max-tokens=4)\n"


def test_a_signal_ends_a_chat_with_code_0(tiny_llama):
    """While it waits for the person, and while an answer is made."""
    words = [sys.executable, "-m", "graftlm", "run", str(tiny_llama), "--temperature", "0", "--max-tokens", "200"]
    chat = subprocess.Popen(
        words, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE, start_new_session=True
    )
    chat.stdin.write(b"hello\n")
    chat.stdin.flush()
    assert chat.stdout.read(1)  # the answer has begun
    time.sleep(0.1)

    chat.send_signal(signal.SIGINT)
    _, trouble = chat.communicate(timeout=60)

    assert chat.returncode == 0, trouble
    assert b"Traceback" not in trouble
