"""What the tests let a warm parent prepare."""

from __future__ import annotations

import threading
import time


def start_thread(payload: bytes) -> None:
    threading.Thread(target=time.sleep, args=(1000,), daemon=True).start()


def break_down(payload: bytes) -> None:
    raise KeyError("no such thing")


def sleep_long(payload: bytes) -> None:
    for _ in range(10_000):
        time.sleep(0.1)
