"""The loader of Hugging Face directories: config.json beside one or several .safetensors files.

It does not know architectures; tensors are yielded over the memory map under the names that the files give.
"""

from __future__ import annotations

import json
import re
import shutil
import struct
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

from graftlm.contracts.checkpoint import CheckpointFacts, ModelLoader
from graftlm.models.checkpoints.errors import BrokenCheckpoint, UnsupportedCheckpoint
from graftlm.models.checkpoints.json_file import read_json_object, read_text

if TYPE_CHECKING:
    from graftlm.config.engine_config import EngineConfig
    from graftlm.contracts.weights import Weight

_INDEX = "model.safetensors.index.json"
_SHARD = re.compile(r"-of-(\d+)\.safetensors$")


class SafetensorsLoader(ModelLoader):
    """Reads a directory as `save_pretrained` writes it."""

    format = "safetensors"

    def claims(self, path: Path) -> bool:
        return (path / "config.json").is_file() and ((path / _INDEX).is_file() or any(path.glob("*.safetensors")))

    def read_facts(self, path: Path) -> CheckpointFacts:
        hf_config = read_json_object(path / "config.json")
        for file in weight_files(path):
            _check_whole(file)
        tokenizer = path / "tokenizer.json"
        return CheckpointFacts(
            path=str(path),
            format=self.format,
            hf_config=hf_config,
            generation_config=read_json_object(path / "generation_config.json", optional=True),
            tokenizer=str(tokenizer) if tokenizer.is_file() else None,
            chat_template=_chat_template(path),
        )

    def iterate_weights(self, config: EngineConfig) -> Iterator[tuple[str, Weight]]:
        from safetensors import safe_open

        for file in weight_files(Path(config.model.path)):
            with safe_open(file, framework="pt") as tensors:
                for name in tensors.keys():  # noqa: SIM118 - not a mapping
                    yield name, tensors.get_tensor(name)

    @classmethod
    def write_example(cls, source: Path, folder: Path) -> Path:
        return shutil.copytree(source, folder, dirs_exist_ok=True)


def weight_files(path: Path) -> list[Path]:
    """List the files that hold the weights: those that the index names, else all of the directory."""
    if (path / _INDEX).is_file():
        weight_map = read_json_object(path / _INDEX).get("weight_map")
        if not isinstance(weight_map, dict) or not all(isinstance(name, str) for name in weight_map.values()):
            raise BrokenCheckpoint(
                path / _INDEX, problem="its weight_map does not map tensors to files", cure="fetch it again"
            )
        names = sorted(set(weight_map.values()))
        missing = [name for name in names if not (path / name).is_file()]
        if missing:
            raise BrokenCheckpoint(
                path,
                problem=f"the index names files that are not there: {', '.join(missing)}",
                cure="fetch the missing files",
            )
        return [path / name for name in names]
    if (path / "model.safetensors").is_file():
        return [path / "model.safetensors"]
    files = sorted(path.glob("*.safetensors"))
    if not files:
        others = sorted(file.name for file in path.glob("*.bin")) or sorted(file.name for file in path.iterdir())
        raise UnsupportedCheckpoint(
            path,
            problem=f"it has no .safetensors file (it has {', '.join(others[:6])})",
            cure="save the weights as safetensors",
        )
    match = _SHARD.search(files[0].name)
    if match and len(files) != int(match[1]):  # without an index, the names tell how many there must be
        raise BrokenCheckpoint(
            path,
            problem=f"it has no index, and {len(files)} of {int(match[1])} weight files",
            cure="fetch the missing files",
        )
    return files


def _check_whole(file: Path) -> None:
    """Refuse a truncated file by its header, in microseconds: its tensors must end where the file ends."""
    size = file.stat().st_size
    try:
        with file.open("rb") as stream:
            (length,) = struct.unpack("<Q", stream.read(8))
            if length > size:
                raise ValueError(f"a header of {length} bytes")
            header = json.loads(stream.read(length))
        end = max((entry["data_offsets"][1] for key, entry in header.items() if key != "__metadata__"), default=0)
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError, IndexError, struct.error) as error:
        raise BrokenCheckpoint(file, problem=f"its header is damaged ({error})", cure="fetch it again") from error
    if 8 + length + end != size:
        raise BrokenCheckpoint(
            file,
            problem=f"it is truncated: its tensors end at byte {8 + length + end}, the file has {size}",
            cure="fetch it again",
        )


def _chat_template(path: Path) -> str | None:
    if (path / "chat_template.jinja").is_file():
        return read_text(path / "chat_template.jinja")
    file = path / "tokenizer_config.json"
    template = read_json_object(file, optional=True).get("chat_template")
    if isinstance(template, list):  # several, by name
        named = [entry for entry in template if isinstance(entry, dict) and entry.get("name") == "default"]
        template = named[0].get("template") if named else None
    if template is not None and not isinstance(template, str):
        raise BrokenCheckpoint(
            file, problem=f"its chat_template is no text but {type(template).__name__}",
            cure="correct it, or start with --chat-template FILE",
        )  # fmt: skip
    return template
