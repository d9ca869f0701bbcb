from __future__ import annotations

import json
import subprocess
import sys

import pytest

from graftlm.config.arguments import options_from_keywords
from graftlm.config.errors import ConfigError, ConfigFrozen, InvalidOption
from graftlm.contracts.errors import StartupError
from graftlm.contracts.platform import Platform
from graftlm.engine.configure import configure
from graftlm.platforms.bootstrap import bootstrap_frontend
from graftlm.plugins import find_host
from graftlm.plugins.current import hold_host

HF_CONFIG = {
    "architectures": ["LlamaForCausalLM"], "model_type": "llama", "hidden_size": 32, "intermediate_size": 64,
    "num_attention_heads": 4, "num_key_value_heads": 2, "num_hidden_layers": 2, "vocab_size": 128,
    "max_position_embeddings": 256, "rms_norm_eps": 1e-5,
}  # fmt: skip


@pytest.fixture
def checkpoint(tmp_path):
    """A checkpoint with a configuration and no weights: nothing here reads them."""
    (tmp_path / "config.json").write_text(json.dumps(HF_CONFIG))
    (tmp_path / "model.safetensors").write_bytes((2).to_bytes(8, "little") + b"{}")
    return str(tmp_path)


@pytest.fixture
def host():
    """The plugin host of a front end, whose platform a test may replace."""
    before = find_host()
    yield bootstrap_frontend()
    hold_host(before)


class Calls(Platform):
    """Writes down which hook saw what."""

    device_name = "Calls"
    supported_dtypes = ("bfloat16", "float32")
    seen: list[tuple]

    @classmethod
    def verify_model_arch(cls, architecture):
        cls.seen.append(("verify_model_arch", architecture))

    @classmethod
    def apply_config_platform_defaults(cls, config):
        cls.seen.append(("defaults", list(config.compilation.custom_ops), config.model.dtype))
        config.scheduler.max_num_seqs = 7

    @classmethod
    def check_and_update_config(cls, config):
        cls.seen.append(("check", list(config.compilation.custom_ops), config.scheduler.max_num_seqs))
        config.parallel.worker_cls = "graftlm.contracts.worker:Worker"


def serve_on(host, **attributes):
    """Make a Calls with these attributes the platform of `host`."""
    host.platform = type("Calls", (Calls,), {"seen": [], **attributes})()
    return host.platform


@pytest.fixture
def calls(host):
    return serve_on(host)


def test_the_stages_come_in_their_order_and_each_value_knows_its_owner(checkpoint, host, calls):
    """Defaults, user, checkpoint, platform defaults, base mode, the platform's last word, frozen."""
    config = configure(options_from_keywords({"model": checkpoint, "max_model_len": 64}), host)

    assert calls.seen == [
        ("verify_model_arch", "LlamaForCausalLM"),
        ("defaults", [], "bfloat16"),
        ("check", ["all"], 7),
    ]
    assert config.owner_of("model.max_model_len") == "user"
    assert config.owner_of("model.dtype") == "engine"
    assert config.owner_of("scheduler.max_num_seqs") == "platform cpu"
    assert config.owner_of("cache.block_size") == "default"
    assert config.model.served_model_name == (checkpoint,)
    owners = [event.facts["owner"] for event in host.ledger.of("config_stage")]
    assert owners == ["user", "engine", "engine", "engine", "platform cpu", "engine", "platform cpu"]
    with pytest.raises(ConfigFrozen):
        config.model.seed = 1


def test_hooks_are_called_once(checkpoint, host, calls):
    """A platform need not be ready for a second call."""
    configure(options_from_keywords({"model": checkpoint}), host)

    for hook in ("verify_model_arch", "apply_config_platform_defaults", "check_and_update_config"):
        assert host.ledger.count("hook_called", hook=hook) == 1


@pytest.mark.parametrize(
    ("options", "custom_ops"),
    [
        ({}, ("all",)),
        ({"compilation_backend": "inductor"}, ("none",)),
        ({"custom_ops": "none,+rms_norm"}, ("none", "+rms_norm")),
        ({"custom_ops": "-rms_norm"}, ("all", "-rms_norm")),
    ],
)
def test_the_base_mode_of_custom_ops_is_added_where_there_is_none(checkpoint, host, options, custom_ops):
    """Ops run, unless a compiler fuses their plain form or the user said otherwise."""
    config = configure(options_from_keywords({"model": checkpoint, **options}), host)

    assert config.compilation.custom_ops == custom_ops


def test_a_platform_may_set_the_base_mode_and_the_switches_of_the_user_stay(checkpoint, host):
    """A bare -name survives a platform that has the last word on the mode, and what the user asked stays known."""
    serve_on(host, apply_config_platform_defaults=classmethod(lambda cls, c: c.compilation.set_base_mode("none")))

    config = configure(options_from_keywords({"model": checkpoint, "custom_ops": "-rms_norm"}), host)

    assert tuple(config.compilation.custom_ops) == ("none", "-rms_norm")
    assert config.compilation.base_mode == "none"
    assert config.asked_by_user("compilation.custom_ops") == ["-rms_norm"]
    assert config.asked_by_user("cache.block_size") is None


@pytest.mark.parametrize(
    ("options", "part"),
    [
        ({"tensor_parallel_size": 4}, "4 attention heads and 2 key-value heads; sizes that divide: 1, 2"),
        ({"max_model_len": 257}, "256"),
        ({"worker_cls": "graftlm.worker.cpu_worker:CPUWorker"}, "graftlm.worker.cpu_worker:CpuWorker?"),
        ({"attention_backend": "TORCH"}, "TORCH_PAGED"),
        ({"quantization": "int3"}, "--quantization='int3'"),
        (
            {"quantization": "gguf"},
            "is safetensors; leave the flag out, or quantize plain weights with q8_0 or q4_0",
        ),
        (
            {"quantization": "q4_0", "dtype": "float"},
            "--quantization='q4_0': it keeps weights in blocks, and --dtype",
        ),
        ({"custom_ops": "all,none"}, "--custom-ops"),
        ({"distributed_executor_backend": "ray"}, "--distributed-executor-backend='ray'"),
        ({"dtype": "float16", "kv_cache_memory_bytes": 0}, "--kv-cache-memory-bytes=0"),
        ({"load_format": "gguv"}, "gguf"),
        ({"hf_overrides": {"architectures": ["LamaForCausalLM"]}}, "LlamaForCausalLM"),
        ({"hf_overrides": {"architectures": []}}, "names no architecture"),
    ],
)
def test_what_cannot_be_served_is_refused_with_value_and_cure(checkpoint, host, options, part):
    """All of it in the front end, before any process is started."""
    with pytest.raises((ConfigError, StartupError)) as caught:
        configure(options_from_keywords({"model": checkpoint, **options}), host)

    assert part in str(caught.value)


def test_a_gguf_file_is_not_kept_and_dequantized_at_once(tmp_path, tiny_llama, host):
    """--dtype float32 is the reference, so beside it the method that keeps blocks is refused, or left out."""
    from gguf_files import write_llama_gguf

    write_llama_gguf(tmp_path / "m.gguf", tiny_llama, format="Q4_0")
    asked = {"model": str(tmp_path / "m.gguf"), "dtype": "float32"}

    assert configure(options_from_keywords(asked), host).model.quantization is None
    with pytest.raises(InvalidOption, match="leave one of the two flags out"):
        configure(options_from_keywords({**asked, "quantization": "gguf"}), host)


def test_more_threads_than_cores_are_warned_of_once(checkpoint, host, caplog):
    """Thousands of them would only wait for each other."""
    configure(options_from_keywords({"model": checkpoint, "threads_per_worker": 1024}), host)

    (said,) = [r.getMessage() for r in caplog.records if "more threads than cores" in r.getMessage()]
    assert "1024 compute threads" in said and "usable core" in said


def test_a_platform_that_leaves_the_worker_class_unset_is_named(checkpoint, host):
    """In the seed of all this, that error came three processes later."""
    serve_on(host, check_and_update_config=classmethod(lambda cls, config: None))

    with pytest.raises(InvalidOption, match=r"--worker-cls='auto': Calls \(Calls\) left it unset"):
        configure(options_from_keywords({"model": checkpoint}), host)


def test_a_class_object_as_worker_class_is_refused(checkpoint, host):
    """Offline callers may try to pass one; another process could not receive it."""
    config = options_from_keywords({"model": checkpoint})
    config.parallel.worker_cls = Calls

    with pytest.raises(InvalidOption, match="a class object"):
        configure(config, host)


def test_a_resolved_configuration_survives_the_way_to_a_child(checkpoint, host):
    """Values and owners are equal after encoding; the copy is frozen too."""
    config = configure(options_from_keywords({"model": checkpoint}), host)

    copy = type(config).from_bytes(config.to_bytes())

    assert copy.model.hf_config == HF_CONFIG | copy.model.hf_config
    assert copy.model.architecture == "LlamaForCausalLM"
    assert copy.owner_of("parallel.worker_cls") == "platform cpu"
    assert copy.model.frozen


def test_configuring_imports_no_torch(checkpoint):
    """The front end of a server starts in a fraction of what torch costs."""
    code = (
        "import sys\n"
        "from graftlm.config.arguments import options_from_keywords\n"
        "from graftlm.engine.configure import configure\n"
        "from graftlm.platforms.bootstrap import bootstrap_frontend\n"
        f"config = options_from_keywords({{'model': {checkpoint!r}, 'custom_ops': '-rms_norm'}})\n"
        "configure(config, bootstrap_frontend())\n"
        "assert 'torch' not in sys.modules"
    )

    subprocess.run([sys.executable, "-c", code], check=True, timeout=240)
