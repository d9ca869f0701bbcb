"""Compares how layers multiply with packed or quantized weights with plain torch, on generated inputs.

A part of `--verify-ops`. The reference is the product with the rows that a layer's own LinearMethod reads back, so
it finds what multiplies wrongly, not what was packed wrongly. It knows no format.
"""

from __future__ import annotations

import dataclasses
import logging
from collections.abc import Iterator

import torch

from graftlm.contracts.quantization import LinearMethod
from graftlm.ops.custom_op import CustomOp
from graftlm.ops.examples import Comparison, Tolerance, compare, random_numbers, roundings
from graftlm.ops.refusal import OpRefused, Provider, Unverifiable, in_time, provider_of_code
from graftlm.plugins import calling, record
from graftlm.plugins.registrar import distribution_of
from graftlm.plugins.spelling import counted, error_text

logger = logging.getLogger(__name__)

_OP = "linear"
#: Rows at once that kernels may take different ways for; one call has none.
_TOKENS = (1, 5, 33, 0)
#: Numbers of a weight that are read back at once.
_MOST_NUMBERS = 4 << 20


def verify_weights(root: torch.nn.Module, *, seed: int, dtype: torch.dtype, device: torch.device) -> dict[str, str]:
    """Verify each distinct way in which layers of `root` multiply; return what could not be verified, and why.

    Raises OpRefused at the first wrong one.
    """
    unverified: dict[str, str] = {}
    for name, layer, method, shape in _distinct(root):
        provider = provider_of_code(type(method))
        try:
            with in_time(_OP, provider):
                largest, tolerance = _verify(
                    name, layer, method, shape, provider=provider, seed=seed, dtype=dtype, device=device
                )
        except Unverifiable as error:
            unverified[f"{_OP} of {provider.path}"] = str(error)
            continue
        record(
            "op_verified", op=_OP, method=f"{method.kept_as or type(method).__name__} {list(shape)}",
            computed_by=provider.path, by=provider.plugin, examples=len(_TOKENS), largest_error=largest,
            tolerance=str(tolerance),
        )  # fmt: skip
        logger.info(
            "op verified op=%s shape=%s computed_by=%s largest_error=%.3g", _OP, shape, provider.path, largest
        )
    return unverified


def _distinct(root: torch.nn.Module) -> Iterator[tuple[str, torch.nn.Module, LinearMethod, tuple[int, int]]]:
    """Yield one layer of those that multiply alike, with the method that computes it and its weight's shape."""
    seen = set()
    for name, layer in root.named_modules():
        method = getattr(layer, "linear_method", None)
        shape: tuple[int, int] | None = getattr(layer, "weight_shape", None)
        if not isinstance(method, LinearMethod) or shape is None or getattr(layer, "tied", False):
            continue
        method = method.computed_by
        own = distribution_of(type(method).__module__) == "graftlm"
        if own and any(isinstance(child, CustomOp) for child in layer.children()):
            continue  # it multiplies by an op, which is verified as such
        key = (type(method), shape, method.kept_as)
        if key not in seen:
            seen.add(key)
            yield name, layer, method, shape


def _verify(
    name: str,
    layer: torch.nn.Module,
    method: LinearMethod,
    shape: tuple[int, int],
    *,
    provider: Provider,
    seed: int,
    dtype: torch.dtype,
    device: torch.device,
) -> tuple[float, Tolerance]:
    """Return the largest error and what was allowed."""
    outputs, inputs = shape
    generator = torch.Generator().manual_seed(seed)
    x = random_numbers(generator, sum(_TOKENS), inputs, dtype=dtype).to(device)
    bias = random_numbers(generator, outputs, dtype=dtype).to(device)
    expected = _product(method, layer, x, outputs)  # [sum of tokens, output_size] float32
    tolerance = _tolerance(method, dtype)
    largest, start = 0.0, 0
    for tokens in _TOKENS:
        own_bias = bias if tokens == 5 else None
        given = x[start : start + tokens].clone()
        reference = expected[start : start + tokens] + (0 if own_bias is None else own_bias.float())
        outcome = _compare(method, layer, given, own_bias, reference=reference.to(dtype), tolerance=tolerance)
        if not outcome.problem and not torch.equal(given, x[start : start + tokens]):
            outcome.problem = "it overwrites its input, which it must leave unchanged"
        if outcome.problem:
            raise OpRefused(
                _OP,
                computed_by=provider,
                problem=f"with {counted(tokens, 'token')} in {name} {list(shape)}, {outcome.problem}",
            )
        largest, start = max(largest, outcome.largest_error), start + tokens
    return largest, tolerance


def _product(method: LinearMethod, layer: torch.nn.Module, x: torch.Tensor, outputs: int) -> torch.Tensor:
    """Return x times the weight that `embed` reads back, a part of its rows at a time: it may be large."""
    step = max(1, _MOST_NUMBERS // max(x.shape[1], 1))
    parts = []
    for start in range(0, outputs, step):
        ids = torch.arange(start, min(start + step, outputs), device=x.device)
        try:
            rows = method.embed(layer, ids)  # [part of output_size, input_size]
        except Exception as error:
            raise Unverifiable(f"its embed reads no rows back: {error!r}") from error
        if tuple(rows.shape) != (len(ids), x.shape[1]):
            raise Unverifiable(f"its embed gives rows of shape {list(rows.shape)}, not {[len(ids), x.shape[1]]}")
        parts.append(x.float() @ rows.float().T)
    return torch.cat(parts, dim=1) if parts else x.new_empty((x.shape[0], 0), dtype=torch.float32)


def _compare(
    method: LinearMethod,
    layer: torch.nn.Module,
    x: torch.Tensor,
    bias: torch.Tensor | None,
    *,
    reference: torch.Tensor,
    tolerance: Tolerance,
) -> Comparison:
    try:
        with calling(provider_of_code(type(method)).plugin, "--verify-ops"):
            return compare(method.apply(layer, x, bias), reference, tolerance)
    except Exception as error:
        return Comparison(float("inf"), f"it raises {error_text(error)}")


def _tolerance(method: LinearMethod, dtype: torch.dtype) -> Tolerance:
    plain = roundings(
        dtype, full=64, half=4, reason="sums of input_size products in any order, and the method's own rounding "
        "of activations",
    )  # fmt: skip
    return dataclasses.replace(plain, atol=plain.atol + method.activation_error)
