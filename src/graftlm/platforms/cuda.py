"""The CUDA platform, experimental: chosen only by `--platform cuda`. torch is imported inside hooks only."""

from __future__ import annotations

from typing import TYPE_CHECKING

from graftlm.contracts.errors import StartupError
from graftlm.contracts.platform import AttentionQuestion, Platform, PlatformKind
from graftlm.platforms.attention import attention_class_path

if TYPE_CHECKING:
    import torch

    from graftlm.config.engine_config import EngineConfig


class CudaPlatform(Platform):
    """NVIDIA GPUs through torch."""

    kind = PlatformKind.CUDA
    device_name = "cuda"
    device_type = "cuda"
    op_method = "forward_cuda"
    dist_backend = "nccl"
    supported_dtypes = ("bfloat16", "float16", "float32")
    attention_backends: tuple[str, ...] = ("TORCH_PAGED",)

    @classmethod
    def check_and_update_config(cls, config: EngineConfig) -> None:
        if config.parallel.worker_cls == "auto":
            config.parallel.worker_cls = "graftlm.worker.worker:Worker"

    @classmethod
    def set_device(cls, device: torch.device) -> None:
        import torch

        if not torch.cuda.is_available():
            raise StartupError(
                f"--platform cuda: torch {torch.__version__} sees no CUDA device; install a torch built for CUDA, "
                "or choose --platform cpu"
            )
        torch.cuda.set_device(device)

    @classmethod
    def get_attn_backend_cls(cls, selected_backend: str | None, question: AttentionQuestion) -> str:
        return attention_class_path(selected_backend, preferred=cls.attention_backends, question=question)

    @classmethod
    def get_device_name(cls, device_id: int = 0) -> str:
        import torch

        return torch.cuda.get_device_name(device_id)

    @classmethod
    def get_device_total_memory(cls, device_id: int = 0) -> int:
        import torch

        return int(torch.cuda.mem_get_info(device_id)[1])

    @classmethod
    def get_available_memory(cls, device_id: int = 0) -> int:
        import torch

        return int(torch.cuda.mem_get_info(device_id)[0])
