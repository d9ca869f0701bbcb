"""The conformance suite of model sources, on a model that needs no network."""

from __future__ import annotations

import contextlib
import re
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import ClassVar

from graftlm.contracts.checkpoint import ModelSource
from graftlm.contracts.errors import StartupError
from graftlm.contracts.points import MODEL_SOURCES
from graftlm.models.checkpoints import read_facts
from graftlm.plugins import current_host
from graftlm.plugins.resolve import resolve_class_path
from graftlm.testing.checkpoints import tiny_llama
from graftlm.testing.conformance.front_end import FrontEndSuite
from graftlm.testing.elsewhere import Elsewhere
from graftlm.testing.suite import NotDeclared
from graftlm.testing.traces import digest, watched

_SCHEME = re.compile(r"[a-z][a-z0-9+.-]*")
_ANY_TEXT = (
    "", "demo", "no-such-model", "org/no-such-model", "/no/such/place", "../up", "~/home", "model.gguf",
    "other://model", "two words", "\u00e9t\u00e9", "a" * 5000, "*", "C:\\model",
)  # fmt: skip
#: Nothing that any source has.
_UNKNOWN = "no-such-model-zq7"


class ModelSourceConformance(FrontEndSuite):
    """Subclass it with `subject` naming a ModelSource class.

    `model` is a MODEL that it brings without a network; in it `{folder}` is a folder of the check, where a tiny
    checkpoint lies at `place`. A source that looks elsewhere overrides `prepare`.
    """

    contract = "graftlm.contracts.checkpoint.ModelSource"
    point = MODEL_SOURCES
    model: ClassVar[str] = ""
    place: ClassVar[str] = "tiny-llama"

    def prepare(self, folder: Path) -> None:
        """Make `model` something that the source can bring."""
        tiny_llama().write(folder / self.place)

    def test_it_is_a_complete_model_source_class(self) -> None:
        """A subclass of ModelSource with both methods and a `scheme`, constructed without arguments."""
        cls = self.complete_class(ModelSource)
        scheme = getattr(cls, "scheme", None)
        good = isinstance(scheme, str) and _SCHEME.fullmatch(scheme) is not None
        self.require(good, f"its scheme is {scheme!r}; write lower-case letters, digits, + . and -")
        named = self.plugin == "under_test" or scheme == self.plugin
        self.require(
            named, f"its scheme is {scheme!r}, its entry point {self.plugin!r}; both stand before ://, so make one"
        )
        with self.host():
            self._source()

    def test_it_imports_no_torch(self) -> None:
        """The front end imports it, which has no torch; a source that needs torch imports it in its methods."""
        other = Elsewhere(hash_seed=6)
        try:
            guilty = other.call("graftlm.testing.traces:torch_imported_by", self.subject_path())
        finally:
            other.close()
        self.require(not guilty, "importing it imports torch")

    def test_claims_is_a_pure_question(self) -> None:
        """`claims` answers True or False for whatever the user typed, alike each time, without touching the
        network, starting a process, or writing anything.
        """
        with self.host(), watched() as traces:
            source = self._source()
            for text in _ANY_TEXT:
                shown = repr(text[:40])
                try:
                    with self._calling("claims"):
                        first, second = source.claims(text), source.claims(text)
                except Exception as error:
                    self.fail(f"claims({shown}) raises {type(error).__name__}: {error}; answer False instead")
                self.require(isinstance(first, bool), f"claims({shown}) returns {first!r}, not True or False")
                self.require(first == second, f"claims({shown}) returns {first}, then {second}")
                asked, started = _words(traces.connections), _words(traces.processes)
                self.require(not asked, f"claims({shown}) asks the network for {asked}; only fetch may")
                self.require(not started, f"claims({shown}) starts the process {started}; only fetch may")
        self.require(not traces.left, f"claims leaves {', '.join(traces.left)} behind")

    def test_it_brings_a_model_that_can_be_read(self) -> None:
        """`fetch` returns the path of a directory or file, absolute, the same when asked again, and some loader
        reads it.
        """
        with self._prepared() as (_, model), watched():
            path = self._fetch(model)
            self.require(isinstance(path, Path), f"fetch returns {path!r}; return a pathlib.Path")
            self.require(path.is_absolute(), f"fetch returns {str(path)!r}; other processes work in other folders")
            self.require(path.exists(), f"fetch returns {path}, which does not exist")
            self.require(self._fetch(model) == path, f"a second fetch returns another path than {path}")
            try:
                read_facts(path)
            except StartupError as error:
                self.fail(f"no loader reads what fetch returns: {error}")

    def test_what_is_here_needs_no_network(self) -> None:
        """A model that lies on this machine is not asked for elsewhere, and is left as it is."""
        with self._prepared() as (folder, model), watched() as traces:
            before = digest(folder)
            try:
                self._fetch(model)
            except Exception as error:
                self.fail(
                    f"without a network, a model that is here cannot be fetched: {type(error).__name__}: {error}"
                )
            self.require(not traces.connections, f"fetch asks the network for {_words(traces.connections)}")
            changed = sorted(before.items() ^ digest(folder).items())
            self.require(not changed, f"fetch changes {', '.join(sorted({name for name, _ in changed}))}")

    def test_an_unknown_model_is_an_error(self) -> None:
        """A name that the source does not have is a StartupError that repeats the name, never another model and
        never another exception.
        """
        with self._prepared(needed=False), watched():
            with self._calling("claims"):
                claims = self._source().claims(_UNKNOWN)
            for model in (f"{self.load().scheme}://{_UNKNOWN}", *([_UNKNOWN] if claims else [])):
                try:
                    found = self._fetch(model)
                except StartupError as error:
                    self.require(
                        _UNKNOWN in str(error), f"fetch({model!r}) does not say which name it means: {error}"
                    )
                    continue
                except Exception as error:
                    self.fail(
                        f"fetch({model!r}) raises {type(error).__name__}: {error}; raise StartupError with the cure"
                    )
                self.fail(f"fetch({model!r}) returns {found}, and there is no such model")

    def test_a_revision_is_never_ignored(self) -> None:
        """A revision that does not exist, or that the source does not know of, is a StartupError."""
        with self._prepared() as (_, model), watched():
            try:
                found = self._fetch(model, revision="no-such-revision")
            except StartupError:
                return
            except Exception as error:
                self.fail(f"with an unknown revision, fetch raises {type(error).__name__}: {error}")
            self.fail(f"fetch({model!r}, revision='no-such-revision') returns {found}; refuse what means nothing")

    def test_it_leaves_nothing_behind(self) -> None:
        """Neither a fetch nor a failed one leaves temporary files; stdout stays free for the answers."""
        with self._prepared() as (_, model):
            with watched() as traces:
                self._fetch(model, progress=True)
                with contextlib.suppress(StartupError):
                    self._fetch(f"{self.load().scheme}://{_UNKNOWN}", progress=True)
            self.require(not traces.left, f"fetch leaves {', '.join(traces.left)} in the temporary folder")
            self.require(not traces.printed, f"fetch prints {traces.printed!r} to stdout; write to stderr")

    def test_every_process_answers_alike(self) -> None:
        """What it claims depends on neither the process nor its hash seed."""
        with self.host() as host:
            values = host.settings(self.plugin)
            source = self._source()
            with self._calling("claims"):
                ours = [source.claims(text) for text in _ANY_TEXT]
        if values:
            raise NotDeclared("it has settings, which another process of this check does not get")
        other = Elsewhere(hash_seed=7)
        try:
            theirs = other.call("graftlm.testing.conformance.model_source:claimed", self.subject_path())
        finally:
            other.close()
        for text, here, there in zip(_ANY_TEXT, ours, theirs, strict=True):
            self.require(here == there, f"claims({text[:40]!r}) is {here} here and {there} in another process")

    @contextlib.contextmanager
    def _prepared(self, *, needed: bool = True) -> Iterator[tuple[Path, str]]:
        """A host in which `model` can be fetched; yields the folder where it lies, and its MODEL."""
        if needed and not self.model:
            raise NotDeclared("the suite names no model that needs no network; set `model = 'scheme://…'`")
        with tempfile.TemporaryDirectory(prefix="graftlm-source-") as folder, self.host(Path(folder)):
            if self.model:
                self.prepare(Path(folder))
            yield Path(folder), self.model.replace("{folder}", folder)

    def _source(self) -> ModelSource:
        try:
            with self._calling("__init__"):
                source: ModelSource = self.load()()
        except Exception as error:
            self.fail(f"it cannot be constructed without arguments: {type(error).__name__}: {error}")
        return source

    def _fetch(self, model: str, *, revision: str | None = None, progress: bool = False) -> Path:
        """Fetch as the engine does: by a new object each time."""
        source = self._source()
        with self._calling("fetch"):
            return source.fetch(model, revision=revision, progress=progress)

    def _calling(self, hook: str) -> contextlib.AbstractContextManager[None]:
        return self.calling(current_host(), f"ModelSource.{hook}")


def _words(names: list[str]) -> str:
    return ", ".join(dict.fromkeys(names))


def claimed(path: str) -> list[bool]:
    """Return what the source claims; called in another process."""
    source = resolve_class_path(path)()
    return [source.claims(text) for text in _ANY_TEXT]
