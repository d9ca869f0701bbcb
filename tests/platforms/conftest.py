"""Fixtures of the platform tests: the fake distributions of the plugin tests."""

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1] / "plugins"))

from fake_site import site

__all__ = ["site"]
