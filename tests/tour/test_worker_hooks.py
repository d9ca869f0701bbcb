"""What a platform's hooks do in workers, told by the platform itself: how often, when, and with what effect.

The model has attention layers of two kinds; the platform replaces the decode kernel by one that attends to nothing.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from plugin_packages import Site
from tour_server import CORE, TourServer

PROMPT = [5, 6, 7, 8]
WORKER_HOOKS = {
    "register_triton_kernel_overrides", "set_device", "get_attn_backend_cls", "update_block_size_for_backend",
}  # fmt: skip
FILES = {
    "odd_device/__init__.py": """
        def detect():
            return "odd_device.platform:OddPlatform"
    """,
    "odd_device/platform.py": """
        import gc, sys

        import tour_witness
        from graftlm.plugins import current_host
        from graftlm_dummy_platform.platform import DummyPlatform

        def called(hook, **facts):
            tour_witness.write("hook", hook=hook, process=current_host().process, **facts)

        class OddPlatform(DummyPlatform):
            device_name = "OddDevice"

            @classmethod
            def register_triton_kernel_overrides(cls):
                from graftlm.ops import override_kernel
                from torch.nn import Module

                # No layer exists in this process: none of its kernels can have run.
                layers = sum(isinstance(item, Module) for item in gc.get_objects())
                called("register_triton_kernel_overrides", layers=layers)
                override_kernel("paged_attention.decode", "odd_device.kernels:attend_to_nothing")

            @classmethod
            def set_device(cls, device):
                called("set_device")

            @classmethod
            def get_device_communicator_cls(cls):
                called("get_device_communicator_cls")
                return "dummy"

            @classmethod
            def get_attn_backend_cls(cls, selected_backend, question):
                called("get_attn_backend_cls", question=[question.num_heads, question.head_size])
                return super().get_attn_backend_cls(selected_backend, question)

            @classmethod
            def update_block_size_for_backend(cls, config, backends):
                called("update_block_size_for_backend")
                return super().update_block_size_for_backend(config, backends)
    """,
    "odd_device/kernels.py": """
        import torch
        import tour_witness

        def attend_to_nothing(query, kv, mask, scale):
            tour_witness.write("kernel ran")
            return torch.zeros_like(query)
    """,
    "odd_device/model.py": """
        from graftlm.layers import Attention
        from graftlm.models.llama import LlamaForCausalLM
        from torch import nn

        class TwoKindsForCausalLM(LlamaForCausalLM):
            \"\"\"Beside Llama's two equal attention layers, three that nothing calls, of two more kinds.\"\"\"

            def __init__(self, *, config, prefix=""):
                super().__init__(config=config, prefix=prefix)
                kinds = [(2, 32), (2, 32), (4, 8)]
                self.spare = nn.ModuleList(Attention(heads, size, size**-0.5) for heads, size in kinds)
    """,
}


def install(folder: Path, wheels: dict[str, Path]) -> Site:
    """The dummy platform, the witness, and the odd device with its model."""
    points = {
        "platform_plugins": {"odd": "odd_device:detect"},
        "models": {"TwoKindsForCausalLM": "odd_device.model:TwoKindsForCausalLM"},
    }
    site = Site(folder / "site").install(wheels["dummy_platform"], wheels["tour_witness"])
    return site.write("odd-device", entry_points=points, files=FILES)


def serve(folder: Path, wheels: dict[str, Path], model: Path, *flags: str) -> TourServer:
    return TourServer(
        install(folder, wheels), model, "--platform", "odd",
        "--hf-overrides", '{"architectures": ["TwoKindsForCausalLM"]}', *flags, records=folder / "records",
    )  # fmt: skip


@pytest.fixture(scope="module")
def two(
    tmp_path_factory: pytest.TempPathFactory, wheels: dict[str, Path], tiny_llama: Path, start_flags: list[str]
) -> Iterator[TourServer]:
    """Two workers, started in both ways."""
    server = serve(tmp_path_factory.mktemp("two"), wheels, tiny_llama, "--tensor-parallel-size", "2", *start_flags)
    yield server
    server.stop()


@pytest.fixture(scope="module")
def one(
    tmp_path_factory: pytest.TempPathFactory, wheels: dict[str, Path], tiny_llama: Path, start_flags: list[str]
) -> Iterator[TourServer]:
    """One rank, inside the engine core."""
    server = serve(tmp_path_factory.mktemp("one"), wheels, tiny_llama, *start_flags)
    yield server
    server.stop()


@pytest.fixture(scope="module")
def reference(tiny_llama: Path) -> list[int]:
    """What transformers continues PROMPT with."""
    import torch
    from transformers import AutoModelForCausalLM

    model = AutoModelForCausalLM.from_pretrained(tiny_llama, dtype=torch.float32)
    ids = model.generate(torch.tensor([PROMPT]), max_new_tokens=8, do_sample=False, eos_token_id=None)
    answer: list[int] = ids[0, len(PROMPT) :].tolist()
    return answer


def hooks_of(server: TourServer, process: str) -> list[str]:
    """Return the hooks that the platform says were called in a process, in their order."""
    return [record["hook"] for record in server.records("hook", process=process)]


def test_each_hook_is_called_once_in_each_worker(two: TourServer):
    """The platform's own count, attention aside, equals the ledger's; none is called in the core."""
    for worker in two.workers:
        called = hooks_of(two, worker)
        once = sorted(hook for hook in called if hook != "get_attn_backend_cls")
        assert once == sorted({*WORKER_HOOKS, "get_device_communicator_cls"} - {"get_attn_backend_cls"})
        assert all(two.hooks(worker)[hook] == called.count(hook) for hook in set(called))
        assert called[0] == "register_triton_kernel_overrides"
    assert hooks_of(two, CORE) == []


def test_attention_is_asked_once_for_each_kind_of_layer(two: TourServer):
    """Five layers of three kinds are three questions in each worker, each with its own arguments."""
    for worker in two.workers:
        asked = [r["question"] for r in two.records("hook", process=worker, hook="get_attn_backend_cls")]
        assert asked == [[2, 16], [2, 32], [4, 8]], "a rank has half of Llama's four heads"
        told = [e["facts"]["question"] for e in two.events("attention_asked", worker)]
        assert [[question["num_heads"], question["head_size"]] for question in told] == asked


def test_kernels_are_replaced_before_there_is_a_layer(two: TourServer):
    """When the hook runs, its process has built nothing that could have launched a kernel."""
    for worker in two.workers:
        (record,) = two.records("hook", process=worker, hook="register_triton_kernel_overrides")
        assert record["layers"] == 0


def test_the_replaced_kernel_changes_what_is_answered(two: TourServer, reference: list[int]):
    """The first token comes of the prefill kernel, which is the reference; the others of one that sees nothing."""
    before = two.records("kernel ran")
    ids = two.complete(PROMPT)

    assert before == [], "no request, no kernel"
    assert ids[0] == reference[0]
    assert ids[1:] != reference[1:]
    assert {record["pid"] for record in two.records("kernel ran")} == {two.pids[worker] for worker in two.workers}


def test_one_rank_asks_for_no_communicator(one: TourServer, reference: list[int]):
    """The hooks of the one worker run in the engine core, each once, and no group is built there."""
    called = hooks_of(one, CORE)

    assert one.children == [CORE] == list(one.plan["processes"])[1:]
    assert "get_device_communicator_cls" not in called and not one.events("communicator_built")
    assert "get_device_communicator_cls" not in one.hooks(CORE)
    assert set(called) == WORKER_HOOKS
    assert [hook for hook in called if called.count(hook) > 1] == ["get_attn_backend_cls"] * 3
    assert len(one.records("hook")) == len(called), "no hook of a worker is called elsewhere"
    assert one.complete(PROMPT)[0] == reference[0]
