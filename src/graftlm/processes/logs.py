"""Sets up logging, once in each process and before anything else: levels, one prefix, text or JSON lines.

Every line goes to stderr. Plugins log as `plugin.NAME`. It does not know which plugins there are.
"""

from __future__ import annotations

import json
import logging
import os
import sys
import time
from collections.abc import Sequence
from typing import Literal

import msgspec

from graftlm.config.errors import InvalidOption
from graftlm.processes.lost_errors import name_plugins_of_lost_errors

LogFormat = Literal["text", "json"]

#: What a bare `--log-level LEVEL` changes: our distributions, each a name of its own to `logging`, and all plugins.
#: Other libraries stay at WARNING unless they are named.
OWN_LOGGERS = ("graftlm", "graftlm_kernels", "plugin")


class LogSettings(msgspec.Struct, kw_only=True, omit_defaults=True):
    """What a child needs to log as its parent does."""

    levels: list[str] = []
    fmt: LogFormat = "text"


#: Of a process whose logging is somebody else's, such as a script: its children only warn.
_settings = LogSettings(levels=["warning"])


def configure_logging(levels: Sequence[str] = (), fmt: LogFormat = "text", process: str = "front end") -> None:
    """Send every logger of this process to stderr with the name and id of the process; replaces earlier set-up.

    `levels` are LEVEL or LOGGER=LEVEL; later ones win. Raises InvalidOption for a level that does not exist.
    """
    global _settings
    chosen = parse_levels(levels)
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(_JsonLines(process) if fmt == "json" else _TextLines(process))
    root = logging.getLogger()
    root.handlers[:] = [handler]
    for name in (*_named(_settings.levels), *OWN_LOGGERS):
        logging.getLogger(name).setLevel(logging.NOTSET)
    for name, level in {"": logging.WARNING, **dict.fromkeys(OWN_LOGGERS, logging.INFO), **chosen}.items():
        logging.getLogger(name).setLevel(level)
    logging.captureWarnings(True)
    name_plugins_of_lost_errors()
    _settings = LogSettings(levels=list(levels), fmt=fmt)


def current_log_settings() -> LogSettings:
    """Return what `configure_logging` was last called with, for the children of this process."""
    return _settings


def parse_levels(levels: Sequence[str]) -> dict[str, int]:
    """Map logger names to levels ('' is the root); a bare LEVEL sets `OWN_LOGGERS`."""
    known = logging.getLevelNamesMapping()
    chosen: dict[str, int] = {}
    for entry in levels:
        name, _, level = entry.strip().rpartition("=")
        number = known.get(level.strip().upper())
        if number is None:
            raise InvalidOption(
                "--log-level", entry, problem=f"there is no level {level!r}",
                cure="use LEVEL or LOGGER=LEVEL with one of debug, info, warning, error, critical",
            )  # fmt: skip
        names = OWN_LOGGERS if not name else ("",) if name.strip() == "root" else (name.strip(),)
        chosen.update(dict.fromkeys(names, number))
    return chosen


def _named(levels: Sequence[str]) -> list[str]:
    return [name for name in parse_levels(levels) if name]


class _Lines(logging.Formatter):
    def __init__(self, process: str) -> None:
        super().__init__()
        self.process = process

    def trouble(self, record: logging.LogRecord) -> str:
        """Return the traceback of a record, or ''."""
        text = self.formatException(record.exc_info) if record.exc_info else record.exc_text or ""
        return f"{text}\n{self.formatStack(record.stack_info)}" if record.stack_info else text


class _TextLines(_Lines):
    def format(self, record: logging.LogRecord) -> str:
        clock = time.strftime("%m-%d %H:%M:%S", time.localtime(record.created))
        head = f"{record.levelname} {clock}.{int(record.msecs):03d} [{self.process} {os.getpid()}] {record.name}: "
        trouble = self.trouble(record)
        return head + record.getMessage() + (f"\n{trouble}" if trouble else "")


class _JsonLines(_Lines):
    def format(self, record: logging.LogRecord) -> str:
        line = {
            "time": round(record.created, 3),
            "level": record.levelname,
            "process": self.process,
            "pid": os.getpid(),
            "logger": record.name,
            "message": record.getMessage(),
        }
        if trouble := self.trouble(record):
            line["traceback"] = trouble
        return json.dumps(line, ensure_ascii=False)
