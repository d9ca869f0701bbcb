"""Where warm parents are found: folders in which nothing can be written, that are too deep, or another user's."""

from __future__ import annotations

import os
import resource
import subprocess
import sys
from pathlib import Path

import pytest
from light_parents import light_parent, order_for

from graftlm.contracts.errors import StartupError
from graftlm.engine.warm_start import find_fitting
from graftlm.processes.warm.client import find_warm_parents
from graftlm.processes.warm.place import (
    Record,
    check_room,
    key_of,
    make_private,
    pid_space,
    read_records,
    warm_folder,
    write_record,
)


def test_a_folder_in_which_nothing_can_be_written_is_refused(folder, monkeypatch):
    """Before anything is imported: a full or read-only file system, a folder where a file is to be."""
    check_room(folder, "0" * 12)
    (folder / f"{'0' * 12}.sock").mkdir()
    with pytest.raises(StartupError, match=r"0\.sock.*is a folder; remove it"):
        check_room(folder, "0" * 12)
    limit = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (0, limit[1]))
    try:
        with pytest.raises(
            StartupError, match=r"nothing can be written in .*: File too large.*GRAFTLM_PRELOAD_DIR"
        ):
            check_room(folder, "1" * 12)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limit)

    assert [file.name for file in folder.iterdir()] == [f"{'0' * 12}.sock"]


def test_a_folder_counts_by_its_whole_path(tmp_path, monkeypatch):
    """A relative one is short on the command line, and a socket's address all the same too long."""
    deep = tmp_path / ("x" * 100)
    deep.mkdir()
    monkeypatch.chdir(deep)

    with pytest.raises(StartupError, match="too long for a socket"):
        make_private(Path("here"))


def test_a_folder_that_cannot_be_looked_at_is_a_cold_start(tmp_path, monkeypatch, caplog):
    """No traceback ends a server for want of something that it does not need."""
    (tmp_path / "file").touch()
    monkeypatch.setenv("GRAFTLM_PRELOAD_DIR", str(tmp_path / "file" / "below"))

    assert not find_fitting()
    assert "warm parents are not used" in caplog.text and "cannot be looked at" in caplog.text


def test_the_runtime_folder_of_another_user_is_nobodys(tmp_path, monkeypatch):
    """What `su` and `sudo` leave in XDG_RUNTIME_DIR is not looked into, and no warning is written of it."""
    monkeypatch.delenv("GRAFTLM_PRELOAD_DIR", raising=False)
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(tmp_path))
    assert warm_folder() == tmp_path / "graftlm"
    with monkeypatch.context() as another:
        another.setattr(os, "geteuid", lambda: 54321)
        assert warm_folder().name == "graftlm-54321"
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(tmp_path / "no-such-folder"))
    assert warm_folder().name == f"graftlm-{os.geteuid()}"


def test_a_record_of_another_container_is_left_alone(folder, monkeypatch):
    """Its process cannot be looked for here, where its number is nobody's or another's; each has its own files."""
    monkeypatch.setattr("graftlm.processes.warm.place.pid_space", lambda: "another boot/4026532000")
    gone = {"pid": 1 << 22, "started": "7", "model": "light", "checkpoint": "light", "since": 0.0}
    theirs = Record(key=key_of("light"), pid_space="another boot/4026532000", **gone)
    write_record(folder, theirs)
    monkeypatch.undo()
    told = []

    assert read_records(folder, on_foreign=told.append, on_dead=lambda _: pytest.fail("it may run")) == []
    assert told == [theirs] and (folder / f"{theirs.key}.json").is_file()
    assert theirs.key != key_of("light"), "a parent of the same checkpoint here takes nobody's place"
    write_record(folder, Record(key="0" * 12, pid_space=pid_space(), **gone))
    dead = []
    assert read_records(folder, on_dead=dead.append) == [] and [record.key for record in dead] == ["0" * 12]


def test_a_command_in_another_container_says_so_and_ends_nobody(folder):
    """Neither --status nor --stop there takes the parent from those who have it."""
    try:
        apart = ["unshare", "--pid", "--fork", "--mount-proc"]
        subprocess.run([*apart, "true"], check=True, capture_output=True, timeout=60)
    except (OSError, subprocess.SubprocessError):
        pytest.skip("no process namespace can be made here")
    with light_parent(order_for(folder)) as parent:
        for word in ("--status", "--stop"):
            command = [*apart, sys.executable, "-m", "graftlm", "preload", word]
            done = subprocess.run(command, capture_output=True, text=True, timeout=60)
            assert done.returncode == 0, done.stderr
            assert f"left alone: the warm parent {parent.record.pid} of light is another container's" in done.stderr
        assert parent.status().running == 0
        assert [found.record for found in find_warm_parents()] == [parent.record]
