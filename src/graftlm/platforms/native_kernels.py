"""Finds out whether the native kernels can be loaded, before anything is decided that would need them.

It loads their library alone, which needs no torch, and knows nothing of what the kernels compute.
"""

from __future__ import annotations

import logging
from collections.abc import Sequence
from importlib import import_module
from importlib.util import find_spec
from typing import Any

import msgspec

from graftlm.contracts.errors import StartupError
from graftlm.plugins import Plugin
from graftlm.plugins.errors import PluginRefused
from graftlm.plugins.selection import Decision
from graftlm.plugins.spelling import error_text

logger = logging.getLogger(__name__)

PACKAGE = "graftlm_kernels"


def are_kernels(plugin: Plugin) -> bool:
    return plugin.built_in and plugin.package == PACKAGE


def reinstall(plugin: Plugin) -> str:
    """Say how to get kernels that suit this engine."""
    return (
        f"install it again with `pip install --force-reinstall --no-deps {plugin.distribution}`, in a checkout "
        "with `make install`"
    )


def refuse_unloadable(decisions: Sequence[Decision]) -> list[Decision]:
    """Refuse the kernels where their library does not load: one warning, and all is computed in plain torch.

    Raises PluginRefused where the user named one of them. Kernels that take no part are not touched.
    """
    wanted = [d.plugin for d in decisions if d.enabled and are_kernels(d.plugin)]
    problem = _why_unloadable() if wanted else None
    if problem is None:
        return list(decisions)
    plugin = wanted[0]
    reason = f"its native library cannot be loaded ({problem}); {reinstall(plugin)}"
    if named := next((p for p in wanted if p.named), None):
        raise PluginRefused(named.description, reason=reason)
    if find_spec(PACKAGE) is not None:  # the platform says it where nothing is left of them
        logger.warning(
            "kernels_refused %s %s: %s, or leave it out with --disable-plugin %s; all is computed in plain torch, "
            "which is slower, and quantized weights take their full size",
            plugin.distribution, plugin.version, reason, plugin.left_out_by,
        )  # fmt: skip
    return [
        msgspec.structs.replace(d, state="refused", reason=reason) if d.enabled and are_kernels(d.plugin) else d
        for d in decisions
    ]


def instruction_path() -> str:
    """Return the instructions that the kernels use on this machine: "avx512", "avx2" or "generic".

    Raises StartupError where GRAFTLM_KERNELS_PATH asks for others than those.
    """
    try:
        path: str = _library().path()
    except RuntimeError as error:  # the native side knows which processor this is, and says it
        raise StartupError(f"GRAFTLM_KERNELS_PATH: {error}") from error
    return path


def _library() -> Any:
    return import_module(f"{PACKAGE}._native")


def _why_unloadable() -> str | None:
    try:
        _library()
    except Exception as error:
        return error_text(error)
    return None
