"""The GGUF reader and its ten formats, held against the reference library."""

from __future__ import annotations

import shutil
import struct
from pathlib import Path

import numpy as np
import pytest
import torch
from checkpoints import CHAT_TEMPLATE, EOS_ID, make_tiny_llama, vocabulary
from gguf_files import ALL_FORMATS, dequantize, quantize, write_llama_gguf

from graftlm.config.engine_config import EngineConfig
from graftlm.layers.quantization.block_weight import QuantizedGGUFWeight
from graftlm.models.checkpoints.errors import BrokenCheckpoint, UnsupportedCheckpoint
from graftlm.models.checkpoints.gguf import read_gguf
from graftlm.models.checkpoints.gguf_loader import GGUFLoader
from graftlm.models.checkpoints.gguf_rope import llama3_scaling


@pytest.fixture(scope="module")
def checkpoint(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_tiny_llama(
        tmp_path_factory.mktemp("gguf") / "llama", hidden_size=256, intermediate_size=256, attention_bias=True
    )


@pytest.fixture(scope="module")
def gguf_file(checkpoint: Path) -> Path:
    path = checkpoint.parent / "tiny.gguf"
    write_llama_gguf(path, checkpoint, format="Q4_1")
    return path


def weights_of(path: Path) -> dict[str, object]:
    config = EngineConfig()
    config.model.path = str(path)
    config.model.hf_config = GGUFLoader().read_facts(path).hf_config
    return dict(GGUFLoader().iterate_weights(config))


@pytest.mark.parametrize("format", ALL_FORMATS)
def test_each_format_is_decoded_as_the_reference_decodes_it(format: str, checkpoint: Path, tmp_path: Path) -> None:
    """Every tensor of a file in each format equals the reference's, bit for bit, under its HF name."""
    meaning = write_llama_gguf(tmp_path / "m.gguf", checkpoint, format=format)

    weights = weights_of(tmp_path / "m.gguf")

    assert weights.keys() == meaning.keys()
    for name, expected in meaning.items():
        weight = weights[name]
        if isinstance(weight, QuantizedGGUFWeight):
            assert weight.format == format
            weight = weight.dequantize(torch.float32)
        assert isinstance(weight, torch.Tensor)
        np.testing.assert_array_equal(weight.float().numpy(), expected, err_msg=name)


@pytest.mark.parametrize("format", ["Q4_0", "Q5_1", "Q8_0", "Q4_K", "Q6_K"])
def test_a_cut_weight_means_the_cut_of_the_weight(format: str) -> None:
    """Rows may be cut anywhere and columns between blocks, without touching the data."""
    values = np.random.default_rng(0).normal(size=(6, 1024)).astype(np.float32)
    data = quantize(values, format)
    whole = torch.from_numpy(dequantize(data, format))
    weight = QuantizedGGUFWeight(format, torch.from_numpy(data))

    cut = weight.narrow(0, 1, 4).narrow(1, 256, 512)

    assert weight.shape == (6, 1024)
    assert cut.shape == (4, 512)
    assert cut.data.untyped_storage().data_ptr() == weight.data.untyped_storage().data_ptr()
    torch.testing.assert_close(cut.dequantize(torch.float32), whole[1:5, 256:768], rtol=0, atol=0)
    with pytest.raises(ValueError, match=rf"columns 8:24 of a {format} weight .* multiples of {cut.block_columns}"):
        weight.narrow(1, 8, 16)


def test_the_header_says_what_the_reference_reads(gguf_file: Path) -> None:
    """Metadata, tensor places, shapes and formats equal those of the reference reader."""
    from gguf import GGUFReader

    reference = GGUFReader(gguf_file)
    ours = read_gguf(gguf_file)

    expected = {key: field.contents() for key, field in reference.fields.items() if not key.startswith("GGUF.")}
    assert ours.metadata == expected
    assert {
        t.name: (t.tensor_type.name, t.data_offset, t.n_bytes, tuple(int(n) for n in t.shape[::-1]))
        for t in reference.tensors
    } == {t.name: (t.format.name, t.offset, t.num_bytes, t.shape) for t in ours.tensors.values()}


def test_facts_speak_hugging_face(gguf_file: Path) -> None:
    """The facts name architecture, sizes and rotary base as config.json would; the file is its tokenizer."""
    facts = GGUFLoader().read_facts(gguf_file)

    assert facts.hf_config["architectures"] == ["LlamaForCausalLM"]
    assert facts.hf_config["num_key_value_heads"] == 2
    assert facts.hf_config["head_dim"] == 64
    assert facts.hf_config["rms_norm_eps"] == 1e-5
    assert facts.hf_config["rope_theta"] == 10_000.0
    assert facts.hf_config["attention_bias"] is True
    assert facts.hf_config["tie_word_embeddings"] is False
    assert facts.hf_config["vocab_size"] == len(vocabulary())
    assert facts.generation_config == {"eos_token_id": EOS_ID}
    assert facts.tokenizer == str(gguf_file)
    assert facts.chat_template == CHAT_TEMPLATE


@pytest.mark.demo
def test_facts_of_the_demo_model(demo_path: Path) -> None:
    """The demo's facts: grouped heads, a tied head, its rotary base and its one end token."""
    facts = GGUFLoader().read_facts(demo_path)

    assert facts.hf_config["num_attention_heads"] == 9
    assert facts.hf_config["num_key_value_heads"] == 3
    assert facts.hf_config["tie_word_embeddings"] is True
    assert facts.hf_config["rope_theta"] == 100_000.0
    assert facts.hf_config["max_position_embeddings"] == 8192
    assert facts.generation_config == {"eos_token_id": 2}


@pytest.mark.parametrize("keep", [0, 3, 20, 200, 5_000, -64])
def test_a_truncated_file_is_one_clear_error(keep: int, gguf_file: Path, tmp_path: Path) -> None:
    """Wherever a file is cut off, the error names it and says to fetch it again."""
    broken = tmp_path / "broken.gguf"
    broken.write_bytes(gguf_file.read_bytes()[:keep])

    with pytest.raises(BrokenCheckpoint, match=r"broken\.gguf.*(truncated|bytes).*again"):
        read_gguf(broken)


def test_random_damage_in_the_header_never_escapes_as_another_error(gguf_file: Path, tmp_path: Path) -> None:
    """Forty headers with four wrong bytes each are read, or refused with a checkpoint error."""
    whole = gguf_file.read_bytes()
    generator = np.random.default_rng(3)
    broken = tmp_path / "broken.gguf"
    refused = 0

    for _ in range(40):
        damaged = bytearray(whole)
        for place in generator.integers(4, 2_000, 4):
            damaged[place] = int(generator.integers(0, 256))
        broken.unlink(missing_ok=True)
        broken.write_bytes(damaged)
        try:
            GGUFLoader().read_facts(broken)
        except (BrokenCheckpoint, UnsupportedCheckpoint):
            refused += 1

    assert refused > 10


def test_what_is_no_gguf_file_is_said_so(tmp_path: Path) -> None:
    """A file of another kind is refused with what it starts with."""
    (tmp_path / "page.gguf").write_text("<!DOCTYPE html> nothing to see here")

    with pytest.raises(BrokenCheckpoint, match=r"page\.gguf.*starts with b'<!DO'"):
        read_gguf(tmp_path / "page.gguf")


def test_an_unsupported_format_is_named(gguf_file: Path, tmp_path: Path) -> None:
    """A tensor in a format that cannot be decoded is refused by name, with the formats that can."""
    file = read_gguf(gguf_file)
    name = b"blk.0.ffn_up.weight"
    path = tmp_path / "q2.gguf"
    shutil.copy(gguf_file, path)
    data = bytearray(path.read_bytes())
    place = data.index(struct.pack("<Q", len(name)) + name) + 8 + len(name)
    num_dimensions = len(file.tensors[name.decode()].shape)
    struct.pack_into("<I", data, place + 4 + 8 * num_dimensions, 10)
    path.write_bytes(data)

    with pytest.raises(UnsupportedCheckpoint, match=r"blk\.0\.ffn_up\.weight' is in format Q2_K.*Q4_0"):
        read_gguf(path)


@pytest.mark.parametrize(
    ("tensor", "axis", "size", "said"),
    [
        ("blk.0.ffn_up.weight", 0, 0, r"ffn_up\.weight' of shape \[256, 0\] has no numbers"),
        ("blk.0.ffn_up.weight", 1, 0, r"ffn_up\.weight' of shape \[0, 256\] has no numbers"),
        ("blk.0.attn_q.weight", 1, 31, r"attn_q\.weight' has 31 rows for 4 heads"),
    ],
)
def test_sizes_that_cannot_be_are_named(
    gguf_file: Path, tmp_path: Path, tensor: str, axis: int, size: int, said: str
) -> None:
    """Tensors of no numbers, and rows that are no pairs of the heads: before anything is computed with them."""
    data = bytearray(gguf_file.read_bytes())
    name = tensor.encode()
    place = data.index(struct.pack("<Q", len(name)) + name) + 8 + len(name)
    struct.pack_into("<Q", data, place + 4 + 8 * axis, size)
    (tmp_path / "odd.gguf").write_bytes(data)
    config = EngineConfig()
    config.model.path = str(tmp_path / "odd.gguf")
    config.model.hf_config = GGUFLoader().read_facts(gguf_file).hf_config

    with pytest.raises(BrokenCheckpoint, match=said):
        list(GGUFLoader().iterate_weights(config))


def test_two_tensors_of_one_name_are_refused(gguf_file: Path, tmp_path: Path) -> None:
    """Which of them would serve is nobody's guess."""
    data = gguf_file.read_bytes().replace(b"blk.0.ffn_up.weight", b"blk.1.ffn_up.weight")
    (tmp_path / "twice.gguf").write_bytes(data)

    with pytest.raises(BrokenCheckpoint, match=r"two tensors 'blk\.1\.ffn_up\.weight'"):
        read_gguf(tmp_path / "twice.gguf")


def test_another_architecture_is_named(tmp_path: Path) -> None:
    """A GGUF file of a family that is not served says which family it is of."""
    from gguf import GGUFWriter

    writer = GGUFWriter(tmp_path / "other.gguf", "mamba")
    writer.add_tensor("token_embd.weight", np.zeros((4, 32), np.float32))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()

    with pytest.raises(UnsupportedCheckpoint, match=r"general\.architecture='mamba'"):
        GGUFLoader().read_facts(tmp_path / "other.gguf")


@pytest.mark.parametrize(
    ("head_size", "base", "low", "high"),
    [(128, 5e5, 1.0, 4.0), (64, 5e5, 1.0, 4.0), (16, 1e4, 1.0, 4.0), (8, 1e6, 2.0, 3.0)],
)
def test_llama3_scaling_is_recovered_from_its_factors(head_size: int, base: float, low: float, high: float) -> None:
    """Parameters found from the stored factors make the same factors again."""
    factors = llama3_factors(head_size, base, factor=8.0, low=low, high=high)

    found = llama3_scaling(factors, base=base)

    assert found is not None
    again = llama3_factors(
        head_size, base, factor=found["factor"], low=found["low_freq_factor"], high=found["high_freq_factor"]
    )
    np.testing.assert_allclose(again, factors, rtol=1e-5)


def llama3_factors(head_size: int, base: float, *, factor: float, low: float, high: float) -> list[float]:
    """As the GGUF converter computes `rope_freqs.weight` of Llama 3."""
    factors = []
    for i in range(head_size // 2):
        wavelength = 2 * np.pi * base ** (2 * i / head_size)
        if wavelength < 8192 / high:
            factors.append(1.0)
        elif wavelength > 8192 / low:
            factors.append(factor)
        else:
            smooth = (8192 / wavelength - low) / (high - low)
            factors.append(1 / ((1 - smooth) / factor + smooth))
    return [float(np.float32(f)) for f in factors]
