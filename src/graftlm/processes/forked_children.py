"""Children that a single-threaded process forks: their reports, their end, and what a fork must leave behind.

It does not know who asks for them, nor what they are for.
"""

from __future__ import annotations

import os
import signal
import socket
import struct

CODE = struct.Struct("!q")


class ForkedChildren:
    """Each has a report: a socket on which its exit code is sent when it ends. One object per process."""

    def __init__(self) -> None:
        self._reports: dict[int, socket.socket] = {}
        self.wake_reader, self._wake_writer = os.pipe()
        for descriptor in (self.wake_reader, self._wake_writer):
            os.set_blocking(descriptor, False)
        signal.set_wakeup_fd(self._wake_writer)
        signal.signal(signal.SIGCHLD, lambda number, frame: None)

    def __len__(self) -> int:
        return len(self._reports)

    def fork(self, report: socket.socket) -> int:
        """Return the child's number, and 0 in the child, which has nothing of this object any more."""
        pid = os.fork()
        if pid == 0:
            self._leave()
            report.close()
        else:
            self._reports[pid] = report
        return pid

    def woken(self) -> None:
        """Take what `wake_reader` holds, and report the children that have ended."""
        os.read(self.wake_reader, 4096)
        while self._reports:
            pid, status = os.waitpid(-1, os.WNOHANG)
            if pid == 0:
                return
            report = self._reports.pop(pid)
            send_report(report, CODE.pack(os.waitstatus_to_exitcode(status)))
            report.close()

    def _leave(self) -> None:
        signal.set_wakeup_fd(-1)
        signal.signal(signal.SIGCHLD, signal.SIG_DFL)
        for descriptor in (self.wake_reader, self._wake_writer):
            os.close(descriptor)
        for report in self._reports.values():
            report.close()
        self._reports = {}


def send_report(report: socket.socket, data: bytes) -> None:
    """Send it; a parent that is gone is no error, its child notices by itself."""
    try:
        report.sendall(data)
    except OSError:
        report.close()
