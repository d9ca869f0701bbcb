"""Writes the tables of docs/cli.md and docs/server.md that the code states: flags, variables, routes, fields.

A generated part lies between `<!-- generated: NAME -->` and `<!-- end -->`; `make docs` rewrites it, and a test
compares. It knows nothing that the parsers, the schemas and the error classes do not say.

    python docs/generate.py [--check]
"""

from __future__ import annotations

import functools
import re
import sys
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Any

FOLDER = Path(__file__).parent
PAGES = (FOLDER / "cli.md", FOLDER / "server.md")
_PART = re.compile(r"(<!-- generated: (?P<name>[\w -]+) -->\n).*?(<!-- end -->)", re.DOTALL)


def table(head: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    """Write a Markdown table; a bar inside a cell does not end it."""
    cells = [[cell.replace("|", "\\|").replace("\n", " ") for cell in row] for row in rows]
    lines = [head, ["---"] * len(head), *cells]
    return "\n".join(f"| {' | '.join(line)} |" for line in lines) + "\n"


# The command line.


def engine_flags() -> str:
    """Flags that every command with an engine takes, section by section."""
    from graftlm.cli import run, serve

    shared = set(run.build_parser().flags())
    return _sections(serve, lambda flag: flag in shared)


def serve_flags() -> str:
    """Flags that only `graftlm serve` takes."""
    from graftlm.cli import run, serve

    shared = set(run.build_parser().flags())
    return _sections(serve, lambda flag: flag not in shared)


def run_flags() -> str:
    """Flags that only `graftlm run` takes."""
    from graftlm.cli import run, serve

    served = set(serve.build_parser().flags())
    return _sections(run, lambda flag: flag not in served or flag == "--api-key")


def _sections(command: Any, wanted: Callable[[str], bool]) -> str:
    parts = []
    for group in command.build_parser()._action_groups:
        rows = []
        for action in group._group_actions:
            flags = [flag for flag in action.option_strings if flag != "-h" and not flag.startswith("--no-")]
            flags = flags or list(action.option_strings)
            if flags and flags != ["--help"] and wanted(flags[0]):
                rows.append((_flag(flags, action), (action.help or "").replace("%%", "%")))
        if rows:
            title = f"**{group.description}.**\n\n" if group.description else ""
            parts.append(title + table(["flag", "meaning"], rows))
    return "\n".join(parts)


def _flag(flags: Sequence[str], action: Any) -> str:
    value = ""
    if action.nargs != 0:
        value = " " + ("|".join(action.choices) if action.choices else str(action.metavar or ""))
    return ", ".join(f"`{flag}{value.rstrip()}`" for flag in flags)


def variables() -> str:
    from graftlm.config.environment import VARIABLES

    return table(["variable", "meaning"], [(f"`{v.name}`", v.help) for v in VARIABLES.values()])


# The server.


@functools.cache
def openapi() -> dict[str, Any]:
    from graftlm.config.engine_config import EngineConfig
    from graftlm.config.server_config import ServerConfig
    from graftlm.frontend.http.app import build_app
    from graftlm.frontend.http.state import ServerState

    config = EngineConfig()
    config.freeze()
    return build_app(ServerState(ServerConfig(), config)).openapi()


def routes() -> str:
    rows = [
        (f"`{method.upper()} {path}`", operation.get("description", "").split("\n\n")[0])
        for path, methods in openapi()["paths"].items()
        for method, operation in methods.items()
    ]
    return table(["route", "what it does"], rows)


def shared_fields() -> str:
    return _field_table("ChatRequest", lambda name: name in _same_in_both())


def completion_fields() -> str:
    return _field_table("CompletionRequest", lambda name: name not in _same_in_both())


def chat_fields() -> str:
    return _field_table("ChatRequest", lambda name: name not in _same_in_both())


def _same_in_both() -> set[str]:
    schemas = openapi()["components"]["schemas"]
    one, other = (schemas[name]["properties"] for name in ("CompletionRequest", "ChatRequest"))
    return {name for name in one if one[name] == other.get(name)}


def _field_table(schema_name: str, wanted: Callable[[str], bool]) -> str:
    schema = openapi()["components"]["schemas"][schema_name]
    required = schema.get("required", [])
    rows = []
    for name, field in schema["properties"].items():
        if wanted(name):
            meaning = field.get("description", "") + (" Required." if name in required else "")
            rows.append((f"`{name}`", _kind(field), meaning.strip()))
    return table(["field", "value", "meaning"], rows)


_WORDS = {
    "integer": ("a whole number", "whole numbers"), "number": ("a number", "numbers"),
    "string": ("a text", "texts"), "boolean": ("true or false", "truth values"),
    "object": ("an object", "objects"), "array": ("a list", "lists"),
}  # fmt: skip


def _kind(field: dict[str, Any]) -> str:
    """Say in words what a JSON schema allows; null, which stands for "not sent", is left out."""
    if "anyOf" in field:
        kinds = (_kind(option) for option in field["anyOf"] if option.get("type") != "null")
        return " or ".join(dict.fromkeys(filter(None, kinds)))
    if "$ref" in field:
        return "an object"
    kind = field.get("type", "")
    if kind == "array":
        items = field.get("items", {})
        inner = items.get("type", "object" if "$ref" in items else "")
        return f"a list of {_WORDS[inner][1]}" if inner else "a list"
    return (_WORDS[kind][0] if kind else "") + _bounds(field)


def _bounds(field: dict[str, Any]) -> str:
    low, high, above = field.get("minimum"), field.get("maximum"), field.get("exclusiveMinimum")
    high = None if high is None or high >= 2**31 - 1 else high
    low = None if low is None or low <= -(2**31) else low
    if low is not None and high is not None:
        return f", {low:,.10g} to {high:,.10g}"
    parts = [f"{word} {bound:g}" for word, bound in (("above", above), ("at least", low), ("up to", high))
             if bound is not None]  # fmt: skip
    return "".join(f", {part}" for part in parts)


def error_codes() -> str:
    """Every class of error that a caller may get, with its status and code."""
    import graftlm.frontend.chat_template
    import graftlm.frontend.http.endpoint_plugins
    import graftlm.frontend.http.errors
    import graftlm.frontend.text_assets  # noqa: F401 - each declares some
    from graftlm.contracts.errors import RequestError

    found: dict[tuple[int, str], None] = {}
    waiting = [RequestError]
    while waiting:
        kind = waiting.pop()
        waiting.extend(kind.__subclasses__())
        if kind.__module__.startswith("graftlm."):
            found[kind.status, kind.code] = None
    known = {
        (500, "engine_dead"), (500, "generation_failed"), (500, "internal_error"), (500, "plugin_failed"),
        (503, "not_ready"), (503, "shutting_down"),
    }  # fmt: skip
    statuses: dict[int, list[str]] = {}
    for status, code in sorted({*found, *known}):
        statuses.setdefault(status, []).append(f"`{code}`")
    return table(["status", "`code`"], [(str(status), ", ".join(codes)) for status, codes in statuses.items()])


PARTS: dict[str, Callable[[], str]] = {
    "engine flags": engine_flags,
    "serve flags": serve_flags,
    "run flags": run_flags,
    "variables": variables,
    "routes": routes,
    "shared fields": shared_fields,
    "completion fields": completion_fields,
    "chat fields": chat_fields,
    "error codes": error_codes,
}


def generated(page: str) -> str:
    """Return a page's text with its generated parts as the code has them now."""
    return _PART.sub(lambda part: part[1] + "\n" + PARTS[part["name"]]() + "\n" + part[3], page)


def main(argv: Sequence[str]) -> int:
    changed = []
    for page in PAGES:
        text = page.read_text()
        new = generated(text)
        if new != text:
            changed.append(page.name)
            if "--check" not in argv:
                page.write_text(new)
    if changed:
        print(f"{'out of date' if '--check' in argv else 'rewritten'}: {', '.join(changed)}")
    return 1 if changed and "--check" in argv else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
