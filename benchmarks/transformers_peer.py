"""The peer of `make bench`: `transformers` generate on the same weights, driven by JSON lines on standard input.

Each command `{"prompts": [[ids]], "max_new_tokens": n}` answers with the seconds at which each token came.
"""

from __future__ import annotations

import json
import sys
import time
from pathlib import Path
from typing import Any


class _ClockCriteria:
    """Note the time of each step of a batch (streamers serve one prompt only)."""

    def __init__(self) -> None:
        self.arrivals: list[float] = []

    def __call__(self, input_ids: Any, scores: Any, **kwargs: Any) -> Any:
        import torch

        self.arrivals.append(time.perf_counter())
        return torch.zeros(input_ids.shape[0], dtype=torch.bool)


def export(checkpoint: Path, directory: Path) -> None:
    """Write a GGUF checkpoint as the directory of fp32 safetensors that `transformers` loads fastest."""
    import torch
    from safetensors.torch import save_file

    from graftlm.config import EngineConfig
    from graftlm.models.checkpoints import iterate_weights, read_facts

    facts = read_facts(checkpoint)
    config = EngineConfig()
    config.model.path, config.model.format, config.model.hf_config = facts.path, facts.format, facts.hf_config
    tensors = {
        name: (weight if isinstance(weight, torch.Tensor) else weight.dequantize(torch.float32)).contiguous()
        for name, weight in iterate_weights(config)
    }
    save_file(tensors, directory / "model.safetensors", metadata={"format": "pt"})
    (directory / "config.json").write_text(json.dumps({"model_type": "llama", **facts.hf_config}))


def main() -> None:
    path, threads = Path(sys.argv[1]), int(sys.argv[2])
    import torch
    from transformers import AutoModelForCausalLM, StoppingCriteriaList

    torch.set_num_threads(threads)
    model = AutoModelForCausalLM.from_pretrained(path, dtype=torch.float32).eval()
    model.generation_config.pad_token_id = 0
    model.generation_config.eos_token_id = None
    print(json.dumps({"ready": True}), flush=True)
    for line in sys.stdin:
        command = json.loads(line)
        clock = _ClockCriteria()
        start = time.perf_counter()
        with torch.inference_mode():
            output = model.generate(
                torch.tensor(command["prompts"]),
                attention_mask=torch.ones(len(command["prompts"]), len(command["prompts"][0]), dtype=torch.long),
                max_new_tokens=command["max_new_tokens"],
                do_sample=False,
                stopping_criteria=StoppingCriteriaList([clock]),
            )
        arrivals = [moment - start for moment in clock.arrivals]
        print(json.dumps({"arrivals": arrivals, "shape": list(output.shape)}), flush=True)


if __name__ == "__main__":
    main()
