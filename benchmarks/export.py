"""Writes a GGUF checkpoint as a directory of safetensors, for engines that read no GGUF.

    python -m benchmarks.export DIRECTORY [--model demo] [--dtype float32]

Quantized weights are dequantized, so what reads the directory computes with the same numbers. The tokenizer and the
chat template come from the same file. It verifies nothing.
"""

from __future__ import annotations

import argparse
import json
from pathlib import Path

from graftlm.models.checkpoints import read_facts

DTYPES = ("float32", "float16", "bfloat16")


def export(checkpoint: Path, directory: Path, *, dtype: str = "float32") -> None:
    """Write config.json, model.safetensors, tokenizer.json and tokenizer_config.json."""
    import torch
    from safetensors.torch import save_file

    from graftlm.config import EngineConfig
    from graftlm.frontend.tokenizer import load_tokenizer
    from graftlm.models.checkpoints import iterate_weights

    wanted = getattr(torch, dtype)
    facts = read_facts(checkpoint)
    config = EngineConfig()
    config.model.path, config.model.format, config.model.hf_config = facts.path, facts.format, facts.hf_config
    tensors = {
        name: (weight if isinstance(weight, torch.Tensor) else weight.dequantize(torch.float32))
        .to(wanted)
        .contiguous()
        for name, weight in iterate_weights(config)
    }
    directory.mkdir(parents=True, exist_ok=True)
    save_file(tensors, directory / "model.safetensors", metadata={"format": "pt"})
    settings = {"model_type": "llama", **facts.hf_config, "torch_dtype": dtype}
    (directory / "config.json").write_text(json.dumps(settings, indent=1))
    if (tokenizer := load_tokenizer(config, facts)) is not None:
        tokenizer.backend.save(str(directory / "tokenizer.json"))
        words = {"tokenizer_class": "PreTrainedTokenizerFast", **tokenizer.special_tokens}
        if facts.chat_template:
            words["chat_template"] = facts.chat_template
        (directory / "tokenizer_config.json").write_text(json.dumps(words, indent=1))


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.export", description=__doc__)
    parser.add_argument("directory", type=Path)
    parser.add_argument("--model", default="demo", help="demo, or a .gguf file (default: demo)")
    parser.add_argument("--dtype", choices=DTYPES, default="float32")
    options = parser.parse_args()
    from graftlm.models.sources import resolve_model

    export(resolve_model(options.model, revision=None, progress=True), options.directory, dtype=options.dtype)
    print(f"{options.model} as {options.dtype}: {options.directory}")


if __name__ == "__main__":
    main()
