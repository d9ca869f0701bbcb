from __future__ import annotations

import pytest

from graftlm.config.errors import InvalidOption
from graftlm.engine.checkpoint_values import (
    check_divisible,
    context_length,
    merge_overrides,
    resolve_dtype,
    resolve_max_model_len,
)

DEMO = {"num_attention_heads": 9, "num_key_value_heads": 3, "vocab_size": 49152, "intermediate_size": 1536}


def test_overrides_merge_objects_and_replace_everything_else():
    """One number inside rope_scaling can be changed without repeating the others."""
    config = {"architectures": ["A", "B"], "rope_scaling": {"rope_type": "llama3", "factor": 8}}

    merged = merge_overrides(config, {"architectures": ["C"], "rope_scaling": {"factor": 4}})

    assert merged == {"architectures": ["C"], "rope_scaling": {"rope_type": "llama3", "factor": 4}}
    assert config["rope_scaling"]["factor"] == 8


@pytest.mark.parametrize(
    ("hf_config", "length"),
    [
        ({"max_position_embeddings": 2048}, 2048),
        ({"max_position_embeddings": 2048, "rope_scaling": {"type": "linear", "factor": 2.0}}, 4096),
        ({"max_position_embeddings": 2048, "rope_parameters": {"rope_type": "linear", "factor": 2.0}}, 4096),
        ({"max_position_embeddings": 2048, "rope_parameters": {"rope_type": "default"}}, 2048),
        ({"max_position_embeddings": 131072, "rope_scaling": {"rope_type": "llama3", "factor": 8}}, 131072),
        ({}, None),
    ],
)
def test_the_context_length_is_what_the_model_was_made_for(hf_config, length):
    """Linear scaling stretches the named length, llama3 names the stretched one."""
    assert context_length(hf_config) == length


def test_a_longer_context_than_the_model_has_is_refused_with_both_numbers():
    """Positions beyond the table would be computed wrongly, without a word."""
    assert resolve_max_model_len(None, {"n_positions": 128}) == 128
    assert resolve_max_model_len(64, {"n_positions": 128}) == 64

    with pytest.raises(InvalidOption, match="--max-model-len=129: the model was made for 128 tokens"):
        resolve_max_model_len(129, {"n_positions": 128})
    with pytest.raises(InvalidOption, match="give a number of tokens"):
        resolve_max_model_len(None, {})


def test_auto_dtype_is_the_platforms_first():
    """What a platform cannot compute in is refused with what it can."""
    assert resolve_dtype("auto", ("float32", "bfloat16"), device_name="cpu") == "float32"

    with pytest.raises(InvalidOption, match="use float32 or bfloat16"):
        resolve_dtype("float16", ("float32", "bfloat16"), device_name="cpu")


def test_a_tensor_parallel_size_that_cuts_heads_is_refused_with_the_sizes_that_divide():
    """The demo model has 9 query and 3 key-value heads, so 2 workers cannot share it."""
    check_divisible(1, DEMO)
    check_divisible(3, DEMO)

    with pytest.raises(InvalidOption) as caught:
        check_divisible(2, DEMO)

    for part in ("--tensor-parallel-size=2", "9 attention heads", "3 key-value heads", "sizes that divide: 1, 3"):
        assert part in str(caught.value)


def test_a_vocabulary_that_does_not_divide_is_named():
    """Heads may divide and the vocabulary not."""
    with pytest.raises(InvalidOption, match="nor its 101 vocabulary entries"):
        check_divisible(2, {"num_attention_heads": 4, "vocab_size": 101})
