"""Hooks: counted, blamed, and what they register travels to the other processes."""

from __future__ import annotations

import sys

import msgspec
import pytest

import graftlm.platforms
from graftlm.contracts.platform import AttentionQuestion
from graftlm.platforms.bootstrap import apply_plan_in_child, bootstrap_frontend, child_payload
from graftlm.platforms.hooks import call_hook, hook_counts
from graftlm.plugins import (
    NotReplayable,
    PlanDiffers,
    Registry,
    Role,
    UnknownPlugin,
    current,
    current_host,
)
from graftlm.plugins.host import PluginHost
from graftlm.plugins.plan import PluginPlan
from graftlm.plugins.registry import withdraw_plugins
from graftlm.plugins.replay import Replay, expect


class Key:
    """A class that is a key."""


METHODS: Registry[type] = Registry("quantization_methods", kind="quantization method")

SOURCE = """
    from graftlm.contracts.platform import Platform
    class Method: pass
    class Npu(Platform):
        @classmethod
        def pre_register_and_update(cls, parser=None):
            from test_platform_hooks import METHODS
            METHODS.register("npu4", Method)
        @classmethod
        def check_and_update_config(cls, config):
            raise ValueError("bad config")
        @classmethod
        def apply_config_platform_defaults(cls, config):
            from test_platform_hooks import METHODS
            METHODS.register("local", type("Local", (), {}))
    def detect():
        return "acme:Npu"
    def general():
        from test_platform_hooks import METHODS
        METHODS.register("general", Method)
"""


@pytest.fixture
def host(site) -> PluginHost:
    """A front end on a vendor's platform."""
    points = {"platform_plugins": {"npu": "acme:detect"}, "general_plugins": {"ops": "acme:general"}}
    site.add("acme", points, source=SOURCE)
    return bootstrap_frontend()


def in_child(host: PluginHost, role: Role = Role.WORKER) -> PluginHost:
    """Apply the plan as a child would, in this process."""
    payload = child_payload(host, role=role, process="worker 0")
    apply_plan_in_child(payload)
    return current_host()


def test_a_hook_is_counted_and_recorded(host) -> None:
    """The ledger knows how often each hook ran."""
    call_hook("pre_register_and_update", None)

    assert hook_counts() == {"pre_register_and_update": 1}
    event = host.ledger.of("hook_called")[0]
    assert event.plugin == "acme:npu"


def test_what_a_hook_raises_bears_the_plugins_name(host) -> None:
    """Plugin, distribution, version, hook and process."""
    with pytest.raises(ValueError, match="bad config") as caught:
        call_hook("check_and_update_config", None)

    note = "raised by plugin 'npu' (distribution acme 1.0), hook check_and_update_config in process 'front end'"
    assert caught.value.__notes__ == [note]


def test_what_a_hook_registers_is_replayed_in_children(host) -> None:
    """As module:attr in the plan, bound before the child's registry is first looked at."""
    call_hook("pre_register_and_update", None)
    assert [(r.key, r.value, r.owner) for r in host.plan.replays] == [("npu4", "acme:Method", "acme")]

    child = in_child(host)

    assert METHODS.get("npu4") is sys.modules["acme"].Method
    assert METHODS.owner("npu4") == "acme"
    assert child.ledger.count("registered", key="npu4", via="replay") == 1
    assert hook_counts() == {}


def test_what_cannot_be_replayed_is_refused_at_once(host) -> None:
    """A local class has no path that a child could import."""
    with pytest.raises(NotReplayable, match="'local' was registered by acme"):
        call_hook("apply_config_platform_defaults", None)


def test_what_a_program_registers_travels_too_or_is_said_not_to(host, caplog) -> None:
    """A class of the program's own module is replayed; for one of __main__ there is a warning with the cure."""
    METHODS.register("mine", "test_platform_hooks:SOURCE")
    local = type("Local", (), {"__module__": "__main__"})
    try:
        assert "mine" in [r.key for r in host.plan.replays]
        METHODS.register("theirs", local)
        child_payload(host, role=Role.ENGINE, process="engine core")
        assert "'theirs' was registered by this program" in caplog.text
        assert "importable module:attr" in caplog.text
    finally:
        METHODS._entries.pop("mine", None)
        METHODS._entries.pop("theirs", None)


def test_a_replay_waits_until_its_key_exists_and_lies_above_the_engines_own(host) -> None:
    """A class that nobody imported cannot be asked for; the engine's late registration does not collide."""
    things: Registry[type] = Registry("replayed_things", kind="thing")
    replays = [
        Replay("replayed_things", "not_imported_anywhere:Key", True, "acme:Method", "acme", "acme:npu"),
        Replay("replayed_things", "test_platform_hooks:Key", True, "acme:Method", "acme", "acme:npu"),
        Replay("replayed_things", "name", False, "acme:Method", "acme", "acme:npu"),
    ]
    expect(replays)

    assert things.keys() == [Key, "name"]
    exec(compile("things.register('name', dict)", "engine", "exec"), {"__name__": "graftlm.late", "things": things})
    assert things.owner("name") == "acme"
    withdraw_plugins()
    assert things.get("name") is dict


def test_the_plan_survives_the_round_trip(host) -> None:
    """Bytes in, the same plan and fingerprint out."""
    call_hook("pre_register_and_update", None)

    again = PluginPlan.from_bytes(host.plan.to_bytes())

    assert again == host.plan
    assert again.fingerprint == host.plan.fingerprint
    with pytest.raises(AttributeError):
        again.entries = ()  # type: ignore[misc]


def test_a_child_obeys_the_plan_without_detection(host) -> None:
    """It runs the general plugins of its role and resolves the platform from the plan."""
    child = in_child(host)

    assert child.ledger.events[0].event == "plan_applied"
    assert child.ledger.count("detector_called") == 0
    assert child.ledger.count("general_plugin_ran") == 1
    assert type(graftlm.platforms.current_platform).__name__ == "Npu"
    host.check_child(child.ledger_bytes())
    assert host.describe()["plan"]["processes"]["worker 0"]["fingerprint"] == host.plan.fingerprint
    row = next(r for r in host.describe()["plugins"] if r["name"] == "ops")
    assert row["processes"] == {"front end": "active", "worker 0": "active"}
    assert [e["process"] for e in host.events() if e["event"] == "plan_applied"] == ["worker 0"]


def test_a_child_with_other_files_is_refused_entry_by_entry(host, site) -> None:
    """A file changed between the parent's start and the child's."""
    expected = host.plan
    assert expected.distributions[0].files
    child = in_child(host)
    (site.folder() / "acme" / "__init__.py").write_text("# changed")

    with pytest.raises(PlanDiffers, match="distribution acme: its files differ"):
        host.check_child(child.ledger_bytes())


def test_a_child_that_registers_something_else_is_refused_entry_by_entry(host) -> None:
    """Registrations that both roles share must be the same; each difference has its line."""
    child = in_child(host)
    report = msgspec.msgpack.decode(child.ledger_bytes())
    report["general"] = {"acme:ops": ["registers quantization_methods general -> acme:Other"]}

    with pytest.raises(PlanDiffers) as caught:
        host.check_child(msgspec.msgpack.encode(report))

    assert len(caught.value.differences) == 2
    assert "general -> acme:Method in front end only" in str(caught.value)
    assert "general -> acme:Other in worker 0 only" in str(caught.value)


def test_a_child_with_another_plan_is_refused(host) -> None:
    """The fingerprint is compared first."""
    child = in_child(host)
    report = msgspec.msgpack.decode(child.ledger_bytes())
    report["fingerprint"] = "0" * 16

    with pytest.raises(PlanDiffers, match="plan: "):
        host.check_child(msgspec.msgpack.encode(report))


def test_the_cpu_names_its_attention_backend_by_name_or_path(site) -> None:
    """A plugin's name is looked up in metadata; an unknown one is answered with the nearest."""
    site.add("graftlm", {"platform_plugins": {"cpu": "graftlm.platforms.detectors:cpu"}}, package="engine_itself")
    site.add("acme", {"attention_backends": {"ACME_FAST": "acme:Fast"}}, source="raise RuntimeError")
    bootstrap_frontend()
    question = AttentionQuestion(
        num_heads=2, num_kv_heads=1, head_size=8, dtype="float32", kv_cache_dtype="auto", block_size=None
    )

    def answer(selected: str | None) -> str:
        return call_hook("get_attn_backend_cls", selected, question)

    assert answer(None) == answer("TORCH_PAGED") == "graftlm.ops.attention.torch_paged:TorchPagedAttention"
    assert answer("ACME_FAST") == "acme:Fast"
    assert answer("other.module:Backend") == "other.module:Backend"
    with pytest.raises(UnknownPlugin, match=r"--attention-backend.*did you mean 'ACME_FAST'"):
        answer("ACME_FST")
    current.hold_host(None)
