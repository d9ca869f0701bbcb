"""What the built-in detectors and the CPU platform read from the machine."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from graftlm.config.engine_config import EngineConfig
from graftlm.platforms import detectors, memory
from graftlm.platforms.cpu import CpuPlatform


@pytest.fixture
def machine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty machine to put devices into."""
    monkeypatch.setattr(detectors, "_ROOT", tmp_path)
    for name in ("CUDA_VISIBLE_DEVICES", "TPU_NAME"):
        monkeypatch.delenv(name, raising=False)
    return tmp_path


def touch(path: Path, text: str = "") -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)


def test_a_machine_without_devices_has_a_cpu_only(machine) -> None:
    """Each detector says what it looked for."""
    answers = {
        d.__name__: d() for d in (detectors.tpu, detectors.cuda, detectors.rocm, detectors.xpu, detectors.cpu)
    }

    assert [name for name, a in answers.items() if a.seen] == ["cpu"]
    assert all(a.reason for a in answers.values())


def test_devices_are_seen_and_reported(machine) -> None:
    """tpu, rocm and xpu need a plugin; cuda is ours, experimental."""
    touch(machine / "dev/accel0")
    touch(machine / "dev/kfd")
    touch(machine / "dev/nvidia0")
    touch(machine / "sys/class/drm/renderD128/device/vendor", "0x8086\n")

    for detector in (detectors.tpu, detectors.rocm, detectors.xpu):
        answer = detector()
        assert (answer.seen, answer.class_path) == (True, None)
        assert f"a plugin can provide the {detector.__name__} platform" in answer.reason
    cuda = detectors.cuda()
    assert cuda.experimental
    assert "--platform cuda" in cuda.reason


def test_hidden_gpus_are_not_seen(machine, monkeypatch) -> None:
    """CUDA_VISIBLE_DEVICES= is the usual way to say no."""
    touch(machine / "dev/nvidia0")
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "")

    assert not detectors.cuda().seen


def test_memory_is_the_tightest_limit_above_the_process(tmp_path, monkeypatch) -> None:
    """The machine's memory, a container's limit, minus what is in use; droppable file cache counts as free."""
    touch(tmp_path / "meminfo", "MemTotal: 1000 kB\nMemFree: 1 kB\nMemAvailable: 800 kB\n")
    touch(tmp_path / "cgroup", "0::/pod/box\n")
    touch(tmp_path / "fs/pod/memory.max", "512000\n")
    touch(tmp_path / "fs/pod/memory.current", "300000\n")
    touch(tmp_path / "fs/pod/memory.stat", "anon 1\ninactive_file 100000\n")
    touch(tmp_path / "fs/pod/box/memory.max", "max\n")
    monkeypatch.setattr(memory, "_MEMINFO", tmp_path / "meminfo")
    monkeypatch.setattr(memory, "_OWN_GROUP", tmp_path / "cgroup")
    monkeypatch.setattr(memory, "_GROUPS", tmp_path / "fs")

    assert memory.total_bytes() == 512000
    assert memory.available_bytes() == 312000

    touch(tmp_path / "cgroup", "4:cpu,memory:/box\n")
    touch(tmp_path / "fs/memory/box/memory.limit_in_bytes", "400000\n")
    touch(tmp_path / "fs/memory/box/memory.usage_in_bytes", "100000\n")
    assert memory.available_bytes() == 300000
    touch(tmp_path / "cgroup", "")
    assert (memory.total_bytes(), memory.available_bytes()) == (1000 * 1024, 800 * 1024)


def test_the_cpu_platform_knows_this_machine() -> None:
    """Its hooks answer without torch, and the user's worker class wins."""
    config = EngineConfig()
    CpuPlatform.check_and_update_config(config)
    assert config.parallel.worker_cls == "graftlm.worker.cpu_worker:CpuWorker"
    config.parallel.worker_cls = "mine:Worker"
    CpuPlatform.check_and_update_config(config)

    assert config.parallel.worker_cls == "mine:Worker"
    assert 0 < CpuPlatform.get_available_memory() <= CpuPlatform.get_device_total_memory()
    assert CpuPlatform().is_cpu()


def test_missing_kernels_are_named_once(monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture) -> None:
    """In the process that configures, with the cure; nothing is said where they are installed."""
    for found, times in ((object(), 0), (None, 1)):
        monkeypatch.setattr("graftlm.platforms.cpu.find_spec", lambda name, found=found: found)
        caplog.clear()
        CpuPlatform.check_and_update_config(EngineConfig())

        assert caplog.text.count("graftlm-kernels is not installed") == times
        assert caplog.text.count("make install") == times


def run_python(code: str, path: Path) -> str:
    """Run code in a fresh interpreter with `path` first on sys.path."""
    program = f"import sys; sys.path.insert(0, {str(path)!r})\n{code}"
    result = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=60)
    assert result.returncode == 0, result.stderr
    return result.stdout.strip()


def test_importing_graftlm_resolves_nothing_and_imports_neither_plugins_nor_torch(site) -> None:
    """In a fresh interpreter with a plugin installed; the first use of current_platform then decides."""
    source = """
        import graftlm.plugins
        from graftlm.contracts.platform import Platform
        class Npu(Platform):
            device_name = "npu"
        def detect():
            return "acme:Npu"
    """
    site.add("acme", {"platform_plugins": {"npu": "acme:detect"}}, source=source)
    code = """
import graftlm, graftlm.plugins, graftlm.platforms, graftlm.contracts.points
from graftlm.plugins import find_host
before = [m for m in ("acme", "torch", "importlib.metadata") if m in sys.modules]
assert find_host() is None
from graftlm.platforms import current_platform
print(before, current_platform.device_name, "torch" in sys.modules)
"""

    assert run_python(code, site.folder()) == "[] npu False"


def test_a_child_before_its_plan_gets_an_error_instead_of_a_second_detection(tmp_path) -> None:
    """Where the main module is the engine's child, only the plan decides."""
    code = """
import types
sys.modules["__main__"].__spec__ = types.SimpleNamespace(name="graftlm.processes.child")
try:
    from graftlm.platforms import current_platform
except Exception as error:
    print(type(error).__name__, "before its plan" in str(error))
"""

    assert run_python(code, tmp_path) == "PlatformUnresolved True"
