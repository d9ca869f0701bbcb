"""Names the plugin whose code raised where nobody catches: in a thread of its own, or while an object was ending.

Python prints the traceback, as ever; it does not know which plugins there are.
"""

from __future__ import annotations

import logging
import sys
import threading
import traceback
from collections.abc import Iterator
from pathlib import Path
from types import TracebackType

logger = logging.getLogger(__name__)

_is_listening = False


def name_plugins_of_lost_errors() -> None:
    """From now on a line of the log follows each such traceback that leads through plugin code."""
    global _is_listening
    if _is_listening:
        return
    _is_listening = True
    in_threads, unraisable = threading.excepthook, sys.unraisablehook
    tell, is_finalizing = _tell, sys.is_finalizing  # kept: at the interpreter's end this module has no names left

    def of_thread(args: threading.ExceptHookArgs) -> None:
        in_threads(args)
        if args.exc_type is not SystemExit and not is_finalizing():
            where = (
                f"its thread {args.thread.name!r} has ended" if args.thread is not None else "a thread has ended"
            )
            tell(args.exc_value, args.exc_traceback, where)

    def of_object(args: sys.UnraisableHookArgs) -> None:
        unraisable(args)
        if not is_finalizing():
            tell(args.exc_value, args.exc_traceback, "the error went nowhere")

    threading.excepthook, sys.unraisablehook = of_thread, of_object


def _tell(error: BaseException | None, trace: TracebackType | None, what: str) -> None:
    if error is None:
        return
    from graftlm.plugins.spelling import error_text
    from graftlm.processes.plugin_files import PluginFiles

    files = PluginFiles()
    for file, line, function in _innermost_first(trace):
        if (plugin := files.owner(file)) is not None:
            logger.error(
                "plugin_error %s: %s; %s, %s line %d in %s; --disable-plugin %s leaves it out",
                plugin.description, error_text(error), what, file, line, function, plugin.left_out_by,
            )  # fmt: skip
            return


def _innermost_first(trace: TracebackType | None) -> Iterator[tuple[Path, int, str]]:
    for frame, line in reversed(list(traceback.walk_tb(trace))):
        yield Path(frame.f_code.co_filename), line, frame.f_code.co_name
