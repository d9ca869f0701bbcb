"""The model source of hub ids (org/name): downloads only what serving needs, into huggingface_hub's own cache.

It does not know how the hub answers; HF_ENDPOINT, HF_TOKEN and HF_HUB_OFFLINE mean what they mean there.
"""

from __future__ import annotations

import contextlib
import os
import re
from collections.abc import Iterator
from pathlib import Path

from graftlm.contracts.checkpoint import ModelSource
from graftlm.models.sources.errors import FetchFailed, ModelNotFound

_ID = re.compile(r"^[A-Za-z0-9][\w.-]*/[\w.-]+$")
_GGUF_IN_REPOSITORY = re.compile(r"^([A-Za-z0-9][\w.-]*/[\w.-]+)/(.+\.gguf)$")
_NEEDED = [
    "config.json", "generation_config.json", "tokenizer.json", "tokenizer_config.json", "special_tokens_map.json",
    "chat_template.jinja", "*.safetensors", "*.safetensors.index.json",
]  # fmt: skip
_NOT_NEEDED = ["*/*", "consolidated*.safetensors", "adapter_*"]

_UNREACHABLE_CURE = "check the network and HF_ENDPOINT, or give a directory or a .gguf file"


class HubSource(ModelSource):
    """Fetches `org/name`, or one file of it as `org/name/FILE.gguf`."""

    scheme = "hf"

    def claims(self, model: str) -> bool:
        return bool(_ID.match(model) or _GGUF_IN_REPOSITORY.match(model))

    def fetch(self, model: str, *, revision: str | None, progress: bool) -> Path:
        import huggingface_hub
        from huggingface_hub import errors

        model = model.removeprefix(f"{self.scheme}://")
        try:
            with _progress_bars(progress):
                return _download(model, revision=revision)
        except errors.GatedRepoError as error:
            raise FetchFailed(
                model, problem="the hub wants its licence accepted", cure="accept it there and set HF_TOKEN"
            ) from error
        except errors.RevisionNotFoundError as error:
            raise ModelNotFound(
                model, problem=f"it has no revision {revision!r}", cure="correct --revision, or leave it out"
            ) from error
        except errors.RemoteEntryNotFoundError as error:
            raise ModelNotFound(model, problem="its repository has no such file", cure="check the name") from error
        except errors.OfflineModeIsEnabled as error:
            raise _is_offline(model) from error
        except errors.LocalEntryNotFoundError as error:
            if huggingface_hub.constants.HF_HUB_OFFLINE:
                raise _is_offline(model) from error
            problem = f"{_endpoint()} does not answer ({str(error.__cause__ or error).partition(chr(10))[0]})"
            raise FetchFailed(model, problem=problem, cure=_UNREACHABLE_CURE) from error
        except errors.RepositoryNotFoundError as error:
            raise ModelNotFound(
                model,
                problem=f"it is no path here, and {_endpoint()} has no such model, or it is private",
                cure="check the name, set HF_TOKEN for a private one, or give a directory or a .gguf file",
            ) from error
        except ModelNotFound:
            raise
        except Exception as error:  # the hub's client lets errors of its HTTP library through
            raise FetchFailed(
                model,
                problem=f"{type(error).__name__} from {_endpoint()}: {str(error).partition(chr(10))[0]}",
                cure=_UNREACHABLE_CURE,
            ) from error


def _is_offline(model: str) -> FetchFailed:
    return FetchFailed(
        model, problem="it is not in the hub's cache, and HF_HUB_OFFLINE is set",
        cure="unset HF_HUB_OFFLINE, or give a directory or a .gguf file",
    )  # fmt: skip


def _download(model: str, *, revision: str | None) -> Path:
    import huggingface_hub

    # Given here, since the library reads HF_ENDPOINT only when it is imported.
    endpoint = os.environ.get("HF_ENDPOINT") or None
    if match := _GGUF_IN_REPOSITORY.match(model):
        return Path(huggingface_hub.hf_hub_download(match[1], match[2], revision=revision, endpoint=endpoint))
    folder = huggingface_hub.snapshot_download(
        model, revision=revision, endpoint=endpoint, allow_patterns=_NEEDED, ignore_patterns=_NOT_NEEDED
    )
    if not (Path(folder) / "config.json").is_file():
        files = huggingface_hub.HfApi(endpoint=endpoint).list_repo_files(model, revision=revision)
        ggufs = [file for file in files if file.endswith(".gguf")]
        raise ModelNotFound(
            model,
            problem=f"its repository has no config.json (it has {', '.join((ggufs or files)[:6]) or 'no files'})",
            cure=f"choose a file, such as {model}/{ggufs[0]}" if ggufs else "serve a model of transformers' form",
        )
    return Path(folder)


def _endpoint() -> str:
    return os.environ.get("HF_ENDPOINT") or "https://huggingface.co"


@contextlib.contextmanager
def _progress_bars(wanted: bool) -> Iterator[None]:
    """Silence the library's bars inside the block, unless they are wanted."""
    from huggingface_hub.utils.tqdm import (
        are_progress_bars_disabled,
        disable_progress_bars,
        enable_progress_bars,
    )

    if wanted or are_progress_bars_disabled():
        yield
        return
    disable_progress_bars()
    try:
        yield
    finally:
        enable_progress_bars()
