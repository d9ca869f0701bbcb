"""A hub on 127.0.0.1 that serves files of a directory under the Hugging Face hub's paths."""

from __future__ import annotations

import hashlib
import json
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from urllib.parse import unquote, urlsplit

COMMIT = "0123456789abcdef0123456789abcdef01234567"


class FakeHub:
    """Repositories by id; `served` are the files that were downloaded, `base_url` is what HF_ENDPOINT must be."""

    def __init__(self) -> None:
        self.repositories: dict[str, Path] = {}
        self.gated: set[str] = set()
        self.served: list[str] = []
        self.base_url = ""


@contextmanager
def fake_hub() -> Iterator[FakeHub]:
    hub = FakeHub()

    class Handler(BaseHTTPRequestHandler):
        def do_HEAD(self) -> None:
            self.answer(body=False)

        def do_GET(self) -> None:
            self.answer(body=True)

        def answer(self, *, body: bool) -> None:
            parts = unquote(urlsplit(self.path).path).strip("/").split("/")
            if parts[:2] == ["api", "models"] and "tree" in parts[4:5]:
                self.tree("/".join(parts[2:4]), parts[5])
            elif parts[:2] == ["api", "models"]:
                self.model(("/".join(parts[2:4])), parts[5] if len(parts) > 5 else "main")
            elif len(parts) > 4 and parts[2] == "resolve":
                self.file("/".join(parts[:2]), parts[3], "/".join(parts[4:]), body=body)
            else:
                self.refuse(404, "EntryNotFound")

        def model(self, name: str, revision: str) -> None:
            if self.known(name, revision):
                files = sorted(p for p in hub.repositories[name].rglob("*") if p.is_file())
                siblings = [{"rfilename": str(p.relative_to(hub.repositories[name]))} for p in files]
                self.send(json.dumps({"id": name, "sha": COMMIT, "siblings": siblings}).encode())

        def tree(self, name: str, revision: str) -> None:
            if self.known(name, revision):
                root = hub.repositories[name]
                files = sorted(p for p in root.rglob("*") if p.is_file())
                entries = [
                    {"type": "file", "path": str(p.relative_to(root)), "size": p.stat().st_size, "oid": "0"}
                    for p in files
                ]
                self.send(json.dumps(entries).encode())

        def file(self, name: str, revision: str, file: str, *, body: bool) -> None:
            if not self.known(name, revision):
                return
            path = hub.repositories[name] / file
            if not path.is_file():
                self.refuse(404, "EntryNotFound")
                return
            content = path.read_bytes()
            if body:
                hub.served.append(file)
            self.send(content, body=body, etag=hashlib.sha256(content).hexdigest())

        def known(self, name: str, revision: str) -> bool:
            if name not in hub.repositories:
                self.refuse(404, "RepoNotFound")
            elif name in hub.gated:
                self.refuse(403, "GatedRepo")
            elif revision not in ("main", COMMIT):
                self.refuse(404, "RevisionNotFound")
            else:
                return True
            return False

        def send(self, content: bytes, *, body: bool = True, etag: str = "") -> None:
            self.send_response(200)
            self.send_header("Content-Length", str(len(content)))
            self.send_header("X-Repo-Commit", COMMIT)
            if etag:
                self.send_header("ETag", f'"{etag}"')
            self.end_headers()
            if body:
                self.wfile.write(content)

        def refuse(self, status: int, code: str) -> None:
            self.send_response(status)
            self.send_header("X-Error-Code", code)
            self.send_header("Content-Length", "0")
            self.end_headers()

        def log_message(self, *_: object) -> None:
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    hub.base_url = f"http://127.0.0.1:{server.server_port}"
    thread = threading.Thread(target=lambda: server.serve_forever(poll_interval=0.02), daemon=True)
    thread.start()
    try:
        yield hub
    finally:
        server.shutdown()
        server.server_close()
        thread.join()
