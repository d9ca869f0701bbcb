"""`graftlm bench serve --plot`: a picture of every latency, or a sentence why there is none."""

from __future__ import annotations

import random
import struct

import pytest
from fake_api import FakeApi, running

from graftlm.cli.bench import plot, serve
from graftlm.config.errors import InvalidOption
from graftlm.processes.shutdown import ShutdownRequest

RESULT = {
    "settings": {"model": "m", "url": "http://127.0.0.1:1", "request_rate": None}, "num_completed": 3,
    "num_failed": 1,
    "max_concurrency_seen": 2, "output_tokens_per_s": 5.0, "machine": {"processor": "p"},
    "date": "2026-01-02T03:04",
}  # fmt: skip


def size_of_png(data: bytes) -> tuple[int, int]:
    assert data[:8] == b"\x89PNG\r\n\x1a\n"
    return struct.unpack(">II", data[16:24])


def test_a_picture_is_drawn(tmp_path, capsys):
    """All four metrics beside the table; the file's name is no setting of the load."""
    file = tmp_path / "latencies.png"
    words = ["--num-prompts", "6", "--output-len", "4", "--plot", str(file)]
    with running(FakeApi(gap_s=0.005)) as api:
        assert serve.run(["--url", api.url, *words], shutdown=ShutdownRequest()) == 0
    width, height = size_of_png(file.read_bytes())

    assert width > height > 1000
    assert "Time to first token" in capsys.readouterr().out


@pytest.mark.parametrize("suffix", plot.FORMATS)
def test_any_distribution_can_be_drawn(tmp_path, suffix):
    """One value, many equal ones, zeros, a long tail; a metric without values has no panel."""
    generator = random.Random(0)
    tail = [generator.lognormvariate(3, 0.2) for _ in range(500)] + [5000.0]
    file = tmp_path / f"x{suffix}"
    plot.write_plot(str(file), RESULT, {"ttft": [7.0], "tpot": [], "itl": [0.0, *tail], "e2el": [3.0] * 9})
    full = file.stat().st_size
    plot.write_plot(str(file), RESULT, {"ttft": tail, "tpot": [], "itl": [], "e2el": []})

    assert 0 < file.stat().st_size < full


def test_bars_hold_every_value():
    """None falls between two bars or off either end."""
    for values in ([1.0], [0.0, 0.0], [1.0, 2.0, 3.0], [1.0] * 9 + [1000.0], [0.0, 1.0, 900.0]):
        edges, _ = plot._edges(values)
        assert edges == sorted(edges)
        assert sum(plot._counts(values, edges)) == len(values)
        assert edges[0] <= min(values) <= max(values) <= edges[-1]
    assert plot._edges([1.0] * 9 + [1000.0])[1]
    assert not plot._edges([1.0, 2.0])[1]


@pytest.mark.parametrize(
    ("file", "parts"),
    [
        ("x.bmp", ["--plot='x.bmp'", "'.bmp'", ".png, .svg, .pdf"]),
        ("picture", ["its name does not say", ".png"]),
        ("no/such/folder/x.png", ["cannot be written", "name another file"]),
    ],
)
def test_what_cannot_be_drawn_is_refused_before_the_load(file, parts):
    """Minutes of measurement are not lost for a file name."""
    with running(FakeApi()) as api, pytest.raises(InvalidOption) as caught:
        serve.run(["--url", api.url, "--plot", file], shutdown=ShutdownRequest())

    assert api.bodies == []
    assert all(part in str(caught.value) for part in parts)


def test_without_matplotlib_the_cure_is_one_command(monkeypatch, tmp_path):
    """It is an extra, and nothing else needs it."""
    monkeypatch.setattr(plot, "find_spec", lambda name: None)

    with pytest.raises(InvalidOption, match=r"pip install 'graftlm\[bench\]'"):
        plot.check_plot(str(tmp_path / "x.png"))
