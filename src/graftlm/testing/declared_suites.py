"""The test module that `--graftlm-conformance` collects: the suites of all distributions that it names."""

from __future__ import annotations

from graftlm.testing.conformance import suites_for
from graftlm.testing.pytest_plugin import requested

for _distribution in requested:
    globals().update(suites_for(_distribution))
