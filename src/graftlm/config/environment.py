"""The environment variables that graftlm reads, each with a sentence of help, read in one place.

It does not know what a value means to its reader: a variable that stands for a flag names the option it sets,
and `config/options.py` converts it as it would the flag.
"""

from __future__ import annotations

import logging
import os
from collections.abc import Iterable, Mapping

import msgspec

from graftlm.plugins.spelling import nearest_names

logger = logging.getLogger(__name__)

PREFIX = "GRAFTLM_"


class Variable(msgspec.Struct, frozen=True):
    """One environment variable; `option` is the option it sets (a flag given by the user wins over it)."""

    name: str
    help: str
    default: str | None = None
    option: str | None = None


_TABLE = (
    Variable("GRAFTLM_PLUGINS", "Load exactly these plugins, as --plugins.", option="plugins"),
    Variable("GRAFTLM_PLATFORM", "Choose the platform by name, as --platform.", option="platform"),
    Variable("GRAFTLM_LOG_LEVEL", "Log levels, comma-separated, as --log-level.", option="log_level"),
    Variable("GRAFTLM_LOG_FORMAT", "Log lines as text or as json, as --log-format.", option="log_format"),
    Variable("GRAFTLM_API_KEY", "Key of the server and of its clients, as --api-key.", option="api_key"),
    Variable("GRAFTLM_CACHE", "Folder of fetched models and cached facts; default: ~/.cache/graftlm."),
    Variable("GRAFTLM_DEMO_FILE", "Path of the demo model's .gguf file, to use it without fetching it."),
    Variable("GRAFTLM_DISABLE_PLUGIN", "Disable these plugins, as --disable-plugin.", option="disable_plugin"),
    Variable("GRAFTLM_KERNELS_PATH", "Path of graftlm-kernels: avx512, avx2 or generic; default: the best."),
    Variable(
        "GRAFTLM_PRELOAD_DIR",
        "Private folder of `graftlm preload`; default: in XDG_RUNTIME_DIR, else in the folder of temporary files.",
    ),
    Variable("GRAFTLM_TRACE", "File to which each process appends its plugin events; see `graftlm plugins trace`."),
    Variable("GRAFTLM_DEBUG", "1 shows the traceback of an error that ends a command.", default="0"),
)  # fmt: skip

VARIABLES: dict[str, Variable] = {variable.name: variable for variable in _TABLE}

_frozen: dict[str, str] | None = None


class UnknownVariable(KeyError):
    """A variable that is read but not in the table: a bug of the reader, not of the user."""

    def __init__(self, name: str) -> None:
        super().__init__(f"{name} is not in graftlm.config.environment; add it there, with its help")


def get(name: str) -> str | None:
    """Return the variable's value, or its default; an empty value counts as unset."""
    if name not in VARIABLES:
        raise UnknownVariable(name)
    source: Mapping[str, str] = os.environ if _frozen is None else _frozen
    return source.get(name) or VARIABLES[name].default


def freeze() -> None:
    """Keep the values of now: a later change of `os.environ` is invisible to `get`. Safe to call twice."""
    global _frozen
    if _frozen is None:
        from graftlm.plugins import record

        _frozen = {name: value for name, value in os.environ.items() if name in VARIABLES}
        record("environment_frozen", variables=sorted(_frozen))


def frozen() -> bool:
    return _frozen is not None


def unknown_variables(names: Iterable[str] | None = None) -> dict[str, list[str]]:
    """Map each set GRAFTLM_* variable that graftlm does not read to the nearest known names."""
    unknown = sorted(
        name
        for name in (os.environ if names is None else names)
        if name.startswith(PREFIX) and name not in VARIABLES
    )
    return {name: nearest_names(name, VARIABLES, most=2, cutoff=0.7) for name in unknown}


def warn_unknown() -> None:
    """Name in a warning each GRAFTLM_* variable that nothing reads."""
    for name, near in unknown_variables().items():
        cure = f"did you mean {' or '.join(near)}?" if near else "nothing reads it"
        logger.warning("unknown environment variable %s: %s", name, cure)
