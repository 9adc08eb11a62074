"""gMLP's other spatial units: how they start, the fast form, files of them. test_zoo.py has the rest."""

import re
from pathlib import Path

import pytest
import timm
import torch
from tiny import TINY, images, perturb, same, same_weights, tiny
from torch import nn

from gmlp_vision import CheckpointError, load_checkpoint
from gmlp_vision.checkpoints import build, convert_file
from gmlp_vision.errors import UserError
from gmlp_vision.layers.ask import operators
from gmlp_vision.layers.spatial_gating import UNITS
from gmlp_vision.models.gmlp import GMlp, GMlpBlock

UNSPLIT = ["linear", "additive", "multiplicative"]
every_unsplit = pytest.mark.parametrize("unit", UNSPLIT)


def save(model: nn.Module, path: Path) -> Path:
    torch.save(model.state_dict(), path)
    return path


# -- how they start -----------------------------------------------------------------------------------------


@pytest.mark.parametrize("when", ["built", "drawn again", "drawn again on another grid"])
@every_unsplit
def test_at_the_start_the_image_passes(unit: str, when: str) -> None:
    model = GMlp(unit=unit, img_size=128, patch_size=8, depth=1, embed_dim=16)
    if when != "built":
        perturb(model, std=1.0)
        if when == "drawn again on another grid":
            model.set_input_size(64)
            assert unit != "linear" or model.blocks[0].mlp_channels.gate.proj.init_std == 1 / 8
            model.set_input_size(128)
        model.init_weights()
    gate, z = model.blocks[0].mlp_channels.gate, images(2, 16, 16, 96)
    w, b = gate.proj.weight, gate.proj.bias
    assert torch.equal(b, torch.full_like(b, 1.0 if unit == "multiplicative" else 0.0))
    if unit == "linear":
        assert w.std().item() == pytest.approx(1 / 16, rel=0.02)  # of 256 tokens
        assert 0.8 < gate(z).std().item() < 1.2
    else:
        assert w.std().item() == pytest.approx(1e-6, rel=0.02)
        torch.testing.assert_close(gate(z), z, atol=1e-3, rtol=0)


@pytest.mark.parametrize("unit", UNITS)
def test_the_next_layer_gets_tokens_and_channels_in_their_order_in_memory(unit: str) -> None:
    gate = UNITS[unit](8, (2, 3))
    with torch.inference_mode():
        assert gate(images(2, 2, 3, 8)).is_contiguous()


@pytest.mark.parametrize("unit", UNITS)
def test_the_operator_says_how_it_started(unit: str) -> None:
    model = GMlp(unit=unit, img_size=128, patch_size=8, depth=1, embed_dim=8)
    proj = model.blocks[0].mlp_channels.gate.proj
    (operator,) = proj.operators((16, 16))
    assert operator.weight.std().item() == pytest.approx(operator.init_std, rel=0.02)


@pytest.mark.parametrize("spatial", ["dense", "toeplitz", "lrpe"])
@pytest.mark.parametrize("unit", UNITS)
def test_init_std_is_the_scale_of_w_and_of_nothing_else(unit: str, spatial: str) -> None:
    def made(**kwargs: float) -> GMlp:
        torch.manual_seed(0)
        return GMlp(**{**TINY, "unit": unit, "spatial": spatial}, **kwargs)

    model, plain = made(init_std=1e-3), made().state_dict()
    assert [layer.init_std for layer in operators(model.blocks[0].mlp_channels.gate.proj, (4, 4))] == [1e-3]
    scaled = [name for name in plain if name.endswith(("gate.proj.weight", "gate.proj.table"))]
    assert len(scaled) == TINY["depth"]
    for name in scaled:
        plain[name] *= 1e-3 / (0.25 if unit == "linear" else 1e-6)
    torch.testing.assert_close(model.state_dict(), plain)


@pytest.mark.parametrize(
    ("kwargs", "message"),
    [
        ({"init_std": -1e-3}, "init_std is -0.001; expected a number, 0 or more"),
        ({"init_std": float("nan")}, "init_std is nan; expected a number"),
        ({"init_std": 1e-3, "spatial": "gqpe"}, "init_std is 0.001; expected None: the W of spatial='gqpe' "),
    ],
)
def test_init_std_that_w_cannot_have(kwargs: dict, message: str) -> None:
    with pytest.raises(ValueError, match=re.escape(message)):
        GMlp(**TINY, **kwargs)


def test_a_file_does_not_care_how_w_started(tmp_path: Path) -> None:
    source = tiny(init_std=1e-3)
    timm.models.save_for_hf(source, str(tmp_path / "folder"), model_args={**TINY, "init_std": 1e-3})
    model = tiny()
    load_checkpoint(model, tmp_path / "folder")
    assert same_weights(model, source)


# -- the fast form ------------------------------------------------------------------------------------------


@pytest.mark.parametrize("unit", UNITS)
def test_only_the_split_unit_has_a_fast_form(unit: str, monkeypatch: pytest.MonkeyPatch) -> None:
    calls: list[int] = []
    compute = GMlpBlock.fast_forward
    monkeypatch.setattr(GMlpBlock, "fast_forward", lambda *args: calls.append(1) or compute(*args))
    model = tiny(unit=unit)
    logits = model(images())
    assert len(calls) == (2 if unit == "split" else 0)
    for block in model.blocks:
        block.norm.register_forward_hook(lambda *_: None)
    same(model(images()), logits)


# -- what is refused ----------------------------------------------------------------------------------------


def test_an_unknown_unit_is_refused_with_those_there_are() -> None:
    with pytest.raises(
        ValueError, match="'gated'; expected one of 'split', 'linear', 'additive', 'multiplicative'"
    ):
        tiny(unit="gated")


@every_unsplit
def test_an_odd_hidden_width_needs_no_halves(unit: str) -> None:
    assert tiny(unit=unit, embed_dim=5, mlp_ratio=3.0)(images()).std() > 1e-3
    with pytest.raises(ValueError, match="15"):
        tiny(embed_dim=5, mlp_ratio=3.0)


# -- files --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("kwargs", [{}, {"embed_dim": 24, "mlp_ratio": 2.5}])
@every_unsplit
def test_a_bare_file_is_of_several_units(unit: str, kwargs: dict[str, object], tmp_path: Path) -> None:
    model = tiny(unit=unit, **kwargs)
    path = save(model, tmp_path / "bare.pth")
    names = "gmlp_ti16_linear, gmlp_ti16_additive, gmlp_ti16_multiplicative"
    with pytest.raises(CheckpointError, match=f"may be those of {names}, .* `--model NAME`"):
        build(path)
    built = build(path, model=f"gmlp_ti16_{unit}")
    same(built.model(images()), model(images()))
    assert built.model.block_args["unit"] == unit


def test_a_registered_size_is_of_several_units_too(tmp_path: Path) -> None:
    state = timm.create_model("gmlp_ti16_additive").state_dict()
    with pytest.raises(
        CheckpointError,
        match="may be those of gmlp_ti16_linear, gmlp_ti16_additive, gmlp_ti16_multiplicative,",
    ):
        build(state)


def test_a_bare_file_of_the_split_unit_is_no_other(tmp_path: Path) -> None:
    model = tiny()
    built = build(save(model, tmp_path / "bare.pth"))
    assert built.identity.name == "gmlp_ti16"
    same(built.model(images()), model(images()))
    with pytest.raises(CheckpointError, match=r"fc2\.weight"):
        load_checkpoint(tiny(unit="linear"), tmp_path / "bare.pth")


@every_unsplit
def test_a_folder_says_its_unit(unit: str, tmp_path: Path) -> None:
    name = f"gmlp_ti16_{unit}"
    model = perturb(timm.create_model(name, **TINY)).eval()
    convert_file(save(model, tmp_path / "bare.pth"), tmp_path / "folder", model=name)
    back = timm.create_model(f"local-dir:{tmp_path / 'folder'}", pretrained=True).eval()
    assert same_weights(back, model)
    same(back(images()), model(images()))
    assert build(tmp_path / "folder").identity.name == name


@pytest.mark.parametrize("to", ["lucidrains", "jaketae"])
def test_others_have_the_split_unit_only(to: str, tmp_path: Path) -> None:
    settings = {"norm_eps": 1e-5, "final_norm": to == "lucidrains"}
    timm.models.save_for_hf(tiny("gmlp_ti16_linear", **settings), str(tmp_path / "ours"))
    with pytest.raises(UserError, match="the unit is the split one there, and linear here"):
        convert_file(tmp_path / "ours", tmp_path / "theirs.pth", to=to)
