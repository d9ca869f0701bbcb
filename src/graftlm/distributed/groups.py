"""The tensor-parallel group of this process: who is in it, and the collectives that layers call.

It does not know how ranks are started. With one rank every collective is the identity and
torch.distributed is never touched.
"""

from __future__ import annotations

import contextlib
import logging
import os
import socket
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING

from graftlm.contracts.communicator import DeviceCommunicator
from graftlm.contracts.points import COMMUNICATORS
from graftlm.plugins import record
from graftlm.plugins.named import load_named, plugin_named
from graftlm.plugins.slow_calls import calling_at_start

if TYPE_CHECKING:
    import torch

logger = logging.getLogger(__name__)

DEFAULT_COMMUNICATOR = "graftlm.distributed.communicator:TorchCommunicator"


class NoProcessGroup(RuntimeError):
    """A collective over several ranks was asked for in a process that joined no group."""


_rank = 0
_size = 1
_communicator: DeviceCommunicator | None = None


def init_distributed(
    world_size: int,
    rank: int,
    init_method: str,
    backend: str = "gloo",
    *,
    device: torch.device | None = None,
    communicator_cls: str | Callable[[], str] = DEFAULT_COMMUNICATOR,
) -> None:
    """Join the tensor-parallel group; call once per process, `destroy_distributed` undoes it.

    `init_method` is `file:///path` or `tcp://host:port`. `communicator_cls` is a class path, a communicator
    plugin's name, or a callable that answers one; it is asked only when the group has more than one rank.
    """
    global _rank, _size, _communicator
    if not 0 <= rank < world_size:
        raise ValueError(f"rank={rank} does not fit world_size={world_size}; ranks are 0..{world_size - 1}")
    if world_size == 1:
        _rank, _size, _communicator = 0, 1, None
        return
    if not init_method:
        raise ValueError(
            f"{world_size} ranks need a rendezvous; pass init_method as file:///path or tcp://host:port"
        )
    path = communicator_cls if isinstance(communicator_cls, str) else communicator_cls()
    cls = _resolve_communicator(path)
    import torch
    import torch.distributed as dist

    if backend == "gloo":
        _keep_gloo_on_loopback(init_method)
    dist.init_process_group(backend, init_method=init_method, world_size=world_size, rank=rank)
    group = dist.group.WORLD
    assert group is not None
    _rank, _size = rank, world_size
    plugin = plugin_named(COMMUNICATORS, path)
    with calling_at_start(plugin, f"{cls.__name__}.__init__") if plugin is not None else contextlib.nullcontext():
        _communicator = cls(group=group, device=device or torch.device("cpu"), name="tp")
    remark = _communicator.remark
    record("communicator_built", group="tp", size=world_size, cls=path, **({"remark": remark} if remark else {}))
    logger.debug("communicator built group=tp size=%d cls=%s remark=%s", world_size, path, remark or "none")


def destroy_distributed() -> None:
    """Leave the group; safe to call twice and in a process that never joined one."""
    global _rank, _size, _communicator
    if _communicator is not None:
        import torch.distributed as dist

        if dist.is_initialized():
            dist.destroy_process_group()
    _rank, _size, _communicator = 0, 1, None


@contextlib.contextmanager
def built_as_rank(rank: int, size: int) -> Iterator[None]:
    """Let layers be built as those of one rank of `size`, to be looked at: there is no group, and none may run."""
    global _rank, _size, _communicator
    before = _rank, _size, _communicator
    _rank, _size, _communicator = rank, size, None
    try:
        yield
    finally:
        _rank, _size, _communicator = before


def tp_rank() -> int:
    """Return this process's place in its tensor-parallel group."""
    return _rank


def tp_size() -> int:
    """Return the number of ranks that share each layer."""
    return _size


def tp_communicator() -> DeviceCommunicator | None:
    """Return what the collectives below go through; None with one rank."""
    return _communicator


def tp_all_reduce(x: torch.Tensor) -> torch.Tensor:
    """Return the sum over ranks; `x` may be overwritten."""
    return x if _size == 1 else _group().all_reduce(x)


def tp_all_gather(x: torch.Tensor, dim: int = -1) -> torch.Tensor:
    """Return all ranks' tensors one behind the other along `dim`."""
    return x if _size == 1 else _group().all_gather(x, dim)


def tp_gather(x: torch.Tensor, dim: int = -1) -> torch.Tensor | None:
    """As `tp_all_gather`, on rank 0 only; None on the others."""
    return x if _size == 1 else _group().gather(x, 0, dim)


def tp_broadcast(x: torch.Tensor, src: int = 0) -> torch.Tensor:
    """Return rank `src`'s tensor; `x` is overwritten on the others."""
    return x if _size == 1 else _group().broadcast(x, src)


def divide(total: int, parts: int, *, what: str) -> int:
    """Return total / parts, or raise naming what cannot be shared."""
    if total % parts:
        fitting = [n for n in range(1, total + 1) if total % n == 0][:12]
        raise ValueError(
            f"{what}={total} cannot be shared by {parts} tensor-parallel ranks; sizes that divide it: {fitting}"
        )
    return total // parts


def _group() -> DeviceCommunicator:
    if _communicator is None:
        raise NoProcessGroup("this process joined no group; call init_distributed first")
    return _communicator


def _resolve_communicator(path: str) -> type[DeviceCommunicator]:
    if not path or not isinstance(path, str):
        raise ValueError(
            f"the platform answered {path!r} for get_device_communicator_cls; "
            "it must name a class as module:Class, or a communicator plugin"
        )
    cls = load_named(COMMUNICATORS, path, what="get_device_communicator_cls")
    if not (isinstance(cls, type) and issubclass(cls, DeviceCommunicator)):
        raise TypeError(f"{path} is {cls!r}; a communicator must subclass {DeviceCommunicator.__qualname__}")
    return cls


def _keep_gloo_on_loopback(init_method: str) -> None:
    """Name the loopback interface to gloo, which would otherwise resolve this host's name.

    Only for a rendezvous on this machine; a choice that is already in the environment stays.
    """
    local = init_method.startswith(("file://", "tcp://127.", "tcp://localhost", "tcp://[::1]"))
    if not local or "GLOO_SOCKET_IFNAME" in os.environ:
        return
    interfaces = {name for _, name in socket.if_nameindex()}
    name = next((n for n in ("lo", "lo0") if n in interfaces), None)
    if name is not None:
        os.environ["GLOO_SOCKET_IFNAME"] = name
