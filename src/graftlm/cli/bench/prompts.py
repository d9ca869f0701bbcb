"""The prompts of a load: random ones of fixed or drawn lengths, with shared prefixes, or a file of JSON lines.

It does not know who is asked. The same seed gives the same prompts.
"""

from __future__ import annotations

import json
import random
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import msgspec

from graftlm.config.errors import InvalidOption

#: Special tokens live among the first ids of most vocabularies.
_FIRST_ID = 1000

#: Short words, which most tokenizers know whole, so that a word is about a token.
_WORDS = [
    "the", "of", "and", "to", "in", "is", "you", "that", "it", "he", "was", "for", "on", "are", "as", "with",
    "his", "they", "at", "be", "this", "have", "from", "or", "one", "had", "by", "word", "but", "not", "what",
    "all", "were", "we", "when", "your", "can", "said", "there", "use", "an", "each", "which", "she", "do",
    "how", "their", "if", "will", "up", "other", "about", "out", "many", "then", "them", "these", "so", "some",
    "her", "would", "make", "like", "him", "into", "time", "has", "look", "two", "more", "write", "go", "see",
    "number", "no", "way", "could", "people", "my", "than", "first", "water", "been", "call", "who", "oil",
    "its", "now", "find", "long", "down", "day", "did", "get", "come", "made", "may", "part",
]  # fmt: skip


class Prompt(msgspec.Struct, kw_only=True):
    """One request to make: the text or the ids, and how many tokens are to come."""

    prompt: str | list[int] | list[dict[str, Any]]
    output_len: int


class RandomPrompts(msgspec.Struct, kw_only=True, frozen=True):
    """What random prompts are like. A `range_ratio` of r draws each length from [len·(1−r), len·(1+r)]."""

    input_len: int = 128
    output_len: int = 128
    range_ratio: float = 0.0
    prefix_len: int = 0
    num_prefixes: int = 1
    vocab_size: int = 32_000
    as_text: bool = False

    def make(self, count: int, *, seed: int) -> list[Prompt]:
        """Make `count` prompts; those with the same prefix follow each other in turn."""
        generator = random.Random(seed)
        prefixes = [self._tokens(self.prefix_len, generator) for _ in range(max(1, self.num_prefixes))]
        made = []
        for index in range(count):
            own = self._tokens(self._length(self.input_len, generator), generator)
            tokens = [*prefixes[index % len(prefixes)], *own]
            prompt: Any = " ".join(_WORDS[t % len(_WORDS)] for t in tokens) if self.as_text else tokens
            made.append(Prompt(prompt=prompt, output_len=self._length(self.output_len, generator)))
        return made

    def _length(self, middle: int, generator: random.Random) -> int:
        low, high = int(middle * (1 - self.range_ratio)), int(middle * (1 + self.range_ratio))
        return max(1, generator.randint(low, high))

    def _tokens(self, count: int, generator: random.Random) -> list[int]:
        first = min(_FIRST_ID, self.vocab_size // 2)
        return [generator.randrange(first, self.vocab_size) for _ in range(count)]


def read_prompts(path: str, *, count: int, output_len: int, chat: bool) -> list[Prompt]:
    """Read a file of JSON lines, each with "prompt" or "messages"; repeat them up to `count`."""
    try:
        lines = [line for line in Path(path).read_text(encoding="utf-8").splitlines() if line.strip()]
    except (OSError, UnicodeDecodeError) as error:
        raise InvalidOption("--dataset-path", path, problem=f"it cannot be read ({error})") from None
    if not lines:
        raise InvalidOption("--dataset-path", path, problem="it has no lines")
    prompts = [_read_line(line, f"{path}:{number}", output_len, chat) for number, line in enumerate(lines, 1)]
    return [prompts[index % len(prompts)] for index in range(count)]


def _read_line(line: str, where: str, output_len: int, chat: bool) -> Prompt:
    cure = 'write {"prompt": "…"} or {"messages": […]}, with "output_len": N if you like'
    try:
        data = json.loads(line)
        prompt = data.get("messages") if chat and "messages" in data else data["prompt"]
        length = int(data.get("output_len") or data.get("output_tokens") or output_len)
    except (ValueError, KeyError, AttributeError, TypeError) as error:
        raise InvalidOption("--dataset-path", where, problem=f"it is no prompt ({error!r})", cure=cure) from None
    return Prompt(prompt=prompt, output_len=length)


def as_body(prompt: Prompt, *, model: str, chat: bool, extra: dict[str, Any]) -> dict[str, Any]:
    """Return what is posted for a prompt."""
    body: dict[str, Any] = {"model": model, "max_tokens": prompt.output_len, **extra}
    if not chat:
        return {**body, "prompt": prompt.prompt}
    text = prompt.prompt
    messages = [{"role": "user", "content": text}] if isinstance(text, str) else text
    return {**body, "messages": messages}


def lengths_of(prompts: Sequence[Prompt]) -> int:
    """Add up the tokens that were asked for."""
    return sum(prompt.output_len for prompt in prompts)
