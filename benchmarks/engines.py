"""The engines that are compared, each started with the same threads, slots and context, and as its makers ship it.

An engine lives in an environment of its own, given by path; nothing of it is imported here.
"""

from __future__ import annotations

import functools
import json
import math
import os
import shlex
from collections.abc import Mapping, Sequence
from pathlib import Path

import msgspec

from benchmarks.commands import ask
from benchmarks.peer import HttpPeer
from graftlm.contracts.errors import GraftlmError

GREEDY = {"ignore_eos": True}
_OF_THE_RUN = ("TMPDIR", "PYTHONPATH", "GRAFTLM_PRELOAD_DIR", "HF_HUB_OFFLINE", "VLLM_NO_USAGE_STATS")


class Terms(msgspec.Struct, kw_only=True, frozen=True):
    """What all engines are given alike. `slots` requests of up to `context` tokens are in progress at once."""

    threads: int
    slots: int = 32
    context: int = 2048
    scratch: Path
    """A folder for what engines leave behind; it is removed with the run."""

    def temporary(self, name: str) -> dict[str, str]:
        """Return the variable that keeps an engine's leftovers, and its caches between launches, in one place."""
        folder = self.scratch / "".join(c if c.isalnum() else "-" for c in name)
        folder.mkdir(parents=True, exist_ok=True)
        return {"TMPDIR": str(folder)}


class Flags(msgspec.Struct, frozen=True):
    """More words of a command line, as in a shell: `NAME=VALUE` in front of them are variables."""

    words: tuple[str, ...] = ()
    environment: tuple[tuple[str, str], ...] = ()

    @classmethod
    def parse(cls, text: str) -> Flags:
        """Raises ValueError where a shell would wait for more."""
        words = shlex.split(text)
        environment = []
        while words and "=" in words[0] and words[0].split("=")[0].isidentifier():
            name, _, value = words.pop(0).partition("=")
            environment.append((name, value))
        return cls(tuple(words), tuple(environment))

    def after(self, words: Sequence[str]) -> Flags:
        """Return these flags with others in front of them, which they may overrule."""
        return Flags((*words, *self.words), self.environment)


def graftlm(name: str, *, python: str, model: str, terms: Terms, flags: Flags) -> HttpPeer:
    """`graftlm serve` on the same terms as the others."""
    words = (f"--max-model-len={terms.context}", f"--max-num-seqs={terms.slots}",
             f"--threads-per-worker={terms.threads}", *flags.words)  # fmt: skip
    environment = {**terms.temporary(name), **dict(flags.environment)}
    return graftlm_serve(name, python=python, words=(model, *words), scratch=terms.scratch, environment=environment)


def graftlm_serve(
    name: str, *, python: str, words: Sequence[str], scratch: Path, environment: Mapping[str, str]
) -> HttpPeer:
    """`graftlm serve` with these words, run by the interpreter of its environment; no parked parent warms it."""
    environment = {"GRAFTLM_PRELOAD_DIR": str(scratch / "no-parent"), **environment}
    return HttpPeer(
        name=name,
        version=ask([python, "-m", "graftlm", "--version"]).split()[-1],
        command=lambda port: [python, "-m", "graftlm", "serve", *words, "--host=127.0.0.1", f"--port={port}"],
        settings=said("graftlm serve", words, environment),
        environment=environment,
        extra=GREEDY,
    )


def llama_cpp(name: str, *, server: str, model: str, terms: Terms, flags: Flags) -> HttpPeer:
    """llama.cpp's llama-server: continuous batching and prompt caching are on by default."""
    words = ["--threads", f"{terms.threads}", "--parallel", f"{terms.slots}", "--ctx-size",
             f"{terms.slots * terms.context}", "--no-webui", *flags.words]  # fmt: skip
    return HttpPeer(
        name=name,
        version=ask([server, "--version"]).splitlines()[0].removeprefix("version: "),
        command=lambda port: [server, "--model", model, *words, "--host", "127.0.0.1", "--port", f"{port}"],
        settings=said("llama-server", words, dict(flags.environment)),
        environment={**terms.temporary(name), **dict(flags.environment)},
        extra={**GREEDY, "cache_prompt": True},
    )


def vllm(name: str, *, python: str, checkpoint: Path, terms: Terms, flags: Flags) -> HttpPeer:
    """vLLM on the CPU. Left alone it keeps one core for its scheduler; here it computes with as many as all."""
    cores = sorted(os.sched_getaffinity(0))[: terms.threads]
    environment = {
        "VLLM_CPU_KVCACHE_SPACE": str(cache_gib(checkpoint, terms)),
        "VLLM_CPU_OMP_THREADS_BIND": ",".join(map(str, cores)),
        "VLLM_NO_USAGE_STATS": "1",
        "HF_HUB_OFFLINE": "1",
        **terms.temporary(name),
        **dict(flags.environment),
    }
    version = vllm_version(python)
    if "metadata:" in version:  # the CPU's package is named vllm-cpu, and its command asks for vllm
        places = [str(_name_vllm(version.split()[0], terms.scratch)), os.environ.get("PYTHONPATH", "")]
        environment["PYTHONPATH"] = os.pathsep.join(filter(None, places))
    words = [
        "--dtype",
        "float32",
        "--max-model-len",
        f"{terms.context}",
        "--max-num-seqs",
        f"{terms.slots}",
        *flags.words,
    ]
    main = [python, "-m", "vllm.entrypoints.cli.main", "serve", str(checkpoint), "--served-model-name", "model"]
    return HttpPeer(
        name=name,
        version=version.split()[0],
        command=lambda port: [*main, *words, "--host", "127.0.0.1", "--port", f"{port}"],
        settings=said("vllm serve", words, environment),
        environment=environment,
        extra=GREEDY,
    )


_VLLM_VERSION = """
from importlib.metadata import PackageNotFoundError, version
try:
    print(version("vllm"))
except PackageNotFoundError:
    try:
        print(version("vllm-cpu"), "metadata: vllm-cpu")
    except PackageNotFoundError:
        raise SystemExit("neither vllm nor vllm-cpu is installed there")
"""


@functools.cache
def vllm_version(python: str) -> str:
    """Return what is installed there; raises GraftlmError if it is not."""
    return ask([python, "-c", _VLLM_VERSION])


def _name_vllm(version: str, scratch: Path) -> Path:
    """Make package metadata named vllm, outside of the user's environment; return the folder to look in.

    By the version of that name vllm also tells that it is the CPU's.
    """
    version = version if "cpu" in version else f"{version}+cpu"
    folder = scratch / "vllm-metadata"
    info = folder / f"vllm-{version}.dist-info"
    info.mkdir(parents=True, exist_ok=True)
    (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: vllm\nVersion: {version}\n")
    return folder


def cache_gib(checkpoint: Path, terms: Terms) -> int:
    """Return the whole GiB that hold the keys and values, in fp32, of all slots."""
    config = json.loads((checkpoint / "config.json").read_text())
    heads = config["num_attention_heads"]
    head_size = config.get("head_dim") or config["hidden_size"] // heads
    per_token: int = 2 * config["num_hidden_layers"] * config.get("num_key_value_heads", heads) * head_size * 4
    return math.ceil(terms.slots * terms.context * per_token / 2**30)


def interpreter(path: str) -> str:
    """Return the interpreter of an environment that is given by its folder or by the interpreter itself."""
    place = Path(path).expanduser()
    return program(str(place / "bin" / "python" if place.is_dir() else place))


def existing(path: str) -> str:
    """Return a file's whole path; raises GraftlmError if there is none."""
    place = Path(path).expanduser()
    if not place.exists():
        raise GraftlmError(f"{path!r} does not exist; leave the peer out, or say where it is")
    return str(place.absolute())  # not resolved: an interpreter's link says which environment it is of


def program(path: str) -> str:
    """As `existing`, for what is to be run."""
    place = existing(path)
    if not Path(place).is_file() or not os.access(place, os.X_OK):
        raise GraftlmError(f"{path!r} is no program; give the path of an executable file")
    return place


def said(command: str, words: Sequence[str], environment: Mapping[str, str]) -> str:
    """Return what a reader types to start the same, without host, port and what is only the run's."""
    variables = [f"{n}={shlex.quote(value)}" for n, value in environment.items() if n not in _OF_THE_RUN]
    return " ".join([*variables, command, shlex.join(words)]).strip()
