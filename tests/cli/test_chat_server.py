from __future__ import annotations

import json
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import pytest

from graftlm.cli.chat import ChatSettings
from graftlm.cli.chat_server import ServerChat, ServerTrouble
from graftlm.cli.main import main

SETTINGS = ChatSettings(max_tokens=8, temperature=0.0, top_p=1.0, seed=3)


class _FakeOpenAI(BaseHTTPRequestHandler):
    """Answers as an OpenAI server would; `bodies` keeps what was asked."""

    bodies: list[dict]
    api_key: str | None = None
    cut_short = False
    finish_reason = "stop"

    def do_GET(self) -> None:
        self._send(200, json.dumps({"data": [{"id": "tiny"}]}).encode())

    def do_POST(self) -> None:
        body = self.rfile.read(int(self.headers["Content-Length"]))  # unread, it could cost the client the answer
        if self.api_key and self.headers.get("Authorization") != f"Bearer {self.api_key}":
            self._send(401, json.dumps({"error": {"message": "a key is needed"}}).encode())
            return
        self.bodies.append(json.loads(body))
        events = [{"choices": [{"delta": {"content": text}}]} for text in ("Hel", "lo")] + [{"choices": []}]
        events[1]["choices"][0]["finish_reason"] = self.finish_reason
        text = "".join(f"data: {json.dumps(event)}\n\n" for event in events)
        self._send(200, (text + ("" if self.cut_short else "data: [DONE]\n\n")).encode())

    def _send(self, status: int, body: bytes) -> None:
        self.send_response(status)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *args: object) -> None:
        pass


@pytest.fixture
def fake():
    """A server class of its own for each test, and its address."""
    handler = type("Fake", (_FakeOpenAI,), {"bodies": []})
    server = ThreadingHTTPServer(("127.0.0.1", 0), handler)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    yield handler, f"http://127.0.0.1:{server.server_port}"
    server.shutdown()
    server.server_close()


def test_an_answer_is_streamed_from_the_first_model_of_a_server(fake, capsys):
    """`graftlm run --url` needs no model name and no engine."""
    handler, url = fake

    assert main(["run", "--url", url, "-p", "Hi", "--system", "Be brief", "--seed", "3", "--max-tokens", "8"]) == 0

    assert capsys.readouterr() == ("Hello\n", "")
    (body,) = handler.bodies
    assert body["model"] == "tiny"
    assert [m["role"] for m in body["messages"]] == ["system", "user"]
    assert (body["seed"], body["max_tokens"], body["stream"]) == (3, 8, True)


def test_a_chat_remembers_its_turns(fake, capsys, monkeypatch):
    """Each question is sent with what was said before."""
    handler, url = fake
    lines = iter(["one", "two", ""])
    monkeypatch.setattr("builtins.input", lambda prompt="": next(lines))

    assert main(["run", "--url", url]) == 0

    assert [[m["content"] for m in body["messages"]] for body in handler.bodies] == [
        ["one"],
        ["one", "Hello", "two"],
    ]


def test_an_answer_that_was_cut_is_said_to_be(fake, capsys, monkeypatch):
    """Beside the answer, in a chat each time; one that ended by itself is not."""
    handler, url = fake
    handler.finish_reason = "length"

    assert main(["run", "--url", url, "-p", "Hi", "--max-tokens", "8"]) == 0
    assert capsys.readouterr() == ("Hello\n", "(cut at --max-tokens=8)\n")

    lines = iter(["one", "two", ""])
    monkeypatch.setattr("builtins.input", lambda prompt="": next(lines))
    assert main(["run", "--url", url]) == 0
    assert capsys.readouterr() == ("Hello\n" * 2, "(cut at the server's limit)\n" * 2)


@pytest.mark.parametrize(
    ("asked", "room", "limit"),
    [
        (20, 4000, "--max-tokens=20"),
        (None, 4000, "--max-tokens=1024, the default"),
        (None, 300, "the context's end"),
        (None, None, "the server's limit"),
    ],
)
def test_the_limit_of_an_answer_is_named(asked, room, limit):
    """What was asked for, else what holds without."""
    assert ChatSettings(max_tokens=asked, temperature=0.0, top_p=1.0).limit(room=room) == limit


def test_trouble_names_the_server_and_the_cure(fake):
    """A missing key, an answer that ends early, a server that is not there, an address that is none."""
    handler, url = fake
    handler.api_key = "secret"
    chat = ServerChat(url, model=None, api_key=None, settings=SETTINGS)
    with pytest.raises(ServerTrouble, match="a key is needed; give its key with --api-key"):
        list(chat.stream([{"role": "user", "content": "Hi"}]))
    handler.api_key, handler.cut_short = None, True
    with pytest.raises(ServerTrouble, match="ended early"):
        list(chat.stream([{"role": "user", "content": "Hi"}]))
    with pytest.raises(ServerTrouble, match="start it with `graftlm serve`"):
        ServerChat("http://127.0.0.1:9", model=None, api_key=None, settings=SETTINGS)
    with pytest.raises(ServerTrouble, match="it is no web address"):
        ServerChat("127.0.0.1:8000", model=None, api_key=None, settings=SETTINGS)


def test_engine_flags_beside_a_url_are_refused(fake, capsys):
    """Nothing is ignored in silence."""
    _, url = fake

    assert main(["run", "--url", url, "--max-model-len", "8", "-p", "Hi"]) == 2

    assert "--max-model-len has no effect with --url" in capsys.readouterr().err
