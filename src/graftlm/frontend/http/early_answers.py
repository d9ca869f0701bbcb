"""Answers on the bound port from a thread while the program is still importing its HTTP server: 503, and why.

It needs nothing but the standard library, so that it can speak within a fraction of a second after launch. It reads
no body and knows no route but /health; the real server takes the listening socket over.
"""

from __future__ import annotations

import contextlib
import json
import os
import selectors
import socket
import threading
import time

#: How long a client may take to send its head, or to read the answer.
_PATIENCE_S = 0.25
_MAX_HEAD_BYTES = 16_384
RETRY_AFTER_S = 2


class EarlyAnswers:
    """Answers from construction on until `stop`, which leaves the listener open and nobody half served."""

    def __init__(self, listener: socket.socket, *, reason: str) -> None:
        self.reason = reason
        self._listener = listener
        self._wake_reader, self._wake_writer = os.pipe()
        # Here and not in the thread: a start that is given up may close the listener before the thread has begun.
        self._selector = selectors.DefaultSelector()
        self._selector.register(listener, selectors.EVENT_READ)
        self._selector.register(self._wake_reader, selectors.EVENT_READ)
        self._thread = threading.Thread(target=self._run, name="early answers", daemon=True)
        self._thread.start()

    def say(self, reason: str) -> None:
        """Change what the answers give as the reason."""
        self.reason = reason

    def stop(self) -> None:
        """Return when no answer is under way any more; safe to call twice."""
        if self._wake_writer < 0:
            return
        os.close(self._wake_writer)
        self._wake_writer = -1
        self._thread.join()
        os.close(self._wake_reader)

    def _run(self) -> None:
        with self._selector:
            while True:
                if any(key.fd == self._wake_reader for key, _ in self._selector.select()):
                    return
                with contextlib.suppress(OSError):  # a client that is gone or too slow needs no answer
                    connection, _ = self._listener.accept()
                    with connection:
                        self._answer(connection)

    def _answer(self, connection: socket.socket) -> None:
        connection.settimeout(_PATIENCE_S)
        deadline = time.monotonic() + _PATIENCE_S
        head = b""
        while b"\r\n\r\n" not in head and len(head) < _MAX_HEAD_BYTES and time.monotonic() < deadline:
            data = connection.recv(4096)
            if not data:
                return
            head += data
        connection.sendall(self._response(head))
        connection.shutdown(socket.SHUT_WR)
        while time.monotonic() < deadline and connection.recv(65_536):
            pass  # closing with a body unread would take the answer away from the client

    def _response(self, head: bytes) -> bytes:
        path = (head.split(b" ", 2)[1:2] or [b""])[0].partition(b"?")[0]
        if path == b"/health":
            body: dict[str, object] = {"status": "starting", "reason": self.reason}
        else:
            message = f"the server is not ready yet: {self.reason}; ask /health until it answers 200"
            body = {"error": {"message": message, "type": "server_error", "param": None, "code": "not_ready"}}
        data = json.dumps(body, ensure_ascii=False).encode()
        lines = (
            "HTTP/1.1 503 Service Unavailable",
            "content-type: application/json",
            f"content-length: {len(data)}",
            f"retry-after: {RETRY_AFTER_S}",
            "connection: close",
        )
        return "\r\n".join((*lines, "", "")).encode() + (b"" if head.startswith(b"HEAD ") else data)
