"""Numbers that a dtype cannot hold, wherever dtypes change: too large is refused, too small is noted."""

from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from tiny import same_weights, tiny

from gmlp_vision import CheckpointError, load_checkpoint
from gmlp_vision.checkpoints import build, convert_file
from gmlp_vision.checkpoints.adapt import adapt
from gmlp_vision.checkpoints.report import Report
from gmlp_vision.checkpoints.rounding import joined, losses
from gmlp_vision.cli import main
from gmlp_vision.errors import UserError
from gmlp_vision.export import export_model

W = "blocks.{}.mlp_channels.gate.proj.weight"
STEM = "stem.proj.weight"


def file_with(
    path: Path, dtype: torch.dtype = torch.float32, **changes: Callable[[torch.Tensor], object]
) -> Path:
    state = {name: tensor.to(dtype, copy=True) for name, tensor in tiny().state_dict().items()}
    for name, change in changes.items():
        change(state[name])
    torch.save(state, path)
    return path


# -- the function --------------------------------------------------------------------------------------------


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32])
def test_what_is_lost_is_counted(dtype: torch.dtype) -> None:
    smallest = torch.finfo(dtype).smallest_normal * torch.finfo(dtype).eps  # of the subnormal ones
    a = torch.tensor([0.0, 1.0, -smallest, smallest / 2.5, -smallest / 1e9], dtype=torch.float64)
    before = {"b.0.a": a, "b.1.a": a, "c": torch.ones(3, dtype=dtype)}
    after = {name: tensor.to(dtype) for name, tensor in before.items()}
    (note,) = losses(before, after, "x")
    assert note == f"4 of 10 numbers were too small for {dtype} and became 0, in b.*.a".replace("torch.", "")
    assert losses(before, before, "x") == []


@pytest.mark.parametrize(
    ("dtype", "number", "wider"),
    [
        (torch.float16, 65520.0, "bfloat16 or float32"),
        (torch.bfloat16, 3.4e38, "float64"),
        (torch.float32, 1e39, "float64"),
    ],
)
def test_what_is_too_large_is_refused(dtype: torch.dtype, number: float, wider: str) -> None:
    before = {"a": torch.tensor([1.0, -number], dtype=torch.float64)}
    with pytest.raises(CheckpointError, match=rf"cannot hold a of x, where .*: take {wider}$"):
        losses(before, {"a": before["a"].to(dtype)}, "x")
    before = {"a": torch.tensor([1.0, torch.finfo(dtype).max], dtype=torch.float64)}
    assert losses(before, {"a": before["a"].to(dtype)}, "x") == []


def test_the_smallest_dtype_that_holds_both() -> None:
    half, brain, single, double = torch.float16, torch.bfloat16, torch.float32, torch.float64
    assert joined(half, half) == half
    assert joined(half, brain) == single
    assert joined(brain, double) == double
    for dtype in (torch.float8_e4m3fn, torch.float8_e5m2, torch.float8_e8m0fnu):
        assert joined(dtype, dtype) == joined(dtype, half) == single
        assert joined(double, dtype) == double


# -- into a model --------------------------------------------------------------------------------------------


def test_a_half_model_cannot_take_what_is_too_large(tmp_path: Path) -> None:
    w = W.format(0)
    path = file_with(tmp_path / "x.pth", **{w: lambda t: t[0, 0].fill_(1e5)})
    model = tiny().half()
    before = {name: tensor.clone() for name, tensor in model.state_dict().items()}
    with pytest.raises(CheckpointError) as caught:
        load_checkpoint(model, path)
    assert str(caught.value) == (
        f"float16 ends at 65504 and cannot hold {w} of {path}, where the largest number is 1e+05: "
        "take bfloat16 or float32"
    )
    assert same_weights(model, before)
    report = load_checkpoint(tiny().bfloat16(), path)
    assert not any("too small" in note for note in report.notes)


def test_a_half_model_says_what_it_loses(tmp_path: Path) -> None:
    small = {W.format(i): lambda t: t.fill_(1e-8) for i in range(2)}
    path = file_with(tmp_path / "x.pth", **small)
    total = sum(p.numel() for p in tiny().parameters())
    report = load_checkpoint(tiny().half(), path)
    said = f"512 of {total:,} numbers were too small for float16 and became 0, in {W.format('*')}"
    assert report.notes[-1] == said
    assert f"note     {said}" in str(report)
    assert not any("too small" in note for note in load_checkpoint(tiny().bfloat16(), path).notes)


def test_the_models_own_head_is_none_of_the_files(tmp_path: Path) -> None:
    model = tiny(num_classes=7)
    with torch.no_grad():
        model.head.weight[0, 0] = torch.inf
    report = load_checkpoint(model, file_with(tmp_path / "x.pth"))
    assert "head.weight" in report.missing


def test_nothing_is_rounded_twice(tmp_path: Path) -> None:
    """A file of half precision at another size is carried in the model's precision, not in its own."""
    path = file_with(tmp_path / "x.pth", torch.float16)
    wide = {name: tensor.float() for name, tensor in torch.load(path, weights_only=True).items()}
    torch.save(wide, tmp_path / "wide.pth")
    kwargs = {"img_size": 48, "patch_size": 4, "in_chans": 1}
    one, other = tiny(**kwargs), tiny(**kwargs)
    report = load_checkpoint(one, path)
    load_checkpoint(other, tmp_path / "wide.pth")
    assert same_weights(one, other)
    assert report.adapted[W.format(0)] == "grid 4 x 4 to 12 x 12, float16 to float32"


def test_what_timm_computes_in_single_precision_is_told(tmp_path: Path) -> None:
    path = file_with(tmp_path / "x.pth", torch.float64)
    report = load_checkpoint(tiny(in_chans=1).double(), path)
    assert report.adapted == {STEM: "channels 3 to 1, in float32"}


def test_a_sum_of_channels_that_is_too_large_is_no_damage(tmp_path: Path) -> None:
    path = file_with(tmp_path / "x.pth", torch.float16, **{STEM: lambda t: t.fill_(6e4)})
    with pytest.raises(CheckpointError, match=rf"float16 cannot hold {STEM} of .* a wider dtype"):
        load_checkpoint(tiny(in_chans=1).half(), path)
    model = tiny(in_chans=1)
    load_checkpoint(model, path)
    assert model.stem.proj.weight.min() > 1e5


def test_damage_is_called_damage(tmp_path: Path) -> None:
    path = file_with(tmp_path / "x.pth", **{STEM: lambda t: t[0].fill_(torch.inf)})
    for model in (tiny(), tiny().half(), tiny(in_chans=1)):
        with pytest.raises(CheckpointError, match=r"holds NaN or infinity in stem\.proj\.weight"):
            load_checkpoint(model, path)


def test_the_file_is_left_as_it_was() -> None:
    tensors = {name: tensor.half() for name, tensor in tiny().state_dict().items()}
    kept = dict(tensors)
    adapt(tensors, tiny(), Report("x"), None)
    assert all(tensors[name] is kept[name] for name in kept)


# -- into files ----------------------------------------------------------------------------------------------


def test_the_widest_dtype_of_the_file_is_kept(tmp_path: Path) -> None:
    path = tmp_path / "x.pth"
    state = {name: tensor.half() for name, tensor in tiny().state_dict().items()}
    state[W.format(0)] = torch.full((16, 16), 1e-8)
    torch.save(state, path)
    report = convert_file(path, tmp_path / "out.pth")
    found = torch.load(tmp_path / "out.pth", weights_only=True)
    assert same_weights(found, {name: tensor.float() for name, tensor in state.items()})
    assert report.adapted[STEM] == "float16 to float32"
    report = convert_file(path, tmp_path / "out.pth", dtype="fp16")
    assert "256 of" in report.notes[-1]
    assert build(state).model.stem.proj.weight.dtype == torch.float32


@pytest.mark.parametrize("dtype", ["fp32", "bf16"])
def test_a_double_that_a_single_cannot_hold(dtype: str, tmp_path: Path) -> None:
    path = file_with(tmp_path / "x.pth", torch.float64, **{"head.bias": lambda t: t[0].fill_(1e-60)})
    assert "1 of" in convert_file(path, tmp_path / "out.pth", dtype=dtype).notes[-1]
    file_with(path, torch.float64, **{"head.bias": lambda t: t[0].fill_(1e60)})
    convert_file(path, tmp_path / "same.pth")
    with pytest.raises(
        UserError, match=r"float\d+ ends at 3\.\d+e\+38 and cannot hold head\.bias .*: take float64"
    ):
        convert_file(path, tmp_path / "no.pth", dtype=dtype)
    assert not (tmp_path / "no.pth").exists()


def test_an_export_says_what_it_loses(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = file_with(tmp_path / "x.pth", **{W.format(0): lambda t: t.fill_(1e-8)})
    total = sum(p.numel() for p in tiny().parameters())
    args = ["export", str(path), str(tmp_path / "x.pt"), "--format", "torchscript", "--dtype"]
    assert main([*args, "fp16"]) == 0
    assert (
        f"\nnote: 256 of {total:,} numbers were too small for float16 and became 0, in {W.format(0)}\n"
        in capsys.readouterr().out
    )
    assert main([*args, "fp32"]) == 0
    assert "note" not in capsys.readouterr().out
    model = tiny()
    with torch.no_grad():
        model.head.bias[0] = 1e5
    with pytest.raises(
        UserError, match=r"cannot hold head\.bias of this model, .*: take bfloat16 or float32"
    ):
        export_model(model, tmp_path / "no.pt", "torchscript", dtype="fp16")
    assert not (tmp_path / "no.pt").exists()
