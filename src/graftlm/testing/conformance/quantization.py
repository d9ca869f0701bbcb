"""The conformance suite of quantization methods: how layers keep their weights and multiply with them."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import Any, ClassVar

import torch
import torch.nn.functional as F

from graftlm.contracts.errors import GraftlmError
from graftlm.contracts.quantization import LinearMethod, QuantizationConfig
from graftlm.plugins import current_host
from graftlm.plugins.resolve import resolve_class_path
from graftlm.plugins.spelling import counted
from graftlm.testing.elsewhere import as_elsewhere, elsewhere
from graftlm.testing.host import FakeDistribution, plugin_host
from graftlm.testing.quantized_layers import LayerCase, inputs, packed_cases, plain_cases
from graftlm.testing.suite import NotDeclared, Suite


class QuantizationConformance(Suite):
    """Subclass it with `subject` naming a QuantizationConfig class.

    `largest_error` is what the method may take from an answer, as a share of its norm; `hf_config` is what
    `from_checkpoint` gets. `distributions` are those whose plugins the method needs beside it.
    """

    contract = "graftlm.contracts.quantization.QuantizationConfig"
    largest_error: ClassVar[float] = 0.15
    hf_config: ClassVar[dict[str, Any]] = {}
    dtypes: ClassVar[tuple[torch.dtype, ...]] = (torch.float32, torch.bfloat16)
    #: Where layers lie and compute, as torch names it.
    device: ClassVar[str] = "cpu"
    distributions: ClassVar[tuple[str | FakeDistribution, ...]] = ()
    #: The entry point's name, where there is one.
    plugin: ClassVar[str] = ""

    def test_it_is_a_complete_quantization_class(self) -> None:
        """A subclass of QuantizationConfig with its methods and a `name`; `from_checkpoint` makes an object of
        what config.json says, and `get_linear_method` a LinearMethod for a layer, or None to keep it plain.
        """
        cls = self.complete_class(QuantizationConfig)
        name = getattr(cls, "name", None)
        self.require(isinstance(name, str) and bool(name), f"its name is {name!r}; write what --quantization says")
        named = not self.plugin or name == self.plugin
        self.require(
            named, f"its name is {name!r}, its entry point {self.plugin!r}; --quantization is one, so make one"
        )
        with self._host():
            self.require(self._method() is not self._method(), "from_checkpoint returns one object for two models")
            kept = 0
            for case in plain_cases(torch.float32):
                layer = self._build(case, torch.float32)
                method = layer.linear_method
                good = isinstance(method, LinearMethod)
                self.require(good, f"{case.label}: get_linear_method returns a {type(method).__name__}")
                kept += method.__class__.__module__ != "graftlm.layers.quantization.unquantized"
            self.require(kept > 0, "get_linear_method keeps every layer plain: it does nothing")

    def test_layers_compute_nearly_what_plain_ones_do(self) -> None:
        """`apply` returns x times the weight's transpose, plus the bias, in x's number format and within
        `largest_error`, for any number of tokens.
        """
        for case, dtype, layer in self._layers():
            for x in inputs(dtype):
                self._near(
                    self._apply(case, layer, x),
                    case.reference(x),
                    f"{_name(case, dtype)}, {counted(len(x), 'token')}",
                    dtype,
                )

    def test_embeddings_return_rows_of_the_weight(self) -> None:
        """`embed` returns the rows of the ids, in the model's number format and within `largest_error`."""
        ids = torch.tensor([3, 0, 263, 3, 100], device=self.device)
        for case, dtype, layer in self._layers():
            if case.embeds and case.label != "lm_head":
                for some in (ids, ids[:1], ids[:0]):
                    found = layer.linear_method.embed(layer, some)
                    expected = F.embedding(some.cpu(), case.weight)
                    self._near(found, expected, f"embed of {_name(case, dtype)}, {counted(len(some), 'id')}", dtype)

    def test_shards_may_come_in_any_order(self) -> None:
        """A layer that is filled in several calls, such as q, k and v, has each in rows of its own."""
        for case, dtype, layer in self._layers():
            if len(case.pieces) > 1:
                turned = case.fill(self._build(case, dtype), list(reversed(case.pieces)))
                (x,) = inputs(dtype, tokens=[5])
                found, expected = self._apply(case, turned, x), self._apply(case, layer, x)
                what = f"{_name(case, dtype)}, filled from its last shard to its first"
                self.require(torch.equal(found, expected), f"{what}, it computes something else")

    def test_arguments_are_left_unchanged(self) -> None:
        """Weights lie in the file's memory map, and the input is needed again: neither is written to."""
        for dtype in self.dtypes:
            with self._host():
                for case in plain_cases(dtype):
                    copies = [matrix.clone() for _, matrix in case.pieces]
                    layer = case.fill(self._build(case, dtype))
                    same = all(torch.equal(a, b) for a, (_, b) in zip(copies, case.pieces, strict=True))
                    self.require(same, f"{_name(case, dtype)}: loading changes the checkpoint's tensor")
                    (x,) = inputs(dtype, tokens=[5])
                    before = x.clone()
                    self._apply(case, layer, x)
                    self.require(torch.equal(before, x), f"{_name(case, dtype)}: apply changes its input")

    def test_no_state_from_call_to_call(self) -> None:
        """Equal inputs give equal answers whatever was computed between; an answer stays as it is afterwards."""
        for case, dtype, layer in self._layers():
            x, other = inputs(dtype, tokens=[5, 5])
            first = self._apply(case, layer, x)
            kept = first.clone()
            self._apply(case, layer, other)
            self.require(torch.equal(first, kept), f"{_name(case, dtype)}: a later call changes an earlier answer")
            again = torch.equal(self._apply(case, layer, x), kept)
            self.require(again, f"{_name(case, dtype)}: after another call, the same input gets another answer")

    def test_layers_share_nothing(self) -> None:
        """Two layers of one model, by one method object, keep their own weights."""
        for dtype in self.dtypes:
            with self._host():
                case, method = plain_cases(dtype)[0], self._method()
                twin = LayerCase(case.label, case.layer_cls, case.args, [(None, -2 * case.pieces[0][1])], case.bias)
                (x,) = inputs(dtype, tokens=[5])
                layers = [
                    c.build(method, dtype=dtype, device=self.device, hf_config=self.hf_config) for c in (case, twin)
                ]
                for one, layer in zip((case, twin), layers, strict=True):
                    one.fill(layer)
                for which, (one, layer) in enumerate(zip((case, twin), layers, strict=True), start=1):
                    what = f"layer {which} of two that were built before either was filled, in {dtype}"
                    self._near(self._apply(one, layer, x), one.reference(x), what, dtype)

    def test_a_files_blocks_are_taken_or_refused(self) -> None:
        """A QuantizedWeight, cut or beside plain matrices in one layer, is used, dequantized, or refused with
        what to do instead; never misread.
        """
        refused = ""
        for dtype in self.dtypes:
            with self._host():
                for case in packed_cases():
                    layer = self._build(case, dtype)
                    try:
                        case.fill(layer)
                    except GraftlmError as error:
                        refused = f"{case.label}: {error}"
                        continue
                    what = f"{_name(case, dtype)}, filled with Q8_0 blocks"
                    if case.embeds:
                        ids = torch.tensor([3, 0, 263], device=self.device)
                        self._near(layer.linear_method.embed(layer, ids), case.weight[ids.cpu()], what, dtype)
                        continue
                    for x in inputs(dtype):
                        self._near(self._apply(case, layer, x), case.reference(x), what, dtype)
        if refused:
            raise NotDeclared(f"it refuses blocks of a file ({refused})")

    def test_every_process_answers_alike(self) -> None:
        """Ranks and restarts agree: what a layer computes depends on neither process nor hash seed."""
        function = "graftlm.testing.conformance.quantization:answers_elsewhere"
        with self._host(), as_elsewhere():
            ours = answers(self.load(), self.hf_config, self.device)
        theirs = elsewhere().call(function, self.subject_path(), self.hf_config, self.device)
        for label, numbers in ours.items():
            self.require(numbers == theirs.get(label), f"{label}: another process computes something else")

    def _layers(self) -> Iterator[tuple[LayerCase, torch.dtype, Any]]:
        """Yield every layer, filled, in every number format; nothing may be registered when they compute."""
        for dtype in self.dtypes:
            with self._host() as host:
                for case in plain_cases(dtype):
                    layer = case.fill(self._build(case, dtype))
                    host.frozen = True
                    with torch.inference_mode():
                        yield case, dtype, layer
                    host.frozen = False

    def _build(self, case: LayerCase, dtype: torch.dtype) -> Any:
        return case.build(self._method(), dtype=dtype, device=self.device, hf_config=self.hf_config)

    def _method(self) -> QuantizationConfig:
        try:
            method: QuantizationConfig = self.load().from_checkpoint(dict(self.hf_config))
        except Exception as error:
            self.fail(f"from_checkpoint raises {type(error).__name__}: {error}")
        self.require(isinstance(method, QuantizationConfig), f"from_checkpoint returns a {type(method).__name__}")
        return method

    def _apply(self, case: LayerCase, layer: Any, x: torch.Tensor) -> torch.Tensor:
        try:
            with torch.inference_mode():
                found: torch.Tensor = layer.linear_method.apply(
                    layer, x.to(self.device), layer.bias if not case.embeds else None
                )
        except Exception as error:
            self.fail(f"apply of {case.label} to {list(x.shape)} {x.dtype} raises {type(error).__name__}: {error}")
        return found

    def _near(self, found: Any, expected: torch.Tensor, what: str, dtype: torch.dtype) -> None:
        self.require(isinstance(found, torch.Tensor), f"{what}: it returns a {type(found).__name__}, no tensor")
        shape = list(found.shape)
        self.require(shape == list(expected.shape), f"{what}: it has shape {shape}, not {list(expected.shape)}")
        self.require(found.dtype == dtype, f"{what}: it is {found.dtype}, not {dtype}")
        place = torch.device(self.device).type
        self.require(found.device.type == place, f"{what}: it lies on {found.device}, not on {self.device}")
        if not expected.numel():
            return
        error = float((found.cpu().double() - expected.double()).norm() / expected.double().norm())
        self.require(
            error <= self.largest_error,
            f"{what}: it differs from plain weights by {error:.3g} of its norm; {self.largest_error} is allowed",
        )

    @contextlib.contextmanager
    def _host(self) -> Iterator[Any]:
        with plugin_host(*self.distributions, role="worker"):
            yield current_host()


def answers(cls: Any, hf_config: dict[str, Any], device: str) -> dict[str, list[float]]:
    """Return what each layer computes in float32; it needs the host of a worker."""
    found = {}
    for case in plain_cases(torch.float32):
        method = cls.from_checkpoint(dict(hf_config))
        layer = case.fill(case.build(method, dtype=torch.float32, device=device, hf_config=hf_config))
        (x,) = inputs(torch.float32, tokens=[5])
        with torch.inference_mode():
            found[case.label] = layer.linear_method.apply(layer, x.to(device), None).flatten().tolist()
    return found


def answers_elsewhere(path: str, hf_config: dict[str, Any], device: str) -> dict[str, list[float]]:
    """Return `answers` of what the path names; called in another process."""
    with plugin_host(role="worker"):
        return answers(resolve_class_path(path), hf_config, device)


def _name(case: LayerCase, dtype: torch.dtype) -> str:
    return f"{case.layer_cls.__name__} '{case.label}' in {str(dtype).removeprefix('torch.')}"
