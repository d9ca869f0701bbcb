"""The timers of calls into plugin code: what they count, what they leave as it was, and what they say."""

from __future__ import annotations

import sys
import types
from collections.abc import Iterator

import pytest

from graftlm.plugins import calling, current_host
from graftlm.plugins.call_times import (
    PLUGIN_CALLED,
    PLUGIN_NOT_TIMED,
    CallTimer,
    plugin_of_code,
    record_call_times,
    time_listener,
    timer_of,
)
from graftlm.plugins.host import PluginHost
from graftlm.testing import FakeDistribution, plugin_host

ACME = FakeDistribution(
    "acme-things",
    {
        "workers": {"acme": "acme_things.worker:Worker"},
        "models": {"AcmeForCausalLM": "acme_things.model:Model"},
        "platform_plugins": {"acme_platform": "acme_things:detect"},
        "general_plugins": {"acme_general": "acme_things:register"},
    },
)


@pytest.fixture
def host(monkeypatch: pytest.MonkeyPatch) -> Iterator[PluginHost]:
    """A process whose plugins are those of one distribution."""
    module = types.ModuleType("acme_things")
    module.detect = module.register = lambda: None
    monkeypatch.setitem(sys.modules, module.__name__, module)
    with plugin_host(ACME, role="worker") as found:
        yield found
        record_call_times()  # timers outlive a host; the next test begins at zero


class Thing:
    def double(self, x: int) -> int:
        if x < 0:
            raise ValueError(x)
        return 2 * x

    @classmethod
    def whose(cls) -> type:
        return cls


class SubThing(Thing):
    pass


class Slotted:
    __slots__ = ()

    def act(self) -> None:
        pass


def called() -> dict[tuple[str, str, str], dict]:
    record_call_times()
    return {(e.plugin, e.facts["kind"], e.facts["hook"]): e.facts for e in current_host().ledger.of(PLUGIN_CALLED)}


def test_a_timed_call_answers_and_raises_as_before_and_counts(host):
    """Each call is one, whether it returned or raised; a report begins anew."""
    thing = Thing()
    timer_of("acme-things:acme", kind="worker", hook="double").replace(thing, "double")

    assert thing.double(4) == 8
    with pytest.raises(ValueError, match="-1"):
        thing.double(-1)
    assert Thing().double(3) == 6
    facts = called()["acme-things:acme", "worker", "double"]
    assert facts["calls"] == 2
    assert facts["median_ns"] > 0
    assert facts["mean_ns"] > 0
    assert facts["clock_ns"] > 0
    host.ledger.events.clear()
    assert called() == {}


def test_an_object_that_several_hold_is_timed_once(host):
    """A method that two layers share must not count each call twice, nor pay for two clocks."""
    thing = Thing()
    for _ in range(2):
        timer_of("acme-things:acme", kind="worker", hook="double").replace(thing, "double")
    thing.double(1)

    assert called()["acme-things:acme", "worker", "double"]["calls"] == 1


def test_a_class_method_still_gets_the_class_it_is_called_on(host):
    """Timed on a class, seen by its subclasses."""

    class Parent(Thing):
        pass

    class Child(Parent):
        pass

    timer_of("acme-things:acme", kind="attention backend", hook="whose").replace(Parent, "whose")

    assert (Parent.whose(), Child.whose(), Child().whose()) == (Parent, Child, Child)
    assert called()["acme-things:acme", "attention backend", "whose"]["calls"] == 3


def test_what_cannot_be_timed_is_told(host):
    """An object without a place for attributes stays as it is, and the ledger says why."""
    timer_of("acme-things:acme", kind="worker", hook="act").replace(Slotted(), "act")

    (event,) = host.ledger.of(PLUGIN_NOT_TIMED)
    assert (event.plugin, event.facts["hook"]) == ("acme-things:acme", "act")
    assert "act" in event.facts["reason"]


@pytest.mark.parametrize(
    ("module", "name", "point", "label"),
    [
        ("acme_things.worker", "Worker", "workers", "acme-things:acme"),
        ("acme_things.model", "Model", "models", "acme-things:AcmeForCausalLM"),
        ("acme_things.other", "Rotary", "custom_ops", "acme-things:acme_general"),
        ("acme_things.other", "Backend", "attention_backends", "acme-things:acme_platform"),
        ("graftlm.layers.linear", "LinearBase", "workers", None),
        ("torch.nn", "Linear", "workers", None),
        ("__main__", "Mine", "workers", None),
    ],
)
def test_code_belongs_to_the_plugin_that_most_likely_brought_it(host, module, name, point, label):
    """Its own target, then its point, then whoever may have registered it; the engine's own is nobody's."""
    plugin = plugin_of_code(type(name, (), {"__module__": module}), point=point)

    assert (plugin.label if plugin else None) == label


def test_only_a_listener_that_a_plugin_hands_over_is_timed(host):
    """The engine's own listeners stay the very functions that they are."""
    heard = []
    assert time_listener(heard.append, hook="on_step").__self__ is heard

    with calling(host.find("workers", "acme"), "EndpointPlugin.init_state"):
        listener = time_listener(heard.append, hook="on_step")
    listener(7)

    assert heard == [7]
    assert called()["acme-things:acme", "listener", "on_step"]["calls"] == 1


def test_the_median_is_of_the_last_calls_and_the_mean_of_all(monkeypatch):
    """A long-lived process keeps a bounded number of times."""
    timer = CallTimer("x:y", kind="k", hook="h")
    for nanoseconds in [10**9] * 10 + [5] * 8192:
        timer.add(nanoseconds)

    assert len(timer.recent) == 8192
    assert set(timer.recent) == {5}
    assert timer.calls == 8202
    assert timer.total_ns == 10**10 + 5 * 8192
