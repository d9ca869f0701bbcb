"""`python -m benchmarks.itl_slo`: what streams wait usually, token by token."""

from __future__ import annotations

import asyncio
from types import SimpleNamespace

import pytest

from benchmarks import itl_slo


def test_a_stream_may_have_fewer_waits_than_another(monkeypatch: pytest.MonkeyPatch) -> None:
    """A token whose text is not whole comes with the next one."""

    async def ends(arrivals: list[float]) -> SimpleNamespace:
        return SimpleNamespace(arrivals=arrivals)

    class FakeClient:
        def __init__(self, url: str) -> None:
            assert url == "http://server"

        def start_streams(self, options: object, seed: int) -> list[object]:
            return [ends([0.0, 0.010, 0.020, 0.050]), ends([0.0, 0.012, 0.024])]

    monkeypatch.setattr(itl_slo, "Client", FakeClient)
    monkeypatch.setattr(itl_slo, "_AROUND", 0)
    usual = asyncio.run(itl_slo.usual_waits("http://server", SimpleNamespace(), seed=1))

    assert usual == pytest.approx([11.0, 11.0, 30.0])
