"""The helper process of `graftlm plugins test`: makes the suites of a package and runs them, one check a line.

Run as `python -m graftlm.cli.plugins.suite_runner PACKAGE`. It judges nothing and needs no pytest.
"""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path
from typing import IO, TYPE_CHECKING

if TYPE_CHECKING:
    from graftlm.testing.suite import Suite


def main() -> int:
    answer = os.fdopen(os.dup(1), "w", encoding="utf-8")
    os.dup2(2, 1)  # what plugins print must not get into the answer
    # Only what the package declares is judged, whatever else is installed.
    os.environ.update(GRAFTLM_PLUGINS="cpu", GRAFTLM_PLATFORM="cpu")
    package = sys.argv[1]
    try:
        suites = _suites(package)
    except Exception as error:
        print(f"{type(error).__name__}: {error}" if not isinstance(error, LookupError) else error, file=sys.stderr)
        return 1
    for name, suite in suites.items():
        for check in suite.checks():
            tell(answer, suite=name, check=check, state="running")
            result = suite.run_check(check)
            tell(answer, suite=name, check=check, state=result.state, text=result.text)
    tell(answer, suite="", check="", state="end")
    return 0


def _suites(package: str) -> dict[str, type[Suite]]:
    from graftlm.testing import FakeDistribution
    from graftlm.testing.conformance import suites_for

    folder = Path(package)
    if not folder.is_dir():
        return suites_for(package)
    source = folder / "src"
    sys.path.insert(0, str((source if source.is_dir() else folder).resolve()))
    return suites_for(FakeDistribution.from_source(folder))


def tell(answer: IO[str], *, suite: str, check: str, state: str, text: str = "") -> None:
    print(json.dumps({"suite": suite, "check": check, "state": state, "text": text}), file=answer, flush=True)


if __name__ == "__main__":
    raise SystemExit(main())
