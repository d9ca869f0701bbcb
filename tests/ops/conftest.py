"""A worker process's plugin host with a fake platform and the entry points that a test names."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch

from graftlm.config.engine_config import CompilationConfig, EngineConfig
from graftlm.contracts.platform import Platform, PlatformKind
from graftlm.contracts.points import ALL_POINTS
from graftlm.ops.build import building
from graftlm.plugins import Plugin, Role
from graftlm.plugins.host import PluginHost
from graftlm.plugins.plan import PlatformChoice, PluginPlan


class FakePlatform(Platform):
    """Out of tree, and answers what a test tells it to."""

    kind = PlatformKind.OOT
    device_name = "fake device"
    op_method = "forward_oot"
    backend_answer: Any = "graftlm.ops.attention.torch_paged:TorchPagedAttention"
    questions: list[Any]

    def get_attn_backend_cls(self, selected_backend: str | None, question: Any) -> Any:  # type: ignore[override]
        self.questions.append((selected_backend, question))
        return self.backend_answer


@pytest.fixture
def worker_host() -> Iterator[Callable[..., PluginHost]]:
    """Install a host: `worker_host(op_method=…, custom_ops={name: target}, named=False)`."""
    undo: list[Callable[[], None]] = []

    def install(
        *, named: bool = False, platform: dict[str, Any] | None = None, **points: dict[str, str]
    ) -> PluginHost:
        entries = tuple(
            Plugin(point=point, name=name, value=value, distribution="acme-ops", version="1.2", named=named)
            for point, targets in points.items()
            for name, value in targets.items()
        )
        choice = PlatformChoice(
            name="fake", distribution="acme-ops", version="1.2", class_path="fake:Platform", reason="test"
        )
        host = PluginHost(
            ALL_POINTS, role=Role.WORKER, process="test", plan=PluginPlan(entries=entries, platform=choice)
        )
        host.platform = type("TestPlatform", (FakePlatform,), platform or {})()
        host.platform.questions = []
        undo.append(host.install())
        return host

    yield install

    for step in reversed(undo):
        step()


@pytest.fixture
def build() -> Callable[..., Any]:
    """Open a build in fp32 on the CPU: `with build("all", "-relu") as context:`."""

    def open_build(*switches: str, backend: str = "eager") -> Any:
        config = EngineConfig(compilation=CompilationConfig(backend=backend, custom_ops=list(switches)))
        return building(config, dtype=torch.float32, device=torch.device("cpu"))

    return open_build
