from __future__ import annotations

import json
import logging
import os
import re
from pathlib import Path

import pytest

from graftlm.config.errors import InvalidOption
from graftlm.processes import logs

REPOSITORY = Path(__file__).parents[2]


@pytest.fixture(autouse=True)
def logging_restored(monkeypatch):
    """Leave the logging of the test session as it was."""
    root = logging.getLogger()
    names = ("", *logs.OWN_LOGGERS, "plugin.acme", "acme_lib")
    before = (root.handlers[:], {name: logging.getLogger(name).level for name in names}, logs._settings)
    monkeypatch.setattr("graftlm.processes.lost_errors._is_listening", True)  # the session's hooks are pytest's
    yield
    root.handlers[:] = before[0]
    for name, level in before[1].items():
        logging.getLogger(name).setLevel(level)
    logs._settings = before[2]
    logging.captureWarnings(False)


def test_text_lines_name_process_and_logger(capsys):
    """A line says level, time, process, pid and logger; other libraries are heard from WARNING on."""
    logs.configure_logging([], "text", "worker 1")
    logging.getLogger("graftlm.engine").info("ready num_blocks=%d", 7)
    logging.getLogger("graftlm.engine").debug("hidden")
    logging.getLogger("acme_lib").info("hidden")
    logging.getLogger("acme_lib").warning("shown")
    first, second = capsys.readouterr().err.splitlines()

    assert re.fullmatch(
        rf"INFO \d\d-\d\d \d\d:\d\d:\d\d\.\d{{3}} \[worker 1 {os.getpid()}\] graftlm\.engine: ready num_blocks=7",
        first,
    )
    assert second.endswith("acme_lib: shown")


def test_every_distribution_of_ours_is_heard_as_the_engine_is(capsys):
    """What the kernels say of a start is shown by default, and follows --log-level LEVEL."""
    packages = [path.parent.name for path in (REPOSITORY / "kernels" / "src").glob("*/__init__.py")]
    for levels in ([], ["warning"], ["debug"]):
        logs.configure_logging(levels)
        for name in packages:
            logging.getLogger(f"{name}.module").info("info")
            logging.getLogger(f"{name}.module").debug("debug")
    said = [line.rsplit(" ", 1)[1] for line in capsys.readouterr().err.splitlines()]

    assert packages and said == ["info", "info", "debug"] * len(packages)


def test_json_lines_carry_the_traceback(capsys):
    """With the format json each line is one JSON object, an exception in it included."""
    logs.configure_logging([], "json", "engine core")
    try:
        raise ValueError("wrong")
    except ValueError:
        logging.getLogger("plugin.acme").exception("failed")
    line = json.loads(capsys.readouterr().err)

    assert (line["level"], line["process"], line["logger"]) == ("ERROR", "engine core", "plugin.acme")
    assert "ValueError: wrong" in line["traceback"]


def test_one_logger_can_be_turned_up_and_back(capsys):
    """--log-level plugin.NAME=debug opens one plugin's logger, and the next set-up closes it again."""
    for levels in (["warning", "plugin.acme=debug"], []):
        logs.configure_logging(levels)
        logging.getLogger("plugin.acme").debug("detail")
        logging.getLogger("plugin.other").info("other")

    assert [line.rsplit(" ", 1)[1] for line in capsys.readouterr().err.splitlines()] == ["detail", "other"]


def test_unknown_level_is_refused_with_the_cure():
    """A level that does not exist is an error that names the entry and the levels there are."""
    with pytest.raises(InvalidOption, match=r"--log-level='plugin\.acme=loud'.*debug, info"):
        logs.configure_logging(["plugin.acme=loud"])
