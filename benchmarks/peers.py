"""`python -m benchmarks.peers`: one client against graftlm and other engines, in one run.

Each engine lives in an environment of its own, given by path; one that is not given is left out. All get the same
prompts, threads, slots and context, greedy, and their tokens are those that each server counts. Rounds are
interleaved and each launches every engine anew. The table shows medians, and how many times better graftlm is.

    python -m benchmarks.peers --llama-server PATH --vllm-python ENVIRONMENT --transformers --rounds 3 --write-docs
    python -m benchmarks.peers --also 'graftlm:fp32=--dtype float32' --also 'vllm:eager=--enforce-eager'
"""

from __future__ import annotations

import argparse
import functools
import sys
import tempfile
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from benchmarks import engines
from benchmarks.commands import run_command, say
from benchmarks.engines import Flags, Terms
from benchmarks.export import export
from benchmarks.loads import LOADS, ROWS, START_ROW, VOCABULARY, check_rows
from benchmarks.peer import Peer
from benchmarks.rounds import measure_rounds
from benchmarks.tables import as_json, comparison, page, print_and_keep, read_around, write_between
from benchmarks.transformers_peer import TransformersPeer, installed_version
from graftlm.cli.bench import report
from graftlm.cli.output_file import check_writable
from graftlm.contracts.errors import GraftlmError
from graftlm.models.sources import resolve_model
from graftlm.processes.threads import usable_cores

PAGE = Path(__file__).parents[1] / "docs" / "performance.md"
PART = "peers"
OURS = "graftlm"


def build_parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.peers", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    add = parser.add_argument
    add("--rounds", type=int, default=3, metavar="N", help="launches of each engine (default: 3)")
    add("--rows", nargs="+", choices=ROWS, default=list(ROWS), help="rows to measure (default: all)")
    add("--quick", action="store_true", help="one round of short loads: does everything work?")
    add("--threads", type=int, default=usable_cores(), metavar="N", help="of each engine (default: all cores)")
    add("--slots", type=int, default=32, metavar="N", help="requests in progress at once (default: 32)")
    add("--context", type=int, default=2048, metavar="N", help="tokens of a slot (default: 2048)")
    add("--model", default="demo", help="for graftlm: demo, a .gguf file or a directory (default: demo)")
    add("--vocab-size", type=int, default=VOCABULARY, metavar="N", help="prompts' ids are drawn below this")
    add("--graftlm-python", default=sys.executable, metavar="PATH", help="its environment (default: this one)")
    add("--llama-server", metavar="PATH", help="llama.cpp's llama-server")
    add("--llama-model", metavar="FILE", help="its .gguf file (default: the model's own file)")
    add("--vllm-python", metavar="PATH", help="vLLM's environment; it gets the model as fp32 safetensors")
    add("--transformers", action="store_true", help="`transformers` generate of this environment, fp32")
    add("--also", action="append", default=[], metavar="KIND:NAME=FLAGS",
        help="one more graftlm, llama.cpp or vLLM with these flags; NAME=VALUE in front: variables")  # fmt: skip
    add("--json", metavar="FILE", help="also write every figure of every round; - is standard output")
    add("--write-docs", nargs="?", const=PAGE, type=Path, metavar="FILE",
        help=f"also write the table between the markers of a page (default: docs/{PAGE.name})")  # fmt: skip
    add("arguments", nargs="*", metavar="-- FLAG", help="more flags of `graftlm serve` for all graftlm variants")
    return parser


def main(argv: Sequence[str] | None = None) -> int:
    """Return 0, or 1 when nothing of graftlm could be measured, or 2 for a wrong command line."""
    options = build_parser().parse_args(argv)
    return run_command("benchmarks.peers", lambda: compare(options), json_file=options.json)


def check(options: argparse.Namespace) -> None:
    """Refuse what would be found out after minutes."""
    if min(options.rounds, options.threads, options.slots, options.context) < 1:
        raise GraftlmError("--rounds, --threads, --slots and --context: use 1 or more")
    check_rows(options.rows, vocab_size=options.vocab_size)
    if options.quick and options.write_docs:
        raise GraftlmError("--quick measures nothing worth writing down; leave --write-docs out")
    if options.write_docs:
        read_around(options.write_docs, PART)
        check_writable("--write-docs", str(options.write_docs))


def compare(options: argparse.Namespace) -> int:
    """Measure everything, show it, write it down."""
    check(options)
    with tempfile.TemporaryDirectory(prefix="graftlm-bench-") as folder:
        terms = Terms(
            threads=options.threads, slots=options.slots, context=options.context, scratch=Path(folder) / "engines"
        )
        peers = build_peers(options, terms, Checkpoints(options.model, Path(folder) / "checkpoint"))
        rounds = 1 if options.quick else options.rounds
        settings = {
            "rounds": rounds, "rows": options.rows, "threads": terms.threads, "slots": terms.slots,
            "context": terms.context, "model": options.model, "quick": options.quick,
        }  # fmt: skip
        result: dict[str, Any] = report.stamp("peers", settings)
        result["peers"] = {peer.name: {"version": peer.version, "settings": peer.settings} for peer in peers}
        loads = [load.shortened() if options.quick else load for load in LOADS if load.key in options.rows]
        results = measure_rounds(
            peers, loads, rounds=rounds, start_row=START_ROW in options.rows, vocab_size=options.vocab_size
        )
    result |= as_json(results, ours=OURS)
    text = page(result, comparison(results, ours=OURS), results.failures)
    print_and_keep(result, text, options.json)
    for name, rows in results.failures.items():
        for row, words in rows.items():
            print(f"\n{name} failed at {row!r}:\n{words}", file=sys.stderr)
    if not results.figures[OURS]:
        return 1
    if options.write_docs:
        write_between(options.write_docs, PART, text)
    return 0


class Checkpoints:
    """The model as each engine can read it, brought here and exported only when somebody needs it."""

    def __init__(self, model: str, folder: Path) -> None:
        self._model = model
        self._folder = folder

    @functools.cached_property
    def own(self) -> Path:
        return resolve_model(self._model, progress=True)

    @functools.cached_property
    def safetensors(self) -> Path:
        if self.own.suffix != ".gguf":
            return self.own
        say("exporting the model as fp32 safetensors")
        export(self.own, self._folder)
        return self._folder


def build_peers(options: argparse.Namespace, terms: Terms, checkpoints: Checkpoints) -> list[Peer]:
    """Return the engines that were given, graftlm first, each followed by its variants."""
    makers: dict[str, Callable[[str, Flags], Peer]] = {}
    python = engines.interpreter(options.graftlm_python)
    makers[OURS] = lambda name, flags: engines.graftlm(
        name, python=python, model=options.model, terms=terms, flags=flags.after(options.arguments)
    )
    if options.llama_server:
        server = engines.program(options.llama_server)
        gguf = engines.existing(options.llama_model or str(checkpoints.own))
        makers["llama.cpp"] = lambda name, flags: engines.llama_cpp(
            name, server=server, model=gguf, terms=terms, flags=flags
        )
    if options.vllm_python:
        vllm_python = engines.interpreter(options.vllm_python)
        engines.vllm_version(vllm_python)  # before the model is exported for it
        makers["vLLM"] = lambda name, flags: engines.vllm(
            name, python=vllm_python, checkpoint=checkpoints.safetensors, terms=terms, flags=flags
        )
    variants = [parse_variant(text, list(makers)) for text in options.also]
    names = [(kind, name) for kind, name, _ in variants]
    if twice := next((name for name in names if names.count(name) > 1), None):
        raise GraftlmError(f"--also names {' '.join(twice)!r} twice; give each its own name")
    peers = []
    for kind, make in makers.items():
        peers.append(make(kind, Flags()))
        peers += [make(f"{kind} {name}", flags) for of, name, flags in variants if of == kind]
    if options.transformers:
        installed_version()
        peers.append(TransformersPeer(checkpoints.safetensors, terms.threads))
    return peers


def parse_variant(text: str, kinds: Sequence[str]) -> tuple[str, str, Flags]:
    """Read KIND:NAME=FLAGS."""
    word, colon, rest = text.partition(":")
    name, equals, flags = rest.partition("=")
    kind = next((kind for kind in kinds if kind.lower() == word.lower()), None)
    if not (colon and equals and name):
        raise GraftlmError(f"--also={text!r}: write KIND:NAME=FLAGS, such as 'graftlm:fp32=--dtype float32'")
    if kind is None:
        raise GraftlmError(
            f"--also={text!r}: there is no {word!r} in this run, only {', '.join(kinds)}; say where it is"
        )
    try:
        return kind, name, Flags.parse(flags)
    except ValueError as error:
        raise GraftlmError(f"--also={text!r}: the flags are no shell words ({error})") from None


if __name__ == "__main__":
    sys.exit(main())
