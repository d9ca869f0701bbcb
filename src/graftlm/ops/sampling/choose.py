"""Chooses one token for each row: the best one, or one drawn from what temperature and filters leave.

It does not know where the random numbers come from.
"""

from __future__ import annotations

from collections.abc import Iterable

import torch
from torch.nn.functional import pad

from graftlm.ops.custom_op import CustomOp
from graftlm.ops.examples import OpExample, Tolerance, exactly, random_numbers
from graftlm.ops.kernel_functions import bind_kernel, overridable
from graftlm.ops.sampling.inputs import SamplingInputs

#: How many of the best tokens are looked at, in turn, before the whole vocabulary is sorted to find a nucleus.
#: Any numbers give the same tokens.
_NUCLEUS_CANDIDATES = (64, 1024)
#: Maxima and sums of such pieces of a row are many times faster in torch than arg-max and cumsum over the row.
_PIECE = 256


@CustomOp.register("choose_tokens")
class ChooseTokens(CustomOp):
    """Choose a token for each row, greedily or at random.

    A random row draws by inverse transform: its one uniform number picks a place in the cumulative weights, in
    the vocabulary's order, of the tokens that remain after temperature, then min-p, top-k and top-p. Tokens tied
    with the last one kept are kept too. So a row's token depends on nothing but its own logits and parameters.
    """

    def __init__(self) -> None:
        super().__init__()
        self._best_token = bind_kernel(best_token, "sampling.best_token")
        self._inverse_transform = bind_kernel(inverse_transform, "sampling.inverse_transform")

    def forward_native(self, logits: torch.Tensor, inputs: SamplingInputs) -> tuple[torch.Tensor, torch.Tensor]:
        """Return token ids [rows] int64, and [rows] bool: whether the row's logits could be used at all.

        A row with NaN or +inf, or with nothing but -inf, has no meaningful token. `logits` [rows, vocab] float32
        stays as it is.
        """
        best, token_ids = self._best_token(logits)  # NaN wins a maximum, so `best` tells of any in the row
        usable = torch.isfinite(best)
        if inputs.temperature is not None:
            assert inputs.uniforms is not None
            rows = (inputs.temperature > 0).nonzero().squeeze(1)  # [random rows]
            of_rows = logits if rows.numel() == logits.shape[0] else logits[rows]
            weights = _weights(of_rows, best[rows], inputs, rows)
            drawn = self._inverse_transform(weights, inputs.uniforms[rows])
            token_ids[rows] = drawn.clamp_(max=logits.shape[-1] - 1)  # only a row that is not usable exceeds it
        return token_ids, usable

    def example_inputs(self, generator: torch.Generator, dtype: torch.dtype) -> Iterable[OpExample]:
        """Steep logits: no draw falls within rounding of the border between two tokens."""
        device = generator.device
        for vocab in (300, 1000):
            order = torch.rand(4, vocab, generator=generator, device=device).argsort(-1)
            logits = -order.float()  # [rows, vocab]: each token e times as likely as the next one
            yield OpExample(f"greedy, {vocab} tokens", (logits, SamplingInputs()))
            inputs = SamplingInputs(
                temperature=torch.tensor([0.0, 1.0, 0.5, 2.0], device=device),
                uniforms=torch.tensor([0.5, 0.3, 0.9, 0.6], dtype=torch.float64, device=device),
            )
            yield OpExample(f"greedy and drawn, {vocab} tokens", (logits, inputs))
            filtered = SamplingInputs(
                temperature=torch.full((4,), 1.0, device=device), uniforms=inputs.uniforms,
                top_k=torch.tensor([0, 2, 1, 5], device=device),
                top_p=torch.tensor([0.5, 1.0, 1.0, 0.9], dtype=torch.float64, device=device),
                min_p=torch.tensor([0.0, 0.0, 0.2, 0.05], device=device),
            )  # fmt: skip
            yield OpExample(f"filtered, {vocab} tokens", (logits, filtered))
        logits = random_numbers(generator, 3, 260)
        logits[0, 7], logits[1], logits[2, 259] = float("nan"), float("-inf"), 50.0
        yield OpExample("rows without meaning", (logits[1:], SamplingInputs()))
        yield OpExample("no rows", (logits[:0], SamplingInputs()))

    def tolerance(self, dtype: torch.dtype) -> Tolerance:
        return exactly("a token is right or wrong")


def _weights(logits: torch.Tensor, best: torch.Tensor, inputs: SamplingInputs, rows: torch.Tensor) -> torch.Tensor:
    """Return what temperature and filters leave of each random row: logits -> weights [random rows, vocab]."""
    assert inputs.temperature is not None
    # 0 for the best token and less for all others, so that no temperature overflows.
    scaled = (logits - best[:, None]) / inputs.temperature[rows, None]  # [random rows, vocab]
    floor = _floor(scaled, inputs, rows)
    weights = scaled.exp()
    if floor is not None:
        weights.masked_fill_(scaled < floor[:, None], 0.0)
    return weights


@overridable("sampling.best_token")
def best_token(logits: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """Return the largest value of each row and its first place, [rows] each."""
    pieces = _in_pieces(logits, float("-inf"))  # [rows, pieces, _PIECE]
    best_of_piece = pieces.amax(-1)  # [rows, pieces]
    best, piece = best_of_piece.max(-1)
    place = _row_of(pieces, piece).argmax(-1)
    return best, piece * _PIECE + place


@overridable("sampling.inverse_transform")
def inverse_transform(weights: torch.Tensor, uniforms: torch.Tensor) -> torch.Tensor:
    """Return where the cumulative weights [rows, vocab] pass `uniforms` [rows] of their total, [rows]."""
    pieces = _in_pieces(weights, 0.0)  # [rows, pieces, _PIECE]
    cumulative = pieces.sum(-1).cumsum(-1, dtype=torch.float64)  # [rows, pieces]
    target = _below_total(uniforms * cumulative[:, -1], cumulative)
    piece = _first_above(cumulative, target).clamp_(max=pieces.shape[1] - 1)
    before = pad(cumulative, (1, 0)).gather(1, piece[:, None]).squeeze(1)  # [rows]: weight of earlier pieces
    within = _row_of(pieces, piece).cumsum(-1, dtype=torch.float64)  # [rows, _PIECE]
    place = _first_above(within, _below_total(target - before, within))
    return piece * _PIECE + place


def _first_above(cumulative: torch.Tensor, target: torch.Tensor) -> torch.Tensor:
    return torch.searchsorted(cumulative, target[:, None], right=True).squeeze(1)


def _below_total(target: torch.Tensor, cumulative: torch.Tensor) -> torch.Tensor:
    """Keep rounding from pushing `target` to the total, where the first place above it would have weight 0."""
    total = cumulative[:, -1]
    return torch.minimum(target, torch.nextafter(total, torch.zeros_like(total)))


def _in_pieces(rows: torch.Tensor, filler: float) -> torch.Tensor:
    """Cut rows [rows, vocab] into [rows, pieces, _PIECE]; a copy only where the vocabulary is no multiple."""
    missing = -rows.shape[-1] % _PIECE
    num_pieces = (rows.shape[-1] + missing) // _PIECE
    return (pad(rows, (0, missing), value=filler) if missing else rows).reshape(len(rows), num_pieces, _PIECE)


def _row_of(pieces: torch.Tensor, piece: torch.Tensor) -> torch.Tensor:
    """Return piece `piece[r]` of each row r: [rows, _PIECE]."""
    return pieces.gather(1, piece[:, None, None].expand(-1, 1, _PIECE)).squeeze(1)


def _floor(scaled: torch.Tensor, inputs: SamplingInputs, rows: torch.Tensor) -> torch.Tensor | None:
    """Return the least scaled logit that each row keeps, [random rows]; None if all rows keep everything."""
    if inputs.min_p is None and inputs.top_k is None and inputs.top_p is None:
        return None
    floor = scaled.new_full(scaled.shape[:1], float("-inf"))
    if inputs.min_p is not None:
        floor = torch.log(inputs.min_p[rows])  # relative to the best token, whose scaled logit is 0
    if inputs.top_k is not None:
        top_k = inputs.top_k[rows]
        limited = ((top_k > 0) & (top_k < scaled.shape[-1])).nonzero().squeeze(1)
        if limited.numel():
            floor[limited] = torch.maximum(floor[limited], _kth_largest(scaled[limited], top_k[limited]))
    if inputs.top_p is not None:
        top_p = inputs.top_p[rows]
        limited = (top_p < 1).nonzero().squeeze(1)
        if limited.numel():
            floor[limited] = _nucleus_floor(scaled[limited], floor[limited], top_p[limited])
    return floor


def _kth_largest(scaled: torch.Tensor, k: torch.Tensor) -> torch.Tensor:
    best = scaled.topk(int(k.max()), dim=-1).values  # [rows, largest k]
    return best.gather(1, (k - 1)[:, None]).squeeze(1)


def _nucleus_floor(scaled: torch.Tensor, floor: torch.Tensor, top_p: torch.Tensor) -> torch.Tensor:
    """Raise `floor` [rows] to the last of the fewest best tokens that hold `top_p` of the weight."""
    kept = scaled.exp().masked_fill_(scaled < floor[:, None], 0.0)
    wanted = top_p * _in_pieces(kept, 0.0).sum(-1).sum(-1, dtype=torch.float64)  # [rows]
    nucleus = torch.empty_like(floor)
    open_rows = torch.arange(len(scaled), device=scaled.device)
    vocab = scaled.shape[-1]
    for count in (*(count for count in _NUCLEUS_CANDIDATES if count < vocab), vocab):
        of_rows = scaled[open_rows]
        if count < vocab:
            best = of_rows.topk(count, dim=-1).values  # [open rows, count]
        else:
            best = of_rows.sort(dim=-1, descending=True).values  # [open rows, vocab]
        nucleus[open_rows], found = _last_of_nucleus(best, wanted[open_rows])
        open_rows = open_rows[~found]
        if not len(open_rows):
            break
    return torch.maximum(floor, nucleus)


def _last_of_nucleus(best: torch.Tensor, wanted: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """Return the value at which the weights of descending `best` add up to `wanted`, and whether they do."""
    cumulative = best.exp().cumsum(-1, dtype=torch.float64)  # [rows, candidates]
    place = (cumulative < wanted[:, None]).sum(-1)  # [rows]
    found = place < best.shape[-1]
    return best.gather(1, place.clamp(max=best.shape[-1] - 1)[:, None]).squeeze(1), found
