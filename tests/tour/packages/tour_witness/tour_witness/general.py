"""General plugins: one of every process, one of workers; they register nothing."""

from __future__ import annotations

import os
import sys
import threading
import time

import tour_witness
from graftlm.config import environment
from graftlm.plugins import current_host


def in_every_process() -> None:
    host = current_host()
    tour_witness.write(
        "general plugin ran",
        process=host.process,
        role=host.role.value,
        # What decodes the config is imported after the plan was applied.
        decoders=[
            m for m in ("graftlm.engine.core_process", "graftlm.executor.worker_process") if m in sys.modules
        ],
        threads=os.environ.get("OMP_NUM_THREADS"),
    )
    threading.Thread(target=_watch_ready, name="witness", daemon=True).start()


def in_workers() -> None:
    tour_witness.write("worker plugin ran", process=current_host().process)


def _watch_ready() -> None:
    """Wait until the process has frozen its plugins, then write down what it has become."""
    host = current_host()
    while not host.frozen:
        time.sleep(0.01)
    frozen = environment.frozen()
    os.environ["GRAFTLM_PLATFORM"] = "changed after READY"
    registry = sys.modules.get("graftlm.models.registry")
    tour_witness.write(
        "ready",
        process=host.process,
        packages=sorted({name.partition(".")[0] for name in list(sys.modules)}),
        architectures=registry.ModelRegistry.names() if registry is not None else None,
        environment_frozen=frozen,
        sees_change=environment.get("GRAFTLM_PLATFORM") == "changed after READY",
    )
