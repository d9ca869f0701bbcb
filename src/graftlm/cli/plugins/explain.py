"""`graftlm plugins explain`: who provides a thing, who else asked for it, and why not they.

It asks this machine, as a server with the same flags would, or with --url a running server what it did.
"""

from __future__ import annotations

import argparse
import json
from typing import TYPE_CHECKING, Any

import msgspec

from graftlm.cli.plugins import described, described_ops
from graftlm.cli.plugins.contenders import explain_contenders, taken
from graftlm.cli.plugins.explanation import Explanation, about, as_text
from graftlm.cli.plugins.kinds import KINDS, NAMED, label_of, require_name, split_question
from graftlm.cli.plugins.listing import try_to_start
from graftlm.cli.startup import (
    add_engine_flags,
    let_platform_extend,
    make_parser,
    refuse_beside_url,
    show_help_if_asked,
    start_logging,
)
from graftlm.config.arguments import ArgumentParser, join_switches, read_arguments, read_selection
from graftlm.config.options import engine_options
from graftlm.contracts.errors import GraftlmError
from graftlm.plugins.spelling import listing, nearest

if TYPE_CHECKING:
    from graftlm.processes.shutdown import ShutdownRequest

OPTIONS = engine_options()


class NothingOfThatName(GraftlmError):
    def __init__(self, name: str, *, kind: str, known: set[str], where: str) -> None:
        what = f"no {label_of(kind)}" if kind else "nothing"
        near = nearest(name, known) or (
            f"it has {listing(known, none='none')}" if kind else "see `graftlm plugins`"
        )
        super().__init__(f"{where} has {what} called {name!r}; {near}")


def build_parser() -> ArgumentParser:
    parser = make_parser("plugins explain", "Say who provides something, who else asked for it, and why not they.")
    parser.usage = "graftlm plugins explain [KIND] [NAME] [OPTION …]"
    parser.words_wanted = f"a kind, a name or both; the kinds are {', '.join(KINDS)}"
    parser.add_argument(
        "what", nargs="+", metavar="WHAT",
        help=f"A kind ({', '.join(KINDS)}) and a name, or any name alone. Without a name, a kind is explained as a "
        f"whole; {', '.join(NAMED)} need one, but for the model that --model or --url serves.",
    )  # fmt: skip
    parser.add_argument("--json", action="store_true", help="Print JSON instead of text.")
    parser.add_argument("--url", help="Ask a running server, such as http://127.0.0.1:8000, what it did.")
    parser.add_argument("--api-key", metavar="KEY", help="Key of that server (or GRAFTLM_API_KEY).")
    add_engine_flags(parser, OPTIONS)
    return parser


def run(argv: list[str], *, shutdown: ShutdownRequest) -> int:
    parser = build_parser()
    if show_help_if_asked(parser, argv):
        return 0
    words, _ = parser.parse_known_args(join_switches(argv))
    kind, name = split_question(words.what)
    if words.url is not None:
        refuse_beside_url(parser.parse_strictly(argv))
        explanations = _ask_server(words, kind, name)
    else:
        explanations = _ask_here(parser, argv, kind, name)
    if words.json:
        print(json.dumps([msgspec.to_builtins(e) for e in explanations], indent=2, ensure_ascii=False))
    else:
        print("\n\n".join(map(as_text, explanations)))
    return 1 if any(e.error for e in explanations) else 0


def _ask_server(words: argparse.Namespace, kind: str, name: str) -> list[Explanation]:
    from graftlm.cli.plugins.ask_server import fetch_description
    from graftlm.config.environment import get

    description = fetch_description(words.url, api_key=words.api_key or get("GRAFTLM_API_KEY"))
    if kind == "model":
        name = name or described.served_architecture(description)
    require_name(kind, name)
    found = explain_described(description, kind, name)
    if not found:
        known = described.names_in(description, kind)
        raise NothingOfThatName(name, kind=kind, known=known, where=f"the server at {words.url}")
    return found


def explain_described(description: dict[str, Any], kind: str, name: str) -> list[Explanation]:
    """Explain what a server said of itself; an empty list where it said nothing of `name`."""
    match kind:
        case "platform":
            return about(described.explain_platform(description), name)
        case "model":
            return _if_known(described.explain_model(description, name))
        case "op":
            op = described_ops.explain_op(description, name)
            return _if_known(op, known=name in described.names_in(description, kind))
        case "kernel":
            kernel = described_ops.explain_kernels(description, name)
            return _if_known(kernel, known=name in ("", *described.names_in(description, kind)))
        case "attention":
            return about(described_ops.explain_attention(description), name)
        case "plugin":
            return described.explain_plugins(description, name)
        case "":
            found = described.explain_plugins(description, name)
            model = [] if found else _if_known(described.explain_model(description, name))
            op = described_ops.explain_op(description, name)
            kernel = described_ops.explain_kernels(description, name)
            return [*found, *model, *_if_known(op), *_if_known(kernel)]
    chosen = taken(description, kind)
    return about(explain_contenders(description, kind, chosen=chosen, why="this server took it"), name)


def _if_known(explanation: Explanation, *, known: bool = False) -> list[Explanation]:
    """Leave out what nobody has a word on: a name that is none."""
    return [explanation] if known or explanation.candidates else []


def _ask_here(parser: ArgumentParser, argv: list[str], kind: str, name: str) -> list[Explanation]:
    from graftlm.cli.plugins.ask_here import Asked, explain_here

    selection = read_selection(argv, options=OPTIONS)
    start_logging(selection, default_levels=["error"])
    host, error = try_to_start(selection)
    if host is None:
        assert error is not None
        raise error
    description = {**host.describe(), "events": host.events()}
    if error is not None:
        if kind not in ("platform", "plugin"):
            raise error
        found = explain_described(description, kind, name)
        if not found:
            raise error
        return [msgspec.structs.replace(e, error=str(error)) for e in found]
    let_platform_extend(parser)
    arguments, _ = read_arguments(parser, argv, options=OPTIONS)
    asked = Asked(host, arguments)
    if kind == "model" and asked.has_model:
        name = name or asked.config.model.architecture
    require_name(kind, name)
    found = explain_here(asked, kind, name)
    if not found:
        raise NothingOfThatName(name, kind=kind, known=asked.known_names(kind), where="this installation")
    return found
