"""Small steps as few native calls: what a step does is kept once per number of tokens, then run again.

The model's own code makes the calls that are kept, and a kept step must give the model's own result, bit for bit,
before it is used. Between ranks every such decision is made together, since each rank must take part in the same
collectives. It knows no model.
"""

from __future__ import annotations

import logging
from collections import Counter
from typing import TYPE_CHECKING, Any

import torch
from torch.nn.modules import module as every_module
from torch.utils.hooks import RemovableHandle

from graftlm.distributed.groups import tp_all_reduce, tp_communicator, tp_size
from graftlm_kernels.arena import Arena
from graftlm_kernels.communicator import SharedMemoryCommunicator
from graftlm_kernels.others import modules_of_others
from graftlm_kernels.recording import ChangedAnswer, Recording, Where

if TYPE_CHECKING:
    from graftlm.contracts.attention import ForwardContext

logger = logging.getLogger(__name__)

#: In larger steps the calls themselves cost little beside their work.
MAX_TOKENS = 64
#: Of prompts only thin chunks come in the same sizes again and again, beside streams that must not wait.
MAX_TOKENS_WITH_PROMPTS = 24
#: Keeping a step and proving it costs three others, so a size is kept when it comes for this time: batches pass
#: through most sizes only once, as their streams begin and end.
KEPT_FROM_SIGHTING = 3


class KeptStep:
    """The parts of a step of one size, and where its results appear."""

    def __init__(self, recording: Recording, outputs: Any, inputs: tuple[torch.Tensor, torch.Tensor]) -> None:
        self.parts = recording.parts
        self.splits = recording.splits
        self.num_native = recording.num_native
        self.outputs = outputs
        self.inputs = inputs
        self.is_proven = False
        self._own = tuple(one.data_ptr() for one in inputs)

    def run(self, where: Where, input_ids: torch.Tensor, positions: torch.Tensor, context: ForwardContext) -> None:
        if self.splits:  # what is called from Python knows the step's inputs as tensors
            self.inputs[0].copy_(input_ids)
            self.inputs[1].copy_(positions)
            where = (*self._own, *where[2:])
        for part in self.parts:
            part(where, context)


class StepCapture:
    """Computes what `model` computes. It is called by one thread at a time, as a model with a KV cache is."""

    def __init__(self, model: torch.nn.Module) -> None:
        self.model = model
        self.arena = Arena(MAX_TOKENS)
        #: By number of tokens. A step with prompts is proven for itself, though its calls are those of decodes.
        self.steps: dict[int, KeptStep] = {}
        self.steps_with_prompts: dict[int, KeptStep] = {}
        #: How often each size has come that is not kept: on every rank the same.
        self._sightings = Counter[tuple[int, bool]]()
        #: Modules that are not the engine's own: their code runs in every step.
        self.others, obstacle = modules_of_others(model)
        #: Why this rank leaves steps to the model.
        self.obstacle = obstacle or _obstacle_of_collectives()
        #: The same on all ranks: no step is kept any more.
        self.is_given_up = False
        modules = list(model.modules())
        #: Whoever adds a hook to a module later must be heard: these are never replaced, only filled. Each hook
        #: takes a number of torch's, so they need to be looked at only where a number was taken.
        self._hooks = [hooks for m in (*modules, every_module) for hooks in _hooks_of(m)]
        self._numbered = -1
        self._caches = [(m, m.kv_cache) for m in modules if hasattr(m, "kv_cache")]
        self._agree(self.obstacle is None)

    def __call__(self, input_ids: torch.Tensor, positions: torch.Tensor, context: ForwardContext) -> Any:
        metadata = context.attention
        tokens = metadata.num_tokens
        is_decode = tokens == metadata.num_requests
        if self.is_given_up or tokens > (MAX_TOKENS if is_decode else MAX_TOKENS_WITH_PROMPTS):
            return self.model(input_ids, positions, context)
        requests, query_start, seq_lens, table, stride = metadata.backend.step
        slots = metadata.backend.slots
        where = (input_ids.data_ptr(), positions.data_ptr(), slots, query_start, seq_lens, table, stride, requests)
        arguments = (input_ids, positions, context)
        steps = self.steps if is_decode else self.steps_with_prompts
        step = steps.get(tokens)
        if self.obstacle is None and self._is_changed():
            self.obstacle = "a module has a hook or another KV cache"
        # What follows makes the same number of passes on all ranks, whatever one of them has met.
        if step is None:
            self._sightings[tokens, is_decode] += 1
            if self._sightings[tokens, is_decode] < KEPT_FROM_SIGHTING:
                return self.model(*arguments)
            return self._first(steps, where, *arguments)
        if not step.is_proven:
            return self._second(step, where, *arguments)
        if self.obstacle is not None:
            if tp_size() == 1:
                self._agree(False)
            return self.model(*arguments)
        try:
            step.run(where, *arguments)
        except ChangedAnswer as error:
            if tp_size() > 1:
                raise
            self.obstacle = str(error)
            self._agree(False)
            return self.model(*arguments)
        return step.outputs

    def _is_changed(self) -> bool:
        if self._numbered != RemovableHandle.next_id:
            self._numbered = RemovableHandle.next_id
            if any(self._hooks):
                self._numbered = -1
                return True
        return any(layer.kv_cache is not cache for layer, cache in self._caches)

    def _first(
        self,
        steps: dict[int, KeptStep],
        where: Where,
        input_ids: torch.Tensor,
        positions: torch.Tensor,
        context: ForwardContext,
    ) -> Any:
        """Let the model compute the step, and keep what it does among `steps`."""
        tokens = input_ids.size(0)
        if self.obstacle is not None:
            outputs = self.model(input_ids, positions, context)
            self._agree(False)
            return outputs
        inputs = tuple(self.arena.like(one, rows=tokens).copy_(one) for one in (input_ids, positions))
        where = (*(one.data_ptr() for one in inputs), *where[2:])
        recording = Recording(self.arena, where=where, rows=tokens, context=context)
        outputs = recording.record(lambda: self.model(*inputs, context), self.others)
        self.obstacle = recording.obstacle
        if self.obstacle is None and not all(
            self.arena.owns(one) and one.is_contiguous() for one in _flat(outputs)
        ):
            self.obstacle = "a result is no kernel's"
        if self._agree(self.obstacle is None):
            steps[tokens] = KeptStep(recording, outputs, inputs)  # type: ignore[arg-type]
            logger.debug(
                "step kept tokens=%d requests=%d native_calls=%d splits=%s",
                tokens, context.attention.num_requests, recording.num_native, recording.splits,
            )  # fmt: skip
        return outputs

    def _second(self, step: KeptStep, where: Where, *arguments: Any) -> Any:
        """Compute a step in both ways, and trust the kept one if it gave the model's bits."""
        if self.obstacle is None:
            try:
                step.run(where, *arguments)
            except ChangedAnswer as error:
                if tp_size() > 1:
                    raise
                self.obstacle = str(error)
        else:
            self.model(*arguments)
        outputs = self.model(*arguments)
        if self.obstacle is None and not all(map(torch.equal, _flat(outputs), _flat(step.outputs))):
            self.obstacle = "a kept step and the model differ"
        step.is_proven = self._agree(self.obstacle is None)
        return outputs

    def _agree(self, fine: bool) -> bool:
        """Tell whether all ranks are fine; if one is not, all leave later steps to the model."""
        if tp_size() > 1:
            fine = int(tp_all_reduce(torch.tensor([float(fine)]))) == tp_size()
        if not fine:
            self.obstacle = self.obstacle or "another rank cannot keep steps"
            self.is_given_up = True
            self.steps.clear()
            self.steps_with_prompts.clear()
            logger.debug("steps are not kept: %s", self.obstacle)
        return fine


def _flat(outputs: Any) -> tuple[torch.Tensor, ...]:
    if outputs is None:
        return ()
    return outputs if isinstance(outputs, tuple) else (outputs,)


def _hooks_of(module: Any) -> tuple[dict[int, Any], dict[int, Any]]:
    if module is every_module:
        return module._global_forward_hooks, module._global_forward_pre_hooks
    return module._forward_hooks, module._forward_pre_hooks


def _obstacle_of_collectives() -> str | None:
    communicator = tp_communicator()
    if communicator is None or (type(communicator) is SharedMemoryCommunicator and communicator.shared is not None):
        return None
    return f"collectives go through {type(communicator).__qualname__}, which is called from Python"
