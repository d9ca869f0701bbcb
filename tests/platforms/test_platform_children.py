"""A real child process: no platform before the plan, and the plan is all it needs."""

from __future__ import annotations

import msgspec
import pytest

from graftlm.platforms.bootstrap import bootstrap_frontend, child_payload
from graftlm.processes.launch import start_child

SOURCE = """
    from graftlm.contracts.platform import Platform
    class Npu(Platform):
        device_name = "npu"
    def detect():
        return "acme:Npu"
    def general():
        from graftlm.models import ModelRegistry
        ModelRegistry.register_model("AcmeForCausalLM", "acme.model:Model")
"""


@pytest.mark.parametrize("method", ["spawn", "forkserver"])
def test_a_child_takes_platform_and_plugins_from_the_plan_alone(site, method) -> None:
    """It detects and discovers nothing, and reports the same as its parent decided."""
    points = {"platform_plugins": {"npu": "acme:detect"}, "general_plugins": {"models": "acme:general"}}
    site.add("acme", points, source=SOURCE)
    host = bootstrap_frontend()

    child = start_child("probe", start_method=method)
    child.call("platform_probe:read_platform_early", b"")
    payload = child_payload(host, role="worker", process="worker 0")
    child.call("graftlm.platforms.bootstrap:apply_plan_in_child", payload)
    child.run("platform_probe:main", b"")
    told = msgspec.msgpack.decode(child.wait_ready(60))
    child.stop()

    assert told["early"] == ["PlatformUnresolved"]
    assert told["platform"] == "npu"
    assert told["discovery"] is False
    if method == "spawn":
        assert told["torch"] is False
    host.check_child(told["ledger"])
    events = [e for e in host.events() if e["process"] == "worker 0"]
    assert (events[0]["event"], events[-1]["event"]) == ("plan_applied", "ready")
    mine = [e["event"] for e in events if e.get("plugin") == "acme:models"]
    assert mine == ["loaded", "general_plugin_ran", "registered"]
