"""The built-in detectors: what the machine has, seen in /dev, /sys, /proc and the environment; import no torch.

Each is an entry point of `graftlm.platform_plugins` and is called once per server, in the front end.
"""

from __future__ import annotations

import importlib.util
import os
from pathlib import Path

import msgspec

_ROOT = Path("/")


class Detection(msgspec.Struct, frozen=True, kw_only=True):
    """A detector's full answer; plugins may return it instead of a bare class path.

    `seen` without `class_path`: the device is there and something else must provide the platform. `experimental`:
    taken only when --platform names it. `last_resort`: taken when no other platform answers.
    """

    class_path: str | None = None
    reason: str = ""
    seen: bool = False
    experimental: bool = False
    last_resort: bool = False


def tpu() -> Detection:
    """Look for Google TPUs."""
    devices = _names("dev", "accel*") or (_names("dev/vfio", "[0-9]*") if "TPU_NAME" in os.environ else [])
    if not devices:
        return Detection(reason="no /dev/accel*")
    library = "libtpu is installed" if importlib.util.find_spec("libtpu") else "libtpu is not installed"
    return _needs_plugin("tpu", f"{devices[0]}, {library}")


def cuda() -> Detection:
    """Look for NVIDIA GPUs."""
    if os.environ.get("CUDA_VISIBLE_DEVICES", "all").strip() in ("", "-1"):
        return Detection(reason="CUDA_VISIBLE_DEVICES hides all GPUs")
    devices = _names("dev", "nvidia[0-9]*") or _names("proc/driver/nvidia/gpus", "*")
    if not devices:
        return Detection(reason="no /dev/nvidia[0-9]*")
    return Detection(
        class_path="graftlm.platforms.cuda:CudaPlatform",
        reason=f"{len(devices)} NVIDIA GPU(s), {devices[0]}; experimental, choose it with --platform cuda",
        seen=True,
        experimental=True,
    )


def rocm() -> Detection:
    """Look for AMD GPUs."""
    if not (_ROOT / "dev/kfd").exists():
        return Detection(reason="no /dev/kfd")
    return _needs_plugin("rocm", "/dev/kfd")


def xpu() -> Detection:
    """Look for Intel GPUs."""
    for device in _names("sys/class/drm", "renderD*"):
        vendor = Path(device) / "device" / "vendor"
        if vendor.is_file() and vendor.read_text().strip() == "0x8086":
            return _needs_plugin("xpu", f"an Intel GPU at {device}")
    return Detection(reason="no Intel GPU in /sys/class/drm")


def cpu() -> Detection:
    """Every machine has one."""
    return Detection(
        class_path="graftlm.platforms.cpu:CpuPlatform", reason="every machine has one", seen=True, last_resort=True
    )


def _needs_plugin(name: str, what: str) -> Detection:
    return Detection(reason=f"{what} seen; a plugin can provide the {name} platform", seen=True)


def _names(folder: str, pattern: str) -> list[str]:
    place = _ROOT / folder
    return sorted(str(path) for path in place.glob(pattern)) if place.is_dir() else []
