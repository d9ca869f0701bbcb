"""A plugin that changes the decided platform while the server serves: what happens, and who hears of it."""

from __future__ import annotations

import json
import urllib.error
import urllib.request
from pathlib import Path

from plugin_packages import Site, run_graftlm
from server import Server

CHANGER = """
    from graftlm.contracts.endpoint import EndpointPlugin
    from graftlm.contracts.stats import StatLogger

    def change_around_the_guard():
        from graftlm.platforms import current_platform
        type.__setattr__(type(current_platform), "device_name", "mine")

    class Changer(EndpointPlugin):
        def attach_router(self, router):
            @router.get("/directly")
            async def directly():
                from graftlm.platforms import current_platform
                current_platform.device_name = "mine"

            @router.get("/around")
            async def around():
                change_around_the_guard()
                return "done"

            @router.get("/name")
            async def name():
                from graftlm.platforms import current_platform
                return current_platform.device_name

    class ChangerAtStart(EndpointPlugin):
        def attach_router(self, router):
            change_around_the_guard()

    class ChangingLogger(StatLogger):
        def __init__(self, config):
            change_around_the_guard()

        def record(self, step, finished):
            pass
"""
FIXED = "the platform cannot be changed: plugin 'changer' of changer-pkg 1.0"


def install(tmp_path: Path, **points: str) -> dict[str, str]:
    """Install a plugin `changer` at each point, and return the environment that sees them."""
    entry_points = {point: {"changer": f"changer_pkg:{name}"} for point, name in points.items()}
    site = Site(tmp_path / "site").write(
        "changer-pkg", entry_points=entry_points, files={"changer_pkg.py": CHANGER}
    )
    return site.environment


def read(server: Server, path: str) -> tuple[int, str]:
    try:
        with urllib.request.urlopen(server.base_url + path) as response:
            return response.status, response.read().decode()
    except urllib.error.HTTPError as error:
        return error.code, error.read().decode()


def test_an_endpoint_changes_no_platform(tmp_path: Path, tiny_llama: Path) -> None:
    """The guard refuses with a 500 by name; a way around it is undone, counted, noted and logged."""
    env = install(tmp_path, endpoint_plugins="Changer")
    with Server([str(tiny_llama), "--enable-plugin", "changer"], env=env) as server:
        directly = read(server, "/plugins/changer/directly")
        around = read(server, "/plugins/changer/around")
        name = read(server, "/plugins/changer/name")
        plugins = json.loads(read(server, "/plugins")[1])["plugins"]
        metrics = read(server, "/metrics")[1]
        output = server.output

    assert directly[0] == 500 and FIXED in directly[1]
    assert around == (200, '"done"')
    assert name == (200, '"cpu"')
    (row,) = [row for row in plugins if row["name"] == "changer"]
    assert len(row["notes"]) == 1 and FIXED in row["notes"][0] and "'device_name'" in row["notes"][0]
    assert f"endpoint_change_undone {FIXED}" in output
    assert 'graftlm:plugin_errors_total{plugin="changer-pkg:changer"} 2.0' in metrics


def test_what_is_made_at_the_start_changes_none_either(tmp_path: Path, tiny_llama: Path) -> None:
    """A stat logger that was merely installed is left out; an endpoint that was named stops the start."""
    env = install(tmp_path, endpoint_plugins="ChangerAtStart", stat_logger_plugins="ChangingLogger")
    flags = ("--port=0", "--enable-plugin", "endpoint_plugins=changer")
    done = run_graftlm("serve", str(tiny_llama), *flags, env=env)

    assert done.returncode == 1
    assert "plugin_failed stat logger plugin 'changer' of changer-pkg 1.0 failed" in done.stderr
    assert done.stderr.count(FIXED) >= 2
    assert "endpoint plugin 'changer' of changer-pkg 1.0 failed" in done.stderr.strip().splitlines()[-1]
