"""Facts about this machine and this Python, read from the system and from package metadata.

It imports none of the packages whose versions it tells, and knows nothing of platforms or plugins.
"""

from __future__ import annotations

import os
import platform
import shutil
import sys
from importlib import metadata
from pathlib import Path
from typing import Any

from graftlm.processes.threads import thread_environment, usable_cores

_PACKAGES = (
    "torch", "numpy", "safetensors", "huggingface_hub", "tokenizers", "jinja2", "fastapi", "uvicorn", "uvloop",
    "httptools", "pydantic", "pyzmq", "msgspec", "prometheus-client", "rich", "pyyaml", "triton", "transformers",
)  # fmt: skip
_CPU_FLAGS = ("fma", "f16c", "avx2", "avx_vnni", "avx512f", "avx512_vnni", "avx512_bf16", "amx_int8", "amx_bf16",
              "asimd", "asimddp", "i8mm", "bf16", "sve")  # fmt: skip
_MIB = 2**20


def python_facts() -> dict[str, Any]:
    return {
        "python": f"{platform.python_implementation()} {platform.python_version()}",
        "executable": sys.executable,
        "installed_at": str(Path(__file__).parents[1]),
    }


def machine_facts() -> dict[str, Any]:
    cpu = _cpu_info()
    return {
        "system": f"{platform.system()} {platform.release()}",
        "distribution": _distribution(),
        "architecture": platform.machine(),
        "cpu": cpu.get("model name") or platform.processor() or None,
        "cpu_features": " ".join(f for f in _CPU_FLAGS if f in _features(cpu)) or None,
        "cores": os.cpu_count(),
        "usable_cores": usable_cores(),
        "libc": " ".join(platform.libc_ver()).strip() or None,
        "compiler": shutil.which("c++") or shutil.which("g++") or shutil.which("clang++"),
    }


def memory_facts() -> dict[str, Any]:
    lines = dict(line.split(":", 1) for line in _read("/proc/meminfo").splitlines() if ":" in line)

    def mib(key: str) -> int | None:
        return int(lines[key].split()[0]) // 1024 if key in lines else None

    limit = _read("/sys/fs/cgroup/memory.max").strip()
    shared = shutil.disk_usage("/dev/shm") if Path("/dev/shm").is_dir() else None
    return {
        "total_mib": mib("MemTotal"),
        "available_mib": mib("MemAvailable"),
        "swap_free_mib": mib("SwapFree"),
        "container_limit_mib": int(limit) // _MIB if limit.isdecimal() else None,
        "shared_memory_free_mib": shared.free // _MIB if shared else None,
    }


def thread_facts() -> dict[str, Any]:
    """The thread variables as set here, and what one worker would get."""
    names = ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS", "TOKENIZERS_PARALLELISM")
    return {name: os.environ[name] for name in names if name in os.environ} | {
        "one_worker_gets": int(thread_environment(1, None)["OMP_NUM_THREADS"])
    }


def package_versions() -> dict[str, str | None]:
    return {name: version for name in _PACKAGES if (version := _version(name)) is not None}


def _version(name: str) -> str | None:
    try:
        return metadata.version(name)
    except metadata.PackageNotFoundError:
        return None


def _cpu_info() -> dict[str, str]:
    first = _read("/proc/cpuinfo").split("\n\n")[0]
    pairs = (line.partition(":") for line in first.splitlines())
    return {key.strip(): value.strip() for key, _, value in pairs}


def _features(cpu: dict[str, str]) -> set[str]:
    return set((cpu.get("flags") or cpu.get("Features") or "").split())


def _distribution() -> str | None:
    try:
        return platform.freedesktop_os_release().get("PRETTY_NAME")
    except OSError:
        return None


def _read(path: str) -> str:
    try:
        return Path(path).read_text()
    except OSError:
        return ""
