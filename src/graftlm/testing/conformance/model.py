"""The conformance suite of model classes, over a tiny random checkpoint."""

from __future__ import annotations

import contextlib
import inspect
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any, ClassVar

import torch

from graftlm.contracts.model import ModelSpec, is_model_class
from graftlm.distributed.groups import destroy_distributed, init_distributed
from graftlm.ops.examples import Tolerance, compare
from graftlm.plugins.resolve import resolve_class_path
from graftlm.testing.checkpoints import TinyCheckpoint, checkpoint_for
from graftlm.testing.elsewhere import elsewhere, run_ranks
from graftlm.testing.host import plugin_host
from graftlm.testing.model_steps import attention_layers, load_class, logits_of, step_input
from graftlm.testing.suite import NotDeclared, Suite

_TOLERANCE = Tolerance(
    1e-3, 1e-3, "float32 through all layers: a matrix product's rounding depends on how many rows it has"
)
_PROMPTS = [
    [5, 9, 77, 200, 31, 8, 3, 100, 19, 44, 2, 60, 61, 62, 7, 90, 91, 13, 250],
    [40, 41, 42],
    [7, 200, 1, 9, 30],
]


class ModelConformance(Suite):
    """Subclass it with `subject` naming a model class and `checkpoint` saying what its checkpoints look like.

    A class that derives from a built-in model needs no `checkpoint` of its own.
    """

    contract = "graftlm.contracts.model.Model"
    checkpoint: ClassVar[TinyCheckpoint | None] = None

    def test_it_is_a_model_class(self) -> None:
        """A torch.nn.Module constructed as Model(config=…, prefix=…) with forward(input_ids, positions, context),
        compute_logits and load_weights; a `spec`, where there is one, is a ModelSpec.
        """
        cls = self.load()
        self.require(
            is_model_class(cls) and issubclass(cls, torch.nn.Module),
            "it lacks forward, compute_logits or load_weights",
        )
        try:
            inspect.signature(cls).bind(config=None, prefix="")
        except TypeError as error:
            self.fail(f"it cannot be constructed as Model(config=…, prefix=…): {error}")
        spec = getattr(cls, "spec", ModelSpec())
        self.require(isinstance(spec, ModelSpec), f"its spec is {spec!r}")

    def test_it_has_attention_layers(self) -> None:
        """Its attention is built from graftlm.layers.Attention, so that a KV cache can be given to it."""
        with self._model() as model:
            self.require(bool(attention_layers(model)), "no graftlm.layers.Attention was found in it")

    def test_shapes_of_what_it_computes(self) -> None:
        """Hidden states [tokens, …] and logits [rows, vocab_size] without NaN; its arguments stay unchanged."""
        with self._model() as model, torch.inference_mode():
            step = step_input(model, _PROMPTS, [(0, 0, 5), (1, 0, 3)])
            ids, positions = step.input_ids.clone(), step.positions.clone()
            hidden = model(step.input_ids, step.positions, step.context)
            self.require(hidden.shape[0] == 8, f"forward returns {list(hidden.shape)} for 8 tokens")
            logits = model.compute_logits(hidden[2:4])
            vocab_size = self._checkpoint().hf_config["vocab_size"]
            self.require(
                tuple(logits.shape) == (2, vocab_size),
                f"compute_logits returns {list(logits.shape)} for 2 rows and vocab_size={vocab_size}",
            )
            self.require(not bool(torch.isnan(logits).any()), "its logits hold NaN")
            same = torch.equal(ids, step.input_ids) and torch.equal(positions, step.positions)
            self.require(same, "it changes input_ids or positions")

    def test_a_prompt_in_chunks_equals_the_whole(self) -> None:
        """Where a prompt is cut into steps changes no logits beyond rounding."""
        with self._model() as model:
            whole = logits_of(model, _PROMPTS[:1])[0]
            for chunks in ([7], [1, 1, 16], [16, 1]):
                found = logits_of(model, _PROMPTS[:1], chunks=chunks)[0]
                self._same(found, whole, f"in steps of {chunks} and the rest")

    def test_neighbours_change_nothing(self) -> None:
        """A request's logits do not depend on those computed beside it, beyond rounding."""
        with self._model() as model:
            together = logits_of(model, _PROMPTS)
            for prompt, found in zip(_PROMPTS, together, strict=True):
                self._same(found, logits_of(model, [prompt])[0], f"beside others, prompt of {len(prompt)}")

    def test_later_tokens_change_nothing(self) -> None:
        """It is causal: the logits at a place depend on this and earlier tokens only."""
        with self._model() as model:
            prompt = _PROMPTS[0]
            changed = [*prompt[:-1], (prompt[-1] + 1) % 200]
            first, second = logits_of(model, [prompt])[0], logits_of(model, [changed])[0]
            self._same(second[:-1], first[:-1], "with another last token, at earlier places")

    def test_no_state_from_request_to_request(self) -> None:
        """What was computed before, for whatever request, leaves no trace: the same request, the same logits."""
        with self._model() as model:
            first = logits_of(model, _PROMPTS[:1], chunks=[4])[0]
            logits_of(model, _PROMPTS[1:])
            again = logits_of(model, _PROMPTS[:1], chunks=[4])[0]
            self.require(torch.equal(first, again), "after another request, the same one gets other logits")

    def test_every_weight_is_loaded(self) -> None:
        """`load_weights` fills every parameter and returns their names, from an iterator that it walks once; a
        checkpoint that lacks a tensor is refused.
        """
        with self._model():
            pass  # complete: loading would have raised
        for name in self._checkpoint().shapes:
            self.require(self._needs(name), f"it loads a checkpoint without {name!r}, and does not complain")

    def test_what_it_does_not_know_is_refused(self) -> None:
        """A tensor that belongs to no layer, or whose shape is wrong, is an error and never ignored."""
        first = next(name for name, shape in self._checkpoint().shapes.items() if len(shape) == 1)
        wrong = {
            "a tensor of no layer": {"model.no_such_layer.weight": (3, 3)},
            f"a wrong shape of {first}": {first: (self._checkpoint().shapes[first][0] + 1,)},
        }
        for what, add in wrong.items():
            try:
                with self._model(add=add):
                    pass
            except Exception:
                continue  # refused, as it should be
            self.fail(f"it loads a checkpoint with {what} without a complaint")

    def test_two_ranks_equal_one(self) -> None:
        """Tensor parallel over two ranks changes no logits beyond rounding, and rank 1 returns None."""
        if not getattr(self.load(), "spec", ModelSpec()).supports_tensor_parallel:
            raise NotDeclared("its spec says that it does not support tensor parallelism")
        path = self.subject_path()
        with self._folder() as folder:
            ranks = run_ranks("graftlm.testing.conformance.model:logits_on_rank", path, str(folder))
        with self._model() as model:
            one = logits_of(model, _PROMPTS)
        self.require(all(not rows[0] for rows in ranks[1]), "compute_logits returns logits on rank 1, not None")
        for found, expected in zip(ranks[0], one, strict=True):
            self._same(torch.tensor(found), expected, "on two ranks")

    def test_every_process_answers_alike(self) -> None:
        """Restarts agree: nothing depends on the process, its id or its hash seed."""
        path = self.subject_path()
        with self._folder() as folder:
            theirs = elsewhere().call("graftlm.testing.conformance.model:logits_elsewhere", path, str(folder))
        with self._model() as model:
            for found, expected in zip(theirs, logits_of(model, _PROMPTS), strict=True):
                self._same(torch.tensor(found), expected, "in another process")

    def _same(self, found: torch.Tensor, expected: torch.Tensor, where: str) -> None:
        outcome = compare(found, expected, _TOLERANCE)
        self.require(not outcome.problem, f"{where}: {outcome.problem.replace('result', 'logits', 1)}")

    def _needs(self, name: str) -> bool:
        try:
            with self._model(leave_out=name):
                return False
        except Exception:
            return True

    def _checkpoint(self) -> TinyCheckpoint:
        found = self.checkpoint or checkpoint_for(self.load())
        if found is None:
            raise NotDeclared(
                "no tiny checkpoint is known for it; set `checkpoint = TinyCheckpoint(hf_config, shapes)` in the "
                "suite"
            )
        return found

    @contextlib.contextmanager
    def _folder(self, **options: Any) -> Iterator[Path]:
        with tempfile.TemporaryDirectory(prefix="graftlm-model-") as folder:
            yield self._checkpoint().write(Path(folder), **options)

    @contextlib.contextmanager
    def _model(self, **options: Any) -> Iterator[Any]:
        """Load the model; a wrong checkpoint raises what loading raises."""
        with self._folder(**options) as folder, plugin_host(role="worker"):
            yield load_class(self.load(), folder)


def logits_elsewhere(path: str, folder: str) -> list[list[list[float]]]:
    """Return the logits of all prompts; called in another process."""
    with plugin_host(role="worker"):
        return [rows.tolist() for rows in logits_of(load_class(resolve_class_path(path), Path(folder)), _PROMPTS)]


def logits_on_rank(rank: int, size: int, init_method: str, path: str, folder: str) -> list[list[list[float]]]:
    """Return the logits of all prompts on one rank of a group; empty rows where the model returns None."""
    init_distributed(size, rank, init_method)
    try:
        return logits_elsewhere(path, folder)
    finally:
        destroy_distributed()
