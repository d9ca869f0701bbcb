"""`python -m benchmarks.client_check`: do the numbers of `graftlm bench serve` agree with those of another client?

Both load the same server with as many distinct prompts at once, in turn, the other one first in the next round.
They disagree when a figure's ratios cannot be explained by their own spread (see `benchmarks/evidence.py`) and
their median is beyond --tolerance. The first client may cost at most --client-share of one core.

exit codes: 0 they agree and it is cheap · 1 they do not, or it is not · 2 it could not be measured
"""

from __future__ import annotations

import argparse
import json
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from benchmarks.commands import run_command, say
from benchmarks.evidence import Finding, fewest_rounds, judge
from benchmarks.loads import VOCABULARY
from benchmarks.tables import markdown, print_and_keep, with_spread
from graftlm.cli.bench import report
from graftlm.cli.bench.launch import LaunchedServer
from graftlm.cli.bench.prompts import RandomPrompts
from graftlm.contracts.errors import GraftlmError

OURS, OTHER = "graftlm bench serve", "second client"
COST = "client, of one core"
_FAMILY_ERROR = 0.05

Figures = dict[str, float]


def build_parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.client_check", description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )  # fmt: skip
    add = parser.add_argument
    add("--rounds", type=int, default=10, metavar="N", help="loads by each client (default: 10)")
    add("--streams", type=int, default=32, metavar="N", help="requests at once (default: 32)")
    add("--output-len", type=int, default=128, metavar="N", help="tokens of an answer (default: 128)")
    add("--tolerance", type=float, default=0.02, metavar="X", help="they may differ by this (default: 0.02)")
    add(
        "--client-share", type=float, default=0.05, metavar="X", help="of a core that ours may cost (default: 0.05)"
    )
    add("--model", default="demo", help="MODEL of `graftlm serve` (default: demo)")
    add("--vocab-size", type=int, default=VOCABULARY, metavar="N", help="prompts' ids are drawn below this")
    add("--json", metavar="FILE", help="also write every figure of every round; - is standard output")
    add("arguments", nargs="*", metavar="-- FLAG", help="more flags of `graftlm serve`")
    return parser


def main(argv: Sequence[str] | None = None) -> int:
    options = build_parser().parse_args(argv)
    return run_command("benchmarks.client_check", lambda: check(options), json_file=options.json)


def check(options: argparse.Namespace) -> int:
    """Measure with both clients in turn, print the table, return the exit code."""
    needed = fewest_rounds(6, family_error=_FAMILY_ERROR)
    if options.rounds < needed:
        raise GraftlmError(
            f"--rounds={options.rounds}: no difference can be told from chance; use {needed} or more"
        )
    figures: dict[str, list[Figures]] = {OURS: [], OTHER: []}
    with (
        tempfile.TemporaryDirectory(prefix="graftlm-bench-") as folder,
        LaunchedServer([options.model, *options.arguments]) as server,
    ):
        server.wait_for_first_token()
        for turn in range(-1, options.rounds):  # the first of all is a warm-up
            clients = list(CLIENTS.items())
            for place, (name, client) in enumerate(clients if turn % 2 else clients[::-1]):
                prompts = write_prompts(Path(folder), options, seed=2 * turn + place + 10)
                found = client(server.url, prompts, options)
                say(
                    f"round {turn + 1} of {options.rounds}: {name}: "
                    + " · ".join(f"{v:.4g}" for v in found.values())
                )
                if turn >= 0:
                    figures[name].append(found)
    findings = agreement(figures, tolerance=options.tolerance)
    cost = statistics.median(found[COST] for found in figures[OURS])
    result = report.stamp("client_check", {"rounds": options.rounds, "streams": options.streams}) | {
        "figures": figures, "findings": {name: finding._asdict() for name, finding in findings.items()},
    }  # fmt: skip
    print_and_keep(result, show(figures, findings, limit=options.client_share), options.json)
    agreed = all(finding.verdict == "same" for finding in findings.values())
    return 0 if agreed and cost < options.client_share else 1


def write_prompts(folder: Path, options: argparse.Namespace, *, seed: int) -> Path:
    """Write distinct prompts, other ones for each load: the prefix cache must not answer."""
    file = folder / "prompts.jsonl"
    made = RandomPrompts(vocab_size=options.vocab_size).make(options.streams, seed=seed)
    file.write_text("".join(json.dumps({"prompt": prompt.prompt}) + "\n" for prompt in made))
    return file


def ours(url: str, prompts: Path, options: argparse.Namespace) -> Figures:
    found = run_json(
        "graftlm", "bench", "serve", f"--url={url}", f"--dataset-path={prompts}", "--num-warmups=0",
        f"--num-prompts={options.streams}", f"--output-len={options.output_len}",
        "--metric-percentiles=50,99", "--json=-",
    )  # fmt: skip
    return {
        "output tok/s": found["output_tokens_per_s"],
        "TTFT p50, ms": found["ttft_ms"]["p50"],
        "TTFT p99, ms": found["ttft_ms"]["p99"],
        "ITL p50, ms": found["itl_ms"]["p50"],
        "ITL p99, ms": found["itl_ms"]["p99"],
        "E2E p50, ms": found["e2el_ms"]["p50"],
        COST: found["client_cpu_share"],
    }


def other(url: str, prompts: Path, options: argparse.Namespace) -> Figures:
    found: Figures = run_json("benchmarks.second_client", url, str(prompts), str(options.output_len))
    return found


CLIENTS: Mapping[str, Callable[[str, Path, argparse.Namespace], Figures]] = {OURS: ours, OTHER: other}


def run_json(*words: str) -> Any:
    """Run a module of this environment and read what it prints."""
    done = subprocess.run(
        [sys.executable, "-m", *words], capture_output=True, text=True, cwd=Path(__file__).parents[1]
    )
    if done.returncode != 0:
        raise GraftlmError(f"{words[0]} failed: {done.stderr.strip()[-800:]}")
    return json.loads(done.stdout)


def agreement(figures: Mapping[str, Sequence[Figures]], *, tolerance: float) -> dict[str, Finding]:
    """Judge ours by the other's, figure by figure; what a client costs is its own affair."""
    names = [name for name in figures[OURS][0] if name != COST]
    ratios = {
        name: [mine[name] / theirs[name] for mine, theirs in zip(figures[OURS], figures[OTHER], strict=True)]
        for name in names
    }
    return judge(ratios, family_error=_FAMILY_ERROR, tolerance=tolerance)


def show(figures: Mapping[str, Sequence[Figures]], findings: Mapping[str, Finding], *, limit: float) -> str:
    """Return the table and the two sentences that sum it up."""

    def column(name: str, figure: str) -> list[float]:
        return [found[figure] for found in figures[name]]

    rows = [
        (name, with_spread(column(OURS, name)), with_spread(column(OTHER, name)),
         f"{f.median:.3f} ({f.lowest:.3f}…{f.highest:.3f})", f"{min(f.p_slower, f.p_faster):.2g}",
         "agree" if f.verdict == "same" else "differ")
        for name, f in findings.items()
    ]  # fmt: skip
    costs = [(COST, *(with_spread(column(name, COST)) for name in (OURS, OTHER)), "", "", "")]
    differ = [name for name, finding in findings.items() if finding.verdict != "same"]
    share = 100 * statistics.median(column(OURS, COST))
    return "\n".join(
        [
            markdown(["", OURS, OTHER, "ratio", "chance of it", ""], [*rows, *costs]),
            "",
            f"the clients differ in {'; '.join(differ)}" if differ else "the clients agree within the spread",
            f"`graftlm bench serve` costs {share:.1f} % of a core, {100 * limit:g} % are allowed",
        ]
    )


if __name__ == "__main__":
    sys.exit(main())
