"""Files whose W's are of another kind than the model's: fitted and told, or refused; `convert`."""

from pathlib import Path

import pytest
import timm
import torch
from safetensors.torch import load_file, save_file
from tiny import TINY, images, same, same_weights, tiny
from torch import nn

from gmlp_vision import CheckpointError, load_checkpoint
from gmlp_vision.checkpoints import build, convert_file, describe
from gmlp_vision.cli import main
from gmlp_vision.layers.spatial import kind_of

GATE = "blocks.0.mlp_channels.gate.proj"
FITTED = ["toeplitz", "3x3", "circulant", "axial", "rank:3", "block:2", "grid:2", "lrpe"]
every_kind = pytest.mark.parametrize("spatial", FITTED)


def plain() -> nn.Module:
    """The same in each call."""
    torch.manual_seed(0)
    return tiny()


@pytest.fixture
def dense(tmp_path: Path) -> Path:
    """A plain gMLP's folder."""
    timm.models.save_for_hf(plain(), str(tmp_path / "dense"))
    return tmp_path / "dense"


def nearest_of(model: nn.Module, spatial: str, size: tuple[int, int] = (32, 32)) -> nn.Module:
    """A model of the kind, made by hand from a dense one at 32 px: W nearest, then carried."""
    cls, options = kind_of(spatial)
    made = tiny(spatial=spatial)
    state = model.state_dict()
    for i in range(len(model.blocks)):
        gate = f"blocks.{i}.mlp_channels.gate.proj."
        state |= {
            gate + key: t for key, t in cls.nearest(state.pop(f"{gate}weight"), (4, 4), **options).items()
        }
    made.load_state_dict(state)
    made.set_input_size(size)
    return made.eval()


def share(model: nn.Module, made: nn.Module, i: int = 0) -> float:
    w, near = (m.blocks[i].mlp_channels.gate.proj.matrix()[0].double() for m in (model, made))
    return (1 - (w - near).square().sum() / w.square().sum()).item()


# -- pretrained=True ----------------------------------------------------------------------------------------


@every_kind
@pytest.mark.parametrize("size", [(32, 32), (48, 32)])
def test_pretrained_takes_the_nearest_on_the_files_grid(
    spatial: str, size: tuple[int, int], dense: Path, caplog: pytest.LogCaptureFixture
) -> None:
    kwargs = {"spatial": spatial, "img_size": size}
    made = timm.create_model(f"local-dir:{dense}", pretrained=True, **kwargs).eval()
    same(made(images(2, 3, *size)), nearest_of(plain(), spatial, size)(images(2, 3, *size)))
    (warning,) = [r.message for r in caplog.records if r.levelname == "WARNING"]
    assert f"of the {spatial} W nearest to the file's" in warning
    kept = [100 * share(plain(), nearest_of(plain(), spatial), i) for i in range(2)]
    assert f"kept     {min(kept):.1f} to {max(kept):.1f} % of each W, on average" in warning
    assert 0 < min(kept) < 99


def test_of_a_registered_name_with_another_kind(tmp_path: Path) -> None:
    save_file(plain().state_dict(), tmp_path / "plain.safetensors")
    overlay = {"file": str(tmp_path / "plain.safetensors")}
    made = timm.create_model("gmlp_s16_axial", pretrained=True, pretrained_cfg_overlay=overlay, **TINY)
    same(made.eval()(images()), nearest_of(plain(), "axial")(images()))


def test_fitting_draws_nothing(dense: Path) -> None:
    model, state = tiny(spatial="axial"), torch.get_rng_state()
    load_checkpoint(model, dense, fit=True)
    assert torch.equal(torch.get_rng_state(), state)


def test_what_has_no_nearest_is_refused(dense: Path) -> None:
    with pytest.raises(CheckpointError, match="no nearest one: W is a softmax of a quadratic form"):
        timm.create_model(f"local-dir:{dense}", pretrained=True, spatial="gqpe")
    with pytest.raises(CheckpointError, match="4 x 4 tokens, which cells of 3 x 3 do not divide"):
        timm.create_model(f"local-dir:{dense}", pretrained=True, spatial="block:3", img_size=48)
    timm.models.save_for_hf(tiny(spatial="lrpe", groups=3), str(dense.parent / "groups"))
    with pytest.raises(CheckpointError, match="has 3 W's a layer, one for each group"):
        timm.create_model(f"local-dir:{dense.parent / 'groups'}", pretrained=True, spatial="axial", groups=1)
    with pytest.raises(ValueError, match="a Toeplitz W for each group is spatial='lrpe'"):
        timm.create_model(f"local-dir:{dense}", pretrained=True, spatial="toeplitz", groups=2)


@pytest.mark.parametrize("spatial", ["lrpe", "circulant", "3x3"])
def test_all_groups_have_the_nearest(spatial: str, dense: Path) -> None:
    made = timm.create_model(f"local-dir:{dense}", pretrained=True, spatial=spatial, groups=3).eval()
    same(made(images()), nearest_of(plain(), spatial)(images()))


def test_a_layer_of_the_files_kind_is_loaded_as_it_is(dense: Path) -> None:
    model = tiny()
    model.blocks[1] = tiny(spatial="axial").blocks[1]
    report = load_checkpoint(model, dense, fit=True)
    assert list(report.explained) == [GATE.replace("0", "1")]
    same(model.get_parameter(f"{GATE}.weight"), plain().get_parameter(f"{GATE}.weight"))


@pytest.mark.parametrize(
    ("name", "shape"),
    [("reads", (16, 0)), ("within", (0, 0)), ("within", ()), ("centers", (0, 2)), ("centers", ())],
)
def test_a_damaged_w_is_told(name: str, shape: tuple[int, ...], tmp_path: Path) -> None:
    of = {"reads": "rank:3", "within": "block:2", "centers": "gqpe"}[name]
    state = tiny(spatial=of).state_dict()
    damaged = {k: torch.zeros(shape) if k.endswith(f".{name}") else t for k, t in state.items()}
    torch.save(damaged, tmp_path / "damaged.pth")
    for spatial in (of, "dense"):
        with pytest.raises(CheckpointError):
            load_checkpoint(tiny(spatial=spatial), tmp_path / "damaged.pth", fit=True)
    assert (
        main(["convert", "--model", "gmlp_pico4", str(tmp_path / "damaged.pth"), str(tmp_path / "out")]) == 2
    )


@every_kind
def test_its_own_kind_is_no_fit(spatial: str, tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    model = tiny(spatial=spatial)
    timm.models.save_for_hf(model, str(tmp_path / "own"))
    back = timm.create_model(f"local-dir:{tmp_path / 'own'}", pretrained=True).eval()
    assert same_weights(back, model)
    assert back.settings()["spatial"] == spatial
    assert not [r for r in caplog.records if r.levelname == "WARNING"]


# -- load_checkpoint ----------------------------------------------------------------------------------------


def test_by_hand_it_is_asked_for(dense: Path) -> None:
    model = tiny(spatial="axial")
    before = {name: tensor.clone() for name, tensor in model.state_dict().items()}
    with pytest.raises(
        CheckpointError, match=r"are dense, and the model's axial: create it with spatial='de"
    ):
        load_checkpoint(model, dense)
    assert same_weights(model, before)
    report = load_checkpoint(model, dense, fit=True)
    same(model(images()), nearest_of(plain(), "axial")(images()))
    shares = {f"blocks.{i}.mlp_channels.gate.proj": share(plain(), model, i) for i in range(2)}
    assert report.explained == pytest.approx(shares, abs=1e-5)
    assert report.adapted[f"{GATE}.rows"] == "of the axial W nearest to the file's"
    assert f"{GATE}.bias" in report.loaded
    assert not {*report.loaded} & {*report.adapted}
    assert {*report.loaded, *report.adapted} == model.state_dict().keys()


def test_from_any_kind_to_any_other(tmp_path: Path) -> None:
    file = tiny(spatial="toeplitz")
    torch.save(file.state_dict(), tmp_path / "bare.pth")
    model = tiny(spatial="dense")
    report = load_checkpoint(model, tmp_path / "bare.pth", fit=True)
    same(model(images()), file(images()))  # a dense W can be any
    assert list(report.explained.values()) == pytest.approx([1, 1])
    load_checkpoint(tiny(spatial="rank:2"), tmp_path / "bare.pth", fit=True)


def test_a_damaged_file_is_told_as_such(tmp_path: Path) -> None:
    for change, said in (
        (lambda s: s[f"{GATE}.weight"].fill_(torch.nan), rf"NaN or infinity in {GATE}\.weight"),
        (lambda s: s.pop(f"{GATE}.bias"), rf"In the model, not in the file: {GATE}\.bias"),
        (lambda s: s.update({f"{GATE}.weight": torch.zeros(4, 5)}), "weight"),
    ):
        state = plain().state_dict()
        change(state)
        torch.save(state, tmp_path / "bad.pth")
        with pytest.raises(CheckpointError, match=said):
            load_checkpoint(tiny(spatial="rank:3"), tmp_path / "bad.pth", fit=True)


def test_a_w_of_zeros_is_explained(tmp_path: Path) -> None:
    state = plain().state_dict()
    state[f"{GATE}.weight"].zero_()
    torch.save(state, tmp_path / "zero.pth")
    report = load_checkpoint(tiny(spatial="rank:3"), tmp_path / "zero.pth", fit=True)
    assert report.explained[GATE] == 1


def test_half_precision_is_fitted_in_full(tmp_path: Path) -> None:
    torch.save(plain().half().state_dict(), tmp_path / "half.pth")
    model = tiny(spatial="rank:3")
    load_checkpoint(model, tmp_path / "half.pth", fit=True)
    same(model(images()), nearest_of(plain().half().float(), "rank:3")(images()))


# -- convert ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("out", ["folder", "file.safetensors"])
@every_kind
def test_convert_writes_what_loads_and_tells_the_shares(
    spatial: str, out: str, dense: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["convert", "--to-structure", spatial, str(dense), str(tmp_path / out)]) == 0
    printed = capsys.readouterr().out
    made = nearest_of(plain(), spatial)
    for i in range(2):
        line = f"blocks.{i}.mlp_channels.gate.proj  {100 * share(plain(), made, i):8.2f} %"
        assert line in printed
    back = build(tmp_path / out)
    assert back.model.settings()["spatial"] == spatial
    same(back.model(images()), made(images()))
    if out == "folder":
        again = timm.create_model(f"local-dir:{tmp_path / out}", pretrained=True).eval()
        assert same_weights(again, back.model)


def test_at_another_size_and_into_the_kind_it_has(dense: Path, tmp_path: Path) -> None:
    convert_file(dense, tmp_path / "axial", spatial="axial", img_size=(48, 32), dtype="bf16")
    built = build(tmp_path / "axial")
    assert built.model.img_size == (48, 32)
    expected = nearest_of(plain(), "axial", (48, 32)).bfloat16()
    assert same_weights(built.model, expected)
    report = convert_file(tmp_path / "axial", tmp_path / "again", spatial="axial")
    assert not report.explained
    assert same_weights(build(tmp_path / "again").model, expected)


@pytest.mark.parametrize("name", ["gmlp_ti16_linear", "gmlp_ti16_additive", "amlp_ti16"])
def test_of_every_family_with_such_w(name: str, tmp_path: Path) -> None:
    timm.models.save_for_hf(tiny(name), str(tmp_path / "ours"))
    report = convert_file(tmp_path / "ours", tmp_path / "folder", spatial="toeplitz")
    assert len(report.explained) == 2
    assert build(tmp_path / "folder").identity.name == name


@pytest.mark.parametrize(
    ("kind", "said"),
    [
        ("gqpe", "GqpeProjection has no nearest one: W is a softmax"),
        ("hexagonal", "spatial is 'hexagonal'; expected one of 'dense', 'toeplitz'"),
        ("rank:0", "spatial is 'rank:0'; expected one of"),
        ("block:3", "cells of 3 x 3 do not divide"),
    ],
)
def test_what_cannot_be_is_a_line(
    kind: str, said: str, dense: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["convert", "--to-structure", kind, str(dense), str(tmp_path / "out")]) == 2
    error = capsys.readouterr().err
    assert said in error
    assert error.count("\n") == 1
    assert not (tmp_path / "out").exists()


def test_other_families_have_no_such_w(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    timm.models.save_for_hf(tiny("s2mlp_deep"), str(tmp_path / "ours"))
    assert main(["convert", "--to-structure", "axial", str(tmp_path / "ours"), str(tmp_path / "out")]) == 2
    assert "is a S2-MLP, which has no W's of other kinds: gMLP and aMLP have" in capsys.readouterr().err


def test_the_shipped_weights(tmp_path: Path) -> None:
    report = convert_file("gmlp_pico4", tmp_path / "pico.safetensors", spatial="toeplitz")
    assert len(report.explained) == 8
    assert 0 < min(report.explained.values()) < max(report.explained.values()) < 1
    assert load_file(tmp_path / "pico.safetensors")[f"{GATE}.table"].shape == (15, 15)


@pytest.mark.parametrize(
    ("kwargs", "told"),
    [
        ({"spatial": "toeplitz"}, "toeplitz"),
        ({"spatial": "3x3", "groups": 2}, "3x3, in 2 groups"),
        ({"spatial": "rank:2"}, "rank:2"),
        ({"spatial": "dense+3x3"}, "dense+3x3"),
        ({}, None),
    ],
)
def test_info_tells_the_kind_of_a_bare_file(
    kwargs: dict[str, object], told: str | None, tmp_path: Path
) -> None:
    save_file(tiny(**kwargs).state_dict(), tmp_path / "w.safetensors")
    assert describe(tmp_path / "w.safetensors").get("W") == told


@pytest.mark.parametrize("name", ["gmlp_ti16", "amlp_ti16"])
@pytest.mark.parametrize("spatial", ["block:5", "grid:3"])
def test_a_bare_file_of_cells_that_do_not_divide_its_names_grid(
    name: str, spatial: str, tmp_path: Path
) -> None:
    model = tiny(name, spatial=spatial, img_size=8 * 3 * 5)
    save_file(model.state_dict(), tmp_path / "w.safetensors")
    told = describe(tmp_path / "w.safetensors")
    assert (told["W"], told["grid"][:15]) == (spatial, "15 x 15 tokens,")
    assert same_weights(build(tmp_path / "w.safetensors").model, model)


@pytest.mark.parametrize("spatial", ["block:3", "grid:3"])
def test_cells_go_to_a_grid_that_they_do_not_divide_as_the_nearest(spatial: str, tmp_path: Path) -> None:
    theirs = tiny(spatial=spatial, img_size=48)
    timm.models.save_for_hf(theirs, str(tmp_path / "cells"))
    model = tiny()  # 4 x 4 tokens
    report = load_checkpoint(model, tmp_path / "cells", fit=True)
    assert list(report.explained.values()) == pytest.approx([1, 1])  # by a dense W
    dense = tiny(img_size=48)
    load_checkpoint(dense, tmp_path / "cells", fit=True)
    same(dense(images(2, 3, 48, 48)), theirs(images(2, 3, 48, 48)))
    dense.set_input_size(32)
    same(model(images()), dense(images()))
