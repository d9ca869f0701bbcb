"""What is asked of a peer, row by row, and the figures that come out of it. It does not know who is asked."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from graftlm.cli.bench.client import Exchange
from graftlm.cli.bench.prompts import Prompt, RandomPrompts
from graftlm.cli.bench.statistics import percentile
from graftlm.contracts.errors import GraftlmError

#: Of the demo model.
VOCABULARY = 49_152


class Figure(NamedTuple):
    """One number of a row, and which way is better."""

    title: str
    more_is_better: bool = False


FIRST_TOKEN = Figure("launch → first token, s")
MEMORY = Figure("memory of all processes after one token (PSS), MiB")
START_ROW = "start"


class Load(NamedTuple):
    """Distinct prompts of one shape, a number of them at once. `key` is its word on the command line."""

    key: str
    title: str
    num_prompts: int
    input_len: int
    at_once: int
    output_len: int = 128
    prefix_len: int = 0

    def prompts(self, *, seed: int, vocab_size: int = VOCABULARY) -> list[Prompt]:
        like = RandomPrompts(
            input_len=self.input_len, output_len=self.output_len, prefix_len=self.prefix_len, vocab_size=vocab_size
        )
        return like.make(self.num_prompts, seed=seed)

    def warm_up(self) -> Load:
        """A short load with as many at once: whatever is made on first use is made before the clock runs."""
        return self._replace(num_prompts=self.at_once, input_len=16, output_len=8, prefix_len=0)

    def shortened(self) -> Load:
        """The same shape with short answers and fewer tokens, to see whether everything works."""
        return self._replace(
            output_len=min(self.output_len, 8),
            input_len=min(self.input_len, 32),
            prefix_len=min(self.prefix_len, 32),
        )

    def figures(self, exchanges: Sequence[Exchange], seconds: float) -> dict[Figure, float]:
        """Return the row's figures; tokens are those that the server counted."""
        if self.key in ("prefill", "prefix"):
            tokens = sum(e.num_prompt_tokens or self.prefix_len + self.input_len for e in exchanges)
            return {Figure(f"{self.title}, prompt tok/s", True): tokens / seconds}
        gaps = [1e3 * gap for e in exchanges for gap in e.inter_token_latencies_s]
        first = [1e3 * e.time_to_first_token_s for e in exchanges]
        found = {
            Figure(f"{self.title}, output tok/s", True): sum(e.output_tokens for e in exchanges) / seconds,
            Figure(f"{self.title}, TTFT p50, ms"): percentile(first, 50),
        }
        if gaps:
            middle, late = percentile(gaps, 50), percentile(gaps, 99)
            found[Figure(f"{self.title}, ITL p50, ms")] = middle
            found[Figure(f"{self.title}, ITL p99, ms")] = late
            if self.at_once == 32 and middle > 0:
                found[Figure(f"{self.title}, ITL p99 / p50")] = late / middle
        return found


LOADS = (
    # One request is over in a second; three of them, one after the other, make a steadier number.
    Load("1", "1 stream", num_prompts=3, input_len=128, at_once=1),
    Load("8", "8 streams", num_prompts=8, input_len=128, at_once=8),
    Load("32", "32 streams", num_prompts=32, input_len=128, at_once=32),
    Load("prefill", "4 prompts of 1,500", num_prompts=4, input_len=1500, at_once=4, output_len=16),
    Load("prefix", "16 × (1,000 common + 32), 8 at once", num_prompts=16, input_len=32, at_once=8, output_len=16,
         prefix_len=1000),
)  # fmt: skip
ROWS = (START_ROW, *(load.key for load in LOADS))


def check_rows(rows: Sequence[str], *, vocab_size: int) -> None:
    """Refuse rows and prompts that cannot be; raises GraftlmError."""
    if twice := next((row for row in rows if rows.count(row) > 1), None):
        raise GraftlmError(f"--rows names {twice!r} twice; once is enough")
    if vocab_size < 2:
        raise GraftlmError(f"--vocab-size={vocab_size}: prompts need two ids to differ; use the model's own size")
