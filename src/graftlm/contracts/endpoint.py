"""The contract of an endpoint plugin: routes of its own in the HTTP server."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from fastapi import APIRouter

    from graftlm.contracts.engine import EngineClient


class EndpointPlugin:
    """Routes under /plugins/<name>/; the entry point names a callable without arguments that returns one."""

    name: str = ""

    def attach_router(self, router: APIRouter) -> None:
        """Add routes to `router`, which is mounted at /plugins/<name>/."""

    def attach_core_routes(self, router: APIRouter) -> None:
        """Add routes that take the place of the server's own, or stand beside them; `router` has no prefix.

        Called only where --endpoint-overrides grants this plugin core routes.
        """

    async def init_state(self, engine: EngineClient, settings: dict[str, Any]) -> None:
        """The engine is ready."""
