"""What SIGINT and SIGTERM mean: the parent decides, its children only notice that it is gone.

It does not know what an orderly end takes; that is the business of the callbacks.
"""

from __future__ import annotations

import contextlib
import os
import signal
import sys
import threading
import time
from collections.abc import Callable, Iterator
from types import FrameType

SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)

#: One Ctrl-C may reach a process twice (from the terminal and from a parent that passes it on).
_SAME_WISH_S = 1.0
#: How long after an interrupt was lost it is sent again.
_AGAIN_S = 0.01


class ShutdownInterrupt(KeyboardInterrupt):
    """Raised in the main thread by the first signal while nobody has registered a callback.

    Start-up code lets it pass, so that a start can be given up at any moment; `cli` turns it into exit code 0.
    It is a KeyboardInterrupt because the interpreter drops all else that is raised while it folds constants.
    """


class ShutdownRequest:
    """Whether the user wants this process to end. The first signal is orderly; one more, a second later, is not."""

    def __init__(self) -> None:
        self.requested = threading.Event()
        self.signal_name = ""
        self._callbacks: list[Callable[[], None]] = []
        self._first_at = 0.0
        self._is_lost = False

    def add_callback(self, callback: Callable[[], None]) -> None:
        """Call `callback` at the first signal, in the main thread between two bytecodes: let it only set or wake.

        From now on a signal raises nothing. A callback added after the signal is called at once.
        """
        self._callbacks.append(callback)
        if self.requested.is_set():
            callback()

    def remove_callback(self, callback: Callable[[], None]) -> None:
        """Take a callback back; a signal raises again once there is none."""
        self._callbacks.remove(callback)

    def raise_if_requested(self) -> None:
        if self.requested.is_set():
            raise ShutdownInterrupt(self.signal_name)

    def request(self, reason: str) -> None:
        """Ask for an orderly end from inside the program."""
        self.signal_name = self.signal_name or reason
        self._first_at = self._first_at or time.monotonic()
        self.requested.set()
        for callback in tuple(self._callbacks):
            callback()

    def on_signal(self, number: int, frame: FrameType | None) -> None:
        """Handle a signal; installed by `install_shutdown_handlers`."""
        if not self.requested.is_set() or self._is_lost:
            self._is_lost = False
            self.request(signal.Signals(number).name)
            if not self._callbacks:
                raise ShutdownInterrupt(self.signal_name)
        elif time.monotonic() - self._first_at > _SAME_WISH_S:
            os._exit(128 + number)  # children notice the closed pipe

    def send_again(self) -> None:
        """Interrupt the main thread once more: the interpreter ignores what is raised where nobody could catch it.

        Such places are `__del__` and the callbacks of weak references, as those of the import system.
        """
        self._is_lost = True
        number = signal.Signals.__members__.get(self.signal_name, signal.SIGINT)
        main_thread = threading.main_thread().ident
        assert main_thread is not None
        timer = threading.Timer(_AGAIN_S, signal.pthread_kill, (main_thread, number))  # once that place is left
        timer.daemon = True
        timer.start()


def install_shutdown_handlers() -> ShutdownRequest:
    """Make SIGINT, SIGTERM and SIGHUP (unless it is ignored, as under nohup) ask for shutdown; main thread only."""
    request = ShutdownRequest()
    tell_ignored = sys.unraisablehook

    def on_ignored(ignored: sys.UnraisableHookArgs) -> None:
        if isinstance(ignored.exc_value, ShutdownInterrupt):
            request.send_again()
        else:
            tell_ignored(ignored)

    sys.unraisablehook = on_ignored
    for number in SIGNALS:
        if number != signal.SIGHUP or signal.getsignal(number) is not signal.SIG_IGN:
            signal.signal(number, request.on_signal)
    return request


@contextlib.contextmanager
def signals_held() -> Iterator[None]:
    """Let a signal count only after the block, so that what the block makes is in somebody's hand by then.

    It is no blocked mask, which a process started in the block would inherit.
    """
    if threading.current_thread() is not threading.main_thread():  # which no signal interrupts
        yield
        return
    came: list[int] = []
    over = False
    before = {number: signal.getsignal(number) for number in SIGNALS}
    held = {number: handler for number, handler in before.items() if callable(handler)}

    def note(number: int, frame: FrameType | None) -> None:
        if over:  # one has raised while the handlers were put back
            held[signal.Signals(number)](number, frame)
        else:
            came.append(number)

    for number in held:
        signal.signal(number, note)
    try:
        yield
    finally:
        over = True
        for number, handler in held.items():
            signal.signal(number, handler)
        for late in came:
            signal.raise_signal(late)


def leave_signals_to_parent() -> None:
    """Ignore the signals that reach the whole process group; for children, first thing.

    An empty handler rather than SIG_IGN: the latter would be inherited by whatever a plugin starts.
    """
    for number in SIGNALS:
        if signal.getsignal(number) is not signal.SIG_IGN:
            signal.signal(number, _ignore)
            signal.siginterrupt(number, False)
    signal.pthread_sigmask(signal.SIG_UNBLOCK, SIGNALS)


def _ignore(number: int, frame: FrameType | None) -> None:
    """The parent decides."""
