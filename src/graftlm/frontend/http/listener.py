"""Binds the port before anything slow happens, so that a wrong one is known at once.

It does not serve.
"""

from __future__ import annotations

import errno
import socket

from graftlm.config.server_config import ServerConfig
from graftlm.contracts.errors import StartupError

BACKLOG = 2048

#: What a port may be; the system would take the remainder of another number.
PORTS = range(65536)


def bind(config: ServerConfig) -> socket.socket:
    """Return a listening socket for --host and --port; raises StartupError with the cure."""
    host, port = config.host, config.port
    try:
        family, kind, protocol, _, address = socket.getaddrinfo(
            host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE
        )[0]
    except (socket.gaierror, UnicodeError) as error:
        raise StartupError(
            f"--host={host!r} is not a name or address that can be found ({error}); "
            "use 127.0.0.1 for this machine only, or 0.0.0.0 for all its addresses"
        ) from error
    listener = socket.socket(family, kind, protocol)
    try:
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listener.bind(address)
        listener.listen(BACKLOG)  # only now does the system refuse a second server on the port
    except OSError as error:
        listener.close()
        raise StartupError(_problem(host, port, error)) from error
    listener.setblocking(False)
    return listener


def url_of(listener: socket.socket) -> str:
    """Write where `listener` listens as people type it."""
    host, port = listener.getsockname()[:2]
    return f"http://[{host}]:{port}" if ":" in host else f"http://{host}:{port}"


def _problem(host: str, port: int, error: OSError) -> str:
    match error.errno:
        case errno.EADDRINUSE:
            return (
                f"--port={port} is in use on {host}: another server listens there; "
                "choose another with --port, or --port 0 for any free one"
            )
        case errno.EACCES:
            return f"--port={port} is not allowed to this user; choose one of 1024 or more with --port"
        case errno.EADDRNOTAVAIL:
            return f"--host={host!r} is not an address of this machine; use 127.0.0.1, or 0.0.0.0 for all"
    return f"cannot listen on {host} port {port}: {error.strerror}; choose others with --host and --port"
