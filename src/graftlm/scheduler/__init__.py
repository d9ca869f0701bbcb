"""Decides who computes what next, and owns requests and KV blocks; it knows nothing of tensors or processes."""

from graftlm.scheduler.scheduler import Scheduler

__all__ = ["Scheduler"]
