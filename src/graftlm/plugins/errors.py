"""What can go wrong with plugins, with the sentence built by the class; knows nothing of what a plugin does.

PluginError                     stops the start: one message, no traceback by default
├── UnknownPlugin               a name that nothing installed provides
├── AmbiguousPlugin             a bare name that several distributions provide
├── SelectionConflict           flags that contradict each other
├── DuplicatePlugin             two distributions claim one key
├── PluginCycle                 before/after edges that go round
├── PluginRefused               a named plugin made for another API version, or with a broken manifest
├── PluginFailed                plugin code raised; the original error is the cause
├── LockDiffers                 what is installed is not what --plugins-locked allows
├── UnreadableLock              the file of --plugins-locked is none
├── PluginExits                 plugin code called sys.exit(), os._exit() or os.abort()
├── PluginCloses                plugin code closed file descriptors that are not its own, or tried to
├── PluginRaises                plugin code raised what is no Exception
├── InvalidSetting              a --plugin-config entry that no plugin understands
├── UnresolvedPath              a module:Class path that names nothing
├── RegistryError
│   ├── DuplicateRegistration   one key, two values
│   ├── LateRegistration        a registration after READY
│   ├── NotReplayable           a registration that no other process can repeat
│   └── UnknownKey              a key that nobody registered
├── PlanDiffers                 a child process is not what its parent decided
└── NoPluginHost                plugins were asked for before any were chosen
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from graftlm.plugins.spelling import error_text, listing, nearest


class PluginError(Exception):
    """Anything the plugin system says on purpose."""


class UnknownPlugin(PluginError):
    def __init__(self, name: str, *, where: str, known: Iterable[str], hint: str = "") -> None:
        known = list(known)
        near = nearest(name, known) or f"installed are: {listing(known, none='none')}"
        super().__init__(
            f"{where}: no installed plugin is called {name!r}; {near}"
            + (f"{'' if near.endswith('?') else '.'} {hint}" if hint else "")
            + " (`graftlm plugins` lists them)"
        )
        self.name = name


class AmbiguousPlugin(PluginError):
    def __init__(self, name: str, *, where: str, candidates: Sequence[str]) -> None:
        super().__init__(
            f"{where}: {name!r} is provided by {len(candidates)} distributions; "
            f"write one of {', '.join(candidates)}"
        )
        self.name = name


class SelectionConflict(PluginError):
    def __init__(self, problem: str, *, cure: str) -> None:
        super().__init__(f"{problem}; {cure}")


class DuplicatePlugin(PluginError):
    def __init__(self, point: str, name: str, *, claimants: Sequence[str]) -> None:
        super().__init__(
            f"{point} {name!r} is claimed by {' and by '.join(claimants)}; uninstall one, leave one out with "
            f"--disable-plugin {point}={claimants[-1].split()[0]}:{name}, or let one declare "
            f"replaces = [{name!r}] in its graftlm_plugin.toml"
        )
        self.claimants = tuple(claimants)


class PluginCycle(PluginError):
    def __init__(self, names: Sequence[str]) -> None:
        super().__init__(
            f"the before/after declarations of these plugins form a circle: {' -> '.join(names)}; "
            "disable one of them with --disable-plugin"
        )


class PluginRefused(PluginError):
    def __init__(self, plugin: str, *, reason: str) -> None:
        super().__init__(f"plugin {plugin} cannot be loaded: {reason}")


class PluginFailed(PluginError):
    """Plugin code raised. The sentence holds all an operator needs; the traceback is that of `__cause__`."""

    def __init__(
        self, plugin: str, *, process: str, phase: str, cause: BaseException, cure: str, point: str = ""
    ) -> None:
        kind = f"{point.removesuffix('s').replace('_', ' ')} " if point else "plugin "
        super().__init__(f"{kind}{plugin} failed in process {process!r} at {phase}: {error_text(cause)}; {cure}")
        self.plugin = plugin
        self.phase = phase


class PluginExits(PluginError):
    def __init__(self, *code: object, call: str = "sys.exit") -> None:
        super().__init__(
            f"it called {call}({', '.join(map(repr, code))}), and only graftlm ends its processes; raise an "
            "exception instead"
        )


class PluginCloses(PluginError):
    """`call` is what was kept from doing so; without it the descriptors are closed, and the process is lost."""

    def __init__(self, *arguments: object, call: str = "") -> None:
        did = (
            f"it called {call}({', '.join(map(repr, arguments))}), and nothing was closed"
            if call
            else "it closed file descriptors that it had not opened, and the process cannot go on without them"
        )
        super().__init__(f"{did}; close only what you opened")
        self.is_done = not call


class PluginRaises(PluginError):
    def __init__(self, error: BaseException) -> None:
        super().__init__(f"it raised {error_text(error)}, which is no Exception; raise one instead")


class LockDiffers(PluginError):
    def __init__(self, path: str, *, differences: Sequence[str]) -> None:
        lines = "\n  ".join(differences)
        super().__init__(
            f"--plugins-locked={path!r} does not hold for this installation:\n  {lines}\n"
            f"install what was locked, or lock what is installed with `graftlm plugins lock {path}`"
        )
        self.differences = tuple(differences)


class UnreadableLock(PluginError):
    def __init__(self, path: str, *, problem: str) -> None:
        super().__init__(f"--plugins-locked={path!r}: {problem}; `graftlm plugins lock {path}` writes one")


class InvalidSetting(PluginError):
    def __init__(self, text: str, *, problem: str) -> None:
        super().__init__(f"--plugin-config {text}: {problem}")


class UnresolvedPath(PluginError):
    def __init__(self, path: str, *, what: str, problem: str) -> None:
        super().__init__(f"{what} {path!r}: {problem}; write it as module:Class")
        self.path = path


class RegistryError(PluginError):
    """Anything a registry refuses."""


class DuplicateRegistration(RegistryError):
    def __init__(self, kind: str, key: str, *, holder: str, claimant: str) -> None:
        super().__init__(
            f"{kind} {key!r} is already registered by {holder}, and {claimant} registers another; "
            "pass replace=True to replace it on purpose"
        )


class LateRegistration(RegistryError):
    def __init__(self, kind: str, key: str, *, owner: str) -> None:
        super().__init__(
            f"{kind} {key!r} of {owner} comes too late: registries are frozen once the process is ready; "
            "register it in a general plugin, or publish it as an entry point"
        )


class NotReplayable(RegistryError):
    def __init__(self, kind: str, key: str, *, value: str, owner: str, by_hook: bool) -> None:
        self.by_hook = by_hook
        super().__init__(
            f"{kind} {key!r} was registered by {owner} as {value}, which other processes cannot import; "
            "register an importable module:attr, or register it in a general plugin"
        )


class UnknownKey(RegistryError, KeyError):
    def __init__(self, kind: str, key: str, *, known: Iterable[str]) -> None:
        known = list(known)
        near = nearest(key, known) or f"known are: {listing(known, none='none')}"
        super().__init__(f"unknown {kind} {key!r}; {near}")

    def __str__(self) -> str:
        return str(self.args[0])


class PlanDiffers(PluginError):
    def __init__(self, process: str, *, differences: Sequence[str]) -> None:
        lines = "\n  ".join(differences)
        super().__init__(
            f"process {process!r} does not have the plugins that the front end decided on:\n  {lines}\n"
            "start again after the installation has settled; a plugin must register the same in every process"
        )
        self.differences = tuple(differences)


class NoPluginHost(PluginError):
    def __init__(self) -> None:
        super().__init__(
            "no plugins were chosen in this process yet: call graftlm.platforms.bootstrap.bootstrap_frontend(), "
            "or in a child process apply_plan_in_child(), first"
        )
