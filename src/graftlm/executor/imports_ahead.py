"""Imports what a process that computes will need while it waits for its plan: nothing that asks for the platform.

Nearly all of a cold start is the import of torch, and much of that can be had for less. Its library is linked in a
thread (`processes/linking.py`), beside imports that need no torch; and code for compilers and exporters is left to
whoever touches it (`plugins/deferred_imports.py`).
"""

from __future__ import annotations

import contextlib
import gc
import importlib
import importlib.util
import inspect
import sys
from collections.abc import Iterable, Iterator
from pathlib import Path

import msgspec

from graftlm.plugins.deferred_imports import deferring
from graftlm.processes.child import without_collections
from graftlm.processes.linking import start_linking
from graftlm.processes.startup_trace import add_span, span

#: In this order: what is asked for besides comes last, since it brings libraries that wait for torch's.
_WITHOUT_TORCH = (
    "importlib.metadata", "graftlm.platforms.bootstrap", "graftlm.models.registry", "graftlm.scheduler",
    "concurrent.futures", "urllib.request", "unittest",
)  # fmt: skip
_WITH_TORCH = ("graftlm.models.loader", "graftlm.ops.sampling", "graftlm.worker.input_batch")

#: Parts of torch that serving does not touch. `_meta_registrations` tells compilers what shapes ops give; the
#: others are an exporter, the older ways to quantize, masked tensors, probability distributions, data sets, a
#: profiler, a compiler, nested tensors, and functions that transform functions.
_SELDOM_USED = (
    "torch._meta_registrations", "torch.export", "torch.quantization", "torch.ao", "torch.nn.intrinsic",
    "torch.nn.qat", "torch.nn.quantizable", "torch.nn.quantized", "torch.masked", "torch.distributions",
    "torch.utils.data", "torch.profiler", "torch.compiler", "torch.nn.attention", "torchgen.model",
    "torch.nested", "torch.func", "torch._higher_order_ops",
)  # fmt: skip
#: Functions of theirs that torch shows under names of its own.
_SHOWN_BY_IT = {"torch.func": ("vmap",), "torch._higher_order_ops": ("cond", "while_loop")}
#: What only those parts use of Python's own library, or functions of torch that serving does not call.
_SELDOM_USED_BY_IT = ("ssl", "unittest.mock", "tarfile", "pickletools", "difflib")
#: What serving imports of torch later on: whoever imports any more of it then gets the seldom used parts, too.
_LATER = ("torch.utils._device",)
#: Two modules of torch that ask `inspect` about a line of theirs. It would look at the files of all modules for it.
_INSPECTED = ("utils._debug_mode._mode", "_native.registry")

#: The releases of torch that this was tried with; any other is imported whole.
TRIED_RELEASES = ("2.13.",)
#: The packages that torch itself imports, and what we import until then; see `deferring`.
_BESIDE_TORCH = (
    "torchgen", "functorch", "numpy", "typing_extensions", "sympy", "mpmath", "tqdm", "graftlm", "msgspec", "zmq",
)  # fmt: skip


def import_ahead(payload: bytes) -> None:
    """Import it all, and what `payload` lists, which needs no torch either, in the order that takes least time."""
    with without_collections():
        linking = start_linking()
        with _lean_torch():
            with span("import what needs no torch"):
                _import((*_WITHOUT_TORCH, *msgspec.msgpack.decode(payload, type=list[str])))
            if linking is not None:
                with span("wait for torch's library"):
                    linking.wait()
                add_span("link torch's library", start=linking.begun, seconds=linking.seconds)
            _import(("torch", *_LATER))
        _import(_WITH_TORCH)
        gc.freeze()


def _import(names: Iterable[str]) -> None:
    for name in names:
        importlib.import_module(name)


def _folder_of_torch() -> Path | None:
    spec = importlib.util.find_spec("torch")
    return Path(spec.origin).parent if spec is not None and spec.origin is not None else None


@contextlib.contextmanager
def _lean_torch() -> Iterator[None]:
    from importlib.metadata import version

    folder = _folder_of_torch()
    if folder is None or "torch" in sys.modules or not version("torch").startswith(TRIED_RELEASES):
        yield
        return
    for name in _INSPECTED:
        inspect.modulesbyfile[f"{folder.joinpath(*name.split('.'))}.py"] = f"torch.{name}"
    names = (*_SELDOM_USED, *_SELDOM_USED_BY_IT)
    with deferring(names, library="torch", beside=_BESIDE_TORCH, lent=_SHOWN_BY_IT):
        yield
