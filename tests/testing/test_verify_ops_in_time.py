"""--verify-ops on an op that never answers."""

from __future__ import annotations

from pathlib import Path

import pytest
from plugin_packages import Site, run_graftlm

HANGING_NORM = """
    import ctypes
    import time

    from graftlm.layers.norm import RMSNorm
    from graftlm.ops import refusal
    from graftlm.plugins import slow_calls
    from graftlm.processes import hung_calls

    refusal.LIMIT_S, hung_calls._BLOCKED_S, slow_calls.FIRST_S = {limits}

    class HangingNorm(RMSNorm):
        def forward_cpu(self, x, residual=None):
            {hangs}
"""


@pytest.mark.parametrize(
    ("hangs", "limits", "said"),
    [
        (
            "time.sleep(600)",
            "4.0, 60.0, 0.1",
            (
                "plugin_slow graftlm.layers.norm.RMSNorm of acme-norm 1.0",
                "hook --verify-ops of rms_norm; Ctrl-C ends the start",
                "it is given up after 4 s",
                "error: --verify-ops: the op 'rms_norm', computed by acme_norm.HangingNorm of acme-norm 1.0",
                "it has not come back after 4 s; it is in ",
                "line 14, in HangingNorm.forward_cpu",
            ),
        ),
        (
            "ctypes.PyDLL(None).sleep(600)",
            "1.0, 1.0, 0.1",
            (
                "exit code 1: it did not come back from plugin 'graftlm.layers.norm.RMSNorm' of acme-norm",
                "line 14 in forward_cpu",
                "--disable-plugin acme-norm:graftlm.layers.norm.RMSNorm leaves it out",
            ),
        ),
    ],
    ids=["in Python", "without letting go of the interpreter"],
)
@pytest.mark.parametrize("workers", [1, 2])
def test_an_op_that_hangs_is_given_up(
    tmp_path: Path, tiny_llama: Path, hangs: str, limits: str, said: tuple[str, ...], workers: int
) -> None:
    """It is announced while it hangs; then the start stops, with plugin, op and the line where it hangs."""
    site = Site(tmp_path / "site").write(
        "acme-norm",
        entry_points={"custom_ops": {"graftlm.layers.norm.RMSNorm": "acme_norm:HangingNorm"}},
        files={"acme_norm/__init__.py": HANGING_NORM.format(hangs=hangs, limits=limits)},
    )

    done = run_graftlm("serve", str(tiny_llama), "--port=0", "--verify-ops", f"-tp={workers}", env=site.environment)

    assert done.returncode == 1
    for words in said:
        assert words in done.stderr
