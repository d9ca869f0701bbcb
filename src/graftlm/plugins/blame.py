"""Frames around calls into plugin code, so that every exception names the plugin; does not handle exceptions."""

from __future__ import annotations

import contextlib
import contextvars
import dataclasses
import logging
import signal
from collections.abc import Iterator

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


_call: contextvars.ContextVar[Call | None] = contextvars.ContextVar("graftlm_plugin_call", default=None)


def current_call() -> Call | None:
    """Return the plugin call that runs in this context, or None."""
    return _call.get()


@contextlib.contextmanager
def calling(plugin: Plugin | str, hook: str, *, replay: bool = False) -> Iterator[None]:
    """Add a note with plugin, distribution, version, hook and process to any exception of the block.

    The engine's own plugins get no note: their traceback says enough.
    """
    call = Call(plugin, hook, replay)
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
        _call.reset(token)


def _is_ours(error: BaseException) -> bool:
    """Tell whether what is no Exception comes from the engine, the event loop, a test or the keyboard.

    Only Python's own handler makes a Ctrl-C a KeyboardInterrupt: a server has another, and its children ignore it.
    """
    if isinstance(error, KeyboardInterrupt):
        return signal.getsignal(signal.SIGINT) is signal.default_int_handler
    made_by = type(error).__module__.partition(".")[0]
    return isinstance(error, GeneratorExit) or made_by in ("asyncio", "graftlm", "_pytest")


def plugin_logger() -> logging.Logger:
    """Return the logger of the plugin that runs now: `plugin.NAME`, under the engine's sinks."""
    call = _call.get()
    name = "unknown" if call is None else call.label.rpartition(":")[2]
    return logging.getLogger(f"plugin.{name}")
