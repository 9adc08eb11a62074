"""NNCF's int8 quantisation of the model and of the files it is exported to, beside that of timm's own gMLP.

A quantised torch model is computed by an extension in C++. NNCF compiles it when it first needs it, which
takes a minute, and finds it again afterwards; to have it built beforehand:

    python -c "import nncf.torch.quantization.extensions, nncf.torch as t; t.force_build_cpu_extensions()"
"""

import sys
from collections.abc import Callable
from functools import lru_cache
from pathlib import Path
from typing import Any, NamedTuple

import pytest
import timm
import torch
from tiny import images, tiny
from torch import nn

from gmlp_vision.export import export_model

pytestmark = [pytest.mark.compat, pytest.mark.filterwarnings("default")]  # of other people's code: shown

SIZE = (32, 24)  # 12 tokens: N, D and E / 2 are 12, 16 and 48, so no axis passes for another
PRODUCTS = 1 + 2 * 3 + 1  # the stem; U, W and V of each block; the head


@pytest.fixture(autouse=True)
def no_time_limit(monkeypatch: pytest.MonkeyPatch) -> None:
    """Where nobody has built the extension, a slow machine only takes longer."""
    monkeypatch.setenv("NNCF_EXTENSION_LOAD_TIMEOUT", "0")


def ours(**kwargs: object) -> nn.Module:
    """With the same weights in each call."""
    torch.manual_seed(0)
    return tiny(img_size=SIZE, **kwargs)


def timms() -> nn.Module:
    """timm's own gMLP, with the weights of `ours`."""
    mixer = timm.models.MlpMixer(
        num_classes=5,
        img_size=SIZE,
        patch_size=8,
        num_blocks=2,
        embed_dim=16,
        mlp_ratio=6,
        block_layer=timm.models.mlp_mixer.SpatialGatingBlock,
        mlp_layer=timm.layers.GatedMlp,
    )
    mixer.load_state_dict(ours().state_dict())
    return mixer.eval()


# -- what is quantised --------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def written(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str, str], Path]:
    """Files of either model, 'ours' or 'timms', that end in .onnx or .xml, for any number of images."""
    folder = tmp_path_factory.mktemp("written")

    @lru_cache
    def written(whose: str, suffix: str) -> Path:
        path = folder / f"{whose}{suffix}"
        if whose == "ours":
            kind = "onnx" if suffix == ".onnx" else "openvino"
            export_model(ours(), path, kind, dynamic_batch=True)
        elif suffix == ".onnx":
            write_timms_onnx(path)
        else:
            import openvino

            openvino.save_model(openvino.convert_model(written(whose, ".onnx")), path, compress_to_fp16=False)
        return path

    return written


def write_timms_onnx(path: Path) -> None:
    from onnxscript.optimizer import fold_constants

    program = torch.onnx.export(
        timms(),
        (images(2, 3, *SIZE),),
        dynamo=True,
        dynamic_shapes=({0: torch.export.Dim("batch")},),
        input_names=["image"],
        output_names=["logits"],
        verbose=False,
    )
    fold_constants(program.model, input_size_limit=sys.maxsize, output_size_limit=sys.maxsize)
    program.save(path, external_data=False)


def read(kind: str, whose: str, written: Callable[[str, str], Path]) -> Any:
    """A model to quantise, of a kind 'torch', 'onnx' or 'openvino'."""
    if kind == "torch":
        return ours() if whose == "ours" else timms()
    if kind == "onnx":
        import onnx

        return onnx.load(written(whose, ".onnx"))
    import openvino

    return openvino.Core().read_model(written(whose, ".xml"))


# -- what became of it --------------------------------------------------------------------------------------


class Quantised(NamedTuple):
    """What is in a quantised model, and what it computes."""

    activations: int  # that are quantised
    products: list[bool]  # of each, whether both factors are quantised
    run: Callable[[torch.Tensor], torch.Tensor]


def look_at_torch(model: nn.Module) -> Quantised:
    from nncf.torch.quantization.layers import BaseQuantizer

    scales = [m.scale.numel() for m in model.modules() if isinstance(m, BaseQuantizer)]
    weights = sum(n > 1 for n in scales)  # which have a scale for each of their channels
    return Quantised(scales.count(1), [i < weights for i in range(PRODUCTS)], torch.no_grad()(model))


def look_at_onnx(model: Any) -> Quantised:
    import onnxruntime

    nodes = list(model.graph.node)
    makers = {name: node for node in nodes for name in node.output}

    def is_quantised(name: str) -> bool:
        """Whether a factor is quantised, perhaps in another shape."""
        if name not in makers:
            return False
        maker = makers[name]
        if maker.op_type in ("Reshape", "Transpose"):
            return is_quantised(maker.input[0])
        return maker.op_type == "DequantizeLinear"

    products = [node for node in nodes if node.op_type in ("Conv", "Gemm", "MatMul")]
    session = onnxruntime.InferenceSession(model.SerializeToString(), providers=["CPUExecutionProvider"])
    return Quantised(
        sum(node.op_type == "QuantizeLinear" for node in nodes),
        [all(map(is_quantised, product.input[:2])) for product in products],
        lambda x: torch.from_numpy(session.run(None, {"image": x.numpy()})[0]),
    )


def look_at_openvino(model: Any) -> Quantised:
    import openvino

    def source(node: Any, i: int) -> Any:
        return node.input_value(i).get_node()

    def is_quantised(node: Any) -> bool:
        """Whether a factor is quantised, perhaps in another shape, or is int8 times a scale."""
        kind = node.get_type_name()
        if kind in ("Reshape", "Transpose"):
            return is_quantised(source(node, 0))
        if kind == "Multiply" and source(node, 0).get_type_name() == "Convert":
            return source(node, 0).get_input_element_type(0).size == 1
        return kind == "FakeQuantize"

    ops = model.get_ops()
    products = [op for op in ops if op.get_type_name() in ("Convolution", "MatMul")]
    compiled = openvino.Core().compile_model(model, "CPU", {"INFERENCE_PRECISION_HINT": "f32"})
    return Quantised(
        sum(op.get_type_name() == "FakeQuantize" for op in ops),
        [is_quantised(source(product, 0)) and is_quantised(source(product, 1)) for product in products],
        lambda x: torch.from_numpy(compiled(x.numpy())[0]),
    )


LOOK_AT = {"torch": look_at_torch, "onnx": look_at_onnx, "openvino": look_at_openvino}


def quantised(model: Any, kind: str, **advanced: object) -> Any:
    import nncf

    samples = [images(1, 3, *SIZE, seed=i) for i in range(32)]
    if kind != "torch":
        samples = [x.numpy() for x in samples]
    if kind == "onnx":
        samples = [{"image": x} for x in samples]
    options = {"advanced_parameters": nncf.AdvancedQuantizationParameters(**advanced)} if advanced else {}
    return nncf.quantize(model, nncf.Dataset(samples), **options)


def error(found: Quantised) -> float:
    """The largest difference of a logit from that of the float model, as a part of the logits' spread."""
    x = images(8, 3, *SIZE, seed=99)
    with torch.no_grad():
        expected = ours()(x)
    return ((found.run(x) - expected).abs().max() / expected.std(dim=0).max()).item()


# -- tests --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("kind", "advanced"),
    [
        *((kind, {}) for kind in LOOK_AT),
        *((kind, {"disable_bias_correction": True}) for kind in LOOK_AT),
        # Without it OpenVINO's sums of int8 overflow on a CPU that has no VNNI, of timm's model as of ours.
        ("openvino", {"overflow_fix": "enable"}),
    ],
    ids=lambda value: value if isinstance(value, str) else next(iter(value), "defaults"),
)
def test_as_much_is_quantised_as_of_timms(kind: str, advanced: dict, written: Callable) -> None:
    found, expected = (
        LOOK_AT[kind](quantised(read(kind, whose, written), kind, **advanced)) for whose in ("ours", "timms")
    )
    assert len(expected.products) == PRODUCTS
    assert all(expected.products)
    assert all(found.products)
    assert len(found.products) == PRODUCTS + (0 if kind == "torch" else 2)  # in files U is in two halves
    assert found.activations >= expected.activations > 2 * PRODUCTS

    x = images(8, 3, *SIZE, seed=99)
    logits = found.run(x)
    spread = logits.std(dim=0).max().item()
    assert spread > 0.01
    for size in (1, 3):  # one answer, whatever the batch
        answer = torch.cat([found.run(part) for part in x.split(size)])
        torch.testing.assert_close(answer, logits, atol=0.01 * spread, rtol=0)

    if kind != "openvino" or "overflow_fix" in advanced:
        assert error(found) < min(0.5, 2 * error(expected))


def test_a_model_of_any_size_is_quantised_as_one_of_its_size() -> None:
    found, expected = (
        LOOK_AT["torch"](quantised(ours(dynamic_img_size=dynamic), "torch")) for dynamic in (True, False)
    )
    assert found[:2] == expected[:2]
    x = images(8, 3, *SIZE, seed=99)
    assert expected.run(x).std() > 0.01
    torch.testing.assert_close(found.run(x), expected.run(x), atol=1e-3, rtol=1e-3)


def test_a_quantised_model_can_be_trained_on() -> None:
    """As quantisation-aware training does: the gradients are nearly those of the float model."""
    x, gradients = images(8, 3, *SIZE), []
    for model in (ours(), quantised(ours(), "torch")):
        model(x).square().sum().backward()
        gradients.append({name: p.grad for name, p in model.named_parameters() if p.grad is not None})
    expected, found = gradients
    assert len(expected) == len(ours().state_dict())
    assert expected.keys() <= found.keys()
    for name, gradient in expected.items():
        assert torch.cosine_similarity(found[name].flatten(), gradient.flatten(), dim=0) > 0.8, name
