"""What the suites of front-end plugins share: a host that knows the plugin, its settings, and READY."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any, ClassVar

from graftlm.plugins import calling
from graftlm.plugins.host import PluginHost
from graftlm.plugins.points import ExtensionPoint
from graftlm.plugins.selection import Selection
from graftlm.testing.host import FakeDistribution, plugin_host
from graftlm.testing.suite import Suite


class FrontEndSuite(Suite):
    """Not for authors: subclass the suite of an extension point whose plugins may read settings.

    A plugin that reads settings names its `distribution` and its entry point, `plugin`; `settings` are set as with
    --plugin-config. A setting may contain `{folder}`: the folder that the check works in, where it has one.
    """

    point: ClassVar[ExtensionPoint[Any]]
    distribution: ClassVar[str | FakeDistribution | None] = None
    plugin: ClassVar[str] = "under_test"
    settings: ClassVar[dict[str, Any]] = {}

    @contextlib.contextmanager
    def host(self, folder: Path | None = None) -> Iterator[PluginHost]:
        """A front end in which the plugin is enabled."""
        fake = FakeDistribution("conformance", {self.point.name: {"under_test": "graftlm.testing.suite:Suite"}})
        place = str(folder or "{folder}")
        config = [f"{self.plugin}.{k}={str(v).replace('{folder}', place)}" for k, v in self.settings.items()]
        selection = Selection(enable_plugin=[self.plugin])
        with plugin_host(self.distribution or fake, selection=selection, plugin_config=config) as host:
            yield host

    def calling(self, host: PluginHost, hook: str) -> contextlib.AbstractContextManager[None]:
        """A call into the plugin's code, as the engine frames it."""
        return calling(host.find(self.point, self.plugin), hook)
