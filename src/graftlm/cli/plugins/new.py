"""`graftlm plugins new KIND NAME`: writes a plugin package that works and passes its own tests at once.

What it writes stands in `templates/`; it imports no plugin and overwrites nothing.
"""

from __future__ import annotations

import dataclasses
import importlib.util
import json
import keyword
import re
from collections.abc import Iterator, Mapping
from importlib import resources
from importlib.resources.abc import Traversable
from pathlib import Path
from string import Template
from typing import TYPE_CHECKING

from graftlm.cli.startup import make_parser, show_help_if_asked
from graftlm.config.arguments import ArgumentParser, UsageError
from graftlm.contracts.errors import GraftlmError
from graftlm.plugins import API_VERSION
from graftlm.plugins.spelling import nearest

if TYPE_CHECKING:
    from graftlm.processes.shutdown import ShutdownRequest

_NAME = re.compile(r"[a-z][a-z0-9]*(?:[-_][a-z0-9]+)*")
_SUFFIX = ".tmpl"


@dataclasses.dataclass(frozen=True)
class Kind:
    """What one kind of package publishes; each text may use the names that templates use."""

    point: str
    entry_name: str
    target: str
    summary: str
    usage: str
    hint: str


KINDS: dict[str, Kind] = {
    "platform": Kind(
        "platform_plugins", "$plain", "$package:detect", "The $Class platform for graftlm",
        "graftlm plugins explain platform\ngraftlm serve demo",
        "It computes on the CPU under another name: change the detector first, then what the platform says.",
    ),
    "model": Kind(
        "models", "${Class}ForCausalLM", "$package.model:${Class}ForCausalLM",
        "The architecture ${Class}ForCausalLM for graftlm",
        "graftlm plugins explain model ${Class}ForCausalLM\n"
        "graftlm serve demo --hf-overrides '{\"architectures\": [\"${Class}ForCausalLM\"]}'",
        "A checkpoint whose config.json names the architecture needs no override. It computes as Llama until you "
        "change it.",
    ),
    "op": Kind(
        "custom_ops", "graftlm.layers.activation.SiluAndMul", "$package.op:${Class}SiluAndMul",
        "Another SiluAndMul for graftlm",
        "graftlm plugins explain op SiluAndMul --model demo\ngraftlm serve demo",
        "To replace another layer, subclass it and put its path into the entry point's name.",
    ),
    "attention": Kind(
        "attention_backends", "$UPPER", "$package.backend:${Class}AttentionBackend",
        "The attention backend $UPPER for graftlm",
        "graftlm plugins explain attention --model demo --attention-backend $UPPER\n"
        "graftlm serve demo --attention-backend $UPPER",
        "It goes through the requests one by one, which is easy to read and slow: make `attend` faster.",
    ),
    "endpoint": Kind(
        "endpoint_plugins", "$plain", "$package:${Class}Endpoint", "Routes under /plugins/$plain/ for graftlm",
        "graftlm serve demo --enable-plugin $plain\ncurl http://127.0.0.1:8000/plugins/$plain/status",
        "Endpoint plugins are off unless they are named, and need the server's API key like all other routes.",
    ),
    "stat_logger": Kind(
        "stat_logger_plugins", "$plain", "$package:${Class}StatLogger",
        "A line of JSON for each request that graftlm has finished",
        "graftlm serve demo --plugin-config $plain.path=requests.jsonl",
        "It runs in a thread of its own: what it raises or how long it takes stops nothing.",
    ),
}  # fmt: skip


class CannotWrite(GraftlmError):
    def __init__(self, place: Path, *, problem: str, cure: str) -> None:
        super().__init__(f"{place}: {problem}; {cure}")


def build_parser() -> ArgumentParser:
    parser = make_parser("plugins new", "Write a working, tested plugin package.")
    parser.usage = "graftlm plugins new KIND NAME [--directory D]"
    parser.words_wanted = f"the kinds are {', '.join(KINDS)}"
    parser.add_argument("kind", metavar="KIND", help=f"What it extends: {', '.join(KINDS)}.")
    parser.add_argument("name", metavar="NAME", help="Name of the plugin, such as acme or acme-chip.")
    parser.add_argument(
        "--directory", metavar="D", help="Folder to write, which must not exist (default: graftlm-NAME)."
    )
    parser.add_argument("--json", action="store_true", help="Print the names of the files as JSON.")
    return parser


def run(argv: list[str], *, shutdown: ShutdownRequest) -> int:
    parser = build_parser()
    if show_help_if_asked(parser, argv):
        return 0
    words = parser.parse_strictly(argv)
    kind = words.kind.replace("-", "_")
    if kind not in KINDS:
        near = nearest(kind, KINDS)
        raise UsageError(f"no template is called {kind!r}; {parser.words_wanted}" + (near and f"; {near}"))
    names = names_for(kind, words.name)
    folder = Path(words.directory or names["distribution"])
    files = write_package(folder, kind, names)
    if words.json:
        print(
            json.dumps({"directory": str(folder), "distribution": names["distribution"], "files": files}, indent=2)
        )
        return 0
    print("\n".join(f"{folder / file}" for file in files))
    print(f"\nNext: cd {folder} && pip install --editable . pytest && python -m pytest")
    return 0


def names_for(kind: str, given: str) -> dict[str, str]:
    """Return every name that the templates of `kind` use; UsageError says what is wrong with the given one."""
    bare = given.removeprefix("graftlm-").removeprefix("graftlm_")
    if not _NAME.fullmatch(bare):
        raise UsageError(
            f"{given!r} is no name for a plugin; write lower-case letters and digits with single dashes, such as "
            "acme-chip"
        )
    plain = bare.replace("-", "_")
    package = f"graftlm_{plain}"
    if keyword.iskeyword(plain):
        raise UsageError(f"{given!r} is a word of Python; choose another name, such as {bare}-plugin")
    if importlib.util.find_spec(package) is not None:
        raise UsageError(f"{given!r}: a package {package} is installed already; choose another name")
    names = {
        "kind": kind, "given": given, "name": bare, "plain": plain, "package": package,
        "distribution": f"graftlm-{bare.replace('_', '-')}", "UPPER": plain.upper(),
        "Class": "".join(part.capitalize() for part in plain.split("_")),
        "api_version": API_VERSION, "next_api": str(int(API_VERSION.partition(".")[0]) + 1),
    }  # fmt: skip
    facts = dataclasses.asdict(KINDS[kind])
    return names | {field: _fill(text, names, where=field) for field, text in facts.items()}


def write_package(folder: Path, kind: str, names: Mapping[str, str]) -> list[str]:
    """Write the package into `folder`, which must not exist or be empty; returns the files, by path in it."""
    if folder.exists() and (not folder.is_dir() or any(folder.iterdir())):
        raise CannotWrite(
            folder, problem="it exists, and is not an empty folder", cure="choose another --directory"
        )
    written = {}
    for path, text in _templates(kind):
        place = path.replace("package/", f"{names['package']}/", 1) if path.startswith("package/") else path
        written[place] = _fill(text, names, where=path)
    try:
        for place, text in written.items():
            file = folder / place
            file.parent.mkdir(parents=True, exist_ok=True)
            file.write_text(text, encoding="utf-8")
    except OSError as error:
        raise CannotWrite(folder, problem=str(error), cure="choose another --directory") from error
    return sorted(written)


def _templates(kind: str) -> Iterator[tuple[str, str]]:
    """Yield path and text of each template: what all kinds share, then what is this one's."""
    root = resources.files("graftlm.cli.plugins") / "templates"
    found = dict(_walk(root / "common")) | dict(_walk(root / kind))
    found["package/graftlm_plugin.toml"] = found.pop("manifest")
    yield from found.items()


def _walk(folder: Traversable, above: str = "") -> Iterator[tuple[str, str]]:
    for item in sorted(folder.iterdir(), key=lambda item: item.name):
        if item.is_dir():
            yield from _walk(item, f"{above}{item.name}/")
        elif item.name.endswith(_SUFFIX):
            yield above + item.name.removesuffix(_SUFFIX), item.read_text(encoding="utf-8")


def _fill(text: str, names: Mapping[str, str], *, where: str) -> str:
    try:
        return Template(text).substitute(names)
    except (KeyError, ValueError) as error:
        raise AssertionError(f"template {where}: {error!r}") from error
