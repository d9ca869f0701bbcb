"""Wrong workers: each fault must turn its check of the suite red."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
import wrong_workers
from fault_checks import broken

from graftlm.testing.conformance import WorkerConformance

CLASS, COST, USER = "test_it_is_a_worker_class", "test_it_says_what_a_block_costs", "test_the_user_decides"
STEPS, EMPTY = "test_steps_answer_as_the_model_does", "test_an_empty_step_is_a_step"
SHUTDOWN, RANKS = "test_shutdown_is_always_safe", "test_two_ranks_equal_one"


@pytest.fixture(autouse=True)
def end_threads() -> Iterator[None]:
    """Let the thread go that one of them leaves behind."""
    wrong_workers.LeavesAThread.stop.clear()
    yield
    wrong_workers.LeavesAThread.stop.set()


@pytest.mark.parametrize(
    ("name", "check", "words"),
    [
        ("Unfinished", CLASS, "it has no execute_step; subclass graftlm.worker.Worker"),
        ("WantsAPort", CLASS, "the executor cannot call it"),
        ("TakesNoPlan", CLASS, "the executor cannot call it"),
        ("SizeAsText", COST, "update_block_size returns '16'"),
        ("SpecOfAnotherSize", COST, "its spec has block_size=8, it decided 16"),
        ("SpecOfOneLayer", COST, "(1, 2, 16) layers, key-value heads and head size; the model has (2, 2, 16)"),
        ("BlocksThatCostNothing", COST, "its spec has block_bytes=16"),
        ("MemoryInGigabytes", COST, "it must be bytes, for blocks"),
        ("RaisesInAHook", COST, "its start raises OSError: driver too old"),
        ("ChangesTheConfiguration", COST, "its start raises"),
        ("OwnIdeaOfMemory", USER, "the user said 12345678 bytes, and it takes 1073741824"),
        ("OwnIdeaOfBlocks", USER, "the user chose --block-size 32, and it decides 16"),
        ("AnotherToken", STEPS, "and the model says"),
        ("TokensTooEarly", STEPS, "a token comes for request 0, whose known tokens go on"),
        ("TokensTooRare", STEPS, "no token comes for"),
        ("NumbersOfArrays", STEPS, "which are no whole numbers"),
        ("CountsItsOwnSteps", STEPS, "alone, step 0: its result has step_id=1"),
        ("PlainData", STEPS, "it returns a dict, no StepResult"),
        ("ForgetsPreemption", STEPS, "execute_step raises RuntimeError"),
        ("IgnoresTheTable", STEPS, "and the model says"),
        ("RegistersLate", STEPS, "execute_step raises LateRegistration"),
        ("KeepsState", "test_no_state_from_request_to_request", "after other requests it answers otherwise"),
        ("EatsThePlan", "test_plans_are_left_unchanged", "changes the plan that it is given"),
        ("NothingForNothing", EMPTY, "step_id=0, it returns None"),
        ("ShutsDownOnce", SHUTDOWN, "shutdown after __init__ a second time raises AttributeError"),
        ("NeedsItsModelToEnd", SHUTDOWN, "shutdown after __init__ raises AttributeError"),
        ("LeavesAFolder", SHUTDOWN, "it leaves compiled-"),
        ("LeavesAThread", SHUTDOWN, "threads that hold the process: watch the device"),
        ("AnswersOnEveryRank", RANKS, "rank 1 returns"),
        ("RanksDisagree", RANKS, "rank 1 decides block_size=32, rank 0 16"),
        ("FailsOnRankOne", RANKS, "out of device memory"),
        ("DiffersBetweenProcesses", "test_every_process_answers_alike", "in another process, step 0"),
    ],
)
def test_a_wrong_worker_is_caught(name: str, check: str, words: str) -> None:
    """Signatures, facts, the user's word, tokens, state, the plan, the end, ranks, processes."""
    assert words in broken(WorkerConformance, f"wrong_workers:{name}", check)
