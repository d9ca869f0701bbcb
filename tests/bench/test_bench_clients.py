"""Two clients that share no code count the same, and their disagreement would be noticed."""

from __future__ import annotations

import argparse
import json
import socket
import threading

import pytest
from fake_api import FakeApi, running

from benchmarks import client_check, commands, second_client
from benchmarks.client_check import COST, OTHER, OURS, agreement, ours, show


def figures(**changed: float) -> dict[str, float]:
    return {"output tok/s": 100.0, "TTFT p50, ms": 50.0, "ITL p50, ms": 10.0, COST: 0.01, **changed}


def test_both_clients_see_what_the_server_did(tmp_path):
    """Tokens, waits and the end, from a server whose gaps are known."""
    prompts = tmp_path / "prompts.jsonl"
    prompts.write_text("".join(json.dumps({"prompt": [i, i + 1]}) + "\n" for i in range(4)))
    options = argparse.Namespace(streams=4, output_len=5)
    for _ in range(10):  # a client that is held up for a moment finds several tokens at once
        with running(FakeApi(gap_s=0.02)) as api:
            first = ours(api.url, prompts, options)
            second = second_client.measure(api.url, [[1, 2], [3, 4], [5, 6]], 5)
        if min(first["ITL p50, ms"], second["ITL p50, ms"]) >= 15:
            break

    assert len(api.bodies) == 7
    assert {len(body["prompt"]) for body in api.bodies} == {2}
    assert first.keys() == second.keys()
    for seen, streams in ((first, 4), (second, 3)):
        assert seen["ITL p50, ms"] >= 15
        assert seen["TTFT p99, ms"] >= seen["TTFT p50, ms"] >= 20
        assert seen["E2E p50, ms"] >= 100
        assert 0 < seen["output tok/s"] <= streams * 5 / 0.1


def test_a_failed_request_is_no_measurement():
    """The second client stops, as the first does."""
    with running(FakeApi(fail_every=2)) as api, pytest.raises(SystemExit, match="429"):
        second_client.measure(api.url, [[1], [2]], 3)


def test_an_answer_that_is_cut_off_is_no_measurement():
    """The second client knows the end of an answer from the end of its connection."""
    head = b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n"
    event = b'data: {"choices": [{"text": "a"}]}\n\n'
    with socket.create_server(("127.0.0.1", 0)) as server:
        stream = second_client.Stream("127.0.0.1", server.getsockname()[1], {"prompt": [1]})
        answered = threading.Thread(target=_cut_off, args=(server, head + b"%x\r\n%b\r\n" % (len(event), event)))
        answered.start()
        second_client.run([stream])
        answered.join()
    refused = second_client.Stream("127.0.0.1", port := free_port(), {"prompt": [1]})
    second_client.run([refused])
    stream.read()

    assert len(stream.moments) == 1
    assert "RemoteProtocolError" in stream.error
    assert "refused" in refused.error, port


def _cut_off(server: socket.socket, answer: bytes) -> None:
    connection, _ = server.accept()
    with connection:
        connection.recv(65_536)
        connection.sendall(answer)


def free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as server:
        return int(server.getsockname()[1])


def test_a_difference_between_the_clients_is_noticed():
    """Five per cent in every round is a bug in one of them; the same noise in both is not."""
    noise = [1.0, 1.3, 0.8, 1.1, 0.9, 1.2, 0.7, 1.0, 1.05, 0.95]
    honest = [figures(**{"TTFT p50, ms": 50 * x}) for x in noise]
    late = [figures(**{"TTFT p50, ms": 52.5 * x}) for x in noise]

    same = agreement({OURS: honest, OTHER: honest[::-1]}, tolerance=0.02)
    found = agreement({OURS: late, OTHER: honest}, tolerance=0.02)

    assert {finding.verdict for finding in same.values()} == {"same"}
    assert {name: f.verdict for name, f in found.items()} == {
        "output tok/s": "same", "TTFT p50, ms": "slower", "ITL p50, ms": "same",
    }  # fmt: skip
    assert "the clients differ in TTFT p50, ms" in show({OURS: late, OTHER: honest}, found, limit=0.05)
    assert "costs 1.0 % of a core, 5 % are allowed" in show({OURS: late, OTHER: honest}, found, limit=0.05)


def test_too_few_rounds_of_clients_are_refused(capsys, monkeypatch):
    """Before a server is launched."""
    monkeypatch.setattr(commands, "end_servers_when_terminated", lambda: None)

    assert client_check.main(["--rounds", "7"]) == 2
    assert "use 8 or more" in capsys.readouterr().err
