"""The process of the `transformers` peer; it imports nothing of ours, so that its start is that of `transformers`.

    python transformers_child.py CHECKPOINT THREADS

Each line `{"prompts": [[ids]], "max_new_tokens": n}` on standard input is answered with the seconds at which each
token came.
"""

from __future__ import annotations

import json
import sys
import time
from pathlib import Path
from typing import Any


class _Clock:
    """Note the time of each step of a batch (streamers serve one prompt only)."""

    def __init__(self) -> None:
        self.arrivals: list[float] = []

    def __call__(self, input_ids: Any, scores: Any, **kwargs: Any) -> Any:
        import torch

        self.arrivals.append(time.perf_counter())
        return torch.zeros(input_ids.shape[0], dtype=torch.bool)


def main() -> None:
    """Serve commands until standard input ends."""
    path, threads = Path(sys.argv[1]), int(sys.argv[2])
    import torch
    from transformers import AutoModelForCausalLM, StoppingCriteriaList

    torch.set_num_threads(threads)
    model = AutoModelForCausalLM.from_pretrained(path, dtype=torch.float32)
    model.generation_config.pad_token_id = 0
    model.generation_config.eos_token_id = None
    print(json.dumps({"ready": True}), flush=True)
    for line in sys.stdin:
        command = json.loads(line)
        clock = _Clock()
        start = time.perf_counter()
        with torch.inference_mode():
            model.generate(
                torch.tensor(command["prompts"]),
                attention_mask=torch.ones(len(command["prompts"]), len(command["prompts"][0]), dtype=torch.long),
                max_new_tokens=command["max_new_tokens"],
                do_sample=False,
                stopping_criteria=StoppingCriteriaList([clock]),
            )
        print(json.dumps({"arrivals": [moment - start for moment in clock.arrivals]}), flush=True)


if __name__ == "__main__":
    main()
