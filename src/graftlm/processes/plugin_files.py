"""Tells whose code a file holds: which installed plugin's. It looks at no stack and prints nothing."""

from __future__ import annotations

from importlib import metadata
from pathlib import Path

from graftlm.plugins.manifest import find_package
from graftlm.plugins.plugin import Plugin
from graftlm.plugins.process_host import held_host


class PluginFiles:
    """The files of the plugins that this process knows, without the engine's own; made when something fails."""

    def __init__(self) -> None:
        host = held_host()
        self._known = [p for p in (host.known_plugins if host is not None else ()) if not p.built_in]
        places = ((find_package(plugin.package), plugin) for plugin in self._known)
        self._places = [(place, plugin) for place, plugin in places if place is not None]
        self._listed: dict[str, set[Path]] = {}

    def owner(self, file: Path) -> Plugin | None:
        """Return the plugin in whose package or distribution `file` lies; of several, the one that names it."""
        here = [plugin for place, plugin in self._places if file == place or place in file.parents]
        here = here or [plugin for plugin in self._known if file in self._files_of(plugin.distribution)]
        named = [p for p in here if p.value.partition(":")[0].rpartition(".")[2] in (file.stem, file.parent.name)]
        return next(iter(named or here), None)

    def _files_of(self, distribution: str) -> set[Path]:
        if distribution not in self._listed:
            try:
                installed = metadata.distribution(distribution)
                listed = {Path(str(installed.locate_file(file))) for file in installed.files or ()}
            except Exception:  # damaged metadata is told elsewhere
                listed = set()
            self._listed[distribution] = listed
        return self._listed[distribution]
