"""`python -m benchmarks.export`: others read the same model, down to the last bit of its weights."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from checkpoints import make_tiny_llama
from gguf_files import write_llama_gguf

from benchmarks.export import export
from graftlm.config import EngineConfig
from graftlm.frontend.tokenizer import load_tokenizer
from graftlm.models.checkpoints import read_facts


@pytest.fixture(scope="module")
def gguf(tmp_path_factory):
    folder = tmp_path_factory.mktemp("export")
    checkpoint = make_tiny_llama(folder / "llama", hidden_size=256, intermediate_size=256)
    meaning = write_llama_gguf(folder / "tiny.gguf", checkpoint, format="Q4_1")
    return folder / "tiny.gguf", meaning


def test_transformers_reads_the_dequantized_model(gguf, tmp_path):
    """Every tensor as the reference library decodes it; the configuration fits; nothing is missing or left over."""
    from transformers import AutoModelForCausalLM

    file, meaning = gguf
    export(file, tmp_path)
    model, told = AutoModelForCausalLM.from_pretrained(tmp_path, dtype=torch.float32, output_loading_info=True)
    loaded = {name: tensor for name, tensor in model.state_dict().items() if name in meaning}

    assert not told["missing_keys"]
    assert not told["unexpected_keys"]
    assert loaded.keys() == meaning.keys()
    for name, tensor in loaded.items():
        np.testing.assert_array_equal(tensor.numpy(), meaning[name], err_msg=name)


def test_text_goes_the_same_way(gguf, tmp_path):
    """Tokenizer, special tokens and chat template are those of the file."""
    from transformers import AutoTokenizer

    file, _ = gguf
    export(file, tmp_path, dtype="bfloat16")
    facts, exported = read_facts(file), read_facts(tmp_path)
    ours, theirs = load_tokenizer(EngineConfig(), facts), AutoTokenizer.from_pretrained(tmp_path)
    text = "Two roads diverged in a yellow wood, 1916 — naïve"

    assert theirs.encode(text, add_special_tokens=False) == ours.encode(text, add_special_tokens=False)
    assert theirs.eos_token_id == ours.eos_token_id
    assert exported.chat_template == facts.chat_template
    assert exported.hf_config["torch_dtype"] == "bfloat16"
