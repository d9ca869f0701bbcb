"""Model loaders that are wrong, each in one way that the suite must see. They import no torch."""

from __future__ import annotations

import contextlib
import json
import shutil
import socket
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from graftlm.contracts.checkpoint import CheckpointFacts, ModelLoader
from graftlm.contracts.errors import StartupError
from graftlm.models.checkpoints.errors import BrokenCheckpoint


class Sound(ModelLoader):
    """A directory with facts.json and weights.bin, which is a safetensors file by another name."""

    format = "shelf"

    def claims(self, path: Path) -> bool:
        return (path / "facts.json").is_file() and (path / "weights.bin").is_file()

    def read_facts(self, path: Path) -> CheckpointFacts:
        return CheckpointFacts(path=str(path), format=self.format, hf_config=self.config_in(path / "facts.json"))

    def config_in(self, file: Path) -> dict[str, Any]:
        try:
            return dict(json.loads(file.read_text()))
        except ValueError as error:
            raise BrokenCheckpoint(file, problem=str(error), cure="write it again") from error

    def iterate_weights(self, config: Any) -> Iterator[tuple[str, Any]]:
        from safetensors import SafetensorError, safe_open

        file = Path(config.model.path, "weights.bin")
        try:
            with safe_open(file, framework="pt") as tensors:
                for name in sorted(tensors.keys()):
                    yield from self.tensor(name, tensors.get_tensor(name))
        except SafetensorError as error:
            raise BrokenCheckpoint(file, problem=str(error), cure="write it again") from error

    def tensor(self, name: str, tensor: Any) -> Iterator[tuple[str, Any]]:
        yield name, tensor

    @classmethod
    def write_example(cls, source: Path, folder: Path) -> Path:
        shutil.copy(source / "config.json", folder / "facts.json")
        shutil.copy(source / "model.safetensors", folder / "weights.bin")
        return folder


class HalfALoader(ModelLoader):
    format = "half"

    def claims(self, path: Path) -> bool:
        return False


class WantsADevice(Sound):
    def __init__(self, device: str) -> None:
        self.device = device


class WritesNothing(Sound):
    """Not wrong: its package cannot write the format."""

    @classmethod
    def write_example(cls, source: Path, folder: Path) -> Path | None:
        return None


class TorchInFacts(Sound):
    def read_facts(self, path: Path) -> CheckpointFacts:
        import torch

        assert torch.is_tensor(torch.zeros(1))
        return super().read_facts(path)


class ClaimsAnyDirectory(Sound):
    def claims(self, path: Path) -> bool:
        return path.is_dir()


class RaisesOnFiles(Sound):
    def claims(self, path: Path) -> bool:
        return "weights.bin" in [file.name for file in path.iterdir()]


class ClaimsNothing(Sound):
    def claims(self, path: Path) -> bool:
        return False


class SpeaksItsOwnWords(Sound):
    def config_in(self, file: Path) -> dict[str, Any]:
        config = super().config_in(file)
        config["n_layer"] = config.pop("num_hidden_layers")
        return config


class FactsOfAnotherPlace(Sound):
    def read_facts(self, path: Path) -> CheckpointFacts:
        facts = super().read_facts(path)
        facts.path = path.name
        return facts


class TokenizerElsewhere(Sound):
    def read_facts(self, path: Path) -> CheckpointFacts:
        facts = super().read_facts(path)
        facts.tokenizer = str(path / "tokenizer.json")
        return facts


class FactsWithAnObject(Sound):
    def config_in(self, file: Path) -> dict[str, Any]:
        return {**super().config_in(file), "file": file}


class FactsThatChangeShape(Sound):
    def config_in(self, file: Path) -> dict[str, Any]:
        return {**super().config_in(file), "sizes": (1, 2)}


class ForgetsANorm(Sound):
    def tensor(self, name: str, tensor: Any) -> Iterator[tuple[str, Any]]:
        if name != "model.norm.weight":
            yield name, tensor


class BringsMore(Sound):
    def tensor(self, name: str, tensor: Any) -> Iterator[tuple[str, Any]]:
        yield name, tensor
        if name == "model.norm.weight":
            yield "model.norm.bias", tensor


class BringsOneTwice(Sound):
    def tensor(self, name: str, tensor: Any) -> Iterator[tuple[str, Any]]:
        yield name, tensor
        if name == "model.norm.weight":
            yield name, tensor


class WrongNumbers(Sound):
    def tensor(self, name: str, tensor: Any) -> Iterator[tuple[str, Any]]:
        yield name, tensor * 1.001


class WrongShape(Sound):
    def tensor(self, name: str, tensor: Any) -> Iterator[tuple[str, Any]]:
        yield name, tensor.T if tensor.dim() == 2 else tensor


class WholeNumbers(Sound):
    def tensor(self, name: str, tensor: Any) -> Iterator[tuple[str, Any]]:
        import torch

        yield name, tensor.to(torch.int8)


class Arrays(Sound):
    def tensor(self, name: str, tensor: Any) -> Iterator[tuple[str, Any]]:
        yield name, tensor.numpy()


class OneBuffer(Sound):
    def iterate_weights(self, config: Any) -> Iterator[tuple[str, Any]]:
        import torch

        buffer = torch.empty(1 << 20)
        for name, tensor in super().iterate_weights(config):
            yield name, buffer[: tensor.numel()].copy_(tensor.flatten()).view(tensor.shape)


class AnotherOrderEachTime(Sound):
    turned = False

    def iterate_weights(self, config: Any) -> Iterator[tuple[str, Any]]:
        found = list(super().iterate_weights(config))
        type(self).turned = not self.turned
        yield from reversed(found) if self.turned else found


class KeepsAnIndexBeside(Sound):
    def read_facts(self, path: Path) -> CheckpointFacts:
        (path / "index.cache").write_text("fast")
        return super().read_facts(path)


class UnpacksSomewhere(Sound):
    def iterate_weights(self, config: Any) -> Iterator[tuple[str, Any]]:
        shutil.copy(Path(config.model.path, "weights.bin"), tempfile.mkdtemp())
        yield from super().iterate_weights(config)


class AsksTheNetwork(Sound):
    def read_facts(self, path: Path) -> CheckpointFacts:
        with contextlib.suppress(OSError):
            socket.create_connection(("registry.invalid", 443), timeout=1)
        return super().read_facts(path)


class TakesDamagedFacts(Sound):
    def config_in(self, file: Path) -> dict[str, Any]:
        try:
            return dict(json.loads(file.read_text()))
        except ValueError:
            return {}


class RaisesItsOwn(Sound):
    def config_in(self, file: Path) -> dict[str, Any]:
        return dict(json.loads(file.read_text()))


class NamesNothing(Sound):
    def config_in(self, file: Path) -> dict[str, Any]:
        try:
            return dict(json.loads(file.read_text()))
        except ValueError as error:
            raise StartupError("broken file") from error


class DiffersBetweenProcesses(Sound):
    def config_in(self, file: Path) -> dict[str, Any]:
        return {**super().config_in(file), "seed": hash("seed")}


class CutsBadly(Sound):
    """Yields matrices in blocks, whose columns come out of the wrong place when they are cut."""

    def tensor(self, name: str, tensor: Any) -> Iterator[tuple[str, Any]]:
        from graftlm.testing.quantized_layers import q8_0

        yield name, _BadCut(q8_0(tensor)) if tensor.dim() == 2 else tensor


class _BadCut:
    def __init__(self, inner: Any) -> None:
        self.format, self.shape, self.data, self.block_columns = (
            inner.format, inner.shape, inner.data, inner.block_columns,
        )  # fmt: skip
        self._inner = inner

    def narrow(self, dim: int, start: int, length: int) -> Any:
        return _BadCut(self._inner.narrow(dim, 0 if dim else start, length))

    def dequantize(self, dtype: Any) -> Any:
        return self._inner.dequantize(dtype)
