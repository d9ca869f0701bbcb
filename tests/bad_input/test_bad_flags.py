"""Flags, files and variables with values that cannot be: the value, who gave it, and the cure."""

from __future__ import annotations

import socket
from pathlib import Path

import pytest
from refusals import USAGE, refusal, run_graftlm


@pytest.mark.parametrize(
    ("words", "parts"),
    [
        (["--max-model-length=8"], ["--max-model-length", "did you mean --max-model-len"]),
        (["--xyzzy"], ["unknown flag --xyzzy", "graftlm serve --help"]),
        (["one", "two"], ["unexpected argument"]),
        (["one", "--model=two"], ["given twice", "'one'", "'two'"]),
        (["--port"], ["--port", "expected one argument"]),
        (["--port=abc"], ["--port='abc'", "not a whole number"]),
        (["--max-model-len=1.5"], ["--max-model-len='1.5'", "not a whole number"]),
        (["--memory-utilization=half"], ["--memory-utilization='half'", "not a number"]),
        (["--kv-cache-memory-bytes=lots"], ["--kv-cache-memory-bytes='lots'", "such as 512m"]),
        (["--kv-cache-memory-bytes=-5"], ["--kv-cache-memory-bytes='-5'", "such as 512m"]),
        (["--hf-overrides={"], ["--hf-overrides='{'", "no JSON", "quote it for the shell"]),
        (["--hf-overrides=[1]"], ["--hf-overrides='[1]'", "JSON object"]),
        (["--hf-overrides=" + "[" * 50_000], ["nested too deep", "(50002 characters)"]),
        (["--dtype=float64"], ["--dtype='float64'", "use auto or float32 or bfloat16 or float16"]),
        (["--scheduling-policy=lifo"], ["--scheduling-policy='lifo'", "fcfs or priority"]),
        (["--log-format=xml"], ["--log-format='xml'", "text or json"]),
        (["--served-model-name="], ["--served-model-name=''", "it is empty"]),
        (["--api-key="], ["--api-key=''", "it is empty"]),
        (["--tokenizer="], ["--tokenizer=''", "it is empty"]),
    ],
    ids=lambda value: str(value)[:40],
)
def test_a_command_line_that_cannot_be_read_ends_with_code_2(words: list[str], parts: list[str]) -> None:
    """Unknown, incomplete, of the wrong type, and none of the choices."""
    line = refusal("serve", *words, code=USAGE)

    assert all(part in line for part in parts), line


@pytest.mark.parametrize(
    ("words", "parts"),
    [
        (["--port=-1"], ["--port=-1", "0 to 65535"]),
        (["--port=70000"], ["--port=70000", "0 to 65535"]),
        (["--shutdown-timeout=-1"], ["--shutdown-timeout=-1.0", "0 or more"]),
        (["--shutdown-timeout=nan"], ["--shutdown-timeout=nan"]),
        (["--max-request-bytes=0"], ["--max-request-bytes=0"]),
        (["--root-path=here"], ["--root-path='here'", "use /here"]),
        (["--api-key=a b"], ["--api-key=", "no HTTP header"]),
        (["--max-model-len=0"], ["--max-model-len=0", "1 to "]),
        (["--max-num-seqs=-3"], ["--max-num-seqs=-3"]),
        (["--max-num-seqs=2000000000"], ["--max-num-seqs=2000000000", "1 to 65536"]),
        (["--itl-slo=1"], ["--itl-slo=1", "above 1"]),
        (["--itl-slo=nan"], ["--itl-slo"]),
        (["--max-num-batched-tokens=99999999999999999999"], ["--max-num-batched-tokens=99999999999999999999"]),
        (["--block-size=0"], ["--block-size=0", "such as 16"]),
        (["--kv-cache-memory-bytes=99999999999t"], ["--kv-cache-memory-bytes=", "out of range"]),
        (["--memory-utilization=0"], ["--memory-utilization=0.0", "above 0, up to 1"]),
        (["--memory-utilization=nan"], ["--memory-utilization=nan"]),
        (["--seed=99999999999999999999999"], ["--seed=99999999999999999999999", "64-bit"]),
        (["--threads-per-worker=0"], ["--threads-per-worker=0", "1 to 1024"]),
        (["--tensor-parallel-size=1000000"], ["--tensor-parallel-size=1000000", "1 to 4096"]),
        (
            ["--tensor-parallel-size=3"],
            ["--tensor-parallel-size=3", "4 attention heads", "sizes that divide: 1, 2"],
        ),
        (["--max-model-len=100000"], ["--max-model-len=100000", "made for 512 tokens", "--hf-overrides"]),
        (["--revision=v2"], ["--revision='v2'", "only hub models have revisions"]),
        (["--attention-backend=TORCH_PAGD"], ["--attention-backend='TORCH_PAGD'", "TORCH_PAGED"]),
        (["--attention-backend=no.such:Class"], ["--attention-backend='no.such:Class'", "no package 'no'"]),
        (["--worker-cls=nobody"], ["--worker-cls='nobody'", "there is cpu"]),
        (
            ["--worker-cls=graftlm.worker.cpu_worker:CpuWorkr"],
            ["CpuWorkr", "did you mean graftlm.worker.cpu_worker:CpuWorker"],
        ),
        (["--quantization=gguf"], ["--quantization='gguf'", "is safetensors", "q8_0 or q4_0"]),
        (["--quantization=q8_0", "--dtype=float32"], ["--quantization='q8_0'", "--dtype=float32", "leave one of"]),
        (["--quantization=awq"], ["--quantization='awq'", "nothing provides this name"]),
        (["--custom-ops=+rms_nrm"], ["--custom-ops='+rms_nrm'", "rms_norm"]),
        (["--custom-ops=all,none"], ["--custom-ops='all,none'", "keep one of all and none"]),
        (["--custom-ops=+silu,-silu"], ["+silu and -silu contradict"]),
        (["--distributed-executor-backend=ray"], ["--distributed-executor-backend='ray'", "mp, uni"]),
        (["--distributed-executor-backend=uni", "-tp=2"], ["'uni'", "use mp"]),
        (["--compilation-backend=jit"], ["--compilation-backend='jit'", "eager, inductor"]),
        (["--platform=cqu"], ["'cqu'", "cpu", "graftlm plugins"]),
        (["--platform=tpu"], ["'tpu'", "does not offer a platform on this machine"]),
        (["--plugins=nobody"], ["--plugins", "'nobody'", "graftlm plugins"]),
        (["--enable-plugin=nobody"], ["--enable-plugin", "'nobody'"]),
        (["--disable-plugin=nobody"], ["--disable-plugin", "'nobody'"]),
        (["--plugin-config=nobody"], ["--plugin-config nobody", "NAME.KEY=VALUE"]),
        (["--plugin-config=nobody.key=1"], ["no enabled plugin or distribution is called 'nobody'"]),
        (["--log-level=loud"], ["--log-level='loud'", "debug, info"]),
    ],
    ids=lambda value: str(value)[:50],
)
def test_a_value_that_cannot_be_is_named_with_the_cure(
    words: list[str], parts: list[str], tiny_llama: Path
) -> None:
    """Out of range, unknown, contradicting; all before the model is loaded."""
    line = refusal("serve", str(tiny_llama), *words)

    assert all(part in line for part in parts), line


def test_a_cache_too_small_for_one_sequence_is_refused_with_the_numbers(tiny_llama: Path) -> None:
    """What was given, what it holds, what one sequence needs, and how long a sequence would fit."""
    line = refusal("serve", str(tiny_llama), "--port=0", "--kv-cache-memory-bytes=64k")

    wanted = ["--kv-cache-memory-bytes=65536", "holds 128 tokens", "--max-model-len=512", "needs 262144 bytes",
              "lower --max-model-len to 128"]  # fmt: skip
    assert all(part in line for part in wanted), line


def test_a_port_in_use_and_a_host_that_is_none_are_named(tiny_llama: Path) -> None:
    """With the flags that choose others."""
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]
        in_use = refusal("serve", str(tiny_llama), f"--port={port}")
    nowhere = refusal("serve", str(tiny_llama), "--host=no.such.host.invalid")
    elsewhere = refusal("serve", str(tiny_llama), "--host=192.0.2.1", "--port=0")

    assert f"--port={port} is in use" in in_use and "--port 0" in in_use
    assert "--host='no.such.host.invalid'" in nowhere and "127.0.0.1" in nowhere
    assert "--host='192.0.2.1' is not an address of this machine" in elsewhere


@pytest.mark.parametrize(
    ("content", "parts"),
    [
        (b"port: [1\n", ["no YAML", "line "]),
        (b"- port\n", ["a mapping of flags to values"]),
        (b"prot: 1\n", ["unknown option 'prot'", "did you mean 'port'"]),
        (b"1: 2\n", ["unknown option '1'"]),
        (b"port: abc\n", ["--port='abc' in ", "not a whole number"]),
        (b"port: 1.5\n", ["--port=1.5 in ", "whole number"]),
        (b"port:\n", ["--port=None in "]),
        (b"enable_prefix_caching: maybe\n", ["--enable-prefix-caching='maybe' in "]),
        (b"dtype: float64\n", ["--dtype='float64' in ", "use auto or"]),
        (b"hf-overrides: 3\n", ["--hf-overrides=3 in ", "a mapping"]),
        (b"port: 1\nport: 2\n", ["sets port twice, in line 1 and in line 2"]),
        (b"port: 1\n--port: 2\n", ["unknown option '--port'"]),
        (b"max-model-len: 1\nmax_model_len: 2\n", ["--max-model-len twice"]),
        (b"\xff\xfe", ["no UTF-8 text"]),
        (b"a: " + b"[" * 20_000, ["no YAML"]),
        (b"max-num-seqs: -1\n", ["--max-num-seqs=-1", "[--max-num-seqs is set by "]),
    ],
    ids=lambda value: str(value)[:40],
)
def test_a_broken_config_file_is_named(content: bytes, parts: list[str], tmp_path: Path, tiny_llama: Path) -> None:
    """Syntax, unknown keys, wrong types, the same key twice: the file stands in the error."""
    file = tmp_path / "c.yaml"
    file.write_bytes(content)

    line = refusal("serve", str(tiny_llama), "--config", str(file))

    assert all(part in line for part in [str(file), *parts]), line


def test_a_config_file_that_is_not_there_is_named(tmp_path: Path) -> None:
    """Neither a missing one nor a directory."""
    assert "there is no such file" in refusal("serve", "--config", str(tmp_path / "none.yaml"))
    assert "Is a directory" in refusal("serve", "--config", str(tmp_path))


@pytest.mark.parametrize(
    ("name", "value", "parts"),
    [
        ("GRAFTLM_LOG_FORMAT", "xml", ["--log-format='xml' in GRAFTLM_LOG_FORMAT"]),
        ("GRAFTLM_LOG_LEVEL", "loud", ["'loud'", "[--log-level is set by GRAFTLM_LOG_LEVEL]"]),
        ("GRAFTLM_PLATFORM", "cqu", ["'cqu'", "[--platform is set by GRAFTLM_PLATFORM]"]),
        ("GRAFTLM_PLUGINS", "nobody", ["'nobody'", "[--plugins is set by GRAFTLM_PLUGINS]"]),
    ],
)
def test_a_wrong_value_of_a_variable_names_the_variable(name: str, value: str, parts: list[str]) -> None:
    """Nobody looks for a flag that he did not type."""
    line = refusal("serve", "no-such-model", env={name: value})

    assert all(part in line for part in parts), line


def test_a_misspelt_variable_is_a_warning_with_the_nearest_names() -> None:
    """It is not ignored in silence, and does not stop anything."""
    _, _, stderr = run_graftlm("serve", "no-such-model", env={"GRAFTLM_PLUGIN": "x"})

    warning = next(line for line in stderr.splitlines() if "GRAFTLM_PLUGIN" in line)
    assert "WARNING" in warning and "GRAFTLM_PLUGINS" in warning


@pytest.mark.parametrize("word", ["", "srve", "--serve", "\u00e9"])
def test_an_unknown_command_names_those_that_there_are(word: str) -> None:
    """The nearest, or all."""
    line = refusal(word, code=USAGE)

    assert repr(word) in line and "serve" in line


@pytest.mark.parametrize(
    ("words", "code", "parts"),
    [
        (["serve", "--trace-startup={}/x.json"], 1, ["--trace-startup=", "cannot be written", "name another file"]),
        (["serve", "--plugins-locked={}/lock"], 1, ["--plugins-locked=", "No such file"]),
        (["bench", "serve", "--json", "{}/x.json"], 1, ["--json=", "cannot be written"]),
        (["bench", "nothing"], USAGE, ["'nothing'", "serve, throughput"]),
        (["bench", "serve", "--url=http://127.0.0.1:9"], 1, ["http://127.0.0.1:9", "is it running?"]),
        (["bench", "serve", "--num-prompts=0"], USAGE, ["--num-prompts=0", "1 or more"]),
        (["plugins", "nothing"], USAGE, ["'nothing'", "explain"]),
        (["plugins", "explain", "op", "RMSNrm"], 1, ["'RMSNrm'", "RMSNorm"]),
        (["plugins", "trace"], USAGE, ["graftlm plugins trace -- serve demo"]),
        (["plugins", "lock", "{}/lock"], 1, ["cannot be written"]),
        (["plugins", "new", "gadget", "x"], USAGE, ["'gadget'", "platform, model, op"]),
        (["fetch"], USAGE, ["graftlm fetch demo"]),
    ],
    ids=lambda value: " ".join(value)[:40] if isinstance(value, list) else None,
)
def test_the_other_commands_refuse_in_the_same_way(
    words: list[str], code: int, parts: list[str], tmp_path: Path
) -> None:
    """Files that cannot be written are found before minutes of work, not after."""
    line = refusal(*(word.format(tmp_path / "none") for word in words), code=code)

    assert all(part in line for part in parts), line


def test_a_file_that_is_no_lock_is_said(tmp_path: Path) -> None:
    """Some other JSON would differ in everything."""
    (tmp_path / "package.json").write_text('{"name": "x"}')

    assert "it is no lock file" in refusal("serve", "--plugins-locked", str(tmp_path / "package.json"))
