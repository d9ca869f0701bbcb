"""Tiny random checkpoints for tests, written with the reference libraries.

Weights are drawn wide (`initializer_range` 0.3): with the usual 0.02 the two best tokens are so close that
rounding decides.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

CHAT_TEMPLATE = (
    "{% for message in messages %}<|im_start|>{{ message['role'] }}\n{{ message['content'] }}<|im_end|>\n"
    "{% endfor %}{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)
MERGES = [("h", "e"), ("t", "h")]
SPECIAL_TOKENS = ["<|bos|>", "<|eos|>", "<|im_start|>", "<|im_end|>", "<|pad|>", "<|extra|>"]
VOCAB_SIZE = 256 + len(MERGES) + len(SPECIAL_TOKENS)
BOS_ID, EOS_ID, PAD_ID = (
    256 + len(MERGES) + SPECIAL_TOKENS.index(name) for name in ("<|bos|>", "<|eos|>", "<|pad|>")
)


def make_tiny_llama(path: Path, *, seed: int = 0, **overrides: Any) -> Path:
    """Write a Llama checkpoint directory in fp32; `overrides` go into its LlamaConfig."""
    from transformers import LlamaConfig, LlamaForCausalLM

    options = {
        "hidden_size": 64, "intermediate_size": 128, "num_hidden_layers": 2, "num_attention_heads": 4,
        "num_key_value_heads": 2, "max_position_embeddings": 512, "rms_norm_eps": 1e-5, **_COMMON, **overrides,
    }  # fmt: skip
    return _write(path, LlamaForCausalLM, LlamaConfig(**options), seed=seed)


def make_tiny_opt(path: Path, *, seed: int = 0, **overrides: Any) -> Path:
    """Write an OPT checkpoint directory in fp32; `overrides` go into its OPTConfig."""
    from transformers import OPTConfig, OPTForCausalLM

    options = {
        "hidden_size": 64, "ffn_dim": 128, "num_hidden_layers": 2, "num_attention_heads": 4,
        "max_position_embeddings": 512, "word_embed_proj_dim": 64, "dropout": 0.0, "init_std": 0.3,
        **_COMMON, **overrides,
    }  # fmt: skip
    return _write(path, OPTForCausalLM, OPTConfig(**options), seed=seed)


def make_tiny_opt_350m(path: Path, **overrides: Any) -> Path:
    """Write an OPT checkpoint of the 350m kind: narrow embeddings, norms after the blocks, no final norm."""
    return make_tiny_opt(path, do_layer_norm_before=False, word_embed_proj_dim=32, **overrides)


_COMMON = {
    "vocab_size": VOCAB_SIZE, "initializer_range": 0.3, "bos_token_id": BOS_ID, "eos_token_id": EOS_ID,
    "pad_token_id": PAD_ID,
}  # fmt: skip


def _write(path: Path, model_class: Any, config: Any, *, seed: int) -> Path:
    import torch

    generator = torch.Generator().manual_seed(seed)
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        model = model_class(config).float().eval()
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            # Biases begin as zeros and norms as ones: a loader that forgets them would pass.
            if name.endswith("bias"):
                parameter.normal_(0, 0.1, generator=generator)
            elif parameter.dim() == 1:
                parameter.uniform_(0.5, 1.5, generator=generator)
    model.save_pretrained(path)
    write_tokenizer(path)
    return path


def vocabulary() -> list[str]:
    """The tiny tokenizer's tokens in the order of their ids: the byte alphabet, merges, special tokens."""
    from tokenizers.pre_tokenizers import ByteLevel

    return [*sorted(ByteLevel.alphabet()), *("".join(pair) for pair in MERGES), *SPECIAL_TOKENS]


def write_tokenizer(path: Path) -> None:
    """Write tokenizer.json and tokenizer_config.json of a byte-level tokenizer into `path`."""
    from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers

    tokens = vocabulary()
    assert len(tokens) == VOCAB_SIZE
    tokenizer = Tokenizer(models.BPE({token: index for index, token in enumerate(tokens)}, MERGES))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.add_special_tokens([AddedToken(token, special=True, normalized=False) for token in SPECIAL_TOKENS])
    tokenizer.save(str(path / "tokenizer.json"))
    settings = {
        "tokenizer_class": "PreTrainedTokenizerFast", "bos_token": "<|bos|>", "eos_token": "<|eos|>",
        "pad_token": "<|pad|>", "add_bos_token": False, "chat_template": CHAT_TEMPLATE,
    }  # fmt: skip
    (path / "tokenizer_config.json").write_text(json.dumps(settings))
