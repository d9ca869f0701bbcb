"""Detection: who is asked, who wins, and that nothing falls back in silence."""

from __future__ import annotations

import logging
import sys

import pytest

import graftlm.platforms
from graftlm.platforms.bootstrap import bootstrap_frontend
from graftlm.platforms.cpu import CpuPlatform
from graftlm.platforms.errors import (
    LeftOutPlatform,
    NoPlatform,
    PlatformFailed,
    PlatformNotSeen,
    SeveralPlatforms,
)
from graftlm.plugins import AmbiguousPlugin, SelectionConflict, UnknownPlugin, find_host
from graftlm.plugins.selection import Selection

PLATFORM = """
    from graftlm.contracts.platform import Platform
    calls = []
    class Npu(Platform):
        device_name = "npu"
    def answers():
        calls.append("answers")
        return "{package}:Npu"
    def declines():
        calls.append("declines")
        return None, "no /dev/npu"
    def fails():
        raise OSError("driver too old")
    def wrong_path():
        return "{package}:Missing"
    def wrong_class():
        return "{package}:calls"
    def wrong_answer():
        return 7
    def built_in():
        from graftlm.platforms import Detection
        return Detection(class_path="{package}:Npu", reason="a device of ours")
    def experimental():
        from graftlm.platforms import Detection
        reason = "choose it with --platform x"
        return Detection(class_path="{package}:Npu", reason=reason, seen=True, experimental=True)
"""


@pytest.fixture
def engine(site):
    """The engine's own distribution with its CPU detector; returns a function that adds a vendor's platform."""
    add_platform(site, "graftlm", {"cpu": "graftlm.platforms.detectors:cpu"}, package="engine_itself")

    def add(distribution: str, detectors: dict[str, str], **facts) -> None:
        package = facts.pop("package", distribution.replace("-", "_"))
        add_platform(
            site, distribution, {n: f"{package}:{f}" for n, f in detectors.items()}, package=package, **facts
        )

    return add


def add_platform(site, distribution: str, detectors: dict[str, str], *, package: str, **facts) -> None:
    source = PLATFORM.replace("{package}", package)
    site.add(distribution, {"platform_plugins": detectors}, source=source, package=package, **facts)


def built_in(site_add, detector: str) -> None:
    """Give the engine's sibling distribution a detector of its own."""
    # Not as graftlm_kernels: the real one may be imported in this process.
    site_add("graftlm-kernels", {"gpu": detector}, package="engine_sibling")


def test_without_plugins_the_cpu_serves(engine, caplog) -> None:
    """The built-in CPU platform is the last resort, and is said at INFO."""
    with caplog.at_level(logging.INFO):
        host = bootstrap_frontend()

    assert isinstance(graftlm.platforms.current_platform, CpuPlatform)
    assert "Platform plugin cpu is activated" in caplog.text
    assert host.plan.platform.class_path == "graftlm.platforms.cpu:CpuPlatform"


def test_an_out_of_tree_platform_beats_built_in_ones_and_each_detector_is_asked_once(engine, caplog) -> None:
    """Even one that sees a device of its own; every answer is in the ledger with reason and time."""
    engine("acme", {"npu": "answers"})
    built_in(engine, "built_in")

    with caplog.at_level(logging.INFO):
        host = bootstrap_frontend()

    assert graftlm.platforms.current_platform.device_name == "npu"
    assert "Platform plugin npu is activated" in caplog.text
    assert sys.modules["acme"].calls == ["answers"]
    assert [(e.facts["name"], bool(e.facts["answer"])) for e in host.ledger.of("detector_called")] == [
        ("npu", True),
        ("cpu", True),
        ("gpu", True),
    ]
    assert host.ledger.count("platform_activated", name="npu") == 1


def test_a_built_in_device_beats_the_last_resort(engine) -> None:
    """The CPU is taken only when nothing else answers."""
    built_in(engine, "built_in")

    assert bootstrap_frontend().plan.platform.name == "gpu"


def test_two_out_of_tree_platforms_that_answer_are_an_error_with_both_names(engine) -> None:
    """--platform chooses, and then only that detector is asked."""
    engine("acme", {"npu": "answers"})
    engine("beta", {"xpu2": "answers"})

    with pytest.raises(SeveralPlatforms, match=r"npu, xpu2.*--platform npu or --platform xpu2"):
        bootstrap_frontend()

    assert find_host() is None
    sys.modules["beta"].calls.clear()
    host = bootstrap_frontend(platform="npu")
    assert host.plan.platform.label == "acme:npu"
    assert sys.modules["beta"].calls == []


def test_a_detector_that_declines_says_why(engine) -> None:
    """The reason is in the ledger and in the description."""
    engine("acme", {"npu": "declines"})

    host = bootstrap_frontend()

    assert host.ledger.of("detector_called", name="npu")[0].facts["reason"] == "no /dev/npu"
    row = next(r for r in host.describe()["plugins"] if r["name"] == "npu")
    assert (row["state"], row["reason"]) == ("idle", "no /dev/npu")


@pytest.mark.parametrize("detector", ["fails", "wrong_path", "wrong_class", "wrong_answer"])
def test_a_failing_platform_plugin_never_leads_to_another_device_in_silence(engine, detector, caplog) -> None:
    """It stops the start, unless --platform cpu or --allow-platform-fallback says otherwise."""
    engine("acme", {"npu": detector}, version="3.0")

    with pytest.raises(PlatformFailed, match=r"'npu' of acme 3\.0 failed.*--platform cpu"):
        bootstrap_frontend()
    with caplog.at_level(logging.WARNING):
        assert bootstrap_frontend(allow_fallback=True).plan.platform.name == "cpu"
    assert "acme 3.0" in caplog.text
    assert bootstrap_frontend(platform="cpu").plan.platform.name == "cpu"


def test_the_plugins_own_error_is_the_cause(engine) -> None:
    """The traceback that helps is the plugin's."""
    engine("acme", {"npu": "fails"})

    with pytest.raises(PlatformFailed) as caught:
        bootstrap_frontend()

    assert isinstance(caught.value.__cause__, OSError)
    assert "raised by plugin 'npu'" in caught.value.__cause__.__notes__[0]


def test_a_refused_platform_plugin_stops_the_start_too(engine) -> None:
    """A wrong API range is a failure like any other, found before import."""
    engine("acme", {"npu": "answers"}, manifest="api = '<1.0'")

    with pytest.raises(PlatformFailed, match=r"plugin API <1.0"):
        bootstrap_frontend()
    assert "acme" not in sys.modules
    assert bootstrap_frontend(allow_fallback=True).plan.platform.name == "cpu"


def test_a_platform_that_plugins_leaves_out_stops_the_start_if_it_would_have_answered(engine) -> None:
    """Unless --platform is given; one whose device is missing does not matter."""
    engine("acme", {"npu": "answers"})
    engine("beta", {"none": "declines"})

    with pytest.raises(LeftOutPlatform, match=r"add npu to --plugins.*--platform cpu"):
        bootstrap_frontend(Selection(plugins=[]))

    assert sys.modules["acme"].calls == ["answers"]
    assert bootstrap_frontend(Selection(plugins=[]), platform="cpu").plan.platform.name == "cpu"
    assert bootstrap_frontend(Selection(plugins=[]), platform="npu").plan.platform.name == "npu"
    assert bootstrap_frontend(Selection(plugins=["npu"])).plan.platform.name == "npu"


def test_safe_mode_and_disabling_do_not_import_the_platform_plugin(engine) -> None:
    """Both are said on purpose; naming what they disable is a contradiction."""
    engine("acme", {"npu": "answers"})

    for selection in (Selection(no_plugins=True), Selection(disable_plugin=["npu"])):
        assert bootstrap_frontend(selection).plan.platform.name == "cpu"
        with pytest.raises(SelectionConflict, match="--platform npu"):
            bootstrap_frontend(selection, platform="npu")
    assert "acme" not in sys.modules


def test_an_experimental_platform_is_taken_only_by_name(engine, caplog) -> None:
    """The server stays on the CPU with one line that says how to choose it."""
    built_in(engine, "experimental")

    with caplog.at_level(logging.INFO):
        assert bootstrap_frontend().plan.platform.name == "cpu"

    assert "platform_seen name=gpu serving_on=cpu: choose it with --platform x" in caplog.text
    assert bootstrap_frontend(platform="gpu").plan.platform.name == "gpu"


def test_platform_by_name_is_checked(engine) -> None:
    """Unknown, ambiguous, and not seen on this machine."""
    engine("acme", {"npu": "answers", "cpu": "answers"})
    engine("beta", {"tpu2": "declines"})

    with pytest.raises(UnknownPlugin, match=r"--platform.*'nppu'.*did you mean 'npu'"):
        bootstrap_frontend(platform="nppu")
    with pytest.raises(AmbiguousPlugin, match="acme:cpu, graftlm:cpu"):
        bootstrap_frontend(platform="cpu")
    assert bootstrap_frontend(platform="graftlm:cpu").plan.platform.label == "graftlm:cpu"
    with pytest.raises(PlatformNotSeen, match=r"--platform tpu2.*no /dev/npu"):
        bootstrap_frontend(platform="tpu2")


def test_no_detector_at_all_is_an_error_that_says_so(site) -> None:
    """An installation without entry points cannot serve."""
    with pytest.raises(NoPlatform, match="entry points"):
        bootstrap_frontend()


def test_a_failed_start_leaves_the_host_of_the_process_as_it_was(engine) -> None:
    """A second engine in one process that cannot start does no harm to the first."""
    first = bootstrap_frontend()

    with pytest.raises(UnknownPlugin):
        bootstrap_frontend(platform="nowhere")

    assert find_host() is first


def test_reading_current_platform_without_a_bootstrap_chooses_by_default(engine) -> None:
    """First use decides; general plugins are not run by it."""
    engine("acme", {"npu": "answers"})

    assert graftlm.platforms.current_platform.device_name == "npu"
    assert graftlm.platforms.current_platform is graftlm.platforms.current_platform
    assert sys.modules["acme"].calls == ["answers"]


def test_a_program_that_chose_nothing_obeys_the_environment(engine, monkeypatch) -> None:
    """GRAFTLM_PLATFORM and GRAFTLM_PLUGINS are the only ways to wish for something there."""
    engine("acme", {"npu": "answers"})
    monkeypatch.setenv("GRAFTLM_PLUGINS", "cpu")
    monkeypatch.setenv("GRAFTLM_PLATFORM", "cpu")

    assert isinstance(graftlm.platforms.current_platform, CpuPlatform)


def test_reading_current_platform_while_it_is_detected_is_an_error(site) -> None:
    """Never a second detection inside the first."""
    source = "def detect():\n    from graftlm.platforms import current_platform\n"
    site.add("acme", {"platform_plugins": {"npu": "acme:detect"}}, source=source)

    with pytest.raises(PlatformFailed, match="still being detected"):
        bootstrap_frontend()
