"""The conformance suite of platforms and their detectors; no device is needed to run it."""

from __future__ import annotations

import inspect
import time
from typing import Any, ClassVar

from graftlm.config.engine_config import EngineConfig
from graftlm.contracts.platform import AttentionQuestion, Platform, PlatformKind
from graftlm.contracts.points import ATTENTION_BACKENDS, COMMUNICATORS, WORKERS
from graftlm.platforms.detectors import Detection
from graftlm.plugins import ExtensionPoint
from graftlm.plugins.named import load_named
from graftlm.plugins.resolve import path_of, resolve_class_path
from graftlm.testing.elsewhere import Elsewhere
from graftlm.testing.host import FakeDistribution, plugin_host
from graftlm.testing.suite import NotDeclared, Suite

_QUICK_S = 5.0  # with room for a machine that is busy with something else
_POINTS: dict[str, ExtensionPoint[Any]] = {
    "worker_cls": WORKERS, "get_device_communicator_cls": COMMUNICATORS, "get_attn_backend_cls": ATTENTION_BACKENDS,
}  # fmt: skip
_HOOKS = (
    "pre_register_and_update", "apply_config_platform_defaults", "check_and_update_config",
    "register_triton_kernel_overrides", "set_device", "get_device_communicator_cls", "get_attn_backend_cls",
    "update_block_size_for_backend", "get_device_name", "get_device_total_memory", "get_available_memory",
    "get_cpu_architecture", "verify_model_arch", "verify_quantization",
)  # fmt: skip


class PlatformConformance(Suite):
    """Subclass it with `subject` naming a Platform class, and `detector` naming what the entry point names.

    `distributions` are those whose plugins the platform needs beside it, such as its own.
    """

    contract = "graftlm.contracts.platform.Platform"
    detector: ClassVar[Any] = None
    distributions: ClassVar[tuple[str | FakeDistribution, ...]] = ()
    #: What the detector must not cost; it asks the driver, it does not start the device.
    detector_limit_s: ClassVar[float] = _QUICK_S

    def test_it_is_a_platform_class(self) -> None:
        """A subclass of Platform that is constructed without arguments; outside of the engine its kind is OOT."""
        cls = self.load()
        self.require(isinstance(cls, type) and issubclass(cls, Platform), f"it is {cls!r}")
        self.require(isinstance(cls(), Platform), "it cannot be constructed without arguments")
        ours = cls.__module__.partition(".")[0] == "graftlm"
        self.require(
            ours or cls.kind is PlatformKind.OOT, f"its kind is {cls.kind!r}; write kind = PlatformKind.OOT"
        )

    def test_its_facts_are_of_the_right_type(self) -> None:
        """Names are strings, lists of names are tuples of strings, and the op method is one that ops may have."""
        cls = self.load()
        for name in ("device_name", "device_type", "dist_backend", "op_method"):
            value = getattr(cls, name)
            self.require(isinstance(value, str) and bool(value), f"{name} is {value!r}")
        self.require(cls.device_name != Platform.device_name, "device_name is not set")
        self.require(cls.op_method.startswith("forward_"), f"op_method is {cls.op_method!r}, not forward_…")
        for name in ("op_providers", "supported_quantization", "supported_dtypes"):
            value = getattr(cls, name)
            plain = isinstance(value, tuple) and all(isinstance(item, str) for item in value)
            self.require(plain, f"{name} is {value!r}, not a tuple of strings")
        self.require(bool(cls.supported_dtypes), "supported_dtypes is empty; the first one is the fallback")

    def test_hooks_can_be_called_as_the_engine_calls_them(self) -> None:
        """An overridden hook takes the contract's arguments, under any name of its own, and is a classmethod."""
        for name in _HOOKS:
            ours: Any = getattr(Platform, name)
            theirs: Any = getattr(self.load(), name, None)
            self.require(callable(theirs), f"{name} is {theirs!r}")
            arguments = [object() for _ in inspect.signature(ours).parameters]
            try:
                inspect.signature(theirs).bind(*arguments)
            except TypeError as error:
                self.fail(f"{name} cannot be called as the engine does: {error}")

    def test_it_imports_no_torch(self) -> None:
        """Its module, and its detector, are imported and used in the front end, which has no torch."""
        facts = self._elsewhere()
        self.require(
            not facts["torch"], f"importing {facts['torch']} imports torch; import it inside hooks of workers"
        )

    def test_every_process_sees_the_same_facts(self) -> None:
        """The class, its facts and the detector's answer do not depend on the process or its hash seed."""
        theirs, ours = self._elsewhere(), facts_of(self.subject_path(), self._detector_path())
        for name, value in ours.items():
            if name != "torch":
                self.require(
                    theirs[name] == value, f"{name} is {value!r} here and {theirs[name]!r} in another process"
                )

    def test_the_detector_is_pure_and_quick(self) -> None:
        """Called once per server: it names the platform's class or declines, quickly, and always alike."""
        detector = self._detector()
        started = time.perf_counter()
        answer = detector()
        seconds = time.perf_counter() - started
        first = _detection(answer)
        self.require(first is not None, f"the detector answers {answer!r}: a class path, None or a Detection")
        self.require(seconds < self.detector_limit_s, f"the detector takes {seconds:.1f} s")
        self.require(_detection(detector()) == first, "the detector's second answer differs from its first")
        assert first is not None
        if first.class_path is None:
            raise NotDeclared(f"its detector sees no device here ({first.reason or 'no reason given'})")
        found = resolve_class_path(first.class_path, what="the detector's answer")
        self.require(found is self.load(), f"the detector names {first.class_path}, not this class")

    def test_configuration_hooks_are_idempotent(self) -> None:
        """Configuring again changes nothing more; what the user set stays; a worker class is named."""
        with self._host():
            config = EngineConfig()
            config.model.hf_config = {"num_attention_heads": 4, "hidden_size": 64, "num_hidden_layers": 2}
            with config.stage("user"):
                config.compilation.custom_ops = ["none"]
            self._hook("apply_config_platform_defaults", config)
            self.require(
                list(config.compilation.custom_ops) == ["none"], "its defaults overwrite the user's custom_ops"
            )
            self._hook("check_and_update_config", config)
            first = config.to_bytes()
            self._hook("apply_config_platform_defaults", config)
            self._hook("check_and_update_config", config)
            self.require(config.to_bytes() == first, "the configuration hooks change more when they run again")
            worker_cls = config.parallel.worker_cls
            self.require(worker_cls != "auto", "check_and_update_config leaves worker_cls 'auto'")
            self._resolve(worker_cls, what="worker_cls")

    def test_named_classes_exist(self) -> None:
        """The communicator and the attention backend that it names can be imported and are what they should be."""
        from graftlm.contracts.attention import AttentionBackend
        from graftlm.contracts.communicator import DeviceCommunicator

        with self._host():
            cls = self.load()
            communicator = self._resolve(
                self._hook("get_device_communicator_cls"), what="get_device_communicator_cls"
            )
            good = isinstance(communicator, type) and issubclass(communicator, DeviceCommunicator)
            self.require(good, f"get_device_communicator_cls names {communicator!r}")
            question = AttentionQuestion(4, 2, 64, cls.supported_dtypes[0], cls.supported_dtypes[0], None)
            answer = self._hook("get_attn_backend_cls", None, question)
            self.require(isinstance(answer, str) and bool(answer), f"get_attn_backend_cls answers {answer!r}")
            self.require(
                self._hook("get_attn_backend_cls", None, question) == answer,
                "an equal question gets another answer",
            )
            backend = self._resolve(answer, what="get_attn_backend_cls")
            good = isinstance(backend, type) and issubclass(backend, AttentionBackend)
            self.require(good, f"get_attn_backend_cls names {backend!r}")
            self.require(backend.supports(question) is None, f"{answer} refuses it: {backend.supports(question)}")

    def test_the_block_size_suits_its_backend(self) -> None:
        """`update_block_size_for_backend` returns a size that every backend accepts; the user's choice wins."""
        with self._host():
            cls = self.load()
            question = AttentionQuestion(4, 2, 64, cls.supported_dtypes[0], cls.supported_dtypes[0], None)
            backend = self._resolve(self._hook("get_attn_backend_cls", None, question))
            sizes = backend.supported_block_sizes()
            chosen = self._hook("update_block_size_for_backend", EngineConfig(), [backend])
            self.require(chosen in sizes, f"it returns {chosen!r}, and {backend.name} accepts {sizes}")
            config = EngineConfig()
            config.cache.block_size = sizes[-1]
            chosen = self._hook("update_block_size_for_backend", config, [backend])
            self.require(chosen == sizes[-1], f"the user chose {sizes[-1]}, and it returns {chosen!r}")

    def test_memory_is_counted_in_bytes(self) -> None:
        """Total and available memory are whole numbers of bytes, and no more is available than there is."""
        with self._host():
            total, available = self._hook("get_device_total_memory"), self._hook("get_available_memory")
            self.require(type(total) is int and total > 1 << 20, f"get_device_total_memory returns {total!r}")
            self.require(
                type(available) is int and 0 <= available <= total,
                f"get_available_memory returns {available!r} of {total}",
            )

    def _hook(self, name: str, *args: Any) -> Any:
        """Call a hook of the class under test; one that raises breaks the contract."""
        try:
            return getattr(self.load(), name)(*args)
        except Exception as error:
            self.fail(f"{name} raises {type(error).__name__}: {error}")

    def _resolve(self, named: str, *, what: str = "get_attn_backend_cls") -> Any:
        """Import what a hook names: a class path, or the name of an entry point of that kind."""
        try:
            return load_named(_POINTS[what], named, what=what)
        except Exception as error:
            self.fail(f"{what} names {named!r}, which cannot be imported: {type(error).__name__}: {error}")

    @classmethod
    def _detector(cls) -> Any:
        found = cls.detector
        if found is None:
            raise NotDeclared("the suite names no detector; set `detector = 'package:function'`")
        return resolve_class_path(found, what=f"{cls.__name__}.detector") if isinstance(found, str) else found

    @classmethod
    def _detector_path(cls) -> str | None:
        return path_of(cls._detector()) if cls.detector is not None else None

    def _elsewhere(self) -> dict[str, Any]:
        """The facts as a fresh interpreter sees them, which has imported nothing else."""
        other = Elsewhere(hash_seed=5)
        try:
            facts: dict[str, Any] = other.call(
                "graftlm.testing.conformance.platform:facts_of", self.subject_path(), self._detector_path()
            )
        finally:
            other.close()
        return facts

    def _host(self) -> Any:
        """A host whose platform is this class."""
        ours = self.load().__module__.partition(".")[0] == "graftlm"
        if ours and self.load().kind is PlatformKind.CPU:
            return plugin_host(*self.distributions)
        _Chosen.path = path_of(self.load()) or ""
        chosen = FakeDistribution(
            "conformance",
            {"platform_plugins": {"under_test": "graftlm.testing.conformance.platform:_Chosen.detect"}},
        )
        return plugin_host(chosen, *self.distributions, platform="under_test")


class _Chosen:
    """A detector that names the class under test."""

    path: ClassVar[str] = ""

    @staticmethod
    def detect() -> str:
        return _Chosen.path


def facts_of(path: str, detector: str | None) -> dict[str, Any]:
    """Return what can be seen of a platform and its detector; "torch" names the path that imported it."""
    import sys

    had_torch, guilty = "torch" in sys.modules, ""
    cls = resolve_class_path(path)
    if "torch" in sys.modules and not had_torch:
        guilty, had_torch = path, True
    facts: dict[str, Any] = {
        name: getattr(cls, name)
        for name in ("device_name", "device_type", "op_method", "op_providers", "dist_backend", "supported_dtypes",
                     "supported_quantization")
    }  # fmt: skip
    with plugin_host():  # what is installed beside it may be preferred, and must be the same in both processes
        facts |= {"kind": str(cls.kind), "communicator": cls.get_device_communicator_cls()}
    facts["detector"] = repr(_detection(resolve_class_path(detector)())) if detector else None
    if "torch" in sys.modules and not had_torch:
        guilty = detector or path
    return {**facts, "torch": guilty}


def _detection(answer: Any) -> Detection | None:
    """Return a detector's answer in full, or None if it is none of the allowed ones."""
    match answer:
        case None:
            return Detection()
        case str():
            return Detection(class_path=answer)
        case Detection():
            return answer
        case (str() | None as path, str() as reason):
            return Detection(class_path=path, reason=reason)
    return None
