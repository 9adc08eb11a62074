"""Files for other runtimes: what they compute, what they need, and that a wrong one never appears."""

import importlib.util
from collections.abc import Callable
from functools import cache
from pathlib import Path

import numpy as np
import onnx
import onnxruntime
import openvino
import pytest
import timm
import torch
from timm.models import MlpMixer, save_for_hf
from tiny import TINY, images, tiny
from torch import nn

from gmlp_vision import export
from gmlp_vision.cli import main
from gmlp_vision.errors import UserError
from gmlp_vision.export import FORMATS, export_model

# torch 2.9 says so of its own torch.export.load
pytestmark = pytest.mark.filterwarnings("ignore:The given buffer is not writable:UserWarning")


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A model in timm's local-dir form."""
    path = tmp_path_factory.mktemp("model") / "tiny"
    args = {"depth": 2, "embed_dim": 16, "img_size": 32, "patch_size": 8}
    save_for_hf(tiny(), str(path), model_args=args, safe_serialization=True)
    return path


@pytest.fixture(scope="module")
def written(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], Path]:
    """The same model in each format, for any batch; each is written once."""
    folder = tmp_path_factory.mktemp("written")

    @cache
    def write(format: str) -> Path:
        path = folder / format / f"model{FORMATS[format].suffix}"
        path.parent.mkdir()
        path.write_text("the file before")
        torch.manual_seed(0)
        parity = export_model(tiny(), path, format, dynamic_batch=True)
        assert parity.difference < 1e-4 < parity.tolerance
        return path

    return write


def logits(model: nn.Module, x: torch.Tensor) -> np.ndarray:
    with torch.no_grad():
        return model(x).numpy()


def run(path: Path, x: torch.Tensor) -> np.ndarray:
    """What the runtime that a file is for makes of it, without this package."""
    if path.suffix == ".onnx":
        return onnxruntime.InferenceSession(path).run(None, {"image": x.numpy()})[0]
    if path.suffix == ".xml":
        return openvino.Core().compile_model(path, "CPU", {"INFERENCE_PRECISION_HINT": "f32"})(x.numpy())[0]
    if path.suffix == ".pt2":
        return logits(torch.export.load(path).module(), x)
    return logits(torch.jit.load(path), x)


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore:`torch.jit.load` is deprecated:FutureWarning")
@pytest.mark.parametrize("format", FORMATS)
def test_any_batch(format: str, written: Callable[[str], Path]) -> None:
    model, path = tiny(), written(format)
    for batch in (1, 5):
        x = images(batch, 3, 32, 32, seed=9)
        expected = logits(model, x)
        assert expected.std() > 0.1
        np.testing.assert_allclose(run(path, x), expected, atol=1e-5, rtol=1e-4)
    files = {path.name, "model.bin"} if format == "openvino" else {path.name}
    assert {p.name for p in path.parent.iterdir()} == files
    for file in path.parent.iterdir():  # what the exporters note of the code would have its path
        assert str(Path(export.__file__).parent).encode() not in file.read_bytes()


@pytest.mark.slow
@pytest.mark.parametrize(
    ("format", "dtype"),
    [("onnx", "fp16"), ("openvino", "bf16"), ("torchscript", "bf16"), ("exported-program", "fp16")],
)
def test_other_dtypes(format: str, dtype: str, tmp_path: Path, written: Callable[[str], Path]) -> None:
    model, full = tiny(), written(format)
    half = tmp_path / full.name
    parity = export_model(model, half, format, dynamic_batch=True, dtype=dtype)
    assert model.stem.proj.weight.dtype == torch.float32
    assert 1e-4 < parity.difference < parity.tolerance
    weights = ".bin" if format == "openvino" else full.suffix
    assert half.with_suffix(weights).stat().st_size < full.with_suffix(weights).stat().st_size


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore:`torch.jit.load` is deprecated:FutureWarning")
@pytest.mark.parametrize("format", ["torchscript", "exported-program"])  # of which the others are made
def test_a_model_in_training(format: str, tmp_path: Path) -> None:
    model, path, x = (
        tiny(drop_rate=0.5, drop_path_rate=0.5),
        tmp_path / f"m{FORMATS[format].suffix}",
        images(),
    )
    expected = logits(model, x)
    model.train().set_grad_checkpointing(mode="block")
    export_model(model, path, format, dynamic_batch=True)
    np.testing.assert_allclose(run(path, x), expected, atol=1e-5, rtol=1e-4)
    assert model.grad_checkpointing
    assert all(m.training for m in model.modules())


def test_the_copy_checkpoints_nothing_and_does_not_train() -> None:
    model = tiny().train()
    model.set_grad_checkpointing()
    copy = export.Float32Ends(model, torch.bfloat16)
    assert not copy.model.grad_checkpointing
    assert not any(m.training for m in copy.modules())
    assert {p.dtype for p in copy.parameters()} == {torch.bfloat16}


def test_the_copy_is_on_the_cpu() -> None:
    """Seen without a GPU: of all devices only meta has no numbers that could be moved there."""
    with pytest.raises(NotImplementedError, match="Cannot copy out of meta tensor"):
        export.Float32Ends(tiny(device="meta"), torch.float32)


@pytest.mark.slow
@pytest.mark.parametrize("format", ["onnx", "torchscript", "exported-program"])
def test_a_model_of_varying_size(format: str, tmp_path: Path) -> None:
    model, path, x = (
        tiny(dynamic_img_size=True, depth=1),
        tmp_path / f"m{FORMATS[format].suffix}",
        images(1, 3, 32, 32),
    )
    if format == "torchscript":
        with pytest.raises(UserError, match=r"dynamic_img_size=True: load its state_dict\(\) into one"):
            export_model(model, path, format)
        assert not list(tmp_path.iterdir())
    else:
        export_model(model, path, format)
        np.testing.assert_allclose(run(path, x), logits(model, x), atol=1e-5, rtol=1e-4)


@pytest.mark.parametrize(
    "make",
    [
        lambda: MlpMixer(img_size=32, patch_size=8, num_blocks=1, embed_dim=16),  # of the stem's name
        lambda: nn.DataParallel(tiny()),
        lambda: nn.Sequential(tiny()),
        lambda: timm.create_model("gmlp_ti16", **TINY, features_only=True, out_indices=(1,)),
    ],
)
def test_no_model_of_this_package(make: Callable[[], nn.Module], tmp_path: Path) -> None:
    model = make()
    message = f"the model is a {type(model).__name__}; expected one of this package, unwrapped"
    with pytest.raises(ValueError, match=message):
        export_model(model, tmp_path / "m.pt2", "exported-program")
    assert not list(tmp_path.iterdir())


@pytest.mark.slow
def test_one_image_unless_told_otherwise_and_the_weights_of_products_are_constants(tmp_path: Path) -> None:
    """A quantizer takes no others. The halves of this U are more than torch makes constants of by itself."""
    export_model(tiny(embed_dim=64, depth=1), tmp_path / "m.onnx", "onnx")
    assert onnxruntime.InferenceSession(tmp_path / "m.onnx").get_inputs()[0].shape == [1, 3, 32, 32]
    graph = onnx.load(tmp_path / "m.onnx").graph
    constants = {tensor.name for tensor in graph.initializer}
    products = [node for node in graph.node if node.op_type == "MatMul"]
    assert len(products) == 4  # U in halves, W, V
    assert all(constants & set(node.input) for node in products)


@pytest.mark.parametrize("before", [None, b"the file before"])
def test_a_file_that_computes_something_else_never_appears(
    before: bytes | None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def write(model: nn.Module, x: torch.Tensor, path: Path) -> None:
        with torch.no_grad():
            model.model.blocks[1].mlp_channels.gate.proj.weight.mul_(0.9)
        export.write_exported_program(model, x, path)

    wrong = export.FORMATS["exported-program"]._replace(write=write)
    monkeypatch.setitem(export.FORMATS, "exported-program", wrong)
    path = tmp_path / "model.pt2"
    if before:
        path.write_bytes(before)
    model = tiny()
    expected = logits(model, images())
    with pytest.raises(UserError, match=r"computes something else.*0\.001 is allowed"):
        export_model(model, path, "exported-program")
    assert [(p, p.read_bytes()) for p in tmp_path.iterdir()] == ([(path, before)] if before else [])
    np.testing.assert_array_equal(logits(model, images()), expected)


def test_logits_that_are_not_numbers_do_not_pass(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def open(path: Path) -> export.Runner:
        return lambda x: torch.full((len(x), 5), torch.nan)

    broken = export.FORMATS["exported-program"]._replace(open=open)
    monkeypatch.setitem(export.FORMATS, "exported-program", broken)
    with pytest.raises(UserError, match="computes something else"):
        export_model(tiny(), tmp_path / "model.pt2", "exported-program")
    assert not list(tmp_path.iterdir())


def test_a_model_that_shows_nothing_is_refused(tmp_path: Path) -> None:
    model = tiny()
    nn.init.zeros_(model.head.weight)
    with pytest.raises(UserError, match="the same logits for any image"):
        export_model(model, tmp_path / "model.pt2", "exported-program")


@pytest.mark.parametrize(
    ("out", "format", "dtype", "message"),
    [
        ("m.onnx", "tflite", "fp32", "'tflite'; expected one of onnx"),
        ("m.onnx", "onnx", "int8", "'int8'; expected one of fp32"),
        ("m.pt", "onnx", "fp32", r"should end in \.onnx"),
        ("no/m.onnx", "onnx", "fp32", "no folder"),
        ("m.onnx", "onnx", "bf16", "no bf16 convolution.*fp32 or fp16"),
    ],
)
def test_arguments(out: str, format: str, dtype: str, message: str, tmp_path: Path) -> None:
    with pytest.raises((ValueError, UserError), match=message):
        export_model(tiny(), tmp_path / out, format, dtype=dtype)
    assert not list(tmp_path.iterdir())


def test_a_missing_exporter(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    there, missing = importlib.util.find_spec, ("onnxscript", "openvino")
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None if name in missing else there(name))
    with pytest.raises(UserError, match=r"openvino needs .* not installed: pip install onnxscript openvino$"):
        export_model(tiny(), tmp_path / "m.xml", "openvino")


def test_the_command(folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "m.pt2"
    chosen = ["--format", "exported-program", "--img-size", "24", "40", "--dynamic-batch"]
    assert main(["export", str(folder), str(path), *chosen]) == 0
    printed = capsys.readouterr().out
    assert f"wrote {path}" in printed
    assert "0.001 is allowed" in printed
    model, x = timm.create_model(f"local-dir:{folder}", pretrained=True).eval(), images(3, 3, 24, 40)
    model.set_input_size((24, 40))
    np.testing.assert_allclose(run(path, x), logits(model, x), atol=1e-5, rtol=1e-4)


@pytest.mark.filterwarnings("ignore:`torch.jit.load` is deprecated:FutureWarning")
def test_the_command_for_tensors_that_leave_the_model_open(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    model, source, out = tiny("gmlp_ti16_additive", depth=1), tmp_path / "bare.pth", tmp_path / "m.pt"
    torch.save(model.state_dict(), source)
    command = ["export", str(source), str(out), "--format", "torchscript"]
    assert main(command) == 2
    assert "say which it is, `model=NAME`, on the command line `--model NAME`" in capsys.readouterr().err
    assert main([*command, "--model", "gmlp_ti16_additive"]) == 0
    np.testing.assert_allclose(run(out, images(1, 3, 32, 32)), logits(model, images(1, 3, 32, 32)), atol=1e-5)


def test_the_command_that_fails(folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for wrong in (["--img-size", "30", "30"], ["--dtype", "bf16"]):
        assert main(["export", str(folder), str(tmp_path / "m.onnx"), "--format", "onnx", *wrong]) == 2
        error = capsys.readouterr().err
        assert error.count("\n") == 1
        assert wrong[-1] in error
    assert not list(tmp_path.iterdir())
