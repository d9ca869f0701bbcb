"""An entry point that replaces or implements what nobody has is told once, with the nearest names."""

from __future__ import annotations

import importlib
import inspect
import json
import logging
import pkgutil
import sys
import types

import pytest
from plugin_packages import Site, run_graftlm

import graftlm.layers
import graftlm.ops
from graftlm.contracts.points import CUSTOM_OPS
from graftlm.engine.unbound_ops import note_unbound_ops
from graftlm.ops.entry_points import note_unmatched_replacements
from graftlm.ops.replaceable import REPLACEABLE_CLASSES, wrong_class, wrong_op
from graftlm.testing import FakeDistribution, plugin_host


def test_the_torch_free_classes_are_those_of_the_modules() -> None:
    """The table is looked at in processes that import no layer."""
    from graftlm.ops.custom_op import CustomOp
    from graftlm.ops.pluggable import PluggableLayer

    found = set()
    for package in (graftlm.layers, graftlm.ops):
        for info in pkgutil.walk_packages(package.__path__, f"{package.__name__}."):
            for cls in vars(importlib.import_module(info.name)).values():
                if inspect.isclass(cls) and issubclass(cls, PluggableLayer) and cls.__module__ == info.name:
                    found.add(f"{cls.__module__}.{cls.__qualname__}")
    bases = {f"{cls.__module__}.{cls.__qualname__}" for cls in (CustomOp, PluggableLayer)}

    assert sorted(REPLACEABLE_CLASSES) == sorted(found - bases)
    assert [path for path in REPLACEABLE_CLASSES if wrong_class(path)] == []


@pytest.mark.parametrize(
    ("path", "says"),
    [
        ("graftlm.layers.norm.RMSNrm", "did you mean 'graftlm.layers.norm.RMSNorm'"),
        ("graftlm.layers.rmsnorm", "did you mean 'graftlm.layers.norm.RMSNorm'?"),
        ("graftlm.layers.rotary:RotaryEmbeding", "'graftlm.layers.rotary.RotaryEmbedding'"),
        ("graftlm.layers.norms.RMSNorm", "did you mean 'graftlm.layers.norm.RMSNorm'"),
        ("graftlm.layers.norm.torch", "is no layer class of the engine, so it replaces nothing"),
        ("graftlm.layers.Zzz", "it has GELU, "),
    ],
)
def test_a_class_that_the_engine_does_not_have_is_answered_with_the_nearest(path, says) -> None:
    """Whatever of the path is wrong."""
    assert says in wrong_class(path)


def test_the_spellings_that_dispatch_accepts_are_accepted() -> None:
    """A short path by way of graftlm.layers, with a dot or a colon."""
    right = ["graftlm.layers.RMSNorm", "graftlm.layers:RMSNorm", "graftlm.layers.norm:RMSNorm"]

    assert [wrong_class(path) for path in right] == ["", "", ""]
    assert wrong_op("rms_norm") == "" and wrong_op("acme_mixture") == ""
    assert "did you mean 'rms_norm'" in wrong_op("rmsnorm")


def test_it_is_told_once_and_kept_and_the_plugin_is_not_imported(caplog) -> None:
    """A log line, and a note in what GET /plugins says."""
    acme = FakeDistribution(
        "acme-norm",
        {
            "custom_ops": {
                "graftlm.layers.RMSNrm": "acme_norm:Fast",
                "acme_not_there.layers.Norm": "acme_norm:Fast",
            },
            "op_implementations": {"rmsnorm.acme": "acme_norm:Op", "acme_mixture.acme": "acme_norm:Op"},
        },
    )
    with plugin_host(acme) as host, caplog.at_level(logging.WARNING):
        note_unbound_ops(host)
        note_unbound_ops(host)
        noted = {
            row["name"]: row["notes"] for row in host.describe()["plugins"] if row["distribution"] == "acme-norm"
        }

    told = [record.getMessage() for record in caplog.records if "op_plugin_unbound" in record.getMessage()]
    assert len(told) == 3 and "acme_norm" not in sys.modules
    assert "did you mean 'graftlm.layers.norm.RMSNorm'" in noted["graftlm.layers.RMSNrm"][0]
    assert "no package 'acme_not_there' is installed" in noted["acme_not_there.layers.Norm"][0]
    assert "did you mean 'rms_norm'" in noted["rmsnorm.acme"][0]
    assert noted["acme_mixture.acme"] == []


def test_classes_of_others_are_looked_up_once_their_module_is_loaded(caplog, monkeypatch) -> None:
    """A name that the module lacks, or has under another path: the process that builds tells it."""
    from graftlm.layers.norm import RMSNorm

    module = types.ModuleType("acme_layers")
    module.Norm = type("Norm", (RMSNorm,), {"__module__": "acme_layers"})  # type: ignore[attr-defined]
    module.Alias = RMSNorm  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "acme_layers", module)
    keys = ["acme_layers.Norm", "acme_layers.Nrm", "acme_layers.Alias", "acme_not_loaded.Norm"]
    acme = FakeDistribution("acme-norm", {"custom_ops": dict.fromkeys(keys, "acme_norm:Fast")})
    with plugin_host(acme) as host, caplog.at_level(logging.WARNING):
        note_unmatched_replacements()
        note_unmatched_replacements()
        notes = {p.name: host.notes.get(p.identity) for p in host.plugins(CUSTOM_OPS) if p.name in keys}

    assert notes["acme_layers.Norm"] is None and notes["acme_not_loaded.Norm"] is None
    assert "did you mean 'acme_layers.Norm'" in notes["acme_layers.Nrm"][0]
    assert "name the class as 'graftlm.layers.norm.RMSNorm'" in notes["acme_layers.Alias"][0]
    assert caplog.text.count("op_plugin_unbound") == 2


def test_the_command_line_tells_of_a_misspelt_layer(tmp_path, tiny_llama) -> None:
    """`plugins list` and `doctor` show it, a run warns once and computes with the engine's own layer."""
    site = Site(tmp_path / "site").write(
        "acme-norm",
        entry_points={"custom_ops": {"graftlm.layers.norm.RMSNrm": "acme_norm:Fast"}},
        files={"acme_norm.py": "raise RuntimeError('imported')\n"},
    )
    listed = run_graftlm("plugins", "list", env=site.environment)
    doctor = run_graftlm("plugins", "doctor", "--json", env=site.environment)
    ran = run_graftlm(
        "run",
        str(tiny_llama),
        "--prompt=hello",
        "--max-tokens=2",
        "--attention-backend=TORCH_PAGED",
        env=site.environment,
        timeout_s=120,
    )
    (verdict,) = json.loads(doctor.stdout)["plugins"]

    assert "note: acme-norm:graftlm.layers.norm.RMSNrm (custom_ops): " in listed.stdout
    assert "did you mean 'graftlm.layers.norm.RMSNorm'" in verdict["notes"][0]
    assert ran.returncode == 0 and ran.stderr.count("op_plugin_unbound plugin=acme-norm:") == 1
