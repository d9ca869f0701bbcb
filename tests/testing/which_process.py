"""Whether this is the process of the test or the other one that a suite compares it with."""

from __future__ import annotations

import sys
from pathlib import Path

#: A number that differs between the two, for things that wrongly depend on their process.
PROCESS_NUMBER = 2 if Path(sys.argv[0]).name == "elsewhere.py" else 1
