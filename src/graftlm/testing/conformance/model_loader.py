"""The conformance suite of model loaders, over one tiny checkpoint in their format."""

from __future__ import annotations

import contextlib
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, ClassVar

import msgspec
import torch

from graftlm.contracts.checkpoint import CheckpointFacts, ModelLoader
from graftlm.contracts.errors import StartupError
from graftlm.contracts.points import MODEL_LOADERS
from graftlm.contracts.weights import QuantizedWeight
from graftlm.plugins import current_host
from graftlm.plugins.resolve import resolve_class_path
from graftlm.testing.checkpoints import TinyCheckpoint, tiny_llama
from graftlm.testing.conformance.front_end import FrontEndSuite
from graftlm.testing.elsewhere import Elsewhere
from graftlm.testing.loader_files import config_of, damaged, foreign_files, numbers_of, sums_of
from graftlm.testing.suite import NotDeclared
from graftlm.testing.traces import digest, watched

_SIZES = (
    "architectures", "hidden_size", "intermediate_size", "num_hidden_layers", "num_attention_heads",
    "num_key_value_heads", "vocab_size", "max_position_embeddings",
)  # fmt: skip


class ModelLoaderConformance(FrontEndSuite):
    """Subclass it with `subject` naming a ModelLoader class whose `write_example` writes the format.

    Where the class cannot write, `write` may: write(source, folder) as `write_example` is called, or its path.
    `largest_error` is what the format takes from a matrix, as a share of its norm: 0 for plain numbers.
    """

    contract = "graftlm.contracts.checkpoint.ModelLoader"
    point = MODEL_LOADERS
    write: ClassVar[Callable[[Path, Path], Path | None] | str | None] = None
    largest_error: ClassVar[float] = 0.0
    checkpoint: ClassVar[TinyCheckpoint | None] = None

    def test_it_is_a_complete_model_loader_class(self) -> None:
        """A subclass of ModelLoader with all methods and a `format`, constructed without arguments."""
        cls = self.complete_class(ModelLoader)
        found = getattr(cls, "format", None)
        self.require(isinstance(found, str) and bool(found), f"its format is {found!r}; name the format")
        named = self.plugin == "under_test" or found == self.plugin
        self.require(
            named, f"its format is {found!r}, its entry point {self.plugin!r}; --load-format is one, so make one"
        )
        with self.host():
            self._loader()

    def test_it_imports_no_torch(self) -> None:
        """The front end reads facts, and has no torch: it is imported only where tensors are made."""
        other = Elsewhere(hash_seed=8)
        try:
            guilty = other.call("graftlm.testing.traces:torch_imported_by", self.subject_path())
            self.require(not guilty, "importing it imports torch; import it inside iterate_weights")
            with self._example() as path:
                _, torch_too = other.call("graftlm.testing.loader_files:facts_of", *self._named(path))
            self.require(not torch_too, "read_facts imports torch; import it inside iterate_weights")
        finally:
            other.close()

    def test_it_claims_its_own_files_and_no_others(self) -> None:
        """`claims` is True for a checkpoint of the format, False for anything else there may be, and raises
        nothing: a loader that claims too much takes other loaders' files.
        """
        with tempfile.TemporaryDirectory(prefix="graftlm-others-") as name, self.host(), watched() as traces:
            for what, path in foreign_files(Path(name)).items():
                self.require(self._claims(path) is False, f"claims({what}) is not False")
            with self._example() as path:
                self.require(
                    self._claims(path) is True, f"claims({path.name}) is not True, and its example lies there"
                )
            self.require(not traces.left, f"claims leaves {', '.join(traces.left)} behind")

    def test_facts_speak_hugging_faces_words(self) -> None:
        """`read_facts` returns CheckpointFacts with path and format, the sizes of the model under Hugging Face's
        keys, a tokenizer that exists or None, and nothing that cannot cross a process.
        """
        with self._example() as path:
            facts = self._facts(path)
            self.require(isinstance(facts, CheckpointFacts), f"read_facts returns a {type(facts).__name__}")
            self.require(
                facts.path == str(path), f"facts.path is {facts.path!r}, and it was asked for {str(path)!r}"
            )
            self.require(facts.format == self.load().format, f"facts.format is {facts.format!r}")
            written = self._checkpoint().hf_config
            for key in (key for key in _SIZES if key in written):
                found = facts.hf_config.get(key)
                self.require(
                    found == written[key], f"hf_config[{key!r}] is {found!r}; the model has {written[key]!r}"
                )
            there = facts.tokenizer is None or Path(facts.tokenizer).exists()
            self.require(there, f"facts.tokenizer is {facts.tokenizer!r}, which does not exist")
            try:
                copy = msgspec.msgpack.decode(msgspec.msgpack.encode(facts), type=CheckpointFacts)
            except Exception as error:
                self.fail(f"its facts cannot cross a process: {error}; keep plain data in them")
            self.require(
                copy == facts, "its facts are other ones after crossing a process; keep plain data in them"
            )
            self.require(self._facts(path) == facts, "reading again finds other facts")

    def test_every_tensor_is_there(self) -> None:
        """`iterate_weights` yields each tensor once, under its Hugging Face name, with its shape and numbers."""
        with self._example() as path:
            found: dict[str, Any] = {}
            for name, weight in self._weights(path):
                self.require(name not in found, f"it yields {name} twice")
                found[name] = weight
            wanted = self._source_tensors
            missing, more = sorted(wanted.keys() - found.keys()), sorted(found.keys() - wanted.keys())
            self.require(not missing, f"it does not yield {', '.join(missing[:4])}")
            self.require(not more, f"it yields {', '.join(more[:4])}, which the checkpoint does not have")
            for name, weight in found.items():
                self._same(name, weight, wanted[name])

    def test_a_quantized_matrix_can_be_cut(self) -> None:
        """A QuantizedWeight has the same numbers whether it is cut first or dequantized first."""
        with self._example() as path:
            packed = [(name, w) for name, w in self._weights(path) if not isinstance(w, torch.Tensor)]
            if not packed:
                raise NotDeclared("it yields plain tensors only")
            for name, weight in packed:
                whole, (rows, columns) = weight.dequantize(torch.float32), weight.shape
                self._equal(name, weight.narrow(0, 1, rows - 1), whole[1:], "rows 1:")
                if (step := weight.block_columns) < columns:
                    self._equal(name, weight.narrow(1, step, step), whole[:, step : 2 * step], "its second block")

    def test_a_tensor_stays_as_it_is(self) -> None:
        """What was yielded does not change while others are read, and reading again finds the same."""
        with self._example() as path:
            live = [(name, weight, numbers_of(weight).clone()) for name, weight in self._weights(path)]
            for name, weight, copy in live:
                self.require(torch.equal(numbers_of(weight), copy), f"a later tensor changes {name}")
            for (name, _, copy), (again, weight) in zip(live, self._weights(path), strict=True):
                same = name == again and torch.equal(numbers_of(weight), copy)
                self.require(same, f"reading again finds {again} where {name} was, or other numbers")

    def test_the_checkpoint_is_left_unchanged(self) -> None:
        """A checkpoint may lie on a disk that cannot be written to: nothing is written beside it, nor left
        elsewhere, nor fetched.
        """
        with self._example() as path:
            before = digest(path.parent)
            with watched() as traces:
                self._facts(path)
                for _ in self._weights(path):
                    pass
            changed = sorted({name for name, _ in before.items() ^ digest(path.parent).items()})
            self.require(not changed, f"reading changes {', '.join(changed)}")
            self.require(not traces.left, f"reading leaves {', '.join(traces.left)} in the temporary folder")
            self.require(not traces.connections, f"reading asks the network for {', '.join(traces.connections)}")

    def test_a_damaged_checkpoint_is_an_error(self) -> None:
        """A file that is empty or cut off is a StartupError that names it, when facts or weights are read."""
        with self._example() as path:
            for name in [path.name] if path.is_file() else sorted(f.name for f in path.iterdir() if f.is_file()):
                for what, share in (("empty", 0.0), ("cut off in the middle", 0.5)):
                    with damaged(path, name, share) as copy:
                        self._refuses(copy, f"{name} {what}")

    def test_every_process_reads_the_same(self) -> None:
        """Each rank reads the checkpoint by itself: facts and numbers depend on neither process nor hash seed."""
        with self._example() as path:
            ours = sums_of(*self._named(path))
            other = Elsewhere(hash_seed=9)
            try:
                theirs = other.call("graftlm.testing.loader_files:sums_of", *self._named(path))
            finally:
                other.close()
        for key in ours.keys() | theirs.keys():
            here, there = ours.get(key), theirs.get(key)
            self.require(here == there, f"{key} is {here} here and {there} in another process")

    def _refuses(self, path: Path, what: str) -> None:
        try:
            self._facts(path)
            for _ in self._weights(path):
                pass
        except StartupError as error:
            named = path.name in str(error) or str(path) in str(error)
            self.require(named, f"with {what}, its error does not say where: {error}")
        except Exception as error:
            self.fail(f"with {what}, it raises {type(error).__name__}: {error}; raise StartupError with the cure")
        else:
            self.fail(f"it reads a checkpoint with {what} without a complaint")

    def _same(self, name: str, weight: Any, wanted: torch.Tensor) -> None:
        good = isinstance(weight, torch.Tensor | QuantizedWeight)
        self.require(good, f"{name} is a {type(weight).__name__}, neither a tensor nor a QuantizedWeight")
        shape = list(weight.shape)
        self.require(shape == list(wanted.shape), f"{name} has shape {shape}, not {list(wanted.shape)}")
        numbers = numbers_of(weight)
        self.require(numbers.is_floating_point(), f"{name} holds {numbers.dtype}; nothing would say its scale")
        error = float((numbers.double() - wanted.double()).norm() / wanted.double().norm())
        self.require(
            error <= self.largest_error,
            f"{name} differs from what was written by {error:.3g} of its norm; {self.largest_error} is allowed",
        )

    def _equal(self, name: str, part: QuantizedWeight, wanted: torch.Tensor, what: str) -> None:
        self.require(
            torch.equal(part.dequantize(torch.float32), wanted), f"{name}: {what}, cut out, has other numbers"
        )

    def _loader(self) -> ModelLoader:
        try:
            with self._calling("__init__"):
                loader: ModelLoader = self.load()()
        except Exception as error:
            self.fail(f"it cannot be constructed without arguments: {type(error).__name__}: {error}")
        return loader

    def _claims(self, path: Path) -> Any:
        try:
            with self._calling("claims"):
                return self._loader().claims(path)
        except Exception as error:
            self.fail(f"claims({path.name}) raises {type(error).__name__}: {error}; answer False instead")

    def _facts(self, path: Path) -> CheckpointFacts:
        with self._calling("read_facts"):
            return self._loader().read_facts(path)

    def _weights(self, path: Path) -> Iterator[tuple[str, Any]]:
        config = config_of(self._facts(path))
        with self._calling("iterate_weights"):
            yield from self._loader().iterate_weights(config)

    def _calling(self, hook: str) -> contextlib.AbstractContextManager[None]:
        return self.calling(current_host(), f"ModelLoader.{hook}")

    def _named(self, path: Path) -> tuple[str, str]:
        return self.subject_path(), str(path)

    @classmethod
    def _checkpoint(cls) -> TinyCheckpoint:
        return cls.checkpoint or tiny_llama()

    @contextlib.contextmanager
    def _example(self) -> Iterator[Path]:
        """A host, and a checkpoint of the format; its tensors are `_source_tensors`."""
        from safetensors.torch import load_file

        write: Any = type(self).write or getattr(self.load(), "write_example", None)
        write = resolve_class_path(write, what=f"{type(self).__name__}.write") if isinstance(write, str) else write
        with tempfile.TemporaryDirectory(prefix="graftlm-loader-") as name, self.host():
            source = self._checkpoint().write(Path(name, "source"))
            (folder := Path(name, "example")).mkdir()
            path = write(source, folder)
            if path is None:
                raise NotDeclared("nothing writes its format; override write_example, or set `write` in the suite")
            self._source_tensors = load_file(source / "model.safetensors")
            yield Path(path)
