"""Frames around calls into plugin code, so that every exception names the plugin; does not handle exceptions."""

from __future__ import annotations

import contextlib
import contextvars
import dataclasses
import logging
import os
import signal
from collections.abc import Iterator
from typing import NoReturn

from graftlm.plugins.errors import PluginExits, PluginRaises
from graftlm.plugins.plugin import Plugin
from graftlm.plugins.process_host import held_host


@dataclasses.dataclass(frozen=True, slots=True)
class Call:
    """The plugin code that runs now; `replay` tells that children must repeat what it registers."""

    plugin: Plugin | str
    hook: str
    replay: bool = False

    @property
    def label(self) -> str:
        return self.plugin if isinstance(self.plugin, str) else self.plugin.label

    def known(self) -> Plugin | None:
        """Return the plugin's facts; None for a label that the process's host does not know."""
        if isinstance(self.plugin, Plugin):
            return self.plugin
        host = held_host()
        known = host.known_plugins if host is not None else ()
        return next((p for p in known if p.label == self.plugin), None)

    def note(self) -> str:
        """Build the line that an exception carries."""
        host = held_host()
        where = f" in process {host.process!r}" if host is not None else ""
        plugin = self.known()
        if plugin is None:
            return f"raised by plugin {self.plugin!r}, hook {self.hook}{where}"
        return (
            f"raised by plugin {plugin.name!r} (distribution {plugin.distribution} "
            f"{plugin.version}), hook {self.hook}{where}"
        )


logger = logging.getLogger(__name__)

#: Exit code of a process that plugin code forked and let return into the engine's code.
EXIT_STRAY = 70

_call: contextvars.ContextVar[Call | None] = contextvars.ContextVar("graftlm_plugin_call", default=None)


def current_call() -> Call | None:
    """Return the plugin call that runs in this context, or None."""
    return _call.get()


@contextlib.contextmanager
def calling(plugin: Plugin | str, hook: str, *, replay: bool = False) -> Iterator[None]:
    """Add a note with plugin, distribution, version, hook and process to any exception of the block.

    The engine's own plugins get no note: their traceback says enough. A process that the block forked does not
    leave it: it would go on as a second engine, on the same sockets.
    """
    call, pid = Call(plugin, hook, replay), os.getpid()
    token = _call.set(call)
    try:
        try:
            yield
        except SystemExit as error:  # a plugin must not end a server in silence
            raise PluginExits(error.code) from error
        except BaseException as error:
            if isinstance(error, Exception) or _is_ours(error):
                raise
            raise PluginRaises(error) from error
    except Exception as error:
        known = call.known()
        note = call.note()
        if not (known is not None and known.built_in) and note not in getattr(error, "__notes__", ()):
            error.add_note(note)
        raise
    finally:
        if os.getpid() != pid:
            _end_stray(call, pid)
        _call.reset(token)


def _end_stray(call: Call, parent: int) -> NoReturn:
    """End this process, which plugin code forked, before it can act in the place of `parent`."""
    plugin = call.known()
    logger.error(
        "plugin_forked %s, hook %s: process %d, forked there from %d, came back from the call and ends here; "
        "end a forked process with os._exit, or start programs with subprocess",
        plugin.description if plugin is not None else call.label, call.hook, os.getpid(), parent,
    )  # fmt: skip
    os._exit(EXIT_STRAY)


def _is_ours(error: BaseException) -> bool:
    """Tell whether what is no Exception comes from the engine, the event loop, a test or the keyboard.

    Only Python's own handler makes a Ctrl-C a KeyboardInterrupt: a server has another, and its children ignore it.
    """
    if type(error) is KeyboardInterrupt:  # and not the engine's own kind of it
        return signal.getsignal(signal.SIGINT) is signal.default_int_handler
    made_by = type(error).__module__.partition(".")[0]
    return isinstance(error, GeneratorExit) or made_by in ("asyncio", "graftlm", "_pytest")


def plugin_logger() -> logging.Logger:
    """Return the logger of the plugin that runs now: `plugin.NAME`, under the engine's sinks."""
    call = _call.get()
    name = "unknown" if call is None else call.label.rpartition(":")[2]
    return logging.getLogger(f"plugin.{name}")
