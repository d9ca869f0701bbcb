"""One device: a step becomes tensors, logits and sampled tokens; it knows nothing of queues or other workers.

`Worker` is loaded on first use, since it imports torch.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from graftlm.worker.worker import Worker

__all__ = ["Worker"]


def __getattr__(name: str) -> Any:
    if name == "Worker":
        from graftlm.worker.worker import Worker

        return Worker
    raise AttributeError(f"module 'graftlm.worker' has no attribute {name!r}")
