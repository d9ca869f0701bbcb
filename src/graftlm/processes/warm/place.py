"""The private folder of a user's warm parents: one socket, one record and one log for each.

Who may use a parent is decided here: the folder is its user's alone, or it is not used.
"""

from __future__ import annotations

import contextlib
import hashlib
import os
import signal
import stat
import tempfile
from collections.abc import Callable
from pathlib import Path

import msgspec

from graftlm.config import environment
from graftlm.contracts.errors import StartupError
from graftlm.processes.liveness import is_running

#: What the kernel takes for a Unix socket's path, less one for the closing zero.
_MAX_SOCKET_PATH_BYTES = 107

#: More than a record and a few lines of the log.
_ROOM_BYTES = 4096

_CURE = "remove it, or set GRAFTLM_PRELOAD_DIR to a folder of your own"


class Record(msgspec.Struct, kw_only=True):
    """What a parent writes down of itself; `started` tells it from a later process with its number.

    The number means a process only in the `pid_space` that it was given in.
    """

    key: str
    pid: int
    started: str
    model: str
    checkpoint: str
    since: float
    """Wall clock in seconds."""
    ready: bool = False
    pid_space: str = ""


def key_of(checkpoint: str) -> str:
    """Name the parent of a checkpoint; there is one for each, in each container that shares the folder."""
    named = f"{os.path.realpath(checkpoint)}\n{pid_space()}"
    return hashlib.sha256(os.fsencode(named)).hexdigest()[:12]


def pid_space() -> str:
    """Name where process numbers mean what they mean here: in this boot of this machine, in this container."""
    with contextlib.suppress(OSError):
        boot = Path("/proc/sys/kernel/random/boot_id").read_text().strip()
        return f"{boot}/{Path('/proc/self/ns/pid').stat().st_ino}"
    return ""


def warm_folder() -> Path:
    """Name the folder: GRAFTLM_PRELOAD_DIR, else in this user's XDG_RUNTIME_DIR, else in the temporary folder."""
    if (chosen := environment.get("GRAFTLM_PRELOAD_DIR")) is not None:
        return Path(chosen)
    if (runtime := os.environ.get("XDG_RUNTIME_DIR")) and _is_own(runtime):
        return Path(runtime) / "graftlm"
    return Path(tempfile.gettempdir()) / f"graftlm-{os.geteuid()}"


def _is_own(folder: str) -> bool:
    """False for what `su` and `sudo` leave of the user before."""
    with contextlib.suppress(OSError):
        return Path(folder).stat().st_uid == os.geteuid()
    return False


def make_private(folder: Path) -> None:
    """Make the folder, for this user only; raises StartupError if somebody else could use it."""
    try:
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    except OSError as error:
        raise StartupError(f"the folder {str(folder)!r} cannot be made: {error.strerror}; {_CURE}") from error
    if (problem := not_private(folder)) is not None:
        raise StartupError(f"{problem}; {_CURE}")
    place = folder.resolve()
    if len(os.fsencode(socket_path(place, "0" * 12))) > _MAX_SOCKET_PATH_BYTES:
        raise StartupError(
            f"the folder {str(place)!r} is too long for a socket; set GRAFTLM_PRELOAD_DIR to a shorter one"
        )


def check_room(folder: Path, key: str) -> None:
    """Raise StartupError unless what a parent of this key writes there can be written."""
    for kind in ("json", "lock", "log", "sock"):
        if (file := folder / f"{key}.{kind}").is_dir():
            raise StartupError(
                f"{str(file)!r}, where a warm parent keeps a file of its own, is a folder; remove it"
            )
    trial = folder / f"{key}.{os.getpid()}.partial"
    try:
        trial.write_bytes(bytes(_ROOM_BYTES))
    except OSError as error:
        raise StartupError(
            f"nothing can be written in {str(folder)!r}: {error.strerror}; give it room and leave to write, "
            "or set GRAFTLM_PRELOAD_DIR to another folder of your own"
        ) from error
    finally:
        with contextlib.suppress(OSError):
            trial.unlink()


def not_private(folder: Path) -> str | None:
    """Tell why others could use what lies in the folder, or None; one that does not exist is nobody's."""
    try:
        found = folder.lstat()
    except FileNotFoundError:
        return None
    except OSError as error:
        return f"the folder {str(folder)!r} cannot be looked at: {error.strerror}"
    if not stat.S_ISDIR(found.st_mode):
        return f"{str(folder)!r} is no folder"
    if found.st_uid != os.geteuid():
        return f"the folder {str(folder)!r} belongs to user {found.st_uid}, not to {os.geteuid()}"
    if found.st_mode & 0o077:
        return f"the folder {str(folder)!r} is open to others (mode {stat.S_IMODE(found.st_mode):04o})"
    return None


def socket_path(folder: Path, key: str) -> Path:
    return folder / f"{key}.sock"


def log_path(folder: Path, key: str) -> Path:
    return folder / f"{key}.log"


def write_record(folder: Path, record: Record) -> None:
    """Write it in one step, so that no reader sees half of it."""
    partial = folder / f"{record.key}.{os.getpid()}.partial"
    try:
        partial.write_bytes(msgspec.json.encode(record))
        partial.replace(_record_path(folder, record.key))
    except OSError:
        partial.unlink(missing_ok=True)
        raise


def lost(folder: Path, record: Record) -> str | None:
    """Tell why nobody will find the parent of this record any more, or None."""
    try:
        found = msgspec.json.decode(_record_path(folder, record.key).read_bytes(), type=Record)
    except FileNotFoundError:
        return "its record is gone"
    except (OSError, msgspec.DecodeError):  # no sign of anything; the next look may tell
        return None
    if found.pid != record.pid:
        return f"process {found.pid} has taken its place"
    return None if socket_path(folder, record.key).is_socket() else "its socket is gone"


def read_records(
    folder: Path,
    *,
    on_dead: Callable[[Record], None] = lambda record: None,
    on_foreign: Callable[[Record], None] = lambda record: None,
) -> list[Record]:
    """Return the records of parents that run, sorted by key; what others left behind is told once, and removed.

    Of another container's nobody here can tell whether they run: they are told, and left alone.
    """
    records, here = [], pid_space()
    for file in sorted(folder.glob("*.json")):
        try:
            record = msgspec.json.decode(file.read_bytes(), type=Record)
        except (OSError, msgspec.DecodeError):  # of another version, or just being removed
            continue
        if record.pid_space not in ("", here):
            on_foreign(record)
        elif is_running(record.pid) and started_of(record.pid) == record.started:
            records.append(record)
        else:
            on_dead(record)
            remove_record(folder, record)
    return records


def remove_record(folder: Path, record: Record) -> None:
    """Remove a parent's socket and record, unless another has taken its place; the log stays for its reader."""
    with contextlib.suppress(OSError, msgspec.DecodeError):
        file = _record_path(folder, record.key)
        if msgspec.json.decode(file.read_bytes(), type=Record).pid == record.pid:
            socket_path(folder, record.key).unlink(missing_ok=True)
            file.unlink()


def started_of(pid: int) -> str:
    """Return the moment at which a process was started, in the kernel's count; empty when it is gone."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[19]
    except (OSError, IndexError):
        return ""


def end_by_signal(record: Record, number: signal.Signals) -> None:
    """Send a signal to the parent, and to no process that came after it."""
    with contextlib.suppress(OSError):
        descriptor = os.pidfd_open(record.pid)
        try:
            if started_of(record.pid) == record.started:
                signal.pidfd_send_signal(descriptor, number)
        finally:
            os.close(descriptor)


def _record_path(folder: Path, key: str) -> Path:
    return folder / f"{key}.json"
