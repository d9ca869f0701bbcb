"""The fakes themselves: what a host undoes, how a suite reports, and what importing the package costs."""

from __future__ import annotations

import subprocess
import sys

import pytest

from graftlm.contracts.points import ALL_POINTS, STAT_LOGGER_PLUGINS
from graftlm.models import ModelRegistry
from graftlm.plugins import Role, UnknownPlugin, find_host
from graftlm.plugins.selection import Selection
from graftlm.testing import FakeDistribution, plugin_host
from graftlm.testing.conformance import suites_for
from graftlm.testing.elsewhere import FailedElsewhere, elsewhere, run_ranks
from graftlm.testing.suite import Suite, failures

FAKE = FakeDistribution(
    "acme",
    {
        "general_plugins": {"models": "test_host_and_suite:register"},
        "stat_logger_plugins": {"stats": "wrong_front_end:NotALogger"},
    },
    version="3.1",
)


def register() -> None:
    ModelRegistry.register_model("AcmeForCausalLM", "wrong_models:KeepsState")


@pytest.mark.parametrize("role", ["frontend", "worker"])
def test_a_host_knows_the_fake_and_leaves_nothing_behind(role: str) -> None:
    """Its general plugin runs each time; afterwards the process is as before."""
    before = find_host()
    for _ in range(2):
        with plugin_host(FAKE, role=role) as host:
            assert host.role is Role(role)
            assert host.find(STAT_LOGGER_PLUGINS, "stats").version == "3.1"
            assert "AcmeForCausalLM" in ModelRegistry.names()
            others = {p.distribution for p in host.known_plugins} - {"acme", "graftlm", "graftlm-kernels"}
            assert others == set()
        assert "AcmeForCausalLM" not in ModelRegistry.names()
    assert find_host() is before


def test_a_host_is_undone_when_its_bootstrap_fails() -> None:
    """An unknown name stops it as it would stop a server."""
    before = find_host()
    with (
        pytest.raises(UnknownPlugin, match="stats"),
        plugin_host(FAKE, selection=Selection(enable_plugin=["statz"])),
    ):
        raise AssertionError("not reached")

    assert find_host() is before


class Reporting(Suite):
    """One check of each kind of end."""

    contract = "the contract"
    subject = "graftlm.testing.suite:Suite"

    def test_holds(self) -> None:
        """Nothing to see."""

    def test_does_not_hold(self) -> None:
        """One is two.

        This is not shown.
        """
        self._inner()

    def _inner(self) -> None:
        self.require(False, "one is one")

    def test_breaks(self) -> None:
        """It raises something else."""
        raise KeyError("gone")


def test_a_suite_says_what_failed_and_what_was_wanted() -> None:
    """Subject, problem, contract, and the first paragraph of the check's docstring."""
    found = failures(Reporting)

    assert list(found) == ["test_does_not_hold", "test_breaks"]
    assert found["test_does_not_hold"] == (
        "graftlm.testing.suite:Suite: one is one\n  the contract wants: One is two."
    )
    assert "KeyError: 'gone'" in found["test_breaks"]


def test_another_process_reports_its_errors_and_goes_on() -> None:
    """The next call is answered by the same process."""
    with pytest.raises(FailedElsewhere, match=r"there is no module no_such_module"):
        elsewhere().call("no_such_module:function")

    assert elsewhere().call("os:getpid") == elsewhere().call("os:getpid")


def fail_on_one_rank(rank: int, size: int, init_method: str) -> None:
    """Rank 1 raises while rank 0 waits for it."""
    import time

    if rank == 1:
        raise RuntimeError("rank 1 is gone")
    time.sleep(600)


def test_a_failing_rank_ends_the_others() -> None:
    """Nobody waits for a collective that never comes."""
    with pytest.raises(FailedElsewhere, match="rank 1 is gone"):
        run_ranks("test_host_and_suite:fail_on_one_rank")


def test_importing_the_package_imports_neither_torch_nor_pytest() -> None:
    """A plugin's module may import it anywhere."""
    code = (
        "import sys, graftlm.testing, graftlm.testing.conformance, graftlm.testing.host, graftlm.testing.suite\n"
        "print([name for name in ('torch', 'pytest') if name in sys.modules])"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)

    assert done.stdout.strip() == "[]"


def test_only_the_pytest_plugin_imports_pytest() -> None:
    """Suites run without it."""
    code = (
        "import sys, pkgutil, importlib, graftlm.testing as t\n"
        "names = [m.name for m in pkgutil.walk_packages(t.__path__, 'graftlm.testing.')]\n"
        "[importlib.import_module(n) for n in names if not n.endswith(('pytest_plugin', 'declared_suites'))]\n"
        "print(len(names) > 15, 'pytest' in sys.modules)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)

    assert done.stdout.strip() == "True False"


def test_there_is_a_suite_for_each_point_that_has_a_contract() -> None:
    """Or a reason why not: their contracts may change, or nothing asks for them yet."""
    from graftlm.testing.conformance import declared

    source = __import__("inspect").getsource(declared)
    without = {point.name for point in ALL_POINTS if f'"{point.name}"' not in source}

    assert without == {
        "lora_resolvers", "logits_processors", "io_processor_plugins", "tool_parsers", "reasoning_parsers",
        "schedulers", "executors",
    }  # fmt: skip


def test_a_complaint_names_the_plugin_where_it_is_known() -> None:
    """Plugin, point, distribution and version; then what the contract wants."""
    fake = FakeDistribution(
        "acme-files", {"model_sources": {"shelf": "wrong_sources:IgnoresTheRevision"}}, version="3.1"
    )
    (suite,) = suites_for(fake).values()
    suite = type("WithAModel", (suite,), {"model": "{folder}/tiny-llama"})
    text = suite.run_check("test_a_revision_is_never_ignored").text

    assert text.startswith("wrong_sources:IgnoresTheRevision (model_sources=shelf of acme-files 3.1): fetch(")
    assert "refuse what means nothing\n  graftlm.contracts.checkpoint.ModelSource wants: A revision that" in text
