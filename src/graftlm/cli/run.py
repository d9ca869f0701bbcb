"""`graftlm run MODEL [-p TEXT]`: a streaming chat in the terminal, or one answer and exit.

It knows words, not tokens: `cli/chat_engine.py` answers with an engine of its own, `cli/chat_server.py` asks a
running server.
"""

from __future__ import annotations

import argparse
import contextlib
import sys
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING

from graftlm.cli.chat import LONGEST_ANSWER, ChatBackend, ChatSettings, Message
from graftlm.cli.startup import (
    add_engine_flags,
    make_parser,
    refuse_beside_url,
    show_help_if_asked,
    start_engine_command,
)
from graftlm.config.arguments import ArgumentParser, UsageError, read_arguments
from graftlm.config.environment import get
from graftlm.config.options import engine_options
from graftlm.contracts.errors import GraftlmError, InvalidParameter

if TYPE_CHECKING:
    from graftlm.processes.shutdown import ShutdownRequest

OPTIONS = engine_options()
#: What may be said beside --url: the server has decided the rest.
_WITH_URL = ("model.model", "model.seed", "observability.log_level", "observability.log_format")


class NotText(GraftlmError):
    """What was to be read is no UTF-8."""

    def __init__(self, what: str, *, problem: str) -> None:
        super().__init__(f"{what} is no UTF-8 text ({problem}); send UTF-8")


def build_parser() -> ArgumentParser:
    parser = make_parser(
        "run",
        "Chat with a model in the terminal; an empty line or Ctrl-D ends it.",
        model_help="Model to run, or with --url the name of one that the server serves (default: demo).",
    )
    parser.add_argument("-p", "--prompt", metavar="TEXT", help="Answer this and exit; - reads it from stdin.")
    parser.add_argument("--system", metavar="TEXT", help="System message at the start of the chat.")
    parser.add_argument(
        "--url", help="Ask a running server, such as http://127.0.0.1:8000, instead of loading MODEL."
    )
    parser.add_argument("--api-key", metavar="KEY", help="Key of that server (or GRAFTLM_API_KEY).")
    parser.add_argument(
        "--max-tokens", type=int, metavar="N",
        help=f"Longest answer (default: {LONGEST_ANSWER}, or what there is room for; with --url the server's).",
    )  # fmt: skip
    parser.add_argument("--temperature", type=float, default=0.7, metavar="X", help="0 is greedy (default: 0.7).")
    parser.add_argument(
        "--top-p", type=float, default=0.95, metavar="X", help="Nucleus to draw from (default: 0.95)."
    )
    add_engine_flags(parser, OPTIONS)
    return parser


def run(argv: list[str], *, shutdown: ShutdownRequest) -> int:
    parser = build_parser()
    if show_help_if_asked(parser, argv):
        return 0
    backend, words = _connect(parser, argv) if _names_a_server(argv) else _start(argv, shutdown)
    with backend:
        messages: list[Message] = [{"role": "system", "content": words.system}] if words.system else []
        if words.prompt is not None:
            text = read_text() if words.prompt == "-" else words.prompt
            answer(backend, [*messages, {"role": "user", "content": text}])
        else:
            chat(backend, messages)
    return 0


def read_text() -> str:
    """Read all of stdin."""
    with _reading_text():
        return _as_text(sys.stdin.read())


@contextlib.contextmanager
def _reading_text() -> Iterator[None]:
    try:
        yield
    except UnicodeError as error:
        raise NotText("stdin", problem=str(error)) from None


def _as_text(text: str) -> str:
    """Return `text`; raises UnicodeEncodeError where the locale let bytes through that are no characters."""
    text.encode()
    return text


def answer(backend: ChatBackend, messages: Sequence[Message]) -> str:
    """Print the answer while it is made, and return it; that it was cut is said beside it, on stderr."""
    pieces = []
    try:
        for piece in backend.stream(messages):
            pieces.append(piece)
            print(piece, end="", flush=True)
    except BaseException:  # what ends it is said on a line of its own
        if pieces:
            print(flush=True)
        raise
    print(flush=True)
    if backend.cut_at:
        print(f"(cut at {backend.cut_at})", file=sys.stderr)
    return "".join(pieces)


def chat(backend: ChatBackend, messages: list[Message]) -> None:
    """Take turns with the person at the terminal until an empty line or the end of input."""
    tty = sys.stdin.isatty()
    if tty:
        print(f"{backend.model}: say something; an empty line ends the chat.", file=sys.stderr)
    while True:
        try:
            with _reading_text():
                text = _as_text(input("> " if tty else ""))
        except EOFError:
            return
        if not text.strip():
            return
        messages.append({"role": "user", "content": text})
        messages.append({"role": "assistant", "content": answer(backend, messages)})


def _names_a_server(argv: Sequence[str]) -> bool:
    return any(word == "--url" or word.startswith("--url=") for word in argv)


def _settings(words: argparse.Namespace, seed: int | None) -> ChatSettings:
    """Judge how answers are to be drawn, before anything slow happens."""
    settings = ChatSettings(
        max_tokens=words.max_tokens, temperature=words.temperature, top_p=words.top_p, seed=seed
    )
    try:
        settings.sampling_params()
    except InvalidParameter as error:
        raise UsageError("--" + str(error).replace("_", "-", 1)) from None
    return settings


def _connect(parser: ArgumentParser, argv: Sequence[str]) -> tuple[ChatBackend, argparse.Namespace]:
    from graftlm.cli.chat_server import ServerChat

    arguments, words = read_arguments(parser, argv, options=OPTIONS)
    refuse_beside_url(words, allowed=_WITH_URL)
    given = arguments.values
    key = words.api_key or get("GRAFTLM_API_KEY")
    settings = _settings(words, given.get("model.seed"))
    return ServerChat(words.url, model=given.get("model.model"), api_key=key, settings=settings), words


def _start(argv: list[str], shutdown: ShutdownRequest) -> tuple[ChatBackend, argparse.Namespace]:
    from graftlm.cli.chat_engine import EngineChat

    started = start_engine_command(build_parser, argv, options=OPTIONS, default_levels=["warning"])
    assert started is not None
    words = started.words
    if words.api_key is not None:
        raise UsageError("--api-key has no effect without --url: a model of one's own asks for none")
    settings = _settings(words, started.arguments.values.get("model.seed"))
    return EngineChat(started.arguments.engine_config(), started.host, settings=settings, shutdown=shutdown), words
