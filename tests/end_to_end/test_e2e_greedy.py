"""`graftlm serve` gives the greedy tokens of transformers in fp32, however the work is cut.

Each model runs on servers of several kinds: without a prefix cache; with a budget of 32 tokens and a KV cache that
not all prompts fit into; the latter on two ranks as well.
"""

from __future__ import annotations

import dataclasses
import subprocess
import sys
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import cache
from pathlib import Path
from typing import Any

import pytest
from greedy_reference import (
    Answer,
    Reference,
    assert_equal_while_sure,
    assert_few_end_early,
    continue_greedily,
)
from live import LiveServer

MAX_TOKENS = 64
BLOCK_SIZE = 16
#: Of the small KV cache: more than one sequence needs, fewer than all prompts.
SMALL_BLOCKS = 22

ID_PROMPTS: list[Any] = [
    [65, 66, 67],
    [200],
    [(7 * i * i + 3 * i) % 250 for i in range(100)],
    [(5 * i + 1) % 250 for i in range(49)],
    [(5 * i + 1) % 250 for i in range(49)] + [9, 8, 7],
    [1] * 33,
    [(11 * i) % 251 for i in range(64)],
    [(3 * i * i * i + i) % 256 for i in range(17)],
]
TEXT_PROMPTS: list[Any] = [
    "The capital of France is",
    "def fibonacci(n):\n    if n < 2:\n        return n\n",
    "Once upon a time, in a small village by the sea, there lived an old fisherman who",
    "1, 1, 2, 3, 5, 8, 13,",
    "Übersetzung: Der Hund schläft im Garten. 日本語 🙂",
    [{"role": "user", "content": "Why is the sky blue?"}],
    [
        {"role": "system", "content": "You answer in one short sentence, and never with a list."},
        {"role": "user", "content": "Name three colours."},
        {"role": "assistant", "content": "Red, green and blue."},
        {"role": "user", "content": "Which of them has the longest wavelength, and why?"},
    ],
    "Water boils at 100 degrees Celsius at sea level. On a high mountain the pressure of the air is lower, so it "
    "boils at a lower temperature, and an egg needs more time. The same holds for potatoes. Therefore",
]  # fmt: skip


@dataclasses.dataclass(frozen=True)
class Model:
    """A checkpoint under test."""

    fixture: str
    prompts: list[Any]
    max_model_len: int
    block_bytes: int
    load_reference: Callable[[Path], Any]


def _from_directory(path: Path) -> Any:
    import torch
    from transformers import AutoModelForCausalLM

    return AutoModelForCausalLM.from_pretrained(path, dtype=torch.float32).eval()


def _from_gguf(path: Path) -> Any:
    from gguf_files import reference_from_gguf

    return reference_from_gguf(path)


MODELS = {
    "llama": Model("tiny_llama", ID_PROMPTS, 256, 2 * 2 * 2 * 16 * 4 * BLOCK_SIZE, _from_directory),
    "opt": Model("tiny_opt", ID_PROMPTS, 256, 2 * 2 * 4 * 16 * 4 * BLOCK_SIZE, _from_directory),
    "demo": Model("demo_path", TEXT_PROMPTS, 192, 30 * 2 * 3 * 64 * 4 * BLOCK_SIZE, _from_gguf),
}
KINDS = {"no cache": ["--no-enable-prefix-caching"], "small": [], "small tp2": ["--tensor-parallel-size", "2"]}
DEMO_MARKS = [pytest.mark.demo, pytest.mark.slow]
CASES = [
    pytest.param((model, kind), id=f"{model} {kind}", marks=DEMO_MARKS if model == "demo" else [])
    for model in MODELS
    for kind in KINDS
    if (model, kind) != ("demo", "small tp2")
]


@dataclasses.dataclass(frozen=True)
class Served:
    """A running server, the ids of its model's prompts and what must be answered to them."""

    server: LiveServer
    kind: str
    is_large: bool
    references: list[Reference]

    @property
    def prompts(self) -> list[list[int]]:
        return [reference.prompt for reference in self.references]

    def ask(self, prompt: list[int], max_tokens: int = MAX_TOKENS) -> Answer:
        answer = self.server.complete(
            prompt, max_tokens=max_tokens, temperature=0, logprobs=0, ignore_eos=True, return_token_ids=True
        )
        choice, usage = answer["choices"][0], answer["usage"]
        assert usage["prompt_tokens"] == len(prompt)
        assert usage["completion_tokens"] == len(choice["token_ids"])
        return Answer(
            token_ids=choice["token_ids"],
            logprobs=choice["logprobs"]["token_logprobs"],
            cached_tokens=usage["prompt_tokens_details"]["cached_tokens"],
            finish_reason=choice["finish_reason"],
        )

    def ask_all_at_once(self) -> list[Answer]:
        with ThreadPoolExecutor(len(self.prompts)) as pool:
            return list(pool.map(self.ask, self.prompts))


@pytest.fixture(scope="module")
def references_of(request: pytest.FixtureRequest) -> Callable[[str, LiveServer], list[Reference]]:
    """Compute a model's references once, of the ids that the server makes of its prompts."""

    @cache
    def compute(name: str, prompts: tuple[tuple[int, ...], ...]) -> list[Reference]:
        model = MODELS[name].load_reference(request.getfixturevalue(MODELS[name].fixture))
        references = continue_greedily(model, [list(prompt) for prompt in prompts], max_tokens=MAX_TOKENS)
        assert_few_end_early(references)
        return references

    return lambda name, server: compute(name, tuple(tuple(_ids(server, prompt)) for prompt in MODELS[name].prompts))


def _ids(server: LiveServer, prompt: Any) -> Sequence[int]:
    if isinstance(prompt, list) and isinstance(prompt[0], int):
        return prompt
    field = "prompt" if isinstance(prompt, str) else "messages"
    answer = server.post("/tokenize", **{field: prompt})
    assert answer.status_code == 200, answer.text
    tokens: list[int] = answer.json()["tokens"]
    return tokens


@pytest.fixture(scope="module", params=CASES)
def served(request: pytest.FixtureRequest, references_of: Any) -> Iterator[Served]:
    """A server of each model and kind in turn."""
    name, kind = request.param
    model = MODELS[name]
    flags = ["--dtype", "float32", "--max-model-len", str(model.max_model_len), *KINDS[kind]]
    if kind != "no cache":
        ranks = 2 if "tp2" in kind else 1
        flags += ["--max-num-batched-tokens", "32", "--block-size", str(BLOCK_SIZE)]
        flags += ["--kv-cache-memory-bytes", str(SMALL_BLOCKS * model.block_bytes // ranks)]
    with LiveServer(str(request.getfixturevalue(model.fixture)), *flags) as server:
        yield Served(server, kind, name == "demo", references_of(name, server))


def test_prompts_at_once_equal_the_reference(served: Served) -> None:
    """All side by side; where the cache is small, some are preempted and computed again."""
    before = served.server.metrics()

    answers = served.ask_all_at_once()

    after = served.server.metrics()
    # A fast server may end the first requests before a busy client has sent the last: then nothing is scarce.
    while served.kind != "no cache" and after["num_preemptions_total"] == before["num_preemptions_total"]:
        assert len(answers) < 10 * len(served.prompts), "the small cache never preempts"
        answers += served.ask_all_at_once()
        after = served.server.metrics()
    assert_equal_while_sure(answers, served.references * (len(answers) // len(served.references)))
    assert {answer.finish_reason for answer in answers} == {"length"}
    preempted = after["num_preemptions_total"] - before["num_preemptions_total"]
    assert (preempted > 0) == (served.kind != "no cache")
    assert after["generation_tokens_total"] - before["generation_tokens_total"] == len(answers) * MAX_TOKENS
    assert after["kv_cache_usage_perc"] == 0


def test_prompts_alone_equal_the_reference(served: Served) -> None:
    """One after the other, from nothing; where there is a prefix cache, then from what it holds of each."""
    if served.kind == "no cache":
        answers = [served.ask(prompt) for prompt in served.prompts]

        assert {answer.cached_tokens for answer in answers} == {0}
        assert_equal_while_sure(answers, served.references)
        return
    # A large model answers only two of them: it takes seconds, and the others differ in nothing that a cache sees.
    for reference in served.references[:: 4 if served.is_large else 1]:
        served.ask(reference.prompt, max_tokens=1)
        answer = served.ask(reference.prompt)

        assert answer.cached_tokens == (len(reference.prompt) - 1) // BLOCK_SIZE * BLOCK_SIZE
        assert_equal_while_sure([answer], [reference])


@pytest.mark.demo
def test_heads_that_do_not_divide_are_refused_before_any_process_starts(demo_path: Path) -> None:
    """9 query and 3 key-value heads cannot be shared by 2 workers."""
    words = [sys.executable, "-m", "graftlm", "serve", str(demo_path), "--tensor-parallel-size", "2", "--port", "0"]
    done = subprocess.run(words, capture_output=True, text=True, timeout=200)

    assert done.returncode == 1
    last = done.stderr.splitlines()[-1]
    for part in ("--tensor-parallel-size=2", "9 attention heads", "3 key-value heads", "divide: 1, 3"):
        assert part in last
    assert "engine core" not in done.stderr
    assert "Traceback" not in done.stderr
