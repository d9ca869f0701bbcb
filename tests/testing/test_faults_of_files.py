"""Wrong model sources and loaders: each fault must turn its check of the suite red."""

from __future__ import annotations

import pytest
from fault_checks import broken

from graftlm.testing.conformance import ModelLoaderConformance, ModelSourceConformance
from graftlm.testing.suite import failures

SHELF = "{folder}/tiny-llama"
SOURCE, PURE = "test_it_is_a_complete_model_source_class", "test_claims_is_a_pure_question"
BRINGS, HERE = "test_it_brings_a_model_that_can_be_read", "test_what_is_here_needs_no_network"
UNKNOWN, LEAVES = "test_an_unknown_model_is_an_error", "test_it_leaves_nothing_behind"
LOADER, CLAIMS = "test_it_is_a_complete_model_loader_class", "test_it_claims_its_own_files_and_no_others"
FACTS, TENSORS = "test_facts_speak_hugging_faces_words", "test_every_tensor_is_there"
STAYS, UNCHANGED = "test_a_tensor_stays_as_it_is", "test_the_checkpoint_is_left_unchanged"
DAMAGED, TORCH = "test_a_damaged_checkpoint_is_an_error", "test_it_imports_no_torch"


def test_the_sound_source_and_the_sound_loader_pass() -> None:
    """What the wrong ones derive from has no fault of its own."""
    source = type("S", (ModelSourceConformance,), {"subject": "wrong_sources:Sound", "model": SHELF})
    loader = type("L", (ModelLoaderConformance,), {"subject": "wrong_loaders:Sound"})

    assert failures(source) == {} == failures(loader)


@pytest.mark.parametrize(
    ("name", "check", "words"),
    [
        ("HalfASource", SOURCE, "it does not implement fetch"),
        ("WrongScheme", SOURCE, "its scheme is 'My Shelf'"),
        ("WantsAPlace", SOURCE, "cannot be constructed without arguments: TypeError"),
        ("AsksTheNetworkFirst", PURE, "asks the network for registry.invalid; only fetch may"),
        ("StartsAProcess", PURE, "starts the process "),
        ("RaisesOnLongNames", PURE, "raises OSError"),
        ("AnswersAWord", PURE, "returns '', not True or False"),
        ("ChangesItsMind", PURE, "returns False, then True"),
        ("ReturnsText", BRINGS, "return a pathlib.Path"),
        ("ReturnsARelativePath", BRINGS, "other processes work in other folders"),
        ("ReturnsTheFolderAbove", BRINGS, "no loader reads what fetch returns"),
        ("DownloadsAlthoughLocal", HERE, "fetch asks the network for registry.invalid"),
        ("NeedsTheNetwork", HERE, "a model that is here cannot be fetched: gaierror"),
        ("MarksTheModel", HERE, "fetch changes tiny-llama/.fetched"),
        ("HasADefault", UNKNOWN, "and there is no such model"),
        ("RaisesItsOwn", UNKNOWN, "raises KeyError"),
        ("NamesNothing", UNKNOWN, "does not say which name it means"),
        ("IgnoresTheRevision", "test_a_revision_is_never_ignored", "refuse what means nothing"),
        ("LeavesAFolder", LEAVES, "fetch leaves shelf-"),
        ("LeavesAFileWhenItFails", LEAVES, "fetch leaves part-"),
        ("PrintsItsProgress", LEAVES, "prints '100%"),
        ("DiffersBetweenProcesses", "test_every_process_answers_alike", "in another process"),
    ],
)
def test_a_wrong_source_is_caught(name: str, check: str, words: str) -> None:
    """Questions that act, paths that lead nowhere, names and revisions that are ignored, what stays behind."""
    assert words in broken(ModelSourceConformance, f"wrong_sources:{name}", check, model=SHELF)


@pytest.mark.parametrize(
    ("name", "check", "words"),
    [
        ("HalfALoader", LOADER, "it does not implement iterate_weights, read_facts"),
        ("WantsADevice", LOADER, "cannot be constructed without arguments: TypeError"),
        ("TorchInFacts", TORCH, "read_facts imports torch"),
        ("ClaimsAnyDirectory", CLAIMS, "claims(an empty directory) is not False"),
        ("RaisesOnFiles", CLAIMS, "raises FileNotFoundError"),
        ("ClaimsNothing", CLAIMS, "is not True, and its example lies there"),
        ("SpeaksItsOwnWords", FACTS, "hf_config['num_hidden_layers'] is None; the model has 2"),
        ("FactsOfAnotherPlace", FACTS, "facts.path is"),
        ("TokenizerElsewhere", FACTS, "which does not exist"),
        ("FactsWithAnObject", FACTS, "its facts cannot cross a process"),
        ("FactsThatChangeShape", FACTS, "other ones after crossing a process"),
        ("ForgetsANorm", TENSORS, "it does not yield model.norm.weight"),
        ("BringsMore", TENSORS, "it yields model.norm.bias, which the checkpoint does not have"),
        ("BringsOneTwice", TENSORS, "it yields model.norm.weight twice"),
        ("WrongNumbers", TENSORS, "by 0.001 of its norm; 0.0 is allowed"),
        ("WrongShape", TENSORS, "has shape"),
        ("WholeNumbers", TENSORS, "holds torch.int8; nothing would say its scale"),
        ("Arrays", TENSORS, "is a ndarray, neither a tensor nor a QuantizedWeight"),
        ("OneBuffer", STAYS, "a later tensor changes lm_head.weight"),
        ("AnotherOrderEachTime", STAYS, "reading again finds"),
        ("KeepsAnIndexBeside", UNCHANGED, "reading changes example/index.cache"),
        ("UnpacksSomewhere", UNCHANGED, "reading leaves tmp"),
        ("AsksTheNetwork", UNCHANGED, "reading asks the network for registry.invalid"),
        ("TakesDamagedFacts", DAMAGED, "with facts.json empty without a complaint"),
        ("RaisesItsOwn", DAMAGED, "it raises JSONDecodeError"),
        ("NamesNothing", DAMAGED, "its error does not say where: broken file"),
        ("DiffersBetweenProcesses", "test_every_process_reads_the_same", "in another process"),
    ],
)
def test_a_wrong_loader_is_caught(name: str, check: str, words: str) -> None:
    """What it takes for its own, what it says, what it yields, what it writes, and what it overlooks."""
    assert words in broken(ModelLoaderConformance, f"wrong_loaders:{name}", check)


def test_blocks_that_cannot_be_cut_are_caught() -> None:
    """Each rank cuts its share out of a quantized matrix."""
    check = "test_a_quantized_matrix_can_be_cut"
    text = broken(ModelLoaderConformance, "wrong_loaders:CutsBadly", check, largest_error=0.02)

    assert "its second block, cut out, has other numbers" in text


def test_torch_in_the_front_end_is_caught() -> None:
    """Both are imported where there is no torch."""
    for base, name in ((ModelSourceConformance, "TorchSource"), (ModelLoaderConformance, "TorchLoader")):
        assert "importing it imports torch" in broken(base, f"torch_at_the_top:{name}", TORCH)


def test_what_cannot_be_tested_is_skipped_with_its_cure() -> None:
    """A loader that writes nothing, and a source without a model, are not passed in silence."""
    loader = type("L", (ModelLoaderConformance,), {"subject": "wrong_loaders:WritesNothing"})
    source = type("S", (ModelSourceConformance,), {"subject": "wrong_sources:Sound"})

    assert (result := loader.run_check(TENSORS)).state == "skipped" and "override write_example" in result.text
    assert (result := source.run_check(BRINGS)).state == "skipped" and "set `model = " in result.text


def test_names_that_differ_from_the_entry_point_are_caught() -> None:
    """What stands before :// and after --load-format is the entry point's name."""
    from graftlm.testing import FakeDistribution

    for point, base, subject, check in (
        ("model_sources", ModelSourceConformance, "wrong_sources:Sound", SOURCE),
        ("model_loaders", ModelLoaderConformance, "wrong_loaders:Sound", LOADER),
    ):
        fake = FakeDistribution("acme-files", {point: {"acme": subject}})
        assert "its entry point 'acme'" in broken(base, subject, check, distribution=fake, plugin="acme")
