"""`graftlm bench serve` against a server whose every token is known: it must count right."""

from __future__ import annotations

import asyncio
import json

import pytest
from fake_api import FakeApi, running

from graftlm.cli.bench import serve
from graftlm.cli.bench.client import ApiClient, Exchange, ServerTrouble, run_at_once
from graftlm.config.arguments import UsageError
from graftlm.config.errors import InvalidOption
from graftlm.processes.shutdown import ShutdownRequest


def bench(api: FakeApi, *words: str, capsys: pytest.CaptureFixture[str]) -> dict:
    assert serve.run(["--url", api.url, "--json", "-", *words], shutdown=ShutdownRequest()) == 0
    return json.loads(capsys.readouterr().out)


@pytest.mark.parametrize(("chunked", "usage"), [(True, True), (True, False), (False, True)])
@pytest.mark.parametrize("route", ["/completions", "/chat/completions"])
def test_a_stream_is_counted_piece_by_piece(chunked, usage, route):
    """Whatever the transfer encoding and the cut of the packets; a chat's first chunk is no token."""
    with running(FakeApi(gap_s=0.01, usage=usage, chunked=chunked)) as api:
        body = {"model": "m", "max_tokens": 4, "prompt": "a", "messages": []}
        [exchange], seconds = asyncio.run(run_at_once(ApiClient(f"{api.url}/v1"), route, [body]))

    assert exchange.error is None
    assert exchange.text == "t0 t1 t2 t3 "
    assert (len(exchange.arrivals), exchange.output_tokens) == (4, 4)
    assert (exchange.num_prompt_tokens, exchange.num_cached_tokens) == ((11, 3) if usage else (None, 0))
    assert exchange.start < exchange.arrivals[0] <= exchange.arrivals[-1] <= exchange.end
    assert 0 <= exchange.time_per_output_token_s < seconds
    assert exchange.time_to_first_token_s + sum(exchange.inter_token_latencies_s) <= exchange.e2e_latency_s


def test_the_load_is_what_was_asked_for(capsys):
    """Warm-ups do not count, concurrency is kept, parameters are sent, the client's cost is shown."""
    words = ["--num-prompts", "12", "--num-warmups", "2", "--max-concurrency", "3", "--input-len", "5"]
    with running(FakeApi(gap_s=0.005)) as api:
        result = bench(api, *words, "--output-len", "4", "--extra-body", '{"top_k": 7}', capsys=capsys)

    assert (result["num_completed"], result["num_failed"]) == (12, 0)
    assert (result["output_tokens"], result["prompt_tokens"], result["cached_prompt_tokens"]) == (48, 132, 36)
    assert len(api.bodies) == 14
    assert api.most_running == result["max_concurrency_seen"] == 3
    assert {len(body["prompt"]) for body in api.bodies} == {5}
    assert all(b["model"] == "fake-model" and b["top_k"] == 7 and b["ignore_eos"] is True for b in api.bodies)
    assert result["output_tokens_per_s"] == pytest.approx(48 / result["duration_s"])
    assert len({json.dumps(body["prompt"]) for body in api.bodies}) == 14
    assert 0 < result["client_cpu_share"] < 1
    assert {"mean", "median", "std", "p90", "p99"} == set(result["ttft_ms"])


def test_a_server_that_counts_no_tokens_is_said_so(capsys):
    """Else its prompts would seem to have none."""
    for usage, shown in ((False, True), (True, False)):
        with running(FakeApi(gap_s=0.001, usage=usage)) as api:
            words = ["--url", api.url, "--num-prompts", "3", "--no-progress"]
            assert serve.run(words, shutdown=ShutdownRequest()) == 0
        assert ("answers without usage: pieces counted" in capsys.readouterr().out) is shown


def test_requests_arrive_at_their_rate(capsys):
    """A fixed number at a known rate takes its time, however fast the server is."""
    words = ["--num-prompts", "20", "--num-warmups", "0", "--request-rate", "50", "--burstiness", "1000"]
    with running(FakeApi()) as api:
        result = bench(api, *words, "--output-len", "1", capsys=capsys)

    assert result["duration_s"] >= 0.36  # nineteen even gaps of 20 ms
    assert result["tpot_ms"] == {}


def test_goodput_counts_requests_within_limits(capsys):
    """A limit that nobody breaks, and one that everybody does."""
    words = ["--num-prompts", "6", "--output-len", "3", "--num-warmups", "0"]
    with running(FakeApi(gap_s=0.02)) as api:
        easy = bench(api, *words, "--goodput", "ttft:60000", "tpot:60000", capsys=capsys)["goodput"]
        hard = bench(api, *words, "--goodput", "ttft:60000", "e2el:59", capsys=capsys)["goodput"]  # three gaps

    assert (easy["num_kept"], easy["share"]) == (6, 1.0)
    assert (hard["num_kept"], hard["share"]) == (0, 0.0)


def test_failures_are_counted_and_shown(capsys):
    """A refused request is no fast one."""
    with running(FakeApi(fail_every=3)) as api:
        result = bench(api, "--num-prompts", "6", "--num-warmups", "0", "--output-len", "2", capsys=capsys)

    assert (result["num_completed"], result["num_failed"]) == (4, 2)
    assert result["output_tokens"] == 8
    assert result["errors"] == ["HTTP 429: busy"]


def test_prompts_come_from_a_file(tmp_path, capsys):
    """Lines are sent in order and repeated; a line may say how long its answer is."""
    lines = ['{"prompt": "one"}', '{"prompt": "two", "output_len": 2}', ""]
    (tmp_path / "prompts.jsonl").write_text("\n".join(lines))
    words = ["--dataset-path", str(tmp_path / "prompts.jsonl"), "--num-prompts", "3", "--num-warmups", "0"]
    with running(FakeApi()) as api:
        result = bench(api, *words, "--output-len", "5", "--max-concurrency", "1", capsys=capsys)

    assert [(body["prompt"], body["max_tokens"]) for body in api.bodies] == [("one", 5), ("two", 2), ("one", 5)]
    assert result["output_tokens"] == 12


def test_chats_get_messages_and_the_key(tmp_path, capsys):
    """Random words become a user's message; the key is sent and never written down."""
    words = ["--endpoint", "chat", "--num-prompts", "2", "--num-warmups", "0", "--api-key", "secret"]
    with running(FakeApi()) as api:
        result = bench(api, *words, "--input-len", "9", "--output-len", "2", capsys=capsys)

    [message] = api.bodies[0]["messages"]
    assert message["role"] == "user"
    assert len(message["content"].split()) == 9
    assert all("Authorization: Bearer secret" in head for head in api.headers)
    assert "secret" not in json.dumps(result)


def test_the_table_reads_well(capsys):
    """What a person sees without --json."""
    with running(FakeApi()) as api:
        serve.run(["--url", api.url, "--num-prompts", "4", "--output-len", "3"], shutdown=ShutdownRequest())
    shown = capsys.readouterr().out

    assert "fake-model at http://127.0.0.1" in shown
    assert all(
        title in shown for title in ("Time to first token", "Inter-token latency", "output tokens per second")
    )


@pytest.mark.parametrize(
    ("words", "cached", "advised"),
    [
        ([], 2, True),
        ([], 1, False),
        (["--random-prefix-len", "16"], 9, False),
        (["--endpoint", "chat"], 5, False),
        (["--endpoint", "chat"], 6, True),
        (["--dataset-path", "FILE"], 9, False),
    ],
)
def test_prompts_that_the_server_has_seen_before_are_told(words, cached, advised, tmp_path, capsys):
    """A load sent twice finds itself in the prefix cache, and its times are no times of a prefill."""
    file = tmp_path / "prompts.jsonl"
    file.write_text('{"prompt": "one"}')
    words = [str(file) if word == "FILE" else word for word in words]
    with running(FakeApi(cached_tokens=cached)) as api:
        serve.run(["--url", api.url, "--num-prompts", "2", "--seed", "7", *words], shutdown=ShutdownRequest())
    last = capsys.readouterr().out.splitlines()[-1]

    told = f"advice: {100 * cached / 11:.0f} % of the prompt tokens came from the cache"
    assert last.startswith(told) is advised
    assert ("another --seed than 7, or restart it" in last) is advised


@pytest.mark.parametrize(
    ("words", "error", "parts"),
    [
        (["--goodput", "ttft"], InvalidOption, ["--goodput='ttft'", "ttft:500"]),
        (["--goodput", "itl:5"], InvalidOption, ["ttft, tpot, e2el"]),
        (["--metric-percentiles", "101"], InvalidOption, ["--metric-percentiles"]),
        (["--num-prompts", "0"], UsageError, ["--num-prompts=0"]),
        (["--request-rate", "0"], UsageError, ["--request-rate"]),
        (["--dataset-path", "no-such.jsonl", "--model", "m"], InvalidOption, ["no-such.jsonl"]),
        (["--url", "localhost:8000"], ServerTrouble, ["http://127.0.0.1:8000"]),
        (["--url", "http://127.0.0.1:9"], ServerTrouble, ["is it running?"]),
        (["--num-promts", "3"], UsageError, ["--num-prompts"]),
    ],
)
def test_bad_flags_name_value_and_cure(words, error, parts):
    """Before anything is sent."""
    with pytest.raises(error) as caught:
        serve.run(words, shutdown=ShutdownRequest())

    assert all(part in str(caught.value) for part in parts)


@pytest.mark.parametrize("name", ["serve", "startup", "latency", "throughput", "plugins"])
def test_a_benchmark_needs_no_flags(name, monkeypatch):
    """Defaults are there to be used: a sub-command alone reaches its code."""
    from graftlm.cli import bench

    class Subcommand:
        @staticmethod
        def run(words, *, shutdown):
            return 7 if words == [] else 1

    monkeypatch.setattr(bench, "load_subcommand", lambda name: Subcommand)
    assert bench.run([name], shutdown=ShutdownRequest()) == 7


@pytest.mark.parametrize(
    "sent", [b"", b"HTTP/1.1 200 OK\r\nTransfer-Enc", b"5\r\ndata", b"5\r\ndata:\r\n", b"5"], ids=repr
)
def test_a_server_that_dies_in_the_middle_of_an_answer_is_said_so(sent):
    """Wherever the connection ends: in the head, in a chunk, or between two."""
    head = b"" if sent[:4] in (b"", b"HTTP") else b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n"

    async def dies(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        writer.write(head + sent)
        writer.close()

    async def ask() -> Exchange:
        async with await asyncio.start_server(dies, "127.0.0.1", 0) as server:
            port = server.sockets[0].getsockname()[1]
            return await ApiClient(f"http://127.0.0.1:{port}").stream("/completions", {})

    assert asyncio.run(ask()).error == "the connection ended in the middle of the answer"
