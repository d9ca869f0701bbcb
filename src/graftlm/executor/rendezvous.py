"""Where the workers of one machine meet: a file in memory, so that no port is taken and no file stays behind.

It does not know how they use it.
"""

from __future__ import annotations

import os
import shutil
import tempfile


class Rendezvous:
    """Owns the meeting place for as long as the workers may use it."""

    def __init__(self) -> None:
        self._descriptor = -1
        self._directory = ""
        if hasattr(os, "memfd_create"):
            self._descriptor = os.memfd_create("graftlm-rendezvous")
            self.init_method = f"file:///proc/{os.getpid()}/fd/{self._descriptor}"
        else:
            self._directory = tempfile.mkdtemp(prefix="graftlm-")
            self.init_method = f"file://{self._directory}/rendezvous"

    def close(self) -> None:
        """Give the place up; safe to call twice."""
        if self._descriptor >= 0:
            os.close(self._descriptor)
            self._descriptor = -1
        if self._directory:
            shutil.rmtree(self._directory, ignore_errors=True)
