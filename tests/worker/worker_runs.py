"""Scheduler and CpuWorker in this process, and the reference they must equal."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch

from graftlm.config import EngineConfig
from graftlm.contracts.request import EngineRequest, RequestUpdate
from graftlm.contracts.sampling import SamplingParams
from graftlm.contracts.step import StepPlan
from graftlm.engine.configure import configure
from graftlm.platforms.bootstrap import bootstrap_frontend
from graftlm.scheduler import Scheduler
from graftlm.worker import Worker
from graftlm.worker.cpu_worker import CpuWorker

#: Under this difference between the two best logits, rounding may decide.
CLOSE_MARGIN = 1e-3


class Engine:
    """One worker and a scheduler; options are those of the configuration's sections."""

    def __init__(
        self, path: Path, *, num_blocks: int = 64, worker_cls: type[Worker] = CpuWorker, **options: Any
    ) -> None:
        host = bootstrap_frontend()
        config = EngineConfig()
        config.model.model = str(path)
        config.scheduler.max_num_seqs = 16
        for section in config.sections().values():
            for name in set(options) & set(section.field_names()):
                setattr(section, name, options.pop(name))
        assert not options, f"unknown options {options}"
        self.config = configure(config, host, progress=False)
        self.worker = worker_cls(self.config, rank=0, local_rank=0, distributed_init_method="")
        self.worker.init_device()
        self.worker.load_model()
        self.block_size = self.worker.update_block_size()
        self.worker.initialize_kv_cache(num_blocks)
        self.scheduler = Scheduler(self.config, num_blocks=num_blocks, block_size=self.block_size)
        self.plans: list[StepPlan] = []

    def run(self, requests: Sequence[EngineRequest]) -> dict[str, list[RequestUpdate]]:
        """Serve all requests side by side and return the updates of each."""
        updates: dict[str, list[RequestUpdate]] = {}
        for request in requests:
            self.scheduler.add_request(request)
        while self.scheduler.has_unfinished:
            plan = self.scheduler.schedule()
            result = self.worker.execute_step(plan)
            assert result is not None
            for update in self.scheduler.update(plan, result):
                updates.setdefault(update.request_id, []).append(update)
            self.plans.append(plan)
            assert len(self.plans) < 3000, "requests do not end"
        return updates

    def outputs(self, requests: Sequence[EngineRequest]) -> dict[str, list[int]]:
        updates = self.run(requests)
        return {name: [t for update in of for t in update.new_token_ids] for name, of in updates.items()}

    @property
    def num_preemptions(self) -> int:
        return sum(len(plan.preempted) for plan in self.plans)


def greedy(request_id: str, prompt: list[int], *, max_tokens: int = 24, **params: Any) -> EngineRequest:
    return request_of(request_id, prompt, temperature=0, max_tokens=max_tokens, **params)


def request_of(request_id: str, prompt: list[int], *, eos: Sequence[int] = (), **params: Any) -> EngineRequest:
    return EngineRequest(
        request_id=request_id, prompt_token_ids=prompt, params=SamplingParams(**params), eos_token_ids=list(eos)
    )


@dataclasses.dataclass
class Reference:
    """What transformers says after one prompt, greedily, token by token."""

    token_ids: list[int]
    margins: list[float]
    logprobs: torch.Tensor
    """[prompt + output - 1, vocab]: log-softmax after each token but the last"""

    @property
    def num_sure(self) -> int:
        """Tokens before the first place where rounding may decide."""
        return next((i for i, margin in enumerate(self.margins) if margin < CLOSE_MARGIN), len(self.margins))


@torch.inference_mode()
def reference(path: Path, prompts: list[list[int]], *, max_tokens: int = 24) -> list[Reference]:
    """Continue prompts with transformers in fp32, one by one."""
    from transformers import AutoModelForCausalLM

    model = AutoModelForCausalLM.from_pretrained(path, dtype=torch.float32).eval()
    references = []
    for prompt in prompts:
        token_ids, margins = list(prompt), []
        while len(token_ids) < len(prompt) + max_tokens:
            logits = model(torch.tensor([token_ids])).logits[0]  # [tokens, vocab]
            best = logits[-1].topk(2)
            token_ids.append(int(best.indices[0]))
            margins.append(float(best.values[0] - best.values[1]))
        references.append(Reference(token_ids[len(prompt) :], margins, logits.log_softmax(-1)))
    return references


def assert_equal_while_sure(outputs: dict[str, list[int]], references: list[Reference]) -> None:
    """Request `r0`, `r1`, … is right up to the first close margin, and there as good as the reference.

    At most 1 in 8 may meet a close margin before token 16.
    """
    for index, expected in enumerate(references):
        sure, output = expected.num_sure, outputs[f"r{index}"]
        assert len(output) == len(expected.token_ids)
        assert output[:sure] == expected.token_ids[:sure], f"request r{index}"
        if sure < len(output):
            logprobs = expected.logprobs[len(expected.logprobs) - len(output) + sure]
            assert abs(logprobs[output[sure]] - logprobs[expected.token_ids[sure]]) < CLOSE_MARGIN
    early = sum(expected.num_sure < min(16, len(expected.token_ids)) for expected in references)
    assert early * 8 <= len(references)
