"""The conformance suite of attention backends; it tests what the backend's `supports` accepts."""

from __future__ import annotations

import copy
from collections.abc import Iterator
from typing import ClassVar

import torch

from graftlm.contracts.attention import AttentionBackend
from graftlm.contracts.platform import AttentionQuestion
from graftlm.layers.rotary import RotaryEmbedding
from graftlm.ops.dispatch import OpChoice
from graftlm.ops.examples import Tolerance, compare
from graftlm.ops.implementation import OpImplementation
from graftlm.plugins.resolve import resolve_class_path
from graftlm.testing.attention_cases import AttentionCase, generated_cases
from graftlm.testing.elsewhere import elsewhere
from graftlm.testing.suite import NotDeclared, Suite

_TOLERANCES = {
    torch.float32: Tolerance(1e-4, 1e-4, "float32 sums of some hundred products and one softmax, in any order"),
    torch.bfloat16: Tolerance(6e-2, 3e-2, "keys, values and probabilities of eight bits"),
    torch.float16: Tolerance(1e-2, 5e-3, "keys, values and probabilities of eleven bits"),
}


class AttentionBackendConformance(Suite):
    """Subclass it with `subject` naming an AttentionBackend class."""

    contract = "graftlm.contracts.attention.AttentionBackend"
    dtypes: ClassVar[tuple[torch.dtype, ...]] = (torch.float32, torch.bfloat16)
    #: Where to compute, as torch names it.
    device: ClassVar[str] = "cpu"
    #: The OpImplementation of `rotary_embedding` whose rotation the backend takes over, if it takes no other.
    rotary_implementation: ClassVar[type[OpImplementation] | str | None] = None

    def test_it_is_a_complete_backend_class(self) -> None:
        """A subclass of AttentionBackend with every abstract method, and a name of its own."""
        cls = self.load()
        self.require(isinstance(cls, type) and issubclass(cls, AttentionBackend), f"it is {cls!r}")
        missing = sorted(getattr(cls, "__abstractmethods__", ()))
        self.require(not missing, f"it does not implement {', '.join(missing)}")
        name = getattr(cls, "name", None)
        self.require(isinstance(name, str) and bool(name), f"its name is {name!r}")

    def test_what_it_supports_is_said_plainly(self) -> None:
        """`supports` returns None or a reason, whatever is asked; block sizes are positive whole numbers."""
        cls = self.load()
        sizes = cls.supported_block_sizes()
        self.require(
            isinstance(sizes, tuple) and bool(sizes) and all(type(s) is int and s > 0 for s in sizes),
            f"supported_block_sizes() is {sizes!r}",
        )
        for question in _odd_questions():
            answer = cls.supports(question)
            self.require(
                answer is None or (isinstance(answer, str) and bool(answer)),
                f"supports({question}) returns {answer!r}",
            )

    def test_cache_shape_grows_with_the_blocks(self) -> None:
        """`kv_cache_shape` returns whole numbers, room for keys and values of every slot, as many per block."""
        cls = self.load()
        for case in self._cases(torch.float32):
            sizes = []
            for blocks in (1, 7):
                shape = cls.kv_cache_shape(blocks, case.block_size, case.num_kv_heads, case.head_size)
                self.require(
                    isinstance(shape, tuple) and all(type(n) is int for n in shape),
                    f"kv_cache_shape returns {shape!r}",
                )
                sizes.append(torch.Size(shape).numel())
            needed = 2 * case.block_size * case.num_kv_heads * case.head_size
            self.require(
                sizes[0] >= needed and sizes[1] == 7 * sizes[0],
                f"1 and 7 blocks of {case.block_size} tokens hold {sizes} numbers, {needed} are needed for one",
            )

    def test_answers_equal_naive_attention(self) -> None:
        """Causal attention of each query over its request's keys, within the number format's tolerance.

        For prefill, decode, chunks and mixes of them, block tables in any order, grouped heads, stale free blocks,
        every supported block size, and a step without requests.
        """
        for dtype in self.dtypes:
            for case in self._cases(dtype):
                with torch.inference_mode():
                    found = case.run(self.load(), dtype)
                self.require(isinstance(found, torch.Tensor), f"attend returns {type(found).__name__}")
                outcome = compare(found.cpu(), case.expected().to(dtype), _TOLERANCES[dtype])
                self.require(not outcome.problem, f"{dtype}, {case.label}: {outcome.problem}")

    def test_query_key_and_value_are_left_unchanged(self) -> None:
        """A backend writes to the cache and to its own output, never to query, key, value or the metadata."""
        for case in self._cases(torch.float32):
            backend, kv_cache = case.build(self.load()), case.cache(self.load())
            step = case.fill(backend, kv_cache)
            before = copy.deepcopy((step.query, step.key, step.value))
            table, slots = step.metadata.block_table.clone(), step.metadata.slot_mapping.clone()
            backend.write_cache(step.key, step.value, kv_cache, step.metadata)
            output = backend.attend(step.query, kv_cache, step.metadata)
            names = ("query", "key", "value")
            for name, was, now in zip(names, before, (step.query, step.key, step.value), strict=True):
                self.require(torch.equal(was, now), f"it changes the {name} ({case.label})")
            unchanged = torch.equal(table, step.metadata.block_table)
            self.require(
                unchanged and torch.equal(slots, step.metadata.slot_mapping),
                f"it changes the metadata ({case.label})",
            )
            if output.numel():
                self.require(output.data_ptr() != step.query.data_ptr(), "its output is the query's memory")

    def test_no_state_from_step_to_step(self) -> None:
        """The same step gives the same answer whatever the layer computed before, to the last bit."""
        cls = self.load()
        for case in self._cases(torch.float32):
            if not case.requests:
                continue
            backend, kv_cache = case.build(cls), case.cache(cls)
            step = case.fill(backend, kv_cache)
            first = backend.attend(step.query, kv_cache, step.metadata)
            kept = first.clone()
            other = AttentionCase(
                [(11, 4), (0, 3)],
                case.num_heads,
                case.num_kv_heads,
                case.head_size,
                case.block_size,
                99,
                self.device,
            )
            other_cache = other.cache(cls)
            between = other.fill(backend, other_cache)
            backend.attend(between.query, other_cache, between.metadata)
            self.require(torch.equal(first, kept), f"a later step overwrites an earlier answer ({case.label})")
            again = case.step(case.now())
            cls.build_metadata(again.metadata)
            second = backend.attend(again.query, kv_cache, again.metadata)
            self.require(
                torch.equal(second, kept), f"the same step gives another answer after another step ({case.label})"
            )

    def test_layers_share_one_steps_metadata(self) -> None:
        """`build_metadata` runs once per step; any number of layers then uses it, each with its own cache."""
        cls = self.load()
        for case in self._cases(torch.float32):
            layers = [(case.build(cls), case.cache(cls)) for _ in range(2)]
            for backend, kv_cache in layers:
                case.fill(backend, kv_cache)
            step = case.step(case.now())
            cls.build_metadata(step.metadata)
            first, second = (backend.attend(step.query, cache, step.metadata) for backend, cache in layers)
            self.require(torch.equal(first, second), f"two equal layers answer differently ({case.label})")

    def test_writing_touches_only_its_slots(self) -> None:
        """`write_cache` stores at `slot_mapping`; what other requests hold stays as it is."""
        cls = self.load()
        for case in self._cases(torch.float32):
            if len(case.requests) < 2:
                continue
            backend, kv_cache = case.build(cls), case.cache(cls)
            step = case.fill(backend, kv_cache)
            before = backend.attend(step.query, kv_cache, step.metadata)
            intruder = AttentionCase(
                [(0, 2 * case.block_size)],
                case.num_heads,
                case.num_kv_heads,
                case.head_size,
                case.block_size,
                device=self.device,
            )
            intruder.tables = [case.free_blocks[:2]]
            tokens = intruder.step(intruder.now())
            cls.build_metadata(tokens.metadata)
            backend.write_cache(tokens.key, tokens.value, kv_cache, tokens.metadata)
            after = backend.attend(step.query, kv_cache, step.metadata)
            self.require(torch.equal(before, after), f"a write into a free block changes others ({case.label})")

    def test_fused_rotation_equals_rotating_first(self) -> None:
        """A backend that takes the rotation over answers as the rotary embedding and `attend` do one by one."""
        cls, declared = self.load(), False
        for case in self._cases(torch.float32):
            rotary = self._rotary(case.head_size)
            fused = case.build(cls)
            if not case.requests or not fused.fuse_rotation(rotary):
                continue
            declared = True
            results = []
            for backend in (fused, case.build(cls)):
                kv_cache = case.cache(cls)
                case.fill(backend, kv_cache)
                step = case.step(case.now())
                cls.build_metadata(step.metadata)
                positions = torch.cat([torch.arange(*span, device=self.device) for span in case.now()])
                query, key, value = (t.flatten(1) for t in (step.query, step.key, step.value))
                if backend is fused:
                    results.append(backend.rotate_and_attend(query, key, value, kv_cache, step.metadata, positions))
                    continue
                query, key = rotary.forward_native(positions, query, key)
                backend.write_cache(key.view_as(step.key), step.value, kv_cache, step.metadata)
                results.append(backend.attend(query.view_as(step.query), kv_cache, step.metadata).flatten(1))
            outcome = compare(results[0], results[1], _TOLERANCES[torch.float32])
            self.require(not outcome.problem, f"{case.label}: {outcome.problem}")
        if not declared:
            raise NotDeclared("its `fuse_rotation` takes no rotation over")

    def test_every_process_answers_alike(self) -> None:
        """Ranks and restarts agree: nothing depends on the process, its id or its hash seed."""
        path = self.subject_path()
        theirs = elsewhere().call("graftlm.testing.conformance.attention:answers", path, self.device)
        for case, found in zip(self._cases(torch.float32), theirs, strict=True):
            outcome = compare(
                torch.tensor(found), case.run(self.load()).flatten().cpu(), _TOLERANCES[torch.float32]
            )
            self.require(not outcome.problem, f"another process answers differently: {outcome.problem}")

    def _rotary(self, head_size: int) -> RotaryEmbedding:
        """A rotary embedding as a model builds it where the implementation is chosen."""
        rotary = RotaryEmbedding(head_size, max_position=400).to(self.device)
        named = self.rotary_implementation
        implementation = resolve_class_path(named) if isinstance(named, str) else named
        if implementation is not None:
            rotary.choice = OpChoice("rotary_embedding", "under test", implementation(rotary))
        return rotary

    def _cases(self, dtype: torch.dtype) -> Iterator[AttentionCase]:
        cases = supported_cases(self.load(), dtype, self.device)
        if not cases:
            raise NotDeclared(f"its `supports` accepts no {dtype} geometry that this suite asks for")
        return iter(cases)


def supported_cases(cls: type[AttentionBackend], dtype: torch.dtype, device: str) -> list[AttentionCase]:
    """Return the generated cases that the backend says it can serve."""
    cases = generated_cases(block_sizes=cls.supported_block_sizes()[:4], device=device)
    return [case for case in cases if cls.supports(case.question(dtype)) is None]


def answers(path: str, device: str) -> list[list[float]]:
    """Return the answers of all supported float32 cases; called in another process."""
    cls = resolve_class_path(path)
    return [case.run(cls).flatten().tolist() for case in supported_cases(cls, torch.float32, device)]


def _odd_questions() -> list[AttentionQuestion]:
    def ask(
        head_size: int, dtype: str, cache_dtype: str, block_size: int | None, window: int | None
    ) -> AttentionQuestion:
        return AttentionQuestion(4, 2, head_size, dtype, cache_dtype, block_size, window)

    return [
        ask(64, "float32", "float32", None, None),
        ask(64, "bfloat16", "float16", 16, None),
        ask(64, "float32", "float32", 16, 128),
        ask(1, "float16", "fp8_e4m3", 3, None),
        ask(4096, "float32", "float32", 1024, 1),
    ]
