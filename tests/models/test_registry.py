"""The model registry: built-ins, eager and lazy registrations, entry points, and what errors say."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from graftlm.contracts.errors import StartupError
from graftlm.contracts.model import ModelSpec
from graftlm.contracts.points import ALL_POINTS
from graftlm.models import ModelRegistry
from graftlm.models.inspection import InspectionFailed
from graftlm.models.registry import UnknownArchitecture
from graftlm.plugins import Plugin, Role, find_host
from graftlm.plugins.current import hold_host
from graftlm.plugins.errors import DuplicateRegistration
from graftlm.plugins.host import PluginHost
from graftlm.plugins.selection import Decision

MODULE = """
import os
from graftlm.contracts.model import ModelSpec

with open(os.environ["SEEN"], "a") as file:
    file.write(f"{os.getpid()}\\n")


class Acme:
    spec = ModelSpec(supports_lora=True)

    def forward(self): ...
    def compute_logits(self): ...
    def load_weights(self): ...


NotAModel = 3
"""


class Eager:
    spec = ModelSpec(supports_tensor_parallel=False)

    def forward(self) -> None: ...
    def compute_logits(self) -> None: ...
    def load_weights(self) -> None: ...


@pytest.fixture
def registry() -> Iterator[Any]:
    """The process's registry; what a test registers is gone after it."""
    entries = ModelRegistry._registry._entries
    before = dict(entries)
    yield ModelRegistry
    entries.clear()
    entries.update(before)


@pytest.fixture
def no_process(monkeypatch: pytest.MonkeyPatch) -> None:
    """Fail the test if a process is started."""

    def refuse(*_: object, **__: object) -> None:
        raise AssertionError("a process was started")

    monkeypatch.setattr(subprocess, "Popen", refuse)


@pytest.fixture
def acme(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A package `acme_models` whose import leaves its process id in a file; the cache folder is empty."""
    package = tmp_path / "site" / "acme_models"
    package.mkdir(parents=True)
    (package / "__init__.py").write_text("")
    (package / "model.py").write_text(MODULE)
    monkeypatch.syspath_prepend(str(tmp_path / "site"))
    monkeypatch.setenv("PYTHONPATH", f"{tmp_path / 'site'}:{os.environ.get('PYTHONPATH', '')}")
    monkeypatch.setenv("SEEN", str(tmp_path / "seen"))
    monkeypatch.setenv("GRAFTLM_CACHE", str(tmp_path / "cache"))
    return package


def imports_of(package: Path) -> list[int]:
    seen = Path(os.environ["SEEN"])
    return [int(line) for line in seen.read_text().split()] if seen.exists() else []


def test_facts_need_no_torch() -> None:
    """Resolving an architecture and reading facts imports no torch."""
    code = (
        "import sys; from graftlm.models import ModelRegistry; from graftlm.models.sources import resolve_model;"
        "from graftlm.models.checkpoints import gguf_loader, safetensors, read_facts;"
        "ModelRegistry.resolve(['OPTForCausalLM']); assert 'torch' not in sys.modules, 'torch'"
    )

    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)

    assert done.returncode == 0, done.stderr


@pytest.mark.usefixtures("no_process")
def test_built_in_architectures_are_known_from_a_table(registry: Any) -> None:
    """The first known architecture of the list is taken, with its facts."""
    assert registry.resolve(["Unheard", "OPTForCausalLM", "LlamaForCausalLM"]) == ("OPTForCausalLM", ModelSpec())


def test_built_in_classes_are_where_the_table_says() -> None:
    """Every architecture of the table can be imported and has what the engine calls."""
    from graftlm.models.builtin import BUILT_IN_MODELS

    for architecture in BUILT_IN_MODELS:
        assert ModelRegistry.load_class(architecture).__name__ == architecture


def test_an_unknown_architecture_names_near_ones(registry: Any) -> None:
    """The error lists what was asked, what is near, and what there is."""
    with pytest.raises(UnknownArchitecture) as raised:
        registry.resolve(["LlammaForCausalLM"])

    text = str(raised.value)
    assert "Model architectures ['LlammaForCausalLM'] are not supported for now" in text
    assert "did you mean 'LlamaForCausalLM'" in text
    assert "OPTForCausalLM" in text
    assert isinstance(raised.value, StartupError)


@pytest.mark.usefixtures("no_process")
def test_an_eager_class_is_inspected_where_it_is(registry: Any) -> None:
    """A class object's facts are read from it, without any process."""
    registry.register_model("EagerForCausalLM", Eager)

    assert registry.resolve(["EagerForCausalLM"]) == ("EagerForCausalLM", Eager.spec)
    assert registry.load_class("EagerForCausalLM") is Eager


def test_what_is_no_model_class_is_refused_at_registration(registry: Any) -> None:
    """A class that lacks what the engine calls is refused where it is registered."""
    with pytest.raises(TypeError, match="no model class: it needs forward, compute_logits and load_weights"):
        registry.register_model("Wrong", int)
    with pytest.raises(TypeError, match="give a class or 'module:Class'"):
        registry.register_model("Wrong", 3)


def test_a_second_class_for_an_architecture_needs_replace(registry: Any) -> None:
    """A built-in cannot be replaced by accident."""
    with pytest.raises(DuplicateRegistration, match="'LlamaForCausalLM' is already registered by graftlm"):
        registry.register_model("LlamaForCausalLM", Eager)

    registry.register_model("LlamaForCausalLM", Eager, replace=True)

    assert registry.resolve(["LlamaForCausalLM"])[1] == Eager.spec


def test_a_lazy_class_is_inspected_in_another_process_and_remembered(registry: Any, acme: Path) -> None:
    """The class is imported once in a helper process; the answer is kept until its code changes."""
    registry.register_model("AcmeForCausalLM", "acme_models.model:Acme")

    first = registry.resolve(["AcmeForCausalLM"])
    again = registry.resolve(["AcmeForCausalLM"])

    assert first == again == ("AcmeForCausalLM", ModelSpec(supports_lora=True))
    assert len(imports_of(acme)) == 1
    assert imports_of(acme) != [os.getpid()]
    assert "acme_models.model" not in sys.modules

    (acme / "other.py").write_text("x = 1")
    registry.resolve(["AcmeForCausalLM"])

    assert len(imports_of(acme)) == 2


@pytest.mark.parametrize(
    ("class_path", "problem"),
    [
        ("acme_models.model:Acmee", "has no Acmee"),
        ("acme_models.nothing:Acme", "there is no module acme_models.nothing"),
        ("acme_models.model:NotAModel", "no model class"),
        ("acme_models.broken:Acme", "ZeroDivisionError"),
        ("acme_models.dead:Acme", "ended with exit code 7"),
    ],
)
def test_a_lazy_class_that_cannot_be_used_is_one_clear_error(
    registry: Any, acme: Path, class_path: str, problem: str
) -> None:
    """The error names the architecture, the path and the cause, and nothing is remembered."""
    (acme / "broken.py").write_text("1 / 0")
    (acme / "dead.py").write_text("import os; os._exit(7)")
    registry.register_model("AcmeForCausalLM", class_path)

    with pytest.raises(InspectionFailed, match=f"{class_path}.*AcmeForCausalLM.*{problem}"):
        registry.resolve(["AcmeForCausalLM"])

    assert not list((Path(os.environ["GRAFTLM_CACHE"]) / "inspections").glob("*.json"))


def plugin(point: str, name: str, value: str, *, distribution: str = "acme-models", **facts: Any) -> Plugin:
    return Plugin(
        point=point, name=name, value=value, distribution=distribution, version="1.0", roles=tuple(Role), **facts
    )


@pytest.fixture
def host() -> Iterator[PluginHost]:
    """A host with a model plugin that is on, one that is off, and a general plugin that is off."""
    before = find_host()
    host = PluginHost(
        ALL_POINTS,
        role=Role.FRONTEND,
        process="test",
        decisions=[
            Decision(plugin("models", "AcmeForCausalLM", "acme_models.model:Acme"), "on", "installed"),
            Decision(plugin("models", "OtherForCausalLM", "acme_models.model:Other"), "disabled", "--no-plugins"),
            Decision(plugin("general_plugins", "acme_more", "acme_models:register"), "disabled", "--no-plugins"),
        ],
    )
    host.install()
    yield host
    hold_host(before)


def test_an_entry_point_brings_an_architecture(registry: Any, acme: Path, host: PluginHost) -> None:
    """A class published under graftlm.models is inspected in a helper process under the same plan, then loaded."""
    assert "AcmeForCausalLM" in registry.names()
    assert registry.resolve(["AcmeForCausalLM"])[1] == ModelSpec(supports_lora=True)
    assert "acme_models.model" not in sys.modules

    assert registry.load_class("AcmeForCausalLM").__name__ == "Acme"
    assert [event.plugin for event in host.ledger.of("loaded")] == ["acme-models:AcmeForCausalLM"]
    del sys.modules["acme_models.model"]


@pytest.mark.usefixtures("host")
def test_an_unknown_architecture_names_the_plugin_that_could_help(registry: Any) -> None:
    """Installed but disabled plugins are named, with the reason why they are off."""
    with pytest.raises(UnknownArchitecture) as raised:
        registry.resolve(["OtherForCausalLM"])

    text = str(raised.value)
    assert "'OtherForCausalLM' of acme-models 1.0 provides it but is disabled (--no-plugins)" in text
    assert "'acme_more' of acme-models 1.0 may register it" in text


@pytest.mark.usefixtures("host")
def test_an_entry_point_and_a_registration_for_one_architecture_are_an_error(
    registry: Any,
) -> None:
    """Two owners of one architecture are both named."""
    registry.register_model("AcmeForCausalLM", Eager)

    with pytest.raises(DuplicateRegistration, match=r"AcmeForCausalLM.*acme-models 1\.0"):
        registry.resolve(["AcmeForCausalLM"])


@pytest.fixture
def own(host: PluginHost) -> Any:
    """Make a host with given decisions on plugins of the models point, and put it in place."""

    def install(*decisions: tuple[Plugin, str]) -> PluginHost:
        made = PluginHost(
            ALL_POINTS, role=Role.FRONTEND, process="test",
            decisions=[Decision(found, state, "test") for found, state in decisions],
        )  # fmt: skip
        made.install()
        return made

    return install


def test_a_built_in_enters_through_the_same_point(registry: Any, own: Any) -> None:
    """The engine's own entry point is used like a plugin's, and is gone when it is disabled by name."""
    llama = plugin(
        "models", "LlamaForCausalLM", "graftlm.models.llama:LlamaForCausalLM", distribution="graftlm", built_in=True
    )
    host = own((llama, "on"))

    registry.load_class("LlamaForCausalLM")

    assert [event.plugin for event in host.ledger.of("loaded")] == ["graftlm:LlamaForCausalLM"]
    own((llama, "disabled"))
    assert registry.names() == ["OPTForCausalLM"]


def test_an_entry_point_may_declare_to_replace_a_built_in(registry: Any, acme: Path, own: Any) -> None:
    """Without the declaration it is an error with both names; with it the plugin's class is taken."""
    target = "acme_models.model:Acme"
    own((plugin("models", "LlamaForCausalLM", target), "on"))
    with pytest.raises(DuplicateRegistration, match=r"registered by graftlm.*acme-models 1\.0"):
        registry.resolve(["LlamaForCausalLM"])

    own((plugin("models", "LlamaForCausalLM", target, replaces=("LlamaForCausalLM",)), "on"))

    assert registry.resolve(["LlamaForCausalLM"])[1] == ModelSpec(supports_lora=True)
