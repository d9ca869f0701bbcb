"""The HTTP server's configuration; only the front end has it."""

from __future__ import annotations

import dataclasses

from graftlm.config.section import Section, option


@dataclasses.dataclass
class ServerConfig(Section):
    """Where and to whom the server answers."""

    host: str = option("127.0.0.1", help="Address to listen on.")
    port: int = option(8000, help="Port to listen on; 0 takes a free one.")
    api_key: list[str] = option(
        factory=list, help="Key that every route but /health asks for (repeatable; or GRAFTLM_API_KEY)."
    )
    endpoint_overrides: list[str] = option(
        factory=list, help="Endpoint plugin that may answer the server's own routes, too (repeatable)."
    )
    endpoint_no_auth: list[str] = option(
        factory=list, help="Endpoint plugin whose routes under /plugins/NAME/ need no API key (repeatable)."
    )
    metrics_no_auth: bool = option(False, help="Let /metrics be read without the API key.")
    shutdown_timeout: float = option(
        0.0, help="Seconds that running requests get after SIGINT or SIGTERM before they are aborted."
    )
    max_request_bytes: int = option(32 * 2**20, help="Largest request body, in bytes.")
    root_path: str = option("", help="Path prefix added by a reverse proxy.")
