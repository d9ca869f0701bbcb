"""A suite that lets a wrong implementation pass is worth nothing: each fault must turn its check red."""

from __future__ import annotations

import pytest
from fault_checks import broken

from graftlm.testing.conformance import (
    AttentionBackendConformance,
    CommunicatorConformance,
    CustomOpConformance,
    EndpointConformance,
    GeneralPluginConformance,
    ModelConformance,
    OpImplementationConformance,
    PlatformConformance,
    StatLoggerConformance,
)
from graftlm.testing.suite import failures

RMS_NORM = "graftlm.layers.norm.RMSNorm"
ROTARY = "graftlm.layers.rotary.RotaryEmbedding"
EQUAL, UNCHANGED = "test_answers_equal_the_reference", "test_arguments_are_left_unchanged"
STATE, PROCESS = "test_no_state_from_call_to_call", "test_every_process_answers_alike"


@pytest.mark.parametrize(
    ("name", "check", "words"),
    [
        ("WrongNumerics", EQUAL, "rows no larger than eps"),
        ("WrongShape", EQUAL, "has shape"),
        ("WrongFormat", EQUAL, "is torch.float64, the reference torch.float32"),
        ("ForgetsTheResidual", EQUAL, "it returns Tensor with 1 tensor, not tuple with 2"),
        ("Raises", EQUAL, "it raises RuntimeError: no such device"),
        ("MutatesItsInput", UNCHANGED, "it overwrites argument 0"),
        ("KeepsState", STATE, "after other calls"),
        ("HandsOutOneBuffer", STATE, "a later call changes an earlier answer"),
        ("DiffersBetweenProcesses", PROCESS, "another process answers differently"),
    ],
)
def test_a_wrong_op_is_caught(name: str, check: str, words: str) -> None:
    """Numbers, shapes, formats, writes, state, processes."""
    assert words in broken(CustomOpConformance, f"wrong_ops:{name}", check, replaces=RMS_NORM)


def test_a_replacement_with_another_table_is_caught() -> None:
    """Its forward is the replaced one's; what it computes from is not."""
    assert "largest error" in broken(CustomOpConformance, "wrong_ops:WrongTable", EQUAL, replaces=ROTARY)


def test_a_replacement_of_another_kind_is_caught() -> None:
    """A replacement must subclass what it replaces."""
    text = broken(CustomOpConformance, "wrong_ops:OtherKind", "test_it_is_a_named_op_class", replaces=ROTARY)

    assert "does not subclass RotaryEmbedding" in text


def test_an_op_without_examples_is_caught() -> None:
    """Nothing could be compared, in silence."""
    text = broken(CustomOpConformance, "wrong_ops:WithoutExamples", "test_it_brings_examples")

    assert "example_inputs yields no call" in text


@pytest.mark.parametrize(
    ("name", "check", "words"),
    [
        ("WrongImplementation", EQUAL, "largest error"),
        ("ReadsTheOpTooEarly", "test_construction_reads_nothing_of_the_op", "has no attribute 'hidden_size'"),
        ("SaysNothing", "test_what_it_supports_is_said_plainly", "returns False"),
    ],
)
def test_a_wrong_implementation_is_caught(name: str, check: str, words: str) -> None:
    """What a provider computes, and what it says of itself."""
    assert words in broken(OpImplementationConformance, f"wrong_ops:{name}", check, op="rms_norm")


@pytest.mark.parametrize(
    ("name", "check", "words"),
    [
        ("ForgetsTheScale", "test_answers_equal_naive_attention", "largest error"),
        ("IgnoresTheBlockTable", "test_answers_equal_naive_attention", "largest error"),
        ("SeesTheFuture", "test_answers_equal_naive_attention", "largest error"),
        ("MixesUpHeads", "test_answers_equal_naive_attention", "6 heads over 2"),
        ("ScalesTheQueryInPlace", "test_query_key_and_value_are_left_unchanged", "it changes the query"),
        ("RemembersTheLastStep", "test_no_state_from_step_to_step", "another answer after another step"),
        ("WritesOneSlotTooFar", "test_writing_touches_only_its_slots", "a write into a free block"),
        ("DiffersBetweenProcesses", PROCESS, "another process answers differently"),
        ("FusesWithoutRotating", "test_fused_rotation_equals_rotating_first", "largest error"),
        ("NamesNoReason", "test_what_it_supports_is_said_plainly", "returns True"),
    ],
)
def test_a_wrong_attention_backend_is_caught(name: str, check: str, words: str) -> None:
    """Numbers, masks, block tables, head groups, writes, state, processes."""
    assert words in broken(AttentionBackendConformance, f"wrong_attention:{name}", check)


def test_a_backend_that_needs_requests_is_caught() -> None:
    """A step without requests is a step too; the error itself says what went wrong."""
    suite = type("WrongSuite", (AttentionBackendConformance,), {"subject": "wrong_attention:FailsWithoutRequests"})

    with pytest.raises(RuntimeError, match="max"):
        suite().test_answers_equal_naive_attention()


@pytest.mark.parametrize(
    ("name", "check", "words"),
    [
        ("WithoutLoader", "test_it_is_a_model_class", "lacks forward"),
        ("WrongShape", "test_shapes_of_what_it_computes", "compute_logits returns [2, 263]"),
        ("MutatesItsInput", "test_shapes_of_what_it_computes", "it changes input_ids or positions"),
        ("PositionsFromZero", "test_a_prompt_in_chunks_equals_the_whole", "in steps of"),
        ("LooksAround", "test_neighbours_change_nothing", "beside others"),
        ("LooksAround", "test_later_tokens_change_nothing", "at earlier places"),
        ("KeepsState", "test_no_state_from_request_to_request", "gets other logits"),
        ("ForgetsWeights", "test_every_weight_is_loaded", "does not complain"),
        ("ForgetsWeights", "test_what_it_does_not_know_is_refused", "a tensor of no layer"),
        ("DiffersBetweenProcesses", PROCESS, "in another process"),
        ("AnswersOnEveryRank", "test_two_ranks_equal_one", "on rank 1"),
    ],
)
def test_a_wrong_model_is_caught(name: str, check: str, words: str) -> None:
    """Shapes, chunks, neighbours, causality, state, weights, ranks, processes."""
    assert words in broken(ModelConformance, f"wrong_models:{name}", check)


@pytest.mark.parametrize(
    ("name", "check", "words"),
    [
        ("OfTheEngine", "test_it_is_a_platform_class", "write kind = PlatformKind.OOT"),
        ("ListsInsteadOfTuples", "test_its_facts_are_of_the_right_type", "not a tuple of strings"),
        ("WrongSignature", "test_hooks_can_be_called_as_the_engine_calls_them", "get_attn_backend_cls cannot"),
        ("NoWorker", "test_configuration_hooks_are_idempotent", "leaves worker_cls 'auto'"),
        ("GrowsEachTime", "test_configuration_hooks_are_idempotent", "overwrite the user's custom_ops"),
        ("OverridesTheUser", "test_configuration_hooks_are_idempotent", "overwrite the user's custom_ops"),
        ("RaisesInAHook", "test_configuration_hooks_are_idempotent", "RuntimeError: no driver"),
        ("MissingBackend", "test_named_classes_exist", "NoSuchBackend"),
        ("WrongBlockSize", "test_the_block_size_suits_its_backend", "it returns 17"),
        ("BlockSizeAgainstTheUser", "test_the_block_size_suits_its_backend", "the user chose 128"),
        ("MemoryInGigabytes", "test_memory_is_counted_in_bytes", "returns 64"),
        ("DiffersBetweenProcesses", "test_every_process_sees_the_same_facts", "device_name is"),
    ],
)
def test_a_wrong_platform_is_caught(name: str, check: str, words: str) -> None:
    """Facts, signatures, configuration, named classes, block sizes, processes."""
    assert words in broken(PlatformConformance, f"wrong_platforms:{name}", check)


@pytest.mark.parametrize(
    ("detector", "check", "words"),
    [
        ("changes_its_mind", "test_the_detector_is_pure_and_quick", "second answer differs"),
        ("slow", "test_the_detector_is_pure_and_quick", "the detector takes"),
        ("names_another", "test_the_detector_is_pure_and_quick", "not this class"),
        ("starts_the_device", "test_it_imports_no_torch", "imports torch"),
    ],
)
def test_a_wrong_detector_is_caught(detector: str, check: str, words: str) -> None:
    """Pure, quick, truthful, without torch."""
    limit_s = 0.2 if detector == "slow" else 60.0
    attributes = {"detector": f"wrong_platforms:{detector}", "detector_limit_s": limit_s}

    assert words in broken(PlatformConformance, "wrong_platforms:Sound", check, **attributes)


def test_the_sound_platform_passes() -> None:
    """What the wrong ones derive from has no fault of its own."""
    suite = type("SoundSuite", (PlatformConformance,), {"subject": "wrong_platforms:Sound"})

    assert failures(suite) == {}


@pytest.mark.parametrize(
    ("name", "check", "words"),
    [
        ("wants_an_argument", "test_it_is_called_without_arguments", "missing a required argument"),
        ("register_and_raise", "test_it_runs_in_each_of_its_roles", "the second half is missing"),
        ("register_by_process", "test_every_process_registers_the_same", "frontend registers"),
    ],
)
def test_a_wrong_general_plugin_is_caught(name: str, check: str, words: str) -> None:
    """Signature, failure, agreement."""
    assert words in broken(GeneralPluginConformance, f"wrong_platforms:{name}", check)


@pytest.mark.parametrize(
    ("name", "check", "words"),
    [
        ("NotALogger", "test_it_is_a_stat_logger_class", "it is <class"),
        ("WantsMore", "test_it_is_a_stat_logger_class", "cannot be constructed as StatLogger(config)"),
        ("RaisesWithoutAStep", "test_it_takes_every_record", "record(NoneType, list) raises AttributeError"),
        ("RaisesInLog", "test_it_takes_every_record", "log() raises ZeroDivisionError"),
        ("ClearsTheList", "test_records_are_left_unchanged", "record changes the numbers"),
        ("SharesItsState", "test_two_objects_share_nothing", "write to closed file"),
        ("RegistersLate", "test_it_takes_every_record", "LateRegistration"),
        ("RegistersLate", "test_it_works_in_its_own_thread", "it raised 1000 times"),
    ],
)
def test_a_wrong_stat_logger_is_caught(name: str, check: str, words: str) -> None:
    """Its type, what it raises, what it changes, what it shares, what it registers late."""
    assert words in broken(StatLoggerConformance, f"wrong_front_end:{name}", check)


@pytest.mark.parametrize(
    ("name", "check", "words"),
    [
        ("no_plugin", "test_the_factory_makes_an_endpoint_plugin", "it returns a dict"),
        ("one_for_all", "test_the_factory_makes_an_endpoint_plugin", "the same object twice"),
        ("NotAwaited", "test_the_factory_makes_an_endpoint_plugin", "its init_state is not `async def`"),
        ("AddsNothing", "test_it_only_adds_routes", "neither attach_router nor attach_core_routes adds a route"),
        ("RaisesInAHook", "test_it_only_adds_routes", "attach_router raises OSError: no licence"),
        ("MountsOverTheServer", "test_it_only_adds_routes", "it mounts an application at '/v1'"),
        ("MountsAnApp", "test_it_only_adds_routes", "it mounts an application"),
        ("Grows", "test_every_app_gets_the_same_routes", "first attach_router adds"),
        ("GrowsInTheCore", "test_every_app_gets_the_same_routes", "first attach_core_routes adds"),
        ("LeavesAFile", "test_it_leaves_nothing_behind", "it leaves answer-"),
        ("LateEndpoint", "test_init_state_takes_a_ready_engine", "LateRegistration"),
        ("Fails", "test_plain_routes_answer", "GET /plugins/conformance/ok raises KeyError"),
    ],
)
def test_a_wrong_endpoint_is_caught(name: str, check: str, words: str) -> None:
    """Its factory, its routes, what it registers late, what it raises, what it leaves."""
    assert words in broken(EndpointConformance, f"wrong_front_end:{name}", check)


@pytest.mark.parametrize("name", ["SoundEndpoint", "OnlyCore"])
def test_sound_endpoints_pass(name: str) -> None:
    """What the wrong ones derive from, and one that serves core routes only."""
    assert failures(type("Sound", (EndpointConformance,), {"subject": f"wrong_front_end:{name}"})) == {}


@pytest.mark.parametrize(
    ("name", "check", "words"),
    [
        ("Averages", "test_all_reduce_sums", "has other numbers"),
        ("InReverse", "test_all_gather_joins_in_rank_order", "has other numbers"),
        ("GathersEverywhere", "test_gather_joins_on_one_rank", "returns a tensor, not None"),
        ("AlwaysFromZero", "test_broadcast_carries_one_ranks_tensor", "has other numbers"),
        ("OneBuffer", "test_an_answer_stays_as_it_is", "a later call changes"),
    ],
)
def test_a_wrong_communicator_is_caught(name: str, check: str, words: str) -> None:
    """Sums, order, ranks, buffers."""
    assert words in broken(CommunicatorConformance, f"wrong_communicators:{name}", check)
