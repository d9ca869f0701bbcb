"""Interleaved rounds: all get the same, nobody is always first, and a failure is told and not guessed over."""

from __future__ import annotations

import pytest

from benchmarks.loads import FIRST_TOKEN, LOADS, MEMORY, START_ROW, Figure
from benchmarks.rounds import Results, measure_rounds
from benchmarks.tables import as_json, comparison, markdown, ratio, with_spread, write_between
from graftlm.cli.bench.client import Exchange
from graftlm.cli.bench.launch import LaunchFailed
from graftlm.contracts.errors import GraftlmError

TOKENS_PER_S = Figure("1 stream, output tok/s", more_is_better=True)


class FakePeer:
    """Makes a token each `gap_s` of a clock of its own; `fails` names the launch or load that goes wrong."""

    version, settings = "1.0", ""

    def __init__(self, name, *, gap_s=0.01, fails=None, dies=False, diary=None):
        self.name, self.gap_s, self.fails, self.dies, self.diary = name, gap_s, fails, dies, diary
        self.prompts = []
        self.launches = self.ended = 0

    def start(self):
        self.launches += 1
        if self.diary is not None:
            self.diary.append(self.name)
        if self.fails == "start":
            raise LaunchFailed(self.name, code=3, words="no such device")
        self.first_token_s, self.memory_mib, self.dead = 2.0, 100.0, False
        return self

    def send(self, prompts, *, at_once):
        if prompts[0].output_len != 8:  # no warm-up
            self.prompts.append([tuple(p.prompt) for p in prompts])
            if self.fails == len(self.prompts[-1]):
                self.dead = self.dies
                raise GraftlmError("3 of 8 requests failed")
        made = [
            Exchange(start=0.0, arrivals=[self.gap_s * (i + 1) for i in range(p.output_len)],
                     end=self.gap_s * p.output_len, num_prompt_tokens=len(p.prompt), num_output_tokens=p.output_len)
            for p in prompts
        ]  # fmt: skip
        return made, self.gap_s * prompts[0].output_len

    def alive(self):
        return not self.dead

    def last_words(self):
        return "out of memory"

    def __enter__(self):
        return self

    def __exit__(self, *error):
        self.ended += 1


def test_the_order_moves_on_each_round():
    """Each is launched once a round and ended; whoever was second is first in the next."""
    diary = []
    peers = [FakePeer(name, diary=diary) for name in "abc"]
    measure_rounds(peers, LOADS[:1], rounds=3)

    assert diary == list("abcbcacab")
    assert [(peer.launches, peer.ended) for peer in peers] == [(3, 3)] * 3


def test_each_line_of_progress_says_whose_it_is_and_of_which_round(capsys):
    """Also that of a failure; a line alone is enough to know what it is about."""
    measure_rounds([FakePeer("one"), FakePeer("two", fails="start")], LOADS[:1], rounds=2)
    lines = capsys.readouterr().err.splitlines()

    heads = [line.rpartition(": ")[0] if "failed" not in line else line.partition(": ")[0] for line in lines]
    row = f", {LOADS[0].key}"
    one, two = "round 1 of 2, one", "round 1 of 2, two"
    later = "round 2 of 2, one"
    start = f", {START_ROW}"
    assert heads == [one, one + start, one + row, two, two + start, later, later + start, later + row]
    assert f"{two}{start}: failed: " in lines[4]


def test_all_are_sent_the_same_and_never_twice():
    """A prefix cache helps nobody to a better figure, and no engine has easier prompts."""
    one, two = FakePeer("one"), FakePeer("two")
    measure_rounds([one, two], LOADS, rounds=2)
    sent = [prompt for prompts in one.prompts for prompt in prompts]

    assert one.prompts == two.prompts
    assert len(set(sent)) == len(sent) == 2 * sum(load.num_prompts for load in LOADS)
    assert {len(prompts[0]) for prompts in one.prompts} == {128, 1500, 1032}


def test_figures_are_what_the_peer_did():
    """Tokens per second, latencies and ratios, by hand."""
    results = measure_rounds([FakePeer("ours"), FakePeer("other", gap_s=0.04)], LOADS, rounds=2)

    assert results.values("ours", FIRST_TOKEN) == [2.0, 2.0]
    assert results.values("ours", MEMORY) == [100.0, 100.0]
    assert results.values("ours", TOKENS_PER_S) == pytest.approx([300.0, 300.0])  # three at a time, by this clock
    assert results.values("ours", Figure("8 streams, ITL p50, ms")) == pytest.approx([10.0, 10.0])
    assert results.ratios("ours", "other", TOKENS_PER_S) == pytest.approx([4.0, 4.0])
    assert results.ratios("ours", "other", Figure("8 streams, TTFT p50, ms")) == pytest.approx([4.0, 4.0])
    assert results.values("ours", Figure("4 prompts of 1,500, prompt tok/s", True)) == pytest.approx([37500.0] * 2)


def test_a_load_that_fails_leaves_the_others():
    """The row is empty for this peer only, and the reason is kept with its last words."""
    results = measure_rounds([FakePeer("ours"), FakePeer("other", fails=8)], LOADS[:3], rounds=2)
    table = comparison(results, ours="ours")

    assert results.failures == {
        "ours": {},
        "other": {"8": "3 of 8 requests failed; its last words:\nout of memory"},
    }
    assert results.values("other", Figure("32 streams, TTFT p50, ms"))
    [row] = [line for line in table.splitlines() if line.startswith("| 8 streams, output tok/s")]
    assert [cell.strip() for cell in row.split("|")[3:5]] == ["failed", ""]


@pytest.mark.parametrize(("fails", "dies"), [("start", False), (8, True)])
def test_a_peer_that_is_gone_is_not_tried_again(fails, dies):
    """Neither one that does not start nor one that dies under a load."""
    peer = FakePeer("other", fails=fails, dies=dies)
    results = measure_rounds([FakePeer("ours"), peer], LOADS[:3], rounds=3)

    assert peer.launches == 1
    assert results.failures["other"]
    assert len(results.values("ours", TOKENS_PER_S)) == 3
    assert results.values("other", Figure("32 streams, TTFT p50, ms")) == []


def test_ratios_are_those_of_the_same_round():
    """A round that one of both missed is left out, wherever it lies."""
    results = Results({"a": {}, "b": {}}, {"a": {}, "b": {}})
    for turn, (a, b) in enumerate([(10.0, None), (20.0, 10.0), (None, 5.0), (30.0, 10.0)]):
        for peer, value in (("a", a), ("b", b)):
            if value is not None:
                results.keep(peer, "1", {TOKENS_PER_S: value}, turn=turn)

    assert results.ratios("a", "b", TOKENS_PER_S) == [2.0, 3.0]
    assert as_json(results, ours="a")["better_by"]["b"] == {TOKENS_PER_S.title: [2.0, 3.0]}


def test_numbers_carry_their_spread():
    """Medians with the range; a single round has none to show."""
    assert with_spread([157.2, 158.4, 160.1]) == "158 (157…160)"
    assert with_spread([1234.5]) == "1,234"
    assert ratio([3.84, 3.9, 4.1]) == "3.9 × (3.84…4.1)"
    assert ratio([17.2]) == "17 ×"


def test_the_page_gets_the_table_between_its_markers(tmp_path):
    """What lies around it stays; a page without markers is an error, not a page without a table."""
    page = tmp_path / "performance.md"
    page.write_text("# A\n<!-- measured: peers -->\nold\n<!-- end -->\nafter\n")
    table = markdown(["", "a"], [["x|y", "1"]])
    write_between(page, "peers", table)
    write_between(page, "peers", table)

    assert page.read_text() == f"# A\n<!-- measured: peers -->\n\n{table}\n\n<!-- end -->\nafter\n"
    assert "x\\|y" in table
    with pytest.raises(GraftlmError, match="measured: regression"):
        write_between(page, "regression", table)
