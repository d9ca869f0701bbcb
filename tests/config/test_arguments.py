from __future__ import annotations

import pytest

from graftlm.cli import serve
from graftlm.cli.bench import serve as bench_serve
from graftlm.config.arguments import (
    ArgumentParser,
    UsageError,
    add_config_file_flag,
    add_options,
    options_from_keywords,
    read_arguments,
    read_selection,
)
from graftlm.config.errors import ConfigError, InvalidOption, UnknownOption
from graftlm.config.options import engine_options, server_options
from graftlm.config.vllm_flags import _ADVICE

OPTIONS = (*engine_options(), *server_options())


@pytest.fixture(autouse=True)
def _no_variables(monkeypatch):
    for name in (
        "GRAFTLM_PLUGINS",
        "GRAFTLM_PLATFORM",
        "GRAFTLM_LOG_LEVEL",
        "GRAFTLM_LOG_FORMAT",
        "GRAFTLM_API_KEY",
    ):
        monkeypatch.delenv(name, raising=False)


def parse(*argv: str):
    parser = ArgumentParser(prog="graftlm serve")
    parser.add_argument("model", nargs="?", metavar="MODEL")
    add_config_file_flag(parser)
    add_options(parser, OPTIONS)
    return read_arguments(parser, argv, options=OPTIONS)[0]


@pytest.mark.parametrize(
    ("argv", "path", "value"),
    [
        (["--max-model-len", "128"], "model.max_model_len", 128),
        (["-tp", "2"], "parallel.tensor_parallel_size", 2),
        (["--gpu-memory-utilization", "0.3"], "cache.memory_utilization", 0.3),
        (["--kv-cache-memory-bytes", "512m"], "cache.kv_cache_memory_bytes", 512 * 2**20),
        (["--no-enable-prefix-caching"], "cache.enable_prefix_caching", False),
        (["--no-plugins"], "plugins.no_plugins", True),
        (["--plugins", "a, b", "--plugins", "c"], "plugins.plugins", ["a", "b", "c"]),
        (["--served-model-name", "a,b", "--served-model-name", "c"], "model.served_model_name", ["a,b", "c"]),
        (["--custom-ops", "-rms_norm"], "compilation.custom_ops", ["-rms_norm"]),
        (["--hf-overrides", '{"architectures": ["X"]}'], "model.hf_overrides", {"architectures": ["X"]}),
        (["--seed", "-1"], "model.seed", -1),
        (["--api-key", "a", "--api-key", "b"], "server.api_key", ["a", "b"]),
        (["opt", "--port", "1"], "model.model", "opt"),
    ],
)
def test_a_flag_sets_its_option_and_no_other(argv, path, value):
    """Each type is converted, and only what was given is among the values."""
    arguments = parse(*argv)

    assert arguments.values[path] == value
    assert set(arguments.values) <= {path, "server.port"}


def test_values_are_recorded_as_the_users_even_when_they_equal_the_default():
    """A platform that respects the user's choice must see that there was one."""
    config = parse("--max-num-seqs", "64").engine_config()

    assert config.owner_of("scheduler.max_num_seqs") == "user"
    assert config.owner_of("scheduler.max_num_batched_tokens") == "default"


@pytest.mark.parametrize(
    ("argv", "part"),
    [
        (["--max-model-length", "1"], "--max-model-len"),
        (["--max-model", "1"], "unknown flag --max-model;"),
        (["--port", "x"], "--port='x': it is not a whole number"),
        (["--dtype", "float8"], "float32"),
        (["--hf-overrides", "{a}"], "it is no JSON"),
        (["--kv-cache-memory-bytes", "lots"], "512m"),
        (["a", "b"], "unexpected argument 'b'"),
        (["--additional-config", "{}"], "unknown flag --additional-config; --plugin-config NAME.KEY=VALUE"),
        (["-cc.custom_ops=none"], "unknown flag -cc.custom_ops; there are --custom-ops"),
        (["--save-result"], "unknown flag --save-result; see"),
        (["a", "--model", "b"], "given twice"),
    ],
)
def test_a_wrong_command_line_is_refused_with_the_value_and_the_cure(argv, part):
    """Nothing is abbreviated, guessed or ignored."""
    with pytest.raises(UsageError) as caught:
        parse(*argv)

    assert part in str(caught.value)


def test_flags_win_over_the_file_and_the_file_over_the_environment(tmp_path, monkeypatch):
    """Three layers, the nearest to the user's hand last."""
    monkeypatch.setenv("GRAFTLM_PLUGINS", "x,y")
    monkeypatch.setenv("GRAFTLM_PLATFORM", "cpu")
    file = tmp_path / "serve.yaml"
    file.write_text("model: opt\nmax-num-seqs: 3\nplatform: dummy\nenable_prefix_caching: false\ntemp: 1\n")
    with pytest.raises(UnknownOption):
        parse("--config", str(file))
    file.write_text("model: opt\nmax-num-seqs: 3\nplatform: dummy\nserved-model-name: [a, b]\nport: 8123\n")

    values = parse("--config", str(file), "--max-num-seqs", "4").values

    assert values == {
        "plugins.plugins": ["x", "y"],
        "plugins.platform": "dummy",
        "model.model": "opt",
        "model.served_model_name": ["a", "b"],
        "scheduler.max_num_seqs": 4,
        "server.port": 8123,
    }


def test_an_unknown_key_of_the_file_is_an_error_with_the_nearest(tmp_path):
    """A typing error in a file must not be ignored."""
    file = tmp_path / "serve.yaml"
    file.write_text("max-num-seq: 3\n")

    with pytest.raises(UnknownOption, match="did you mean 'max-num-seqs'"):
        parse("--config", str(file))


@pytest.mark.parametrize("text", ["- a\n- b\n", "a: [", "port: [1]\n"])
def test_a_file_of_the_wrong_shape_is_refused(tmp_path, text):
    """No YAML, no mapping, or a value of the wrong type."""
    file = tmp_path / "serve.yaml"
    file.write_text(text)

    with pytest.raises(ConfigError):
        parse("--config", str(file))


def test_selection_flags_are_read_alone(tmp_path):
    """What stands around them is not judged yet: a plugin may still add its choice."""
    file = tmp_path / "serve.yaml"
    file.write_text("disable_plugin: b\nport: 1\n")

    argv = ["demo", "--quantization", "new", "--plugins", "a", "--unknown", "--log-level", "debug,plugin.x=info"]
    values = read_selection([*argv, "--config", str(file)]).values

    assert values == {
        "plugins.plugins": ["a"],
        "plugins.disable_plugin": ["b"],
        "observability.log_level": ["debug", "plugin.x=info"],
    }


def test_a_plugin_may_append_to_the_choices_of_a_flag():
    """The hook before parsing sees an ordinary argparse parser, as vLLM's authors know it."""
    parser = ArgumentParser(prog="graftlm serve")
    add_options(parser, OPTIONS, choices={"model.quantization": ["mine"]})

    parser._option_string_actions["--quantization"].choices.append("theirs")

    arguments, _ = read_arguments(parser, ["--quantization", "theirs"], options=OPTIONS)
    assert arguments.values["model.quantization"] == "theirs"


def test_keyword_arguments_are_judged_like_flags():
    """The offline engine takes the flags' names and types."""
    config = options_from_keywords({"model": "opt", "gpu_memory_utilization": 0.2, "custom_ops": "all,-rms_norm"})
    assert config.cache.memory_utilization == 0.2
    assert config.compilation.custom_ops == ["all", "-rms_norm"]
    assert config.owner_of("model.model") == "user"

    with pytest.raises(UnknownOption):
        options_from_keywords({"max_len": 1})
    with pytest.raises(InvalidOption):
        options_from_keywords({"max_model_len": 1.5})


def test_every_option_has_help_and_a_spelling_of_its_own():
    """`--help` explains each flag, and no two options share a name."""
    names = [name for option in OPTIONS for name in (option.flag, *option.aliases)]

    assert all(option.help.endswith(".") for option in OPTIONS)
    assert len(names) == len(set(names))


@pytest.mark.parametrize(("word", "kept"), [("half", "float16"), ("float", "float32"), ("bfloat16", "bfloat16")])
def test_number_formats_have_the_names_that_vllm_users_type(word, kept):
    """One value is kept, whichever word was typed, in a flag or as a keyword."""
    assert parse("--dtype", word).engine_config().model.dtype == kept
    assert options_from_keywords({"dtype": word}).model.dtype == kept


def test_a_keyword_of_vllm_is_refused_with_what_there_is_instead():
    """As on the command line."""
    with pytest.raises(UnknownOption, match=r"additional-config' in LLM\(\); --plugin-config NAME.KEY=VALUE"):
        options_from_keywords({"additional_config": {}})


def test_every_flag_of_vllm_with_advice_is_none_of_ours_and_its_advice_names_ours():
    """Advice about a flag that serves is never given, and what it names exists."""
    ours = {flag for command in (serve, bench_serve) for flag in command.build_parser().flags()}
    for flag, (needed, advice) in _ADVICE.items():
        assert needed in ours
        assert any(flag not in command.build_parser().flags() for command in (serve, bench_serve)), flag
        assert {word.strip(",;") for word in advice.split() if word.startswith("--")} <= ours, advice


@pytest.mark.parametrize(
    ("flag", "advice"),
    [
        ("--enable-lora", "LoRA adapters are not served yet"),
        ("--lora-modules", "LoRA adapters are not served yet"),
        ("--swap-space", "no counterpart"),
        ("--swap_space", "no counterpart"),
        ("--cpu-offload-gb", "no counterpart"),
        ("--pipeline-parallel-size", "--tensor-parallel-size"),
        ("--speculative-config.method", "not supported yet"),
        ("--device", "--platform NAME"),
        ("--no-enable-chunked-prefill", "prompts are always chunked"),
        ("--no-enforce-eager", "models are eager"),
    ],
)
def test_a_well_known_flag_of_vllm_says_what_to_do(flag, advice):
    """Also where there is no counterpart: no flag that is merely spelled alike is offered."""
    with pytest.raises(UsageError) as error:
        serve.build_parser().refuse_unknown_flags(["demo", flag, "1"])

    assert str(error.value).startswith(f"unknown flag {flag}; ") and advice in str(error.value)
    assert "did you mean" not in str(error.value)


def test_unknown_flags_are_found_before_the_rest_is_judged():
    """A value with a blank is none, nor is what follows --; a wrong value is left for later."""
    parser = serve.build_parser()
    parser.refuse_unknown_flags(["demo", "--dtype", "nonsense", "--chat-template", "--x y", "--", "--foo"])

    with pytest.raises(UsageError, match="unknown flag --max-model-length; did you mean --max-model-len"):
        parser.refuse_unknown_flags(["demo", "--dtype", "nonsense", "--max-model-length=8"])
