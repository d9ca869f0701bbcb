"""Tells once of each plugin whose entry point replaces or implements an op that nobody has; imports no plugin.

It reads names only: classes of the engine from a table, those of others from the files of their modules.
"""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING

from graftlm.config.errors import InvalidOption
from graftlm.contracts.points import CUSTOM_OPS, OP_IMPLEMENTATIONS
from graftlm.engine.class_paths import check_class_path
from graftlm.ops.replaceable import is_ours, wrong_class, wrong_op

if TYPE_CHECKING:
    from graftlm.plugins.host import PluginHost

logger = logging.getLogger(__name__)


def note_unbound_ops(host: PluginHost) -> None:
    """Note and log each enabled plugin of `custom_ops` or `op_implementations` whose name means nothing here."""
    for point, problem_of in ((CUSTOM_OPS, _wrong_key), (OP_IMPLEMENTATIONS, _wrong_implementation)):
        for plugin in host.plugins(point):
            problem = problem_of(plugin.name)
            if problem and host.note(plugin, problem):
                logger.warning("op_plugin_unbound plugin=%s point=%s: %s", plugin.label, point.name, problem)


def _wrong_key(path: str) -> str:
    if is_ours(path):
        return wrong_class(path)
    try:
        check_class_path("entry point", path)
    except InvalidOption as error:
        return f"{path!r} is no class, so it replaces nothing: {error.problem}; {error.cure}"
    return ""


def _wrong_implementation(name: str) -> str:
    return wrong_op(name.rpartition(".")[0])
