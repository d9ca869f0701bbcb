"""Once a platform is decided, nobody but its own code changes it; the error names the plugin and the cure."""

from __future__ import annotations

import subprocess
import sys

import pytest
from plugin_packages import Site, run_graftlm

import graftlm.platforms
from graftlm.platforms.bootstrap import apply_plan_in_child, bootstrap_frontend, child_payload
from graftlm.platforms.errors import PlatformFixed
from graftlm.platforms.hooks import call_hook
from graftlm.plugins import PluginFailed, Role
from graftlm.plugins.selection import Selection

PLATFORM = """
    import functools
    from graftlm.contracts.platform import Platform
    class Facts:
        bus = "pci"
    class Npu(Platform, Facts):
        device_name = "npu"
        seen = 0
        def __init__(self):
            self.handle = 7
        @functools.cached_property
        def firmware(self):
            return "1.2"
        @classmethod
        def get_device_name(cls, device_id=0):
            cls.seen += 1
            cls.cache = [1]
            return cls.device_name
        def forget(self):
            self.handle = 8
            del type(self).cache
    def detect():
        return "acme:Npu"
"""

CHANGES = [
    "current_platform.device_name = 'mine'",
    "type(current_platform).device_name = 'mine'",
    "setattr(type(current_platform), 'device_name', 'mine')",
    "type(current_platform).__mro__[1].device_name = 'mine'",  # of the base class
    "del type(current_platform).device_name",
    "del current_platform.handle",
    "current_platform.handle = 3",
    "current_platform.__class__ = type(current_platform).__mro__[1]",
    "type(current_platform).get_device_name = classmethod(lambda cls: 'mine')",
    # Around the guards.
    "type.__setattr__(type(current_platform), 'device_name', 'mine')",
    "type.__delattr__(type(current_platform), 'device_name')",
    "current_platform.__dict__['device_name'] = 'mine'",
    "vars(current_platform).clear()",
    "type(current_platform).__mro__[-2].bus = 'usb'",  # a plain class among the bases
]


def install(site, statement: str, *, manifest: str | None = None) -> None:
    source = f"""
        def general():
            from graftlm.platforms import current_platform
            {statement}
    """
    site.add("acme", {"platform_plugins": {"npu": "acme:detect"}}, source=PLATFORM)
    site.add("usurper", {"general_plugins": {"take": "usurper:general"}}, source=source, manifest=manifest)


def state_of_platform() -> tuple[object, ...]:
    platform = graftlm.platforms.current_platform
    return platform.device_name, platform.handle, platform.bus, type(platform).__name__


@pytest.mark.parametrize("statement", CHANGES)
def test_a_general_plugin_cannot_change_an_attribute_of_the_platform(site, statement) -> None:
    """Whichever way it goes: the plugin has failed, the error names it and the cure, the platform is as before."""
    install(site, statement)
    host = bootstrap_frontend()

    outcome = host.outcomes["general_plugins=usurper:take"]
    assert outcome.state == "failed"
    assert "PlatformFixed: the platform cannot be changed: plugin 'take' of usurper 1.0" in outcome.reason
    assert "write a platform plugin, a subclass of Npu" in outcome.reason
    assert state_of_platform() == ("npu", 7, "pci", "Npu")
    assert graftlm.platforms.current_platform.get_device_name() == "npu"


def test_a_named_one_that_tries_stops_the_start(site) -> None:
    """It was asked for, so the server does not start without it."""
    install(site, CHANGES[0])

    with pytest.raises(PluginFailed, match=r"'take' of usurper 1\.0 failed.*sets 'device_name' of acme:Npu"):
        bootstrap_frontend(Selection(enable_plugin=["take"]))


def test_a_platforms_own_code_keeps_what_it_found_out(site) -> None:
    """Its methods may set and delete, whoever calls them, and a cached property writes as always."""
    install(site, "current_platform.get_device_name(); current_platform.firmware; current_platform.forget()")
    host = bootstrap_frontend()
    call_hook("get_device_name")
    platform = graftlm.platforms.current_platform

    assert host.outcomes["general_plugins=usurper:take"].state == "active"
    assert (platform.seen, platform.cache, platform.handle, platform.firmware) == (2, [1], 8, "1.2")


def test_a_program_cannot_either_and_other_platforms_are_free(site) -> None:
    """Without a plugin at work it is this program that is named; a class that was not chosen is its author's."""
    install(site, "pass")
    bootstrap_frontend()
    other = type("Other", (type(graftlm.platforms.current_platform),), {})
    other.device_name = "other"

    with pytest.raises(PlatformFixed, match=r"cannot be changed: .* sets 'device_name' of acme:Npu"):
        graftlm.platforms.current_platform.device_name = "mine"  # type: ignore[misc]
    with pytest.raises(PlatformFixed, match="in the place of current_platform"):
        graftlm.platforms.current_platform = other()
    assert (other.device_name, graftlm.platforms.current_platform.device_name) == ("other", "npu")


def test_a_change_before_a_child_has_its_platform_is_refused_when_it_is_resolved(site) -> None:
    """A plugin of workers only never ran in the front end, and its early write is found all the same."""
    early = "from acme import Npu; Npu.device_name = 'mine'"
    install(site, "pass", manifest="[plugin.take]\nroles = ['worker']\n")
    (site.folder() / "usurper" / "__init__.py").write_text(f"def general():\n    {early}\n")
    host = bootstrap_frontend()
    payload = child_payload(host, role=Role.WORKER, process="worker 0")
    for module in ("acme", "usurper"):  # as in a new process
        sys.modules.pop(module, None)
    apply_plan_in_child(payload)

    with pytest.raises(PlatformFixed, match=r"plugin 'take' of usurper 1\.0 sets 'device_name' of acme:Npu"):
        _ = graftlm.platforms.current_platform


def test_the_command_line_names_who_changes_the_platform(tmp_path, tiny_llama) -> None:
    """`serve` is refused with one sentence where the plugin was named; `plugins list` shows it as failed."""
    site = Site(tmp_path / "site").write(
        "usurper",
        entry_points={"general_plugins": {"take": "usurper:general"}},
        files={
            "usurper.py": """
                def general():
                    from graftlm.platforms import current_platform
                    type(current_platform).device_name = "mine"
            """
        },
    )
    refused = run_graftlm("serve", str(tiny_llama), "--enable-plugin=take", "--port=0", env=site.environment)
    listed = run_graftlm("plugins", "list", env=site.environment)

    assert refused.returncode == 1
    assert "plugin 'take' of usurper 1.0 sets 'device_name' of graftlm.platforms.cpu:CpuPlatform" in refused.stderr
    assert "a subclass of CpuPlatform" in refused.stderr
    assert listed.returncode == 0 and "PlatformFixed" in listed.stdout


def test_an_abstract_base_still_mixes_with_a_platform() -> None:
    """Platforms have a metaclass of their own, which must not stand in the way of abc."""
    program = (
        "import abc\nfrom graftlm.contracts.platform import Platform\nclass A(Platform, abc.ABC): x = 1\nA.x = 2"
    )

    assert subprocess.run([sys.executable, "-c", program], capture_output=True).returncode == 0
