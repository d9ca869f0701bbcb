"""The attention backend of the dummy device: the plain-torch reference with block sizes of its own."""

from __future__ import annotations

from typing import ClassVar

from graftlm.ops.attention.torch_paged import TorchPagedAttention


class DummyAttentionBackend(TorchPagedAttention):
    """Computes as the reference does; a real vendor's backend computes on its device."""

    name: ClassVar[str] = "DUMMY"

    @classmethod
    def supported_block_sizes(cls) -> tuple[int, ...]:
        """This device likes blocks of 32 tokens, and no others but 64."""
        return (32, 64)
