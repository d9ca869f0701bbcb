"""The contract of an attention backend: where keys and values lie and how queries meet them."""

from __future__ import annotations

import dataclasses
from abc import ABC, abstractmethod
from typing import TYPE_CHECKING, Any, ClassVar, Protocol

if TYPE_CHECKING:
    import torch

    from graftlm.contracts.platform import AttentionQuestion


@dataclasses.dataclass(slots=True)
class AttentionMetadata:
    """Where each token of this step belongs; built once per step and shared by all layers.

    Requests lie one behind the other: tokens `query_start[r]:query_start[r+1]` are request r's, and its query i
    sees its first `seq_lens[r] - (query_len - 1 - i)` keys.
    """

    num_requests: int
    num_tokens: int
    max_query_len: int
    max_seq_len: int
    query_start: torch.Tensor
    """[requests + 1] int32"""
    seq_lens: torch.Tensor
    """[requests] int32: keys of each request after this step"""
    block_table: torch.Tensor
    """[requests, max_blocks] int32; unused places hold 0"""
    slot_mapping: torch.Tensor
    """[tokens] int64: block_id * block_size + offset of each token"""
    query_lens_list: list[int]
    seq_lens_list: list[int]
    backend: Any = None
    """Whatever `AttentionBackend.build_metadata` adds for its own use."""


@dataclasses.dataclass(slots=True)
class ForwardContext:
    """What a layer needs beside its inputs; passed as an argument, never global."""

    attention: AttentionMetadata


class StepCapture(Protocol):
    """A call that gives what a model gives; see `AttentionBackend.capture_steps`."""

    @property
    def is_given_up(self) -> bool:
        """Whether it only asks the model from now on; the same on all ranks after the same calls."""

    def __call__(self, input_ids: torch.Tensor, positions: torch.Tensor, context: ForwardContext) -> Any:
        """Return what the model would; the tensors are the caller's until the next call."""


class AttentionBackend(ABC):
    """One way to compute paged attention. One instance serves one attention layer."""

    name: ClassVar[str]

    @classmethod
    def supported_block_sizes(cls) -> tuple[int, ...]:
        return (8, 16, 32, 64, 128)

    @classmethod
    def supports(cls, question: AttentionQuestion) -> str | None:
        """Return None if the backend can serve the question, else the reason why not."""
        return None

    @classmethod
    @abstractmethod
    def kv_cache_shape(cls, num_blocks: int, block_size: int, num_kv_heads: int, head_size: int) -> tuple[int, ...]:
        """Shape of one layer's cache tensor; keys and values in it."""

    @classmethod
    def build_metadata(cls, metadata: AttentionMetadata) -> None:
        """Add to `metadata.backend`, once per step, what all layers of this backend share."""

    @classmethod
    def capture_steps(cls, model: torch.nn.Module) -> StepCapture | None:
        """Offer a call that gives what `model(input_ids, positions, context)` gives, faster where steps are alike.

        Asked when caches are bound, of the only backend of a model, on every rank: once with the model, and once
        with a module that computes a model's best tokens. All ranks must answer alike, and make the same
        collective calls.
        """
        return None

    @abstractmethod
    def __init__(
        self, *, num_heads: int, num_kv_heads: int, head_size: int, scale: float, prefix: str = ""
    ) -> None: ...

    @abstractmethod
    def write_cache(
        self, key: torch.Tensor, value: torch.Tensor, kv_cache: torch.Tensor, metadata: AttentionMetadata
    ) -> None:
        """Store key and value [tokens, num_kv_heads, head_size] at `metadata.slot_mapping`."""

    @abstractmethod
    def attend(self, query: torch.Tensor, kv_cache: torch.Tensor, metadata: AttentionMetadata) -> torch.Tensor:
        """Return [tokens, num_heads, head_size]: causal attention of each query over its request's cached keys."""

    def fuse_rotation(self, rotary_emb: torch.nn.Module) -> bool:
        """Offer to rotate query and key; asked once. True: `rotate_and_attend` is called in place of the rest."""
        return False

    def rotate_and_attend(
        self,
        query: torch.Tensor,
        key: torch.Tensor,
        value: torch.Tensor,
        kv_cache: torch.Tensor,
        metadata: AttentionMetadata,
        positions: torch.Tensor,
    ) -> torch.Tensor:
        """Rotate, store and attend in one: all are [tokens, heads * head_size], tokens may lie apart."""
        raise NotImplementedError(f"{type(self).__name__}.rotate_and_attend")
