"""`graftlm serve MODEL`: the OpenAI-compatible server.

It only puts the steps in order: flags, plugins, configuration, then the HTTP server with an engine behind it.
"""

from __future__ import annotations

import gc
import logging
import math
from collections.abc import Callable
from typing import TYPE_CHECKING

from graftlm.cli.ahead import Port, start_configured_children
from graftlm.cli.output_file import check_writable
from graftlm.cli.startup import Started, add_engine_flags, make_parser, start_engine_command
from graftlm.cli.startup_report import TRACE_FILE, TRACE_FLAG, report_startup, trace_file_of
from graftlm.config.arguments import ArgumentParser
from graftlm.config.errors import InvalidOption
from graftlm.config.options import engine_options, server_options
from graftlm.processes import startup_trace
from graftlm.processes.child import without_collections
from graftlm.processes.startup_trace import span
from graftlm.version import __version__

if TYPE_CHECKING:
    from graftlm.config.engine_config import EngineConfig
    from graftlm.config.server_config import ServerConfig
    from graftlm.frontend.async_llm import AsyncLLM, BegunEngine
    from graftlm.processes.shutdown import ShutdownRequest

logger = logging.getLogger(__name__)

OPTIONS = (*engine_options(), *server_options())


def build_parser() -> ArgumentParser:
    parser = make_parser(
        "serve",
        "Serve a model through the OpenAI API.",
        model_help="Model to serve: 'demo', a Hugging Face directory, a .gguf file or a hub id (default: demo).",
    )
    parser.add_argument(
        TRACE_FLAG, metavar="FILE", nargs="?",
        help="Print where the start's time went, and write it as a trace that ui.perfetto.dev opens "
        f"(default: {TRACE_FILE}; name another as {TRACE_FLAG}=FILE).",
    )  # fmt: skip
    add_engine_flags(parser, OPTIONS)
    return parser


def run(argv: list[str], *, shutdown: ShutdownRequest) -> int:
    argv, trace_file = trace_file_of(argv)
    if trace_file is not None:
        check_writable(TRACE_FLAG, trace_file)
        startup_trace.begin("front end")
    with without_collections(), Port() as port:  # until it is ready; the server turns them on then
        started = start_engine_command(
            build_parser, argv, options=OPTIONS, ahead=lambda given: port.open(given.values)
        )
        if started is None:
            return 0
        return _serve(started, port, trace_file, shutdown)


def _serve(started: Started, port: Port, trace_file: str | None, shutdown: ShutdownRequest) -> int:
    with span("import the engine's front"):
        from graftlm.engine.configure import configure
        from graftlm.frontend.async_llm import begin_engine
        from graftlm.frontend.http.endpoint_grants import read_grants

    server_config = started.arguments.server_config()
    with started.arguments.naming_origins():
        check_server(server_config)
        read_grants(server_config, started.host)  # a wrong name is told now, before a model is fetched
        port.require(server_config)
    port.say("finding the model and configuring the engine")
    with span("configure"), started.arguments.naming_origins():
        config = configure(started.arguments.engine_config(), started.host)
    start_configured_children(config)
    logger.info("Initializing graftlm (v%s) with config: %s", __version__, describe(config))
    # Processes that are warm have their work done when the server is imported; a start that is refused needs none.
    begun = begin_engine(config, started.host)
    try:
        return _answer(started, config, port, trace_file=trace_file, begun=begun, shutdown=shutdown)
    finally:
        begun.abandon()


def _answer(
    started: Started,
    config: EngineConfig,
    port: Port,
    *,
    trace_file: str | None,
    begun: BegunEngine,
    shutdown: ShutdownRequest,
) -> int:
    from graftlm.frontend.async_llm import start_async_llm

    port.say("starting the HTTP server")
    with span("import the HTTP server"):
        from graftlm.frontend.http.server import serve
    gc.freeze()  # modules stay: the collection before the first request need not look at them

    async def start(on_status: Callable[[str], None]) -> AsyncLLM:
        with span("start the engine"):
            llm = await start_async_llm(config, started.host, on_status=on_status, begun=begun)
        if trace_file is not None:
            report_startup(llm, started.host, trace_file)
        return llm

    listener = port.hand_over()
    server_config = started.arguments.server_config()
    return serve(server_config, config=config, start=start, shutdown=shutdown, listener=listener)


def check_server(server: ServerConfig) -> None:
    """Refuse what no socket could be."""
    from graftlm.frontend.http.listener import PORTS

    if server.port not in PORTS:
        raise InvalidOption(
            "--port", server.port, problem="it is no port", cure="use 0 to 65535; 0 takes a free one"
        )
    if not 0 <= server.shutdown_timeout < math.inf:
        raise InvalidOption(
            "--shutdown-timeout", server.shutdown_timeout, problem="it is no time", cure="use 0 or more seconds"
        )
    if server.max_request_bytes < 1:
        raise InvalidOption(
            "--max-request-bytes", server.max_request_bytes, problem="no request would fit", cure="use 1k or more"
        )
    for key in server.api_key:
        if not (key.isascii() and key.isprintable()) or " " in key:
            raise InvalidOption(
                "--api-key", "…", problem="it has characters that no HTTP header can carry",
                cure="use letters, digits and punctuation",
            )  # fmt: skip
    if server.root_path and not server.root_path.startswith("/"):
        raise InvalidOption(
            "--root-path", server.root_path, problem="it is no path", cure=f"use /{server.root_path}"
        )


def describe(config: EngineConfig) -> str:
    """Name every value that somebody decided, and who did; the checkpoint's own config is left out."""
    decided = dict.fromkeys(change.path for change in config.changes if change.path != "model.hf_config")
    parts = []
    for path in decided:
        section, field = path.split(".")
        parts.append(f"{path}={getattr(getattr(config, section), field)!r} ({config.owner_of(path)})")
    return ", ".join(parts)
