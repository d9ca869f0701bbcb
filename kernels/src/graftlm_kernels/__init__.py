"""Native CPU kernels for graftlm, found by it through this distribution's entry points.

It imports nothing by itself: the compiled module is loaded by the first kernel that is chosen.
"""

from __future__ import annotations

__all__: list[str] = []
