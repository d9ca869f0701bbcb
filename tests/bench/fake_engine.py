"""A server process that speaks the OpenAI API like `graftlm serve` or `llama-server`, with a script for a model.

    python fake_engine.py [anything] --port N | --port=N | --version

It is what a peer's program looks like from outside; FAKE_GAP_S is the time of a token, FAKE_FAILS ends it at once.
"""

from __future__ import annotations

import asyncio
import os
import sys

from fake_api import FakeApi


def port_of(words: list[str]) -> int:
    """Read the port, written in either way."""
    for place, word in enumerate(words):
        if word.startswith("--port"):
            return int(word.partition("=")[2] or words[place + 1])
    raise SystemExit("no port")


async def serve(port: int) -> None:
    api = FakeApi(
        gap_s=float(os.environ.get("FAKE_GAP_S", "0")), fail_every=int(os.environ.get("FAKE_FAIL_EVERY", "0"))
    )
    server = await asyncio.start_server(api.answer, "127.0.0.1", port)
    async with server:
        await server.serve_forever()


def main() -> None:
    if "--version" in sys.argv:
        print("fake 1.0")
    elif os.environ.get("FAKE_FAILS"):
        raise SystemExit("the fake engine fails as it was told")
    else:
        asyncio.run(serve(port_of(sys.argv)))


if __name__ == "__main__":
    main()
