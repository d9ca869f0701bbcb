"""The collectives of the dummy device."""

from __future__ import annotations

from graftlm.distributed.communicator import TorchCommunicator


class DummyCommunicator(TorchCommunicator):
    """torch.distributed, as a device without collectives of its own would use."""
