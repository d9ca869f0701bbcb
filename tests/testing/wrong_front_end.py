"""Stat loggers and endpoint plugins that are wrong, each in one way that the suites must see."""

from __future__ import annotations

import tempfile
from typing import Any

from fastapi import APIRouter, FastAPI

from graftlm.contracts.endpoint import EndpointPlugin
from graftlm.contracts.stats import StatLogger
from graftlm.models import ModelRegistry


class RaisesWithoutAStep(StatLogger):
    def record(self, step: Any, finished: Any) -> None:
        self.running = step.num_running


class RaisesInLog(StatLogger):
    """Divides by what it has not counted yet."""

    tokens = 0

    def log(self) -> None:
        self.rate = 1 / self.tokens


class WantsMore(StatLogger):
    def __init__(self, config: Any, path: str) -> None:
        super().__init__(config)


class ClearsTheList(StatLogger):
    def record(self, step: Any, finished: Any) -> None:
        finished.clear()


class SharesItsState(StatLogger):
    closed: list[bool] = []

    def record(self, step: Any, finished: Any) -> None:
        if self.closed:
            raise ValueError("write to closed file")

    def close(self) -> None:
        self.closed.append(True)


class RegistersLate(StatLogger):
    def record(self, step: Any, finished: Any) -> None:
        ModelRegistry.register_model("LateForCausalLM", "wrong_models:KeepsState")


class NotALogger:
    def __init__(self, config: Any) -> None:
        self.config = config


class SoundEndpoint(EndpointPlugin):
    def attach_router(self, router: APIRouter) -> None:
        router.add_api_route("/ok", self.ok)

    async def ok(self) -> dict[str, bool]:
        return {"ok": True}


class AddsNothing(EndpointPlugin):
    pass


class MountsAnApp(EndpointPlugin):
    def attach_router(self, router: APIRouter) -> None:
        router.mount("/app", FastAPI())


class Fails(SoundEndpoint):
    async def ok(self) -> dict[str, bool]:
        raise KeyError("no such thing")


class LateEndpoint(SoundEndpoint):
    async def init_state(self, engine: Any, settings: Any) -> None:
        ModelRegistry.register_model("LateForCausalLM", "wrong_models:KeepsState")


class Grows(EndpointPlugin):
    routes = 0

    def attach_router(self, router: APIRouter) -> None:
        type(self).routes += 1
        for i in range(self.routes):
            router.add_api_route(f"/route{i}", SoundEndpoint().ok)


class GrowsInTheCore(SoundEndpoint):
    routes = 0

    def attach_core_routes(self, router: APIRouter) -> None:
        type(self).routes += 1
        router.add_api_route(f"/v1/own{self.routes}", self.ok)


class NotAwaited(SoundEndpoint):
    def init_state(self, engine: Any, settings: Any) -> None:  # type: ignore[override]
        self.engine = engine


class RaisesInAHook(EndpointPlugin):
    def attach_router(self, router: APIRouter) -> None:
        raise OSError("no licence")


class MountsOverTheServer(SoundEndpoint):
    def attach_core_routes(self, router: APIRouter) -> None:
        router.mount("/v1", FastAPI())


class LeavesAFile(SoundEndpoint):
    async def ok(self) -> dict[str, bool]:
        tempfile.mkdtemp(prefix="answer-")
        return {"ok": True}


class OnlyCore(EndpointPlugin):
    """Not wrong: it only takes the place of one of the server's routes."""

    def attach_core_routes(self, router: APIRouter) -> None:
        router.add_api_route("/v1/models", SoundEndpoint().ok)


_only = SoundEndpoint()


def one_for_all() -> EndpointPlugin:
    return _only


def no_plugin() -> dict[str, str]:
    return {}
