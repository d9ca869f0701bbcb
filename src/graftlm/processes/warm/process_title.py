"""What `ps` shows of a process: a forked child would else bear its parent's command line, and be ended as one."""

from __future__ import annotations

from pathlib import Path


def set_process_title(title: str) -> None:
    """Write `title` over this process's command line, cut to its room; nothing happens where it cannot."""
    try:
        fields = Path("/proc/self/stat").read_text().rpartition(")")[2].split()
        start, end = int(fields[45]), int(fields[46])
        with Path("/proc/self/mem").open("r+b", buffering=0) as memory:
            memory.seek(start)
            memory.write(title.encode()[: end - start - 1].ljust(end - start, b"\0"))
    except (OSError, IndexError, ValueError):  # not this kernel's way: nothing but a name is lost
        return
