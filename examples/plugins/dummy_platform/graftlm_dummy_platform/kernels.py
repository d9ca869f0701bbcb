"""A replaced kernel function; a vendor would launch a kernel of the device here."""

from __future__ import annotations

import functools

import torch

from graftlm.ops.attention.torch_paged import paged_decode
from graftlm_dummy_platform import logger


def dummy_decode(query: torch.Tensor, kv: torch.Tensor, mask: torch.Tensor, scale: float) -> torch.Tensor:
    """Compute what the reference does, and say once that it was called."""
    _say_once()
    return paged_decode(query, kv, mask, scale)


@functools.cache
def _say_once() -> None:
    logger.info("decode kernel of the dummy device runs")
