"""`graftlm fetch MODEL`: bring a model to this machine and print where it lies.

Model sources are an extension point, so plugins are bootstrapped as for a server.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from graftlm.cli.startup import make_parser, show_help_if_asked, start_logging, start_plugins
from graftlm.config.arguments import (
    ArgumentParser,
    UsageError,
    add_config_file_flag,
    add_options,
    read_arguments,
    selection_options,
)
from graftlm.config.options import engine_options

if TYPE_CHECKING:
    from graftlm.processes.shutdown import ShutdownRequest

OPTIONS = (*(o for o in engine_options() if o.path in ("model.model", "model.revision")), *selection_options())


def build_parser() -> ArgumentParser:
    parser = make_parser(
        "fetch",
        "Bring a model to this machine and print its path.",
        model_help="Model to fetch: 'demo', a hub id, or whatever a plugin's model source knows.",
    )
    add_config_file_flag(parser)
    add_options(parser, OPTIONS)
    return parser


def run(argv: list[str], *, shutdown: ShutdownRequest) -> int:
    parser = build_parser()
    if show_help_if_asked(parser, argv):
        return 0
    arguments, _ = read_arguments(parser, argv, options=OPTIONS)
    if "model.model" not in arguments.values:
        raise UsageError("name the model to fetch, such as `graftlm fetch demo`")
    start_logging(arguments, default_levels=["warning"])
    start_plugins(arguments)
    from graftlm.models.sources import resolve_model

    config = arguments.engine_config()
    print(resolve_model(config.model.model, revision=config.model.revision, progress=True))
    return 0
