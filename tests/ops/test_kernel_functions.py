"""Kernel functions replaced by name: who may, when, and what a call then runs."""

from __future__ import annotations

import importlib
from collections.abc import Callable
from typing import Any

import pytest
import torch

from graftlm.ops.attention.torch_paged import TorchPagedAttention, paged_decode
from graftlm.ops.kernel_functions import (
    BUILT_IN_KERNELS,
    BoundAlready,
    kernel_names,
    kernel_override,
    override_kernel,
)
from graftlm.ops.sampling import ChooseTokens, SamplingInputs
from graftlm.plugins import DuplicateRegistration, LateRegistration, UnknownKey, calling

calls: list[str] = []


def best_token(logits: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """The first token is the best one."""
    calls.append("best_token")
    return logits[:, 0], torch.zeros(len(logits), dtype=torch.int64)


def other(logits: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """Another candidate for the same name."""
    return logits[:, 1], torch.ones(len(logits), dtype=torch.int64)


def takes_too_much(logits: torch.Tensor, more: int) -> None:
    """It cannot be called as the reference is."""


def override(name: str, function: Callable[..., Any] | str, *, replace: bool = False) -> None:
    """Replace as a plugin's hook does, so that the end of its host takes it back."""
    with calling("acme-ops:acme", "register_triton_kernel_overrides"):
        override_kernel(name, function, replace=replace)


def test_the_table_is_what_the_decorators_say() -> None:
    """Each name leads to a function that bears it, so that names are checked without torch."""
    for name, path in BUILT_IN_KERNELS.items():
        module, _, attribute = path.partition(":")
        assert callable(getattr(importlib.import_module(module), attribute)), name
    assert kernel_names() == sorted(BUILT_IN_KERNELS)


def test_an_override_runs_in_objects_made_after_it(worker_host: Callable[..., Any]) -> None:
    """It is bound at construction, recorded once with its owner, and costs a call nothing."""
    host = worker_host()
    override("sampling.best_token", best_token)
    op = ChooseTokens()
    calls.clear()
    token_ids, _ = op(torch.tensor([[0.0, 5.0]]), SamplingInputs())

    assert (calls, token_ids.tolist()) == (["best_token"], [0])
    assert op._best_token is best_token
    (replaced,) = host.ledger.of("kernel_replaced")
    assert (replaced.facts["kernel"], replaced.facts["owner"]) == ("sampling.best_token", "acme-ops")
    assert kernel_override("sampling.best_token") == (f"{__name__}:best_token", "acme-ops")


def test_an_unknown_name_is_an_error_with_the_nearest(worker_host: Callable[..., Any]) -> None:
    """A slip would otherwise replace nothing, in silence."""
    worker_host()
    with pytest.raises(
        UnknownKey, match=r"kernel function 'paged_attention.decod'; did you mean 'paged_attention\."
    ):
        override("paged_attention.decod", best_token)


def test_two_overrides_and_late_ones_are_errors(worker_host: Callable[..., Any]) -> None:
    """One name has one override; after an object has bound it, or after READY, another could not run."""
    host = worker_host()
    override("sampling.best_token", best_token)
    override("sampling.best_token", f"{__name__}:best_token")
    with pytest.raises(DuplicateRegistration, match=r"kernel override 'sampling.best_token'"):
        override("sampling.best_token", other)
    override("sampling.best_token", other, replace=True)
    ChooseTokens()
    with pytest.raises(BoundAlready, match=r"'sampling.best_token' by .*:best_token comes too late"):
        override("sampling.best_token", best_token, replace=True)
    host.freeze()
    with pytest.raises(LateRegistration, match=r"paged_attention\.decode"):
        override("paged_attention.decode", other)


def test_an_override_takes_what_the_reference_takes(worker_host: Callable[..., Any]) -> None:
    """Checked when it is bound, not in the middle of a step."""
    worker_host()
    override("sampling.best_token", takes_too_much)
    with pytest.raises(TypeError, match=r"cannot be called as graftlm.ops.sampling.choose:best_token\(logits"):
        ChooseTokens()


def test_a_new_host_starts_with_the_references(worker_host: Callable[..., Any]) -> None:
    """What was replaced for an earlier start is taken back."""
    worker_host()
    override("paged_attention.decode", f"{__name__}:best_token")
    worker_host()

    backend = TorchPagedAttention(num_heads=2, num_kv_heads=1, head_size=8, scale=1.0)
    assert backend._decode is paged_decode
