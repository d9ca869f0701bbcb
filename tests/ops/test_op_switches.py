"""The grammar of --custom-ops, without torch."""

from __future__ import annotations

import pytest

from graftlm.ops.names import BUILT_IN_OPS, InvalidOpSwitch, parse_switches


def test_a_base_mode_and_its_exceptions() -> None:
    """all with minus, none with plus; blanks around entries do not count."""
    switches = parse_switches([" none", "+rms_norm "])

    assert switches.enabled("rms_norm") and not switches.enabled("relu")
    assert switches.reason("rms_norm") == "+rms_norm" and switches.reason("relu") == "none"
    assert parse_switches([]).enabled("relu") and not parse_switches(["-relu"]).enabled("relu")
    assert parse_switches(["+relu"], default_base="none").base == "none"


@pytest.mark.parametrize(
    ("switches", "problem"),
    [
        (["all", "none"], "two base modes"),
        (["+relu", "-relu"], r"\+relu and -relu contradict"),
        (["relu"], "'relu' is no op switch"),
        (["all", "+"], "'\\+' is no op switch"),
        (["+rms_nrom"], "there is no op 'rms_nrom'; did you mean rms_norm"),
    ],
)
def test_what_means_nothing_or_two_things_is_refused(switches: list[str], problem: str) -> None:
    """The error names the value and the cure."""
    with pytest.raises(InvalidOpSwitch, match=problem):
        parse_switches(switches, known=BUILT_IN_OPS)
