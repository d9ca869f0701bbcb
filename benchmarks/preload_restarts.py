"""`python -m benchmarks.preload_restarts`: does every restart from a warm parent run the plugin that is on disk?

A plugin package with a general plugin and a replaced op is edited before every third of fifty restarts, by a digit,
so that the file keeps its length. Each process writes down which edit it runs; a wrong one is counted. One in ten
times a server without the plugin starts too, from the weights that the parent holds, and a cold one. Shown
are seconds from launch to first token; `import torch` of the same minute is the measure of the machine.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import statistics
import subprocess
import sys
import tempfile
import textwrap
from collections.abc import Iterator, Sequence
from pathlib import Path

from graftlm.cli.bench.launch import ServerProcess
from graftlm.cli.bench.startup import seconds_of
from graftlm.plugins.spelling import counted

OP = "graftlm.layers.activation.SiluAndMul"
FILES = {
    "restarts/__init__.py": "",
    "restarts/general.py": """
        import os
        from pathlib import Path

        EDIT = {edit}

        def register():
            with Path(os.environ["RESTARTS_RECORDS"]).open("a") as file:
                file.write(f"general {{EDIT}}\\n")
    """,
    "restarts/op.py": """
        import os
        from pathlib import Path

        from graftlm.layers.activation import SiluAndMul

        EDIT = {edit}

        with Path(os.environ["RESTARTS_RECORDS"]).open("a") as file:
            file.write(f"op {{EDIT}}\\n")

        class Replaced(SiluAndMul):
            pass
    """,
    "restarts-1.0.dist-info/METADATA": "Metadata-Version: 2.1\nName: restarts\nVersion: 1.0\n",
    "restarts-1.0.dist-info/entry_points.txt": f"""
        [graftlm.general_plugins]
        restarts = restarts.general:register
        [graftlm.custom_ops]
        {OP} = restarts.op:Replaced
    """,
}
#: What one start must leave behind: the general plugin in front end and core, the op in the core.
EXPECTED = ("general", "general", "op")


class Bench:
    """A folder with the plugin, the records and the warm parents; every process gets `environment`."""

    def __init__(self, folder: Path, model: str) -> None:
        self.model = model
        self.site = folder / "site"
        self.records = folder / "records"
        self.environment = {
            "GRAFTLM_PRELOAD_DIR": str(folder / "warm"),
            "PYTHONPATH": os.pathsep.join(filter(None, [str(self.site), os.environ.get("PYTHONPATH", "")])),
            "RESTARTS_RECORDS": str(self.records),
        }

    def edit(self, number: int) -> None:
        for name, text in FILES.items():
            file = self.site / name
            file.parent.mkdir(parents=True, exist_ok=True)
            text = textwrap.dedent(text)
            file.write_text(text.format(edit=number) if name.endswith(".py") else text)

    def preload(self, *words: str) -> str:
        done = subprocess.run(
            [sys.executable, "-m", "graftlm", "preload", *words],
            env={**os.environ, **self.environment},
            check=True,
            stdout=subprocess.PIPE,
            text=True,
        )
        return done.stdout.strip()

    def start(self, *flags: str) -> float:
        """Start a server, end it, and return the seconds to its first token."""
        self.records.unlink(missing_ok=True)
        words = ["-m", "graftlm", "serve", self.model, *flags]
        with ServerProcess(
            lambda port: [sys.executable, *words, f"--port={port}"], title=" ".join(words),
            environment=self.environment,
        ) as server:  # fmt: skip
            return server.wait_for_first_token().first_token_s

    def is_wrong(self, number: int) -> bool:
        """Whether the last start ran anything but this edit."""
        lines = self.records.read_text().splitlines() if self.records.exists() else []
        return sorted(lines) != [f"{what} {number}" for what in EXPECTED]


@contextlib.contextmanager
def bench(model: str) -> Iterator[Bench]:
    with tempfile.TemporaryDirectory(prefix="graftlm-restarts-") as folder:
        made = Bench(Path(folder), model)
        try:
            yield made
        finally:
            made.preload("--stop")


def main(argv: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.preload_restarts", description=__doc__)
    parser.add_argument("--model", default="demo", help="MODEL of `graftlm serve` (default: demo)")
    parser.add_argument("--restarts", type=int, default=50, metavar="N", help="restarts with edits (default: 50)")
    parser.add_argument("--edit-every", type=int, default=3, metavar="N", help="edit before every Nth (default: 3)")
    parser.add_argument("--json", metavar="FILE", help="write all figures there")
    options = parser.parse_args(argv)
    figures: dict[str, list[float]] = {"with the plugin": [], "without it": [], "cold": [], "import torch": []}
    wrong, number = [], 100  # edits keep the length of the file
    with bench(options.model) as made:
        made.edit(number)
        print(made.preload(options.model))
        for restart in range(options.restarts):
            if restart and restart % options.edit_every == 0:
                number += 1
                made.edit(number)
            figures["with the plugin"].append(made.start())
            wrong += [restart] if made.is_wrong(number) else []
            if restart % 10 == 0:
                figures["without it"].append(made.start("--no-plugins"))
                figures["cold"].append(made.start("--no-plugins", "--no-preload"))
                figures["import torch"].append(seconds_of(["-c", "import torch"]))
            print(
                f"\r{restart + 1} of {options.restarts}, {counted(number - 100, 'edit')}, {len(wrong)} wrong",
                end="",
                flush=True,
            )
        print("\n" + made.preload("--status"))
    for name, seconds in figures.items():
        spread = f"{min(seconds):.2f}…{max(seconds):.2f}"
        print(f"{name:16} {statistics.median(seconds):6.2f} s ({spread}), {counted(len(seconds), 'time')}")
    if options.json:
        result = {"wrong": wrong, "edits": number - 100, "seconds": figures}
        Path(options.json).write_text(json.dumps(result, indent=2) + "\n")
    if wrong:
        print(f"wrong code ran in restarts {', '.join(map(str, wrong))}", file=sys.stderr)
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
