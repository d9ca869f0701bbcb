"""Which classes a replacement replaces, through the real command line: the named one, subclasses if asked."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from plugin_packages import Site, run_graftlm

_REPLACEMENT = """
    from graftlm.layers import RotaryEmbedding

    class Own(RotaryEmbedding):
        def forward_cpu(self, positions, query, key):
            return super().forward_native(positions, query, key)

    def register():
        RotaryEmbedding.register_oot(Own{how})
"""
LINEAR = {"rope_scaling": {"rope_type": "linear", "factor": 2.0}}


def built(site: Site, model: Path, overrides: dict[str, Any]) -> tuple[list[dict[str, Any]], dict[str, Any]]:
    """Start the server once; return what was swapped, and how the rotary embedding is computed."""
    done = run_graftlm(
        "plugins", "trace", "--json", "--until-ready", "--", "serve", str(model), "--port=0",
        "--hf-overrides", json.dumps(overrides), env=site.environment,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    lines = [json.loads(line) for line in done.stdout.splitlines()]
    (chosen,) = [
        e["facts"] for e in lines if e["event"] == "op_dispatched" and e["facts"]["op"] == "rotary_embedding"
    ]
    return [e["facts"] for e in lines if e["event"] == "op_swapped"], chosen


@pytest.mark.parametrize(
    ("how", "overrides", "swapped"),
    [
        ("", {}, True),
        ("", LINEAR, False),
        (", include_subclasses=True", LINEAR, True),
    ],
    ids=["the class itself", "a subclass", "a subclass when asked"],
)
def test_a_subclass_is_replaced_only_when_asked(site, tiny_llama, how, overrides, swapped):
    """Linear scaling builds a subclass of RotaryEmbedding, which stays as it is, or becomes both."""
    site.write(
        "own-rotary", entry_points={"general_plugins": {"own": "own_rotary:register"}},
        files={"own_rotary.py": _REPLACEMENT.format(how=how)},
    )  # fmt: skip
    swaps, chosen = built(site, tiny_llama, overrides)

    wanted = (
        "graftlm.layers.rotary.LinearScalingRotaryEmbedding"
        if overrides
        else "graftlm.layers.rotary.RotaryEmbedding"
    )
    assert [swap["cls"] for swap in swaps] == ([wanted] if swapped else [])
    assert (chosen["method"] == "forward_cpu") is swapped, chosen
