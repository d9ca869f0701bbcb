"""Workers that are wrong, each in one way that the suite must see."""

from __future__ import annotations

import tempfile
import threading
from typing import Any

import msgspec
from which_process import PROCESS_NUMBER

from graftlm.contracts.step import StepPlan, StepResult
from graftlm.models import ModelRegistry
from graftlm.worker.cpu_worker import CpuWorker


class Unfinished:
    """Has no way to run a step."""

    def __init__(self, config: Any, *, rank: int, local_rank: int, distributed_init_method: str) -> None:
        self.config = config

    def nothing(self, *_: Any) -> None: ...

    init_device = load_model = update_block_size = get_kv_cache_spec = determine_available_memory = nothing
    initialize_kv_cache = shutdown = nothing


class WantsAPort(CpuWorker):
    def __init__(self, config: Any, *, rank: int, local_rank: int, port: int) -> None:
        super().__init__(
            config, rank=rank, local_rank=local_rank, distributed_init_method=f"tcp://127.0.0.1:{port}"
        )


class TakesNoPlan(CpuWorker):
    def execute_step(self) -> None:  # type: ignore[override]
        return None


class SizeAsText(CpuWorker):
    def update_block_size(self) -> Any:
        return str(super().update_block_size())


class SpecOfAnotherSize(CpuWorker):
    def get_kv_cache_spec(self) -> Any:
        return msgspec.structs.replace(super().get_kv_cache_spec(), block_size=8)


class SpecOfOneLayer(CpuWorker):
    def get_kv_cache_spec(self) -> Any:
        return msgspec.structs.replace(super().get_kv_cache_spec(), num_layers=1)


class BlocksThatCostNothing(CpuWorker):
    def get_kv_cache_spec(self) -> Any:
        return msgspec.structs.replace(super().get_kv_cache_spec(), block_bytes=16)


class MemoryInGigabytes(CpuWorker):
    def determine_available_memory(self) -> Any:
        return super().determine_available_memory() / 2**30


class OwnIdeaOfMemory(CpuWorker):
    def determine_available_memory(self) -> int:
        return 1 << 30


class OwnIdeaOfBlocks(CpuWorker):
    def update_block_size(self) -> int:
        super().update_block_size()
        self.block_size = 16
        return 16


class ChangesTheConfiguration(CpuWorker):
    def load_model(self) -> None:
        self.config.cache.enable_prefix_caching = False
        super().load_model()


class RaisesInAHook(CpuWorker):
    def init_device(self) -> None:
        raise OSError("driver too old")


class _Answers(CpuWorker):
    def changed(self, plan: StepPlan, result: StepResult) -> Any:
        raise NotImplementedError

    def execute_step(self, plan: StepPlan) -> Any:
        result = super().execute_step(plan)
        return result if result is None else self.changed(plan, result)


class AnotherToken(_Answers):
    def changed(self, plan: StepPlan, result: StepResult) -> Any:
        result.sampled_token_ids = {name: [(ids[0] + 1) % 264] for name, ids in result.sampled_token_ids.items()}
        return result


class TokensTooEarly(_Answers):
    def changed(self, plan: StepPlan, result: StepResult) -> Any:
        result.sampled_token_ids = {name: [7] for name in plan.num_scheduled_tokens} | result.sampled_token_ids
        return result


class TokensTooRare(_Answers):
    """Answers one request of a step only."""

    def changed(self, plan: StepPlan, result: StepResult) -> Any:
        result.sampled_token_ids = dict(list(result.sampled_token_ids.items())[:1])
        return result


class NumbersOfArrays(_Answers):
    def changed(self, plan: StepPlan, result: StepResult) -> Any:
        import numpy as np

        result.sampled_token_ids = {
            name: [np.int64(i) for i in ids] for name, ids in result.sampled_token_ids.items()
        }
        return result


class CountsItsOwnSteps(_Answers):
    steps = 0

    def changed(self, plan: StepPlan, result: StepResult) -> Any:
        self.steps += 1
        result.step_id = self.steps
        return result


class PlainData(_Answers):
    def changed(self, plan: StepPlan, result: StepResult) -> Any:
        return msgspec.to_builtins(result)


class NothingForNothing(_Answers):
    def changed(self, plan: StepPlan, result: StepResult) -> Any:
        return result if plan.num_scheduled_tokens else None


class KeepsState(_Answers):
    """Tires after a dozen tokens."""

    answered = 0

    def changed(self, plan: StepPlan, result: StepResult) -> Any:
        self.answered += len(result.sampled_token_ids)
        if self.answered > 12:
            result.sampled_token_ids = {name: [0] for name in result.sampled_token_ids}
        return result


class DiffersBetweenProcesses(_Answers):
    def changed(self, plan: StepPlan, result: StepResult) -> Any:
        result.sampled_token_ids = {
            n: [(ids[0] + PROCESS_NUMBER - 1) % 264] for n, ids in result.sampled_token_ids.items()
        }
        return result


class ForgetsPreemption(CpuWorker):
    def execute_step(self, plan: StepPlan) -> Any:
        return super().execute_step(msgspec.structs.replace(plan, preempted=[]))


class IgnoresTheTable(CpuWorker):
    """Puts each request's first block where the last one of the plan lies."""

    def execute_step(self, plan: StepPlan) -> Any:
        new = [msgspec.structs.replace(request, block_ids=[1] * len(request.block_ids)) for request in plan.new]
        return super().execute_step(msgspec.structs.replace(plan, new=new))


class EatsThePlan(CpuWorker):
    def execute_step(self, plan: StepPlan) -> Any:
        result = super().execute_step(plan)
        plan.new.clear()
        return result


class RegistersLate(CpuWorker):
    def execute_step(self, plan: StepPlan) -> Any:
        ModelRegistry.register_model("LateForCausalLM", "wrong_models:KeepsState")
        return super().execute_step(plan)


class ShutsDownOnce(CpuWorker):
    def shutdown(self) -> None:
        super().shutdown()
        del self.config


class NeedsItsModelToEnd(CpuWorker):
    def shutdown(self) -> None:
        self.model.cpu()
        super().shutdown()


class LeavesAFolder(CpuWorker):
    def init_device(self) -> None:
        tempfile.mkdtemp(prefix="compiled-")
        super().init_device()


class LeavesAThread(CpuWorker):
    stop = threading.Event()

    def init_device(self) -> None:
        threading.Thread(target=self.stop.wait, name="watch the device", args=(30,)).start()
        super().init_device()


class AnswersOnEveryRank(CpuWorker):
    def execute_step(self, plan: StepPlan) -> Any:
        return super().execute_step(plan) or StepResult(step_id=plan.step_id)


class RanksDisagree(CpuWorker):
    def update_block_size(self) -> int:
        size = super().update_block_size()
        self.block_size = size if self.rank == 0 else 2 * size
        return self.block_size


class FailsOnRankOne(CpuWorker):
    def load_model(self) -> None:
        if self.rank == 1:
            raise OSError("out of device memory")
        super().load_model()
