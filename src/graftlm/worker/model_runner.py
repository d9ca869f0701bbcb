"""A step's plan to its result: tensors, one forward pass, logits where they are needed, sampled tokens.

It does not know where the plan comes from, nor how the model computes.
"""

from __future__ import annotations

import dataclasses
from typing import TYPE_CHECKING

import torch
from torch import nn

from graftlm.contracts.request import TokenLogprobs
from graftlm.contracts.step import StepPlan, StepResult
from graftlm.ops.build import building
from graftlm.ops.sampling import LogprobTensors, Sampler
from graftlm.ops.verify import verify_ops
from graftlm.worker.decode_inputs import DecodeInputs
from graftlm.worker.greedy_step import GreedyStep
from graftlm.worker.input_batch import InputBatch
from graftlm.worker.step_inputs import StepInputs, build_step_inputs

if TYPE_CHECKING:
    from graftlm.config.engine_config import EngineConfig
    from graftlm.contracts.attention import AttentionBackend

#: Rows of prompt log-probabilities whose logits exist at the same time.
_PROMPT_LOGITS_ROWS = 128

_NOT_USABLE = (
    "the model's logits are NaN or infinite at this place; if it happens often, --dtype float32 computes with the "
    "widest range"
)


class ModelRunner:
    """Runs one rank's share of the model. Every rank does the same work; rank 0 samples and answers."""

    def __init__(
        self,
        config: EngineConfig,
        *,
        model: nn.Module,
        backends: list[type[AttentionBackend]],
        device: torch.device,
        block_size: int,
        is_driver: bool,
    ) -> None:
        self.model = model
        self.device = device
        self.is_driver = is_driver
        self._backends = backends
        assert config.model.max_model_len is not None, "the configuration is resolved"
        self.batch = InputBatch(
            max_num_seqs=config.scheduler.max_num_seqs,
            max_model_len=config.model.max_model_len,
            block_size=block_size,
            vocab_size=config.model.vocab_size,
            default_seed=config.model.seed,
        )
        self._decode_inputs = DecodeInputs(self.batch, device)
        self.sampler = _verified_sampler(config, device) if is_driver else None
        capture_steps = backends[0].capture_steps if len(backends) == 1 else lambda _: None
        self._forward = capture_steps(model) or model
        self._greedy = capture_steps(GreedyStep(model, self.sampler))

    @torch.inference_mode()
    def execute_step(self, plan: StepPlan) -> StepResult | None:
        """Compute a plan's tokens; returns the result on rank 0 and None elsewhere."""
        self.batch.apply(plan)
        result = StepResult(step_id=plan.step_id)
        if plan.num_scheduled_tokens:
            if max(plan.num_scheduled_tokens.values()) == 1:
                step = self._decode_inputs.build(plan)
            else:
                step = build_step_inputs(self.batch, plan, self.device)
            for backend in self._backends:
                backend.build_metadata(step.context.attention)
            if self._greedy is not None and not self._greedy.is_given_up and self._is_greedy(step):
                self._take_best(self._greedy(step.input_ids, step.positions, step.context), step, result)
            else:
                hidden = self._forward(step.input_ids, step.positions, step.context)  # [tokens, hidden_size]
                if self.batch.num_prompt_logprobs:
                    self._rank_prompts(hidden, step, result)
                self._sample(hidden, step, result)
        return result if self.is_driver else None

    def _is_greedy(self, step: StepInputs) -> bool:
        """Tell whether each request computes one token and wants the best next one, and nothing else."""
        batch = self.batch
        return (
            step.num_tokens == len(step.request_ids)
            and not batch.num_prompt_logprobs
            and bool(step.samples.all())
            and batch.sampling.is_greedy(step.rows)
        )

    def _take_best(self, answer: tuple[torch.Tensor, ...], step: StepInputs, result: StepResult) -> None:
        """Note what `GreedyStep` has chosen."""
        if self.is_driver:
            _, token_ids, usable = answer
            _note_tokens(result, step.request_ids, token_ids, usable)

    def _sample(self, hidden: torch.Tensor, step: StepInputs, result: StepResult) -> None:
        """Sample one token for each request whose last known token was computed."""
        places = step.query_start[1:][step.samples] - 1  # [sampling requests]: their last rows
        if not len(places):
            return
        if len(places) != step.num_tokens:
            hidden = hidden[torch.from_numpy(places).to(self.device)]
        logits = self.model.compute_logits(hidden)  # type: ignore[operator]  # [sampling requests, vocab]
        if self.sampler is None:
            return
        rows = step.rows[step.samples]
        num_tokens = self.batch.num_tokens[rows]
        inputs = self.batch.sampling.inputs(
            rows,
            num_tokens=num_tokens,
            num_output_tokens=num_tokens - self.batch.num_prompt_tokens[rows],
            device=self.device,
        )
        sampled = self.sampler(logits, inputs)
        request_ids = [r for r, samples in zip(step.request_ids, step.samples.tolist(), strict=True) if samples]
        token_ids = _note_tokens(result, request_ids, sampled.token_ids, sampled.usable)
        if sampled.logprobs is not None:
            wanted = self.batch.sampling.num_logprobs(rows)
            wanting = [(place, num_top) for place, num_top in enumerate(wanted) if num_top >= 0]
            entries = _entries(
                sampled.logprobs, [token_ids[place] for place, _ in wanting], [num_top for _, num_top in wanting]
            )
            for (place, _), entry in zip(wanting, entries, strict=True):
                result.logprobs[request_ids[place]] = [entry]

    def _rank_prompts(self, hidden: torch.Tensor, step: StepInputs, result: StepResult) -> None:
        """Rank the prompt tokens that this step's tokens predict, for requests that asked for it."""
        batch = self.batch
        for index, row in enumerate(step.rows.tolist()):
            num_top = batch.num_prompt_logprobs.get(row)
            if num_top is None:
                continue
            start, first = int(step.starts[index]), int(step.query_start[index])
            end = start + int(step.query_start[index + 1]) - first
            last = min(end, int(batch.num_prompt_tokens[row]) - 1)
            entries: list[TokenLogprobs] = []
            for chunk in range(start, last, _PROMPT_LOGITS_ROWS):
                count = min(_PROMPT_LOGITS_ROWS, last - chunk)
                place = first + chunk - start
                logits = self.model.compute_logits(hidden[place : place + count])  # type: ignore[operator]
                if self.sampler is not None:
                    predicted = batch.token_ids[row, chunk + 1 : chunk + 1 + count].tolist()
                    token_ids = torch.tensor(predicted, dtype=torch.int64, device=self.device)
                    ranked = self.sampler.ranked_logprobs(logits.float(), token_ids, num_top)
                    entries += _entries(ranked, predicted, [num_top] * count)
            if entries:
                result.prompt_logprobs[step.request_ids[index]] = entries


def _note_tokens(
    result: StepResult, request_ids: list[str], token_ids: torch.Tensor, usable: torch.Tensor
) -> list[int]:
    """Give each request its token, or the reason why it has none; return the tokens."""
    chosen: list[int] = token_ids.tolist()
    for request_id, token_id, is_usable in zip(request_ids, chosen, usable.tolist(), strict=True):
        if is_usable:
            result.sampled_token_ids[request_id] = [token_id]
        else:
            result.errors[request_id] = _NOT_USABLE
    return chosen


def _entries(ranked: LogprobTensors, token_ids: list[int], num_top: list[int]) -> list[TokenLogprobs]:
    """Make plain data of ranked tokens; row i keeps its `num_top[i]` best."""
    return [
        TokenLogprobs(token_id, logprob, rank, top_ids[:count], top_logprobs[:count])
        for token_id, logprob, rank, top_ids, top_logprobs, count in zip(
            token_ids,
            ranked.logprobs.tolist(),
            ranked.ranks.tolist(),
            ranked.top_ids.tolist(),
            ranked.top_logprobs.tolist(),
            num_top,
            strict=True,
        )
    ]


def _verified_sampler(config: EngineConfig, device: torch.device) -> Sampler:
    sampler = build_sampler(config, device)
    if config.compilation.verify_ops:
        verify_ops(sampler, config, dtype=torch.float32, device=device)
    return sampler


def build_sampler(
    config: EngineConfig, device: torch.device, *, failures: list[Exception] | None = None
) -> Sampler:
    """Construct the sampler's ops as those of a model, so that switches and plugins reach them.

    Switches of the model's own ops are left out, since they rightly have no effect here; `failures` is as in
    `building`.
    """
    from graftlm.ops.sampling import AdjustLogits, ChooseTokens, RankedLogprobs

    own = {op.name for op in (AdjustLogits, ChooseTokens, RankedLogprobs)}
    with building(config, dtype=torch.float32, device=device, failures=failures) as build:
        build.switches = dataclasses.replace(
            build.switches, on=build.switches.on & own, off=build.switches.off & own
        )
        return Sampler().eval()
