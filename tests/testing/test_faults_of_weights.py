"""Wrong quantization methods and communicators: each fault must turn its check of the suite red."""

from __future__ import annotations

import pytest
from fault_checks import broken

from graftlm.testing.conformance import CommunicatorConformance, QuantizationConformance
from graftlm.testing.suite import failures

CLASS, LAYERS = "test_it_is_a_complete_quantization_class", "test_layers_compute_nearly_what_plain_ones_do"
STATE, UNCHANGED = "test_no_state_from_call_to_call", "test_arguments_are_left_unchanged"


@pytest.mark.parametrize("name", ["Sound", "RefusesBlocks"])
def test_sound_methods_pass(name: str) -> None:
    """What the wrong ones derive from has no fault of its own; a refusal in words is none."""
    facts = {"subject": f"wrong_quantization:{name}", "largest_error": 0.02}

    assert failures(type("SoundSuite", (QuantizationConformance,), facts)) == {}


@pytest.mark.parametrize(
    ("name", "check", "words"),
    [
        ("HalfAMethod", CLASS, "it does not implement get_linear_method"),
        ("DoesNothing", CLASS, "keeps every layer plain: it does nothing"),
        ("NeedsItsSection", CLASS, "from_checkpoint raises KeyError: 'quantization_config'"),
        ("OneForAll", CLASS, "one object for two models"),
        ("ForgetsTheScale", LAYERS, "it differs from plain weights by"),
        ("ForgetsTheBias", LAYERS, "ReplicatedLinear 'replicated' in float32, 1 token: it differs"),
        ("WrongFormat", LAYERS, "in bfloat16, 1 token: it is torch.float32, not torch.bfloat16"),
        ("WrongShape", LAYERS, "it has shape [1, 1, 64], not [1, 64]"),
        ("WrongDevice", LAYERS, "it lies on meta, not on cpu"),
        ("NeedsTokens", LAYERS, "apply of replicated to [0, 128] torch.float32 raises RuntimeError"),
        ("RegistersLate", LAYERS, "raises LateRegistration"),
        ("EmbedsBytes", "test_embeddings_return_rows_of_the_weight", "embed of VocabParallelEmbedding"),
        ("FillsFromTheTop", "test_shards_may_come_in_any_order", "filled from its last shard to its first"),
        ("ChangesItsInput", UNCHANGED, "apply changes its input"),
        ("ChangesTheCheckpoint", UNCHANGED, "loading changes the checkpoint's tensor"),
        ("OneBuffer", STATE, "a later call changes an earlier answer"),
        ("KeepsState", STATE, "the same input gets another answer"),
        ("SharesItsWeights", "test_layers_share_nothing", "layer 1 of two that were built"),
        ("MisreadsBlocks", "test_a_files_blocks_are_taken_or_refused", "filled with Q8_0 blocks: it differs"),
        ("DiffersBetweenProcesses", "test_every_process_answers_alike", "another process computes something else"),
    ],
)
def test_a_wrong_quantization_method_is_caught(name: str, check: str, words: str) -> None:
    """Numbers, formats, shapes, places, shards, writes, state, late registrations, processes."""
    assert words in broken(QuantizationConformance, f"wrong_quantization:{name}", check)


def test_a_method_under_another_name_is_caught() -> None:
    """--quantization says the entry point's name, a checkpoint the class's."""
    text = broken(QuantizationConformance, "wrong_quantization:Sound", CLASS, plugin="acme_int8")

    assert "its name is 'sound', its entry point 'acme_int8'" in text


@pytest.mark.parametrize(
    ("name", "check", "words"),
    [
        ("WithoutGather", "test_it_is_a_complete_communicator_class", "it does not implement gather"),
        ("WantsMore", "test_it_is_a_complete_communicator_class", "cannot be constructed with group, device and"),
        ("WrongFormat", "test_all_reduce_sums", "is torch.float64, not torch.float32"),
        ("WrongShape", "test_all_gather_joins_in_rank_order", "has shape"),
        ("ChangesItsInput", "test_inputs_are_left_unchanged", "all_gather -1, all_gather 0 changes its input"),
        ("RaisesOnOneRank", "test_broadcast_carries_one_ranks_tensor", "a rank raises"),
    ],
)
def test_a_wrong_communicator_is_caught_as_well(name: str, check: str, words: str) -> None:
    """Completeness, formats, shapes, writes, and a rank that fails while the other one waits."""
    assert words in broken(CommunicatorConformance, f"wrong_communicators:{name}", check)
