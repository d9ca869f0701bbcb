"""How much memory this process may use: the machine's, or less where a control group limits it."""

from __future__ import annotations

from pathlib import Path

_MEMINFO = Path("/proc/meminfo")
_OWN_GROUP = Path("/proc/self/cgroup")
_GROUPS = Path("/sys/fs/cgroup")


def total_bytes() -> int:
    """Bytes of memory: the machine's, or the tightest limit above this process."""
    limits = [limit for limit, _ in _group_limits()]
    return min([_meminfo("MemTotal"), *limits])


def available_bytes() -> int:
    """Bytes that may still be taken without swapping and without reaching a limit."""
    left = [max(limit - used, 0) for limit, used in _group_limits()]
    return min([_meminfo("MemAvailable"), *left])


def _meminfo(field: str) -> int:
    for line in _MEMINFO.read_text().splitlines():
        name, _, value = line.partition(":")
        if name == field:
            return int(value.split()[0]) * 1024
    raise RuntimeError(f"{_MEMINFO} has no line {field}; set --kv-cache-memory-bytes")


def _group_limits() -> list[tuple[int, int]]:
    """Return (limit, bytes in use that cannot be dropped) of each control group above this process that has one."""
    found = []
    for folder, limit_file, usage_file in _group_folders():
        limit, usage = _number(folder / limit_file), _number(folder / usage_file)
        if limit is not None and usage is not None and limit < 1 << 60:
            found.append((limit, max(usage - _droppable(folder), 0)))
    return found


def _group_folders() -> list[tuple[Path, str, str]]:
    if not _OWN_GROUP.exists():
        return []
    folders = []
    for line in _OWN_GROUP.read_text().splitlines():
        _, controllers, path = line.split(":", 2)
        if controllers == "":
            root, names = _GROUPS, ("memory.max", "memory.current")
        elif "memory" in controllers.split(","):
            root, names = _GROUPS / "memory", ("memory.limit_in_bytes", "memory.usage_in_bytes")
        else:
            continue
        parts = [part for part in path.split("/") if part not in ("", "..")]
        folders += [(root.joinpath(*parts[:depth]), *names) for depth in range(len(parts) + 1)]
    return folders


def _droppable(folder: Path) -> int:
    """Bytes of file cache that the kernel gives back before it kills."""
    stat = folder / "memory.stat"
    if not stat.exists():
        return 0
    for line in stat.read_text().splitlines():
        name, _, value = line.partition(" ")
        if name in ("inactive_file", "total_inactive_file"):
            return int(value)
    return 0


def _number(path: Path) -> int | None:
    """Return the number in a file; None for a file that is not there or says "max"."""
    if not path.is_file():
        return None
    text = path.read_text().strip()
    return int(text) if text.isdigit() else None
