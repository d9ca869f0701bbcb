"""Every example package passes the suites of whatever it declares, from its source tree."""

from __future__ import annotations

import sys
from pathlib import Path

from graftlm.testing import FakeDistribution
from graftlm.testing.conformance import ModelSourceConformance, QuantizationConformance, suites_for

EXAMPLES = sorted(
    path.parent for path in (Path(__file__).parents[2] / "examples" / "plugins").glob("*/pyproject.toml")
)

for _folder in EXAMPLES:
    sys.path.insert(0, str(_folder))
    _found = suites_for(FakeDistribution.from_source(_folder))
    globals().update({f"{name}In{_folder.name}": suite for name, suite in _found.items()})


class TestFolderSourceWithAModel(ModelSourceConformance):
    """With what no entry point says: a model, and where it lies."""

    subject = "graftlm_model_files.source:FolderSource"
    distribution = FakeDistribution.from_source(str(EXAMPLES[0].parent / "model_files"))
    plugin = "folder"
    settings = {"folders": "{folder}"}
    model = "folder://tiny-llama"


class TestInt8WeightsClosely(QuantizationConformance):
    """One part in 127 of each row's largest weight is what rounding takes."""

    subject = "graftlm_int8_weights:Int8WeightOnly"
    largest_error = 0.02


def test_the_examples_declare_something_to_test() -> None:
    """A suite that is made of nothing would pass in silence; every point has an example."""
    names = " ".join(name for name in globals() if name.startswith("Test"))

    for kind in (
        "Platform",
        "GeneralPlugin",
        "Model",
        "CustomOp",
        "Communicator",
        "AttentionBackend",
        "StatLogger",
        "Endpoint",
        "Worker",
        "Quantization",
        "ModelLoader",
        "ModelSource",
    ):
        assert kind in names, kind
