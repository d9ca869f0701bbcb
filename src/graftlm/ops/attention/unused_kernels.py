"""Says which kernel functions of attention do not run because another backend calls its own; replaces none."""

from __future__ import annotations

import logging

from graftlm.ops.attention.selector import backends_in_use
from graftlm.ops.kernel_functions import ATTENTION_KERNELS, BUILT_IN_KERNELS, is_bound, kernel_override
from graftlm.plugins import record

logger = logging.getLogger(__name__)

#: What makes the engine's own backend compute, which calls the functions.
CURE = "--attention-backend TORCH_PAGED calls them"


def why_unused(name: str) -> str:
    """Say why the kernel function `name` does not run in the model that was built, or "" where it does."""
    backends = backends_in_use()
    if not backends or name not in ATTENTION_KERNELS or is_bound(name):
        return ""
    if len(backends) == 1:
        return f"attention backend {backends[0]} calls its own kernels"
    return f"attention backends {', '.join(backends)} call their own kernels"


def tell_unused_kernels() -> None:
    """Record which kernel functions do not run, and warn of those replaced in vain; call it after the build."""
    for name, reference in BUILT_IN_KERNELS.items():
        override, reason = kernel_override(name), why_unused(name)
        if not reason:
            continue
        path, owner = override or (reference, "graftlm")
        record("kernel_unused", kernel=name, function=path, owner=owner, reason=reason)
        if override is not None:
            logger.warning(
                "kernel override not in use kernel=%s function=%s owner=%s: %s; %s", name, path, owner, reason, CURE
            )
