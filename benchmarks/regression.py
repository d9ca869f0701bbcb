"""`make bench-check BASE=REV`: is this commit slower than an earlier one? Both are measured in one interleaved run.

Each commit is unpacked into a folder with an environment of its own. Each round launches both servers anew, one
after the other, the other one first in the next round, and sends both the same prompts. A figure counts as slower
when its ratios cannot be explained by their own spread (see `benchmarks/evidence.py`) *and* the median ratio is
beyond --tolerance. What is not committed is not measured.

exit codes: 0 nothing is slower · 1 something is slower · 2 wrong command line, or it could not be measured
"""

from __future__ import annotations

import argparse
import math
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path

from benchmarks import engines
from benchmarks.checkouts import Checkout, check_out, commit_of, differ, git, installed_kernels_are_of
from benchmarks.commands import run_command, say
from benchmarks.evidence import FAMILY_ERROR, TOLERANCE, Finding, fewest_rounds, judge
from benchmarks.loads import LOADS, ROWS, START_ROW, VOCABULARY, Figure, check_rows
from benchmarks.rounds import Results, measure_rounds
from benchmarks.tables import as_json, markdown, print_and_keep, with_spread
from graftlm.cli.bench import report
from graftlm.contracts.errors import GraftlmError

BEFORE, NOW = "before", "now"
SLOWER = 1
#: Tails need more requests than a guard can wait for.
_NOT_JUDGED = ("p99",)


def build_parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.regression",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    add = parser.add_argument
    add("--base", default="HEAD~1", metavar="REV", help="the earlier commit (default: HEAD~1)")
    add("--head", default="HEAD", metavar="REV", help="the commit in question (default: HEAD)")
    add("--rounds", type=int, default=12, metavar="N", help="launches of each (default: 12)")
    add("--rows", nargs="+", choices=ROWS, default=[START_ROW, "1", "8"], help="to measure (default: start 1 8)")
    add("--quick", action="store_true", help="short loads")
    add("--tolerance", type=float, default=TOLERANCE, metavar="X", help="slower by less is let be (default: 0.03)")
    add("--family-error", type=float, default=FAMILY_ERROR, metavar="P",
        help="chance of any false alarm in a run (default: 0.01)")  # fmt: skip
    add("--model", default="demo", help="MODEL of `graftlm serve` (default: demo)")
    add("--vocab-size", type=int, default=VOCABULARY, metavar="N", help="prompts' ids are drawn below this")
    add("--repository", type=Path, default=Path(__file__).parents[1], metavar="DIR", help="default: this one")
    add("--json", metavar="FILE", help="also write every figure of every round; - is standard output")
    return parser


def main(argv: Sequence[str] | None = None) -> int:
    options = build_parser().parse_args(argv)

    def run() -> int:
        with tempfile.TemporaryDirectory(prefix="graftlm-bench-") as folder:
            return guard(options, Path(folder))

    return run_command("benchmarks.regression", run, json_file=options.json)


def check(options: argparse.Namespace) -> None:
    """Refuse what would be found out after minutes."""
    check_rows(options.rows, vocab_size=options.vocab_size)
    if not 0 < options.family_error < 1:
        raise GraftlmError(f"--family-error={options.family_error}: use a probability above 0 and below 1")
    if not 0 <= options.tolerance < math.inf:
        raise GraftlmError(f"--tolerance={options.tolerance}: use a part such as 0.03, or 0")


def guard(options: argparse.Namespace, folder: Path) -> int:
    """Measure both commits, print the table, return the exit code."""
    check(options)
    needed = fewest_rounds(judged_figures(options.rows), family_error=options.family_error)
    if options.rounds < needed:
        raise GraftlmError(
            f"--rounds={options.rounds}: no difference can be told from chance; use {needed} or more"
        )
    base, head = check_out_both(options, folder)
    loads = [load.shortened() if options.quick else load for load in LOADS if load.key in options.rows]
    peers = [
        engines.graftlm_serve(name, python=checkout.python, words=[options.model], scratch=folder, environment={})
        for name, checkout in ((BEFORE, base), (NOW, head))
    ]
    result = report.stamp("regression", {"base": base.commit, "head": head.commit, "rounds": options.rounds,
                                         "tolerance": options.tolerance, "family_error": options.family_error,
                                         "model": options.model})  # fmt: skip
    results = measure_rounds(
        peers, loads, rounds=options.rounds, start_row=START_ROW in options.rows, vocab_size=options.vocab_size,
        all_needed=True,
    )  # fmt: skip
    for name, rows in results.failures.items():
        for row, words in rows.items():
            raise GraftlmError(f"the commit of {name!r} failed at {row!r}: {words}")
    findings = judge_results(results, tolerance=options.tolerance, family_error=options.family_error)
    result |= as_json(results, ours=NOW)
    result["findings"] = {figure.title: finding._asdict() for figure, finding in findings.items()}
    print_and_keep(result, show(results, findings, base, head), options.json)
    return SLOWER if any(finding.verdict == "slower" for finding in findings.values()) else 0


def check_out_both(options: argparse.Namespace, folder: Path) -> tuple[Checkout, Checkout]:
    repository = options.repository
    base, head = commit_of(repository, options.base), commit_of(repository, options.head)
    if git(repository, "status", "--porcelain", "--untracked-files=no"):
        say("note: changes that are not committed are not measured")
    build_kernels = differ(repository, base, head, "kernels") or not installed_kernels_are_of(repository, head)
    say("building the kernels of both" if build_kernels else "both use the installed kernels")
    return (
        check_out(repository, base, folder / BEFORE, build_kernels=build_kernels),
        check_out(repository, head, folder / NOW, build_kernels=build_kernels),
    )


def judged_figures(rows: Sequence[str]) -> int:
    """Count what will be judged: two at start, three of each load of streams, one of each load of prompts."""
    return sum(2 if row == START_ROW else 1 if row.startswith("pre") else 3 for row in rows)


def judge_results(results: Results, *, tolerance: float, family_error: float) -> dict[Figure, Finding]:
    """Judge how many times better each figure was before."""
    figures = {
        figure.title: figure for figure in results.all_figures() if not any(w in figure.title for w in _NOT_JUDGED)
    }
    ratios = {title: results.ratios(BEFORE, NOW, figure) for title, figure in figures.items()}
    ratios = {title: values for title, values in ratios.items() if values}  # a figure of 0 compares with nothing
    found = judge(ratios, tolerance=tolerance, family_error=family_error)
    return {figures[title]: finding for title, finding in found.items()}


def show(results: Results, findings: dict[Figure, Finding], base: Checkout, head: Checkout) -> str:
    """Return both commits, the table and the sentence that sums it up."""
    rows = [
        (figure.title, with_spread(results.values(BEFORE, figure)), with_spread(results.values(NOW, figure)),
         f"{f.median:.3f} ({f.lowest:.3f}…{f.highest:.3f})", f"{f.p_slower:.2g}", f.verdict)
        for figure, f in findings.items()
    ]  # fmt: skip
    slower = [figure.title for figure, finding in findings.items() if finding.verdict == "slower"]
    return "\n".join(
        [
            f"before  {base.commit[:12]}  {base.subject}",
            f"now     {head.commit[:12]}  {head.subject}",
            "",
            markdown(["", BEFORE, NOW, "worse by", "chance of it", ""], rows),
            "",
            f"slower: {'; '.join(slower)}" if slower else "nothing is slower beyond its own spread",
        ]
    )


if __name__ == "__main__":
    sys.exit(main())
