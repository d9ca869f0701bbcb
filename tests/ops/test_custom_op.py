"""CustomOp: replacement by subclasses, op switches, the order of choice, and what the ledger says of it."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
from op_plugin_fakes import HalvingSilu, PickyNorm, PublishedRotary

from graftlm.layers.activation import QuickGELU, SiluAndMul
from graftlm.layers.norm import LayerNorm, RMSNorm
from graftlm.layers.rotary import LinearScalingRotaryEmbedding, Llama3RotaryEmbedding, RotaryEmbedding
from graftlm.ops import CustomOp, PluggableLayer
from graftlm.ops.names import BUILT_IN_OPS
from graftlm.plugins import DuplicateRegistration, PluginFailed, UnresolvedPath

Install = Callable[..., Any]


def new_op(name: str) -> type[CustomOp]:
    """An op of one test: doubles its input natively, and has no other method."""

    @CustomOp.register(name)
    class Op(CustomOp):
        def forward_native(self, x: torch.Tensor) -> torch.Tensor:
            return 2 * x

    return Op


def test_the_torch_free_names_are_those_of_the_real_registry() -> None:
    """The configuration is validated by BUILT_IN_OPS, in a process that imports no op."""
    import importlib
    import pkgutil

    import graftlm.layers
    import graftlm.ops
    from graftlm.ops.custom_op import op_registry

    for package in (graftlm.layers, graftlm.ops):
        for module in pkgutil.walk_packages(package.__path__, f"{package.__name__}."):
            importlib.import_module(module.name)

    ours = [name for name in op_registry.names() if op_registry.get(name).__module__.startswith("graftlm.")]
    assert sorted(BUILT_IN_OPS) == ours


def test_a_replacement_is_built_in_place_of_exactly_that_class() -> None:
    """The key is the class: the same constructor call gives the subclass, other classes stay."""
    op = new_op("exactly_this")

    @op.register_oot
    class Replacement(op):  # type: ignore[misc, valid-type]
        def __init__(self) -> None:
            super().__init__()
            self.extra = True

    class Subclass(op):  # type: ignore[misc, valid-type]
        pass

    assert type(op()) is Replacement and op().extra
    assert type(Subclass()) is Subclass
    assert Replacement.name == "exactly_this"


def test_replacing_the_rotary_embedding_leaves_its_scalings_alone(
    worker_host: Install, build: Callable[..., Any]
) -> None:
    """The entry point of graftlm.custom_ops swaps RotaryEmbedding; linear and llama3 are other classes."""
    host = worker_host(custom_ops={"graftlm.layers.rotary.RotaryEmbedding": "op_plugin_fakes:PublishedRotary"})
    with build():
        ropes = [RotaryEmbedding(8, max_position=4) for _ in range(3)]
        linear = LinearScalingRotaryEmbedding(8, max_position=4, scaling={"factor": 2})

    assert [type(rope) for rope in ropes] == [PublishedRotary] * 3
    assert type(linear) is LinearScalingRotaryEmbedding
    assert [event.facts for event in host.ledger.of("op_swapped")] == [
        {
            "cls": "graftlm.layers.rotary.RotaryEmbedding",
            "replacement": "op_plugin_fakes.PublishedRotary",
            "count": 3,
        }
    ]


def test_an_entry_point_may_use_the_public_path(worker_host: Install) -> None:
    """`graftlm.layers.RotaryEmbedding` is what authors import, so it is a key too."""
    worker_host(custom_ops={"graftlm.layers.RotaryEmbedding": "op_plugin_fakes:PublishedRotary"})

    assert type(RotaryEmbedding(8, max_position=4)) is PublishedRotary


def test_subclasses_are_replaced_on_request_and_keep_their_own_methods() -> None:
    """include_subclasses builds a class that is both: the replacement's forward, the subclass's rest."""
    op = new_op("with_subclasses")

    class Subclass(op):  # type: ignore[misc, valid-type]
        def __init__(self, by: int) -> None:
            super().__init__()
            self.by = by

    @op.register_oot(include_subclasses=True)
    class Replacement(op):  # type: ignore[misc, valid-type]
        def forward_native(self, x: torch.Tensor) -> torch.Tensor:
            return 10 * x

    built = Subclass(7)

    assert isinstance(built, Replacement) and isinstance(built, Subclass)
    assert built.by == 7 and built(torch.ones(1)) == 10
    assert type(Subclass(1)) is type(built)
    assert type(Replacement()) is Replacement


def test_a_replacement_can_itself_be_replaced() -> None:
    """Two plugins may build on each other when the second replaces the first's class."""
    op = new_op("in_a_row")
    first = op.register_oot(type("First", (op,), {}))
    second = first.register_oot(type("Second", (first,), {}))

    assert type(op()) is second


@pytest.mark.parametrize(
    ("candidate", "problem"),
    [(torch.nn.Identity, "must be a subclass of it"), ("a string", "must be a class"), (RMSNorm, "cannot replace")],
)
def test_a_replacement_must_subclass_what_it_replaces(candidate: Any, problem: str) -> None:
    """Otherwise Python would skip its constructor in silence."""
    with pytest.raises(TypeError, match=problem):
        LayerNorm.register_oot(candidate)


def test_a_replacement_keeps_the_switch_name() -> None:
    """A replacement that named itself would no longer answer to the user's switch."""
    op = new_op("switch_name")
    other = type("Other", (op,), {})
    CustomOp.register("another_switch_name")(other)

    with pytest.raises(TypeError, match=r"'another_switch_name' of its own; a replacement keeps 'switch_name'"):
        op.register_oot(other)


def test_two_replacements_of_one_class_are_an_error_that_names_both() -> None:
    """The first stays, and nothing is overwritten in silence."""
    op = new_op("twice")
    first = op.register_oot(type("First", (op,), {"__module__": "acme.ops"}))

    with pytest.raises(DuplicateRegistration, match=r"already registered by acme, and best registers another"):
        op.register_oot(type("Second", (op,), {"__module__": "best.ops"}))
    op.register_oot(first)

    assert type(op()) is first


@pytest.fixture
def forget() -> Iterator[Callable[[type], None]]:
    """Take back what a test registered for a class of the engine."""
    from graftlm.ops.pluggable import replacements

    classes: list[type] = []

    yield classes.append

    for cls in classes:
        del replacements._entries[cls]


def test_a_registered_and_a_published_replacement_are_an_error_that_names_both(
    worker_host: Install, forget: Callable[[type], None]
) -> None:
    """The two ways to replace a class share one key."""
    worker_host(custom_ops={"graftlm.layers.rotary.RotaryEmbedding": "op_plugin_fakes:PublishedRotary"})
    RotaryEmbedding.register_oot(type("Registered", (RotaryEmbedding,), {"__module__": "best.ops"}))
    forget(RotaryEmbedding)

    with pytest.raises(DuplicateRegistration, match=r"registered by best, and acme-ops:.* registers another"):
        RotaryEmbedding(8, max_position=4)


def test_a_published_class_that_does_not_fit_is_blamed_on_its_plugin(worker_host: Install) -> None:
    """The error names the entry point, and its note the distribution."""
    worker_host(custom_ops={"graftlm.layers.rotary.RotaryEmbedding": "op_plugin_fakes:NotARotary"})

    with pytest.raises(TypeError, match=r"NotARotary cannot replace graftlm\.layers\.rotary") as raised:
        RotaryEmbedding(8, max_position=4)

    assert any("acme-ops" in note for note in raised.value.__notes__)


def test_a_class_can_be_named_by_its_bare_name_or_path(forget: Callable[[type], None]) -> None:
    """As vLLM's authors write it, on CustomOp itself."""
    replacement = CustomOp.register_oot(name="QuickGELU")(type("MyQuickGELU", (QuickGELU,), {}))
    forget(QuickGELU)

    assert type(QuickGELU()) is replacement
    assert CustomOp.register_oot(replacement, name="graftlm.layers.activation:QuickGELU") is replacement
    with pytest.raises(UnresolvedPath, match="did you mean 'RotaryEmbedding'"):
        CustomOp.register_oot(name="RotaryEmbeding")(replacement)
    with pytest.raises(TypeError, match="no layer"):
        CustomOp.register_oot(replacement)


def test_plain_layers_can_be_replaced_too() -> None:
    """A linear layer has no implementations to choose from, but a vendor may bring a whole one."""

    class Layer(PluggableLayer):
        pass

    replacement = Layer.register_oot(type("Mine", (Layer,), {}))

    assert type(Layer()) is replacement


def test_outside_of_a_build_the_reference_runs() -> None:
    """An author's unit test needs no engine around it."""
    op = new_op("outside")()

    assert op(torch.ones(1)) == 2
    assert op.choice.reason == "constructed outside of a model's build"


def test_the_platforms_own_method_runs_where_a_class_has_one(
    worker_host: Install, build: Callable[..., Any]
) -> None:
    """forward_oot on an out-of-tree platform; a class without one falls to the reference."""
    worker_host()
    op = new_op("own_method")
    own = type("Own", (op,), {"forward_oot": lambda self, x: 3 * x})
    with build():
        plain, special = op(), own()

    assert (plain(torch.ones(1)), plain.choice.method) == (2, "forward_native")
    assert (special(torch.ones(1)), special.choice.method) == (3, "forward_oot")
    assert special.choice.reason == "own forward_oot for fake device"


def test_the_choice_costs_nothing_at_each_call(worker_host: Install, build: Callable[..., Any]) -> None:
    """forward is the chosen method itself, bound once."""
    worker_host(platform={"op_method": "forward_cpu"})
    op = type("Own", (new_op("bound_once"),), {"forward_cpu": lambda self, x: 3 * x})
    with build():
        built = op()

    assert built.__dict__["forward"] == built.forward_cpu


def test_a_class_that_overrides_forward_itself_is_left_alone(
    worker_host: Install, build: Callable[..., Any]
) -> None:
    """Nothing may run beside what the author wrote, and the ledger says so."""
    worker_host()
    op = type("Own", (new_op("own_forward"),), {"forward": lambda self, x: 5 * x})
    with build():
        built = op()

    assert built(torch.ones(1)) == 5
    assert built.choice.method == "forward"


@pytest.mark.parametrize(
    ("switches", "runs"),
    [
        ((), 3),
        (("all",), 3),
        (("none",), 2),
        (("none", "+switched"), 3),
        (("all", "-switched"), 2),
        (("+switched",), 3),
    ],
)
def test_switches_decide_before_the_platform_does(
    worker_host: Install, build: Callable[..., Any], switches: tuple[str, ...], runs: int
) -> None:
    """A switched-off op runs its reference, and counts as disabled."""
    worker_host()
    op = _switched()
    with build(*switches) as context:
        built = op()

    assert built(torch.ones(1)) == runs
    assert context.enabled_custom_ops["switched"] == (1 if runs == 3 else 0)
    assert context.disabled_custom_ops["switched"] == (0 if runs == 3 else 1)


def _switched() -> type[CustomOp]:
    from graftlm.ops.custom_op import op_registry

    base = op_registry.get("switched") if "switched" in op_registry else new_op("switched")
    return type("Own", (base,), {"forward_oot": lambda self, x: 3 * x})


def test_the_base_mode_is_none_where_a_compiler_fuses(worker_host: Install, build: Callable[..., Any]) -> None:
    """With inductor the references are what it compiles; enforce_enable still wins."""
    worker_host()
    op = _switched()

    class Enforced(op):  # type: ignore[misc, valid-type]
        def __init__(self) -> None:
            super().__init__(enforce_enable=True)

    with build(backend="inductor"):
        assert not CustomOp.default_on() and not op.enabled()
        assert op().choice.reason == "switched off by none"
        assert Enforced().choice.method == "forward_oot"


def test_the_first_provider_that_supports_the_op_runs(worker_host: Install, build: Callable[..., Any]) -> None:
    """In the platform's order, where the op class has no method of its own for the platform."""
    names = {"rms_norm.acme": "op_plugin_fakes:PickyNorm", "silu_and_mul.acme": "op_plugin_fakes:HalvingSilu"}
    host = worker_host(platform={"op_providers": ("missing", "acme")}, op_implementations=names)
    with build():
        norm, odd, silu, layer_norm = RMSNorm(128), RMSNorm(100), SiluAndMul(), LayerNorm(64)
    norm.process_weights_after_loading()

    assert isinstance(norm.choice.implementation, PickyNorm)
    assert norm(torch.ones(1, 128)).sum() == 0
    assert norm.choice.implementation.packed == {"weight": norm.weight}
    assert odd.choice.method == "forward_native"
    assert odd.choice.reason == "no provider fits (rms_norm.acme: 100 is no multiple of 64)"
    assert isinstance(silu.choice.implementation, HalvingSilu) and silu(torch.ones(2))[0] == 0.5
    assert layer_norm.choice.reason == "the reference; no other implementation for this platform"
    dispatched = {(e.facts["op"], e.facts["method"], e.facts["count"]) for e in host.ledger.of("op_dispatched")}
    assert ("rms_norm", "rms_norm.acme", 1) in dispatched and ("rms_norm", "forward_native", 1) in dispatched


def test_native_in_the_platforms_list_ends_the_search(worker_host: Install, build: Callable[..., Any]) -> None:
    """A platform may prefer the reference to a provider."""
    worker_host(
        platform={"op_providers": ("native", "acme")},
        op_implementations={"silu_and_mul.acme": "op_plugin_fakes:HalvingSilu"},
    )
    with build():
        assert SiluAndMul().choice.reason == "provider native"


def test_thirty_layers_make_one_ledger_line(worker_host: Install, build: Callable[..., Any]) -> None:
    """Equal choices are counted."""
    host = worker_host()
    with build():
        for _ in range(30):
            RMSNorm(8)

    assert [e.facts["count"] for e in host.ledger.of("op_dispatched", op="rms_norm")] == [30]


def test_a_plugin_that_fails_to_import_is_left_out_unless_it_was_named(
    worker_host: Install, build: Callable[..., Any], caplog: pytest.LogCaptureFixture
) -> None:
    """Merely installed: one warning with its distribution. Named by the user: the start stops."""
    broken = {"graftlm.layers.rotary.Llama3RotaryEmbedding": "broken_op_plugin:Rotary"}
    scaling = {
        "factor": 8, "low_freq_factor": 1, "high_freq_factor": 4, "original_max_position_embeddings": 16,
    }  # fmt: skip
    worker_host(custom_ops=broken)
    with caplog.at_level(logging.WARNING):
        ropes = [Llama3RotaryEmbedding(8, max_position=4, scaling=scaling) for _ in range(2)]

    assert {type(rope) for rope in ropes} == {Llama3RotaryEmbedding}
    assert len(caplog.records) == 1 and "acme-ops" in caplog.text and "no such device" in caplog.text

    worker_host(custom_ops=broken, named=True)
    with pytest.raises(PluginFailed, match="acme-ops"):
        Llama3RotaryEmbedding(8, max_position=4, scaling=scaling)


def test_a_switch_that_no_op_of_the_model_has_is_said(
    worker_host: Install, build: Callable[..., Any], caplog: pytest.LogCaptureFixture
) -> None:
    """The name is right, but this model builds no such op."""
    worker_host()
    with caplog.at_level(logging.WARNING), build("all", "-relu2"):
        RMSNorm(8)

    assert "relu2" in caplog.text


def test_an_op_needs_a_name() -> None:
    """Without one no switch and no provider could mean it."""

    class Nameless(CustomOp):
        pass

    with pytest.raises(TypeError, match=r"@CustomOp\.register"):
        Nameless()
    with pytest.raises(DuplicateRegistration, match="rms_norm"):
        CustomOp.register("rms_norm")(Nameless)
