"""What a process takes over from the one that starts it, and what libraries read of it while they are imported.

A fork of a warm parent has the parent's; where they are not those of the command that wants it, it would not be the
same as a fresh child. What a child is told afterwards (arguments, working directory, most variables) is no part.
"""

from __future__ import annotations

import contextlib
import os
import sys
from collections.abc import Mapping
from pathlib import Path

import msgspec

from graftlm import version
from graftlm.processes.interpreter import interpreter_flags

#: Variables, or their beginnings, that the loader, the interpreter or a library reads once.
_READ_ONCE = (
    "ATEN_", "BLIS_", "C10_", "COMPILE_STROBELIGHT_", "CUDA_", "DNNL_", "FX_", "GLIBC_TUNABLES", "GOMP_",
    "GRAFTLM_KERNELS_PATH", "HIP_", "ITT_", "KINETO_", "KMP_", "LANG", "LC_", "LD_", "MALLOC_", "MKL_", "MSGSPEC_",
    "NPY_", "NUMPY_", "NVIDIA_", "NVPL_", "OMP_", "ONEDNN_", "OPENBLAS_", "PYTHON", "PYTORCH_", "PYZMQ_", "ROCR_",
    "SETUPTOOLS_", "TMPDIR", "TORCH", "TRITON_", "TZ", "VECLIB_", "ZE_",
)  # fmt: skip
#: Of these, what a child is told again, or what is compared by its effect.
_TOLD_AGAIN = ("OMP_NUM_THREADS", "PYTHONPATH", "PYTHONDONTWRITEBYTECODE", "PYTHONUNBUFFERED")

_STATUS = (
    "Uid", "Gid", "Groups", "Umask", "CapInh", "CapPrm", "CapEff", "CapBnd", "CapAmb", "NoNewPrivs", "Seccomp",
    "Seccomp_filters", "Cpus_allowed_list", "Mems_allowed_list", "THP_enabled",
)  # fmt: skip
#: Files of /proc/self whose text a child takes over; not every kernel has each.
_KEPT_BY_THE_KERNEL = {
    "security label": "attr/current", "personality": "personality", "out-of-memory score": "oom_score_adj",
    "timer slack": "timerslack_ns",
}  # fmt: skip
_NAMESPACES = ("cgroup", "ipc", "mnt", "net", "pid", "user", "uts")


class Circumstances(msgspec.Struct, kw_only=True):
    """Facts by their name for people, as text; `search_path` is sys.path, in the system's bytes."""

    facts: dict[str, str]
    search_path: list[bytes]

    def differences(self, now: Circumstances) -> list[str]:
        """Say what is not as it was, name by name."""
        names = sorted(self.facts.keys() | now.facts.keys())
        return [
            f"{name} was {_shown(self.facts.get(name))} and is {_shown(now.facts.get(name))}"
            for name in names
            if self.facts.get(name) != now.facts.get(name)
        ]


def circumstances(environment_of_child: Mapping[str, str]) -> Circumstances:
    """Return those of a child that this process would start with these variables."""
    facts = {
        "graftlm": f"{version.__version__} in {Path(version.__file__).parent}",
        "python": f"{sys.version.split()[0]} in {sys.executable}",
        "the interpreter's flags": " ".join(interpreter_flags()),
        **{f"${name}": value for name, value in environment_of_child.items() if _is_read_once(name)},
        **_limits(),
        **_status(),
        **_namespaces(),
        "niceness": str(os.nice(0)),
        **_from_the_kernel(),
    }
    text = {_printable(name): _printable(value) for name, value in facts.items()}
    return Circumstances(facts=text, search_path=[os.fsencode(folder) for folder in sys.path])


def _printable(text: str) -> str:
    """Write bytes that are no UTF-8 as `\\udcff`: what can be told apart, shown and sent."""
    return text.encode(errors="backslashreplace").decode()


def _is_read_once(name: str) -> bool:
    return name.startswith(_READ_ONCE) and name not in _TOLD_AGAIN


def _limits() -> dict[str, str]:
    """Name -> soft and hard limit; the columns are of fixed width, since names have spaces."""
    lines = Path("/proc/self/limits").read_text().splitlines()[1:]
    return {f"limit {line[:26].strip()!r}": " ".join(line[26:].split()[:2]) for line in lines}


def _status() -> dict[str, str]:
    lines = Path("/proc/self/status").read_text().splitlines()
    fields = dict(line.split(":", 1) for line in lines if ":" in line)
    return {name: " ".join(fields[name].split()) for name in _STATUS if name in fields}


def _from_the_kernel() -> dict[str, str]:
    found = {"scheduling policy": f"{os.sched_getscheduler(0)} {os.sched_getparam(0).sched_priority}"}
    for name, file in _KEPT_BY_THE_KERNEL.items():
        with contextlib.suppress(OSError):
            found[name] = Path("/proc/self", file).read_text(errors="replace").strip("\0\n ")
    with contextlib.suppress(OSError, IndexError), Path("/proc/self/numa_maps").open() as mappings:
        found["memory policy"] = mappings.readline().split()[1]  # of the program, which has none of its own
    return found


def _namespaces() -> dict[str, str]:
    found = {f"{name} namespace": str(Path(f"/proc/self/ns/{name}").readlink()) for name in _NAMESPACES}
    return {**found, "root folder": str(Path("/proc/self/root").readlink())}


def _shown(value: str | None) -> str:
    return "unset" if value is None else repr(value)
