"""Asks every detector once and decides on the platform; front end only. Does not know any platform by name."""

from __future__ import annotations

import logging
import time
from typing import Any

import msgspec

from graftlm.contracts.platform import Platform
from graftlm.contracts.points import PLATFORM_PLUGINS
from graftlm.platforms.current import keep_platform
from graftlm.platforms.detectors import Detection
from graftlm.platforms.errors import (
    LeftOutPlatform,
    NoPlatform,
    PlatformFailed,
    PlatformNotSeen,
    SeveralPlatforms,
    WrongPlatformClass,
)
from graftlm.plugins import AmbiguousPlugin, Plugin, PluginFailed, SelectionConflict, UnknownPlugin, calling
from graftlm.plugins.host import PluginHost
from graftlm.plugins.plan import PlatformChoice
from graftlm.plugins.resolve import resolve_class_path
from graftlm.plugins.selection import LEFT_OUT
from graftlm.plugins.slow_calls import calling_at_start, told_when_slow
from graftlm.plugins.spelling import encodable, error_text, kind_of

logger = logging.getLogger(__name__)


#: What a detector said that gave no reason.
ANSWERED, DECLINED = "its detector answered", "its detector declined"


class Answer(msgspec.Struct, frozen=True):
    """What one detector said, and how long it took to import and ask it."""

    plugin: Plugin
    detection: Detection

    @property
    def offers(self) -> bool:
        return self.detection.class_path is not None and not self.detection.experimental


def decide(host: PluginHost, *, name: str | None, allow_fallback: bool) -> None:
    """Choose the platform (by `name` if given), make its object, and put both into the host and its plan."""
    search = _Search(host, name, allow_fallback=allow_fallback)
    answer = search.choose()
    while (platform := search.load(answer)) is None:
        answer = search.best()
    plugin, detection = answer.plugin, answer.detection
    path = detection.class_path or ""
    keep_platform(host, platform)
    host.choose_platform(
        PlatformChoice(
            name=plugin.name, distribution=plugin.distribution, version=plugin.version, class_path=path,
            reason=detection.reason or ANSWERED, built_in=plugin.built_in,
        )
    )  # fmt: skip
    host.active(plugin, reason=detection.reason or ANSWERED)
    search.tell_the_losers(winner=plugin)
    host.ledger.record("platform_activated", plugin=plugin.label, name=plugin.name, class_path=path)
    logger.info("Platform plugin %s is activated", plugin.name)
    if detection.last_resort and name is None:
        search.tell_what_was_seen(serving_on=plugin.name)


def load_platform(class_path: str, plugin: Plugin | str) -> Platform:
    """Import a platform class and make its one object of this process."""
    with calling_at_start(plugin, "import"):
        found = resolve_class_path(class_path, what="platform class")
        if not (isinstance(found, type) and issubclass(found, Platform)):
            raise WrongPlatformClass(class_path, found=found)
        return found()


class _Search:
    """One decision: the flags it obeys, and the answers it got."""

    def __init__(self, host: PluginHost, name: str | None, *, allow_fallback: bool) -> None:
        self.host = host
        self.name = name
        self.allow_fallback = allow_fallback
        self.answers: list[Answer] = []

    def choose(self) -> Answer:
        if self.name is not None:
            return self._named(self.name)
        for decision in self.host.decisions:
            if decision.plugin.point == PLATFORM_PLUGINS.name and decision.state == "refused":
                self._lose(decision.plugin, f"cannot be loaded: {decision.reason}", None)
        for plugin in self.host.plugins(PLATFORM_PLUGINS):
            self._ask(plugin)
        for decision in self.host.decisions:
            if decision.plugin.point == PLATFORM_PLUGINS.name and decision.reason == LEFT_OUT:
                self._ask_left_out(decision.plugin)
        return self.best()

    def best(self) -> Answer:
        """Out of tree before built in, any device before the last resort; two of one rank are an error."""
        offers = [a for a in self.answers if a.offers]
        for rank in (
            [a for a in offers if not a.plugin.built_in],
            [a for a in offers if not a.detection.last_resort],
            offers,
        ):
            if len(rank) > 1:
                names = [a.plugin.name for a in rank]
                raise SeveralPlatforms(names if len({*names}) == len(names) else [a.plugin.label for a in rank])
            if rank:
                return rank[0]
        raise NoPlatform([f"{a.plugin.name}: {a.detection.reason or 'no'}" for a in self.answers])

    def load(self, answer: Answer) -> Platform | None:
        """Make the platform's object; None when it failed and another one may be taken."""
        path = answer.detection.class_path or ""
        try:
            return load_platform(path, answer.plugin)
        except Exception as error:
            self.host.failed(answer.plugin, phase=f"import of {path}", cause=error)
            self._lose(answer.plugin, f"failed at import of {path}: {error_text(error)}", error)
            self.answers.remove(answer)
            return None

    def tell_the_losers(self, *, winner: Plugin) -> None:
        """Say in the outcome of each other platform that could have served which one was taken."""
        for answer in self.answers:
            if answer.offers and answer.plugin.identity != winner.identity:
                outcome = self.host.outcomes[answer.plugin.identity]
                outcome.reason = f"{outcome.reason}; {winner.name} was taken"

    def tell_what_was_seen(self, *, serving_on: str) -> None:
        for answer in self.answers:
            if answer.detection.seen and not answer.offers:
                logger.info(
                    "platform_seen name=%s serving_on=%s: %s",
                    answer.plugin.name,
                    serving_on,
                    answer.detection.reason,
                )

    def _named(self, name: str) -> Answer:
        plugin = self._find(name)
        for other in self.host.plugins(PLATFORM_PLUGINS):
            if other.identity != plugin.identity:
                self.host.outcomes.setdefault(other.identity, self.host.idle(f"not asked: --platform {name}"))
        self._ask(plugin)
        answer = self.answers[0]
        if answer.detection.class_path is None:
            raise PlatformNotSeen(name, plugin=plugin.description, reason=answer.detection.reason)
        return answer

    def _find(self, name: str) -> Plugin:
        here = [d for d in self.host.decisions if d.plugin.point == PLATFORM_PLUGINS.name]
        found = [d for d in here if d.plugin.answers_to(name)]
        if not found:
            raise UnknownPlugin(name, where="--platform", known=[d.plugin.name for d in here])
        if len(found) > 1:
            raise AmbiguousPlugin(name, where="--platform", candidates=[d.plugin.label for d in found])
        decision = found[0]
        if decision.enabled:
            return decision.plugin
        if decision.state == "refused":
            raise PlatformFailed(
                f"--platform {name}: plugin {decision.plugin.description} cannot be loaded: {decision.reason}"
            )
        if decision.reason != LEFT_OUT:
            raise SelectionConflict(
                f"--platform {name} names a plugin that is disabled ({decision.reason})",
                cure="drop one of the flags",
            )
        return self.host.enable(decision.plugin, reason=f"--platform {name}")

    def _ask(self, plugin: Plugin) -> None:
        started = time.perf_counter()
        try:
            detection = self._call(plugin)
        except Exception as error:
            cause = _cause(error)
            self._record(plugin, None, f"raised {error_text(cause)}", started)
            self.host.failed(plugin, phase="platform detection", cause=cause)
            self._lose(plugin, f"failed at platform detection: {error_text(cause)}", cause)
            return
        self._record(plugin, detection.class_path, detection.reason, started)
        ms = (time.perf_counter() - started) * 1000
        said = detection.reason or (DECLINED if detection.class_path is None else ANSWERED)
        self.host.outcomes[plugin.identity] = self.host.idle(said, ms=ms)
        self.answers.append(Answer(plugin, detection))

    def _ask_left_out(self, plugin: Plugin) -> None:
        started = time.perf_counter()
        try:
            detection = self._call(plugin)
        except Exception as error:
            cause = _cause(error)
            self._record(plugin, None, f"raised {error_text(cause)}", started)
            logger.warning("platform_left_out_failed plugin=%s error=%r", plugin.label, cause)
            return
        self._record(plugin, detection.class_path, detection.reason, started)
        if detection.class_path is not None and not detection.experimental:
            raise LeftOutPlatform(plugin.name, plugin=plugin.description)

    def _call(self, plugin: Plugin) -> Detection:
        detector = self.host.load_plugin(plugin)
        with calling(plugin, "platform detection"):
            if not callable(detector):
                raise TypeError(f"{plugin.value} is {kind_of(detector)}, and a detector must be callable")
            with told_when_slow():
                answer = as_detection(detector(), plugin)
            return msgspec.structs.replace(answer, reason=encodable(answer.reason))

    def _record(self, plugin: Plugin, answer: str | None, reason: str, started: float) -> None:
        ms = round((time.perf_counter() - started) * 1000, 2)
        self.host.ledger.record(
            "detector_called", plugin=plugin.label, name=plugin.name, answer=answer, reason=reason, ms=ms
        )

    def _lose(self, plugin: Plugin, problem: str, cause: BaseException | None) -> None:
        """A platform plugin is lost: stop, unless the flags allow another device."""
        text = f"platform plugin {plugin.description} {problem}"
        if self.name is not None or not self.allow_fallback:
            cure = "--platform cpu or --allow-platform-fallback serves without it"
            raise PlatformFailed(f"{text}; update or uninstall {plugin.distribution}, or {cure}") from cause
        logger.warning("platform_plugin_lost %s; taking the next best platform", text)


def _cause(error: Exception) -> BaseException:
    """What a detector raised, without the frame that loading it put around."""
    return error.__cause__ if isinstance(error, PluginFailed) and error.__cause__ is not None else error


def as_detection(answer: Any, plugin: Plugin) -> Detection:
    """Read a detector's answer in any of its forms; TypeError for what is none."""
    match answer:
        case Detection():
            return answer
        case None | str():
            return Detection(class_path=answer or None, reason="" if answer else DECLINED)
        case (None | str() as path, str() as reason):
            return Detection(class_path=path or None, reason=reason)
    raise TypeError(
        f"detector {plugin.value} returned {answer!r}; it must return None, a class path, "
        "(class path or None, reason) or a graftlm.platforms.Detection"
    )
