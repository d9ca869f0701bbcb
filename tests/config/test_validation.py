from __future__ import annotations

import pytest

from graftlm.config.engine_config import EngineConfig
from graftlm.config.errors import ConfigError, InvalidOption
from graftlm.contracts.platform import Platform
from graftlm.engine.validation import check_names, check_numbers, check_op_switches, check_worker_class
from graftlm.plugins import Plugin


class FakeHost:
    """A host whose plugins are given as names by point."""

    discovery = None  # no manifests

    def __init__(self, **names: list[str]) -> None:
        self.names = names

    def available(self, point) -> list[str]:
        return self.names.get(point.name, [])

    def plugins(self, point) -> list[Plugin]:
        return [
            Plugin(point=point.name, name=name, value="acme:f", distribution="acme", version="1.0")
            for name in self.available(point)
        ]


class AcmePlatform(Platform):
    device_name = "Acme One"
    supported_quantization = ("acme8",)


def config_with(**values) -> EngineConfig:
    config = EngineConfig()
    config.parallel.worker_cls = "graftlm.contracts.worker:Worker"
    for path, value in values.items():
        section, field = path.split("__")
        setattr(getattr(config, section), field, value)
    return config


@pytest.mark.parametrize(
    ("path", "value"),
    [
        ("parallel__tensor_parallel_size", 0),
        ("cache__memory_utilization", 1.5),
        ("scheduler__max_num_seqs", 0),
        ("scheduler__max_num_batched_tokens", -1),
        ("scheduler__scheduling_policy", "fifo"),
        ("model__dtype", "float8"),
    ],
)
def test_numbers_and_choices_out_of_range_are_refused_with_their_flag(path, value):
    """Also where a file, a keyword argument or a platform hook set them."""
    with pytest.raises(InvalidOption) as caught:
        check_numbers(config_with(**{path: value}))

    assert f"--{path.split('__')[1].replace('_', '-')}={value!r}" in str(caught.value)


def test_names_of_entry_points_and_class_paths_are_accepted():
    """What a plugin provides is known from metadata, whatever it imports."""
    host = FakeHost(
        attention_backends=["ACME"], workers=["acme"], executors=["ray"], quantization_methods=["acme8"]
    )

    check_names(config_with(), host, AcmePlatform())
    check_names(
        config_with(
            parallel__worker_cls="acme",
            parallel__distributed_executor_backend="ray",
            attention__attention_backend="ACME",
            model__quantization="acme8",
            compilation__custom_ops=["none", "+rms_norm"],
        ),
        host,
        AcmePlatform(),
    )


@pytest.mark.parametrize(
    ("values", "part"),
    [
        ({"attention__attention_backend": "TORCH_PAGE"}, "did you mean TORCH_PAGED"),
        ({"attention__attention_backend": "graftlm.contracts.attention:Attn"}, "has no Attn"),
        ({"parallel__distributed_executor_backend": "mpi"}, "did you mean mp"),
        ({"parallel__distributed_executor_backend": "uni", "parallel__tensor_parallel_size": 2}, "use mp"),
        ({"model__quantization": "acme9"}, "did you mean acme8"),
        ({"model__quantization": "other8"}, "Acme One"),
    ],
)
def test_a_name_that_nothing_provides_is_refused_with_the_nearest(values, part):
    """No child process is started to find out."""
    host = FakeHost(quantization_methods=["acme8", "other8"])

    with pytest.raises(InvalidOption) as caught:
        check_names(config_with(**values), host, AcmePlatform())

    assert part in str(caught.value)


def test_a_worker_class_must_be_a_path_and_must_be_set():
    """A class object is refused, and an unset one blames the platform that should have set it."""
    with pytest.raises(InvalidOption, match="pass its path, 'test_validation:FakeHost'"):
        check_worker_class(FakeHost, FakeHost(), AcmePlatform())
    with pytest.raises(InvalidOption, match="Acme One"):
        check_worker_class("auto", FakeHost(), AcmePlatform())


@pytest.mark.parametrize(
    ("switches", "part"),
    [
        (["all", "none"], "all and none"),
        (["+rms_norm", "-rms_norm"], "rms_norm"),
        (["+rmsnorm"], "rms_norm"),
        (["rms_norm"], "+name"),
    ],
)
def test_a_wrong_list_of_op_switches_is_refused(switches, part):
    """Two base modes, a contradiction, an unknown op, a switch without a sign."""
    with pytest.raises(ConfigError) as caught:
        check_op_switches(switches, FakeHost())

    assert part in str(caught.value)
    assert "--custom-ops" in str(caught.value)


def test_an_op_of_a_plugin_may_be_switched():
    """`op.provider` entry points bring op names of their own."""
    check_op_switches(["all", "-acme_mix"], FakeHost(op_implementations=["acme_mix.acme"]))
