"""Names: other implementations' weights against their own forward, written out in tests/others.py."""

import json
from collections.abc import Callable
from pathlib import Path

import pytest
import timm
import torch
from others import State, in_names_of, jaketae_forward, jaketae_state, lucidrains_forward, lucidrains_state
from timm.layers import resample_patch_embed
from tiny import TINY, images, perturb, same_weights, tiny
from torch import nn

from gmlp_vision import CheckpointError, load_checkpoint
from gmlp_vision.checkpoints import convert_file, describe, families
from gmlp_vision.checkpoints.names import to_ours
from gmlp_vision.errors import UserError
from gmlp_vision.models import gmlp

Forward = Callable[[State, torch.Tensor], torch.Tensor]
LUCIDRAINS = {"mlp_ratio": 4.0, "norm_eps": 1e-5}
JAKETAE = {"mlp_ratio": 3.0, "norm_eps": 1e-5, "final_norm": False}
OTHERS = [
    pytest.param("lucidrains", lucidrains_state, lucidrains_forward, LUCIDRAINS, id="lucidrains"),
    pytest.param("jaketae", jaketae_state, jaketae_forward, JAKETAE, id="jaketae"),
]


def save(state: object, path: Path) -> Path:
    torch.save(state, path)
    return path


def quiet(state: State) -> State:
    """Makes the tokens so small that LayerNorm's eps decides what comes out of the first block's norm."""
    return {k: v * 1e-3 if k.startswith(("to_patch_embed", "patcher")) else v for k, v in state.items()}


@pytest.mark.parametrize("small_tokens", [False, True])
@pytest.mark.parametrize(("name", "make", "forward", "settings"), OTHERS)
def test_computes_what_the_other_implementation_does(
    name: str,
    make: Callable[..., State],
    forward: Forward,
    settings: dict,
    small_tokens: bool,
    tmp_path: Path,
) -> None:
    state = quiet(make(16)) if small_tokens else make(16)
    model = tiny(**settings, dtype=torch.float64)
    report = load_checkpoint(model, save(state, tmp_path / "theirs.pth"))
    expected = forward(state, images().double())

    assert report.layout == name
    assert expected.std(dim=0).max() > 1e-2
    torch.testing.assert_close(model(images().double()), expected, rtol=0, atol=1e-10)

    wrong_eps = tiny(**{**settings, "norm_eps": 1e-6}, dtype=torch.float64)
    wrong_eps.load_state_dict(model.state_dict())
    if small_tokens:  # so the comparison above does see the eps
        assert (wrong_eps(images().double()) - expected).abs().max() > 1e-3


def test_a_patch_and_an_image_that_are_not_square(tmp_path: Path) -> None:
    state = lucidrains_state(12, patch=(4, 8))
    model = tiny(img_size=(16, 24), patch_size=(4, 8), **LUCIDRAINS, dtype=torch.float64)
    load_checkpoint(model, save(state, tmp_path / "theirs.pth"))
    x = images(2, 3, 16, 24).double()
    expected = lucidrains_forward(state, x, (4, 8))
    assert expected.std(dim=0).max() > 1e-2
    torch.testing.assert_close(model(x), expected, rtol=0, atol=1e-10)


@pytest.mark.parametrize(("name", "make", "forward", "settings"), OTHERS)
def test_a_folder_and_timm_bring_the_other_model_back(
    name: str, make: Callable[..., State], forward: Forward, settings: dict, tmp_path: Path
) -> None:
    state = make(16)
    convert_file(save(state, tmp_path / "theirs.pth"), tmp_path / "ours")
    model = timm.create_model(f"local-dir:{tmp_path / 'ours'}", pretrained=True, dtype=torch.float64).eval()
    x = images().double()
    torch.testing.assert_close(model(x), forward(state, x), rtol=0, atol=1e-10)
    # what no tensor shows is written there, and nothing of it that is so by default
    assert {k: v for k, v in model.pretrained_model_args.items() if k in settings} == settings
    assert model.pretrained_cfg["input_size"] == (3, 32, 32)


@pytest.mark.parametrize(("name", "make", "forward", "settings"), OTHERS)
def test_there_and_back_gives_the_same_file(
    name: str, make: Callable[..., State], forward: Forward, settings: dict, tmp_path: Path
) -> None:
    state = make(16)
    convert_file(save(state, tmp_path / "theirs.pth"), tmp_path / "ours")
    convert_file(tmp_path / "ours", tmp_path / "again.pth", to=name)
    again = torch.load(tmp_path / "again.pth", weights_only=True)
    assert set(again) == set(state)
    assert all(torch.equal(again[k], state[k]) and again[k].shape == state[k].shape for k in state)


@pytest.mark.parametrize(("name", "make", "forward", "settings"), OTHERS)
def test_our_model_in_their_names_computes_the_same_there(
    name: str, make: Callable[..., State], forward: Forward, settings: dict
) -> None:
    model = tiny(**settings, dtype=torch.float64)
    expected = model(images().double())
    assert expected.std(dim=0).max() > 1e-2
    theirs = forward(in_names_of(name, model), images().double())
    torch.testing.assert_close(theirs, expected, rtol=0, atol=1e-10)


def test_timms_own_gmlp_and_ours_are_one_layout(tmp_path: Path) -> None:
    theirs = perturb(timm.create_model("gmlp_ti16_224", img_size=32, num_classes=5), std=0.05).eval()
    ours = timm.create_model("gmlp_ti16", img_size=32, num_classes=5).eval()
    report = load_checkpoint(ours, save(theirs.state_dict(), tmp_path / "timm.pth"))
    assert len(report.loaded) == len(ours.state_dict())
    assert theirs(images()).std() > 1e-3
    torch.testing.assert_close(ours(images()), theirs(images()))


def test_w_of_a_1d_convolution(tmp_path: Path) -> None:
    model = tiny()
    state = {k: v[..., None] if k.endswith("gate.proj.weight") else v for k, v in model.state_dict().items()}
    other = tiny("gmlp_ti16", num_classes=5)
    nn.init.zeros_(other.blocks[0].mlp_channels.gate.proj.weight)
    load_checkpoint(other, save(state, tmp_path / "conv.pth"))
    assert torch.equal(other(images()), model(images()))


@pytest.mark.parametrize("name", gmlp.LAYOUTS)
def test_names_are_told_apart_without_doubt(name: str) -> None:
    model, layout = tiny(), gmlp.LAYOUTS[name]
    theirs = in_names_of(name, model)
    assert families.recognise(theirs, gmlp) == name
    assert families.recognise(model.state_dict(), gmlp) == "timm"
    back, left = to_ours(theirs, layout, layout.rows_for(model), model.state_dict())
    assert same_weights(back, model)
    assert left == {}


def test_two_layouts_in_one_file_are_refused(tmp_path: Path) -> None:
    with pytest.raises(CheckpointError, match="lucidrains and of jaketae; say which are meant"):
        families.recognise({**lucidrains_state(16), **jaketae_state(16)}, gmlp)
    both = {**tiny().state_dict(), **jaketae_state(16)}
    with pytest.raises(CheckpointError, match=r"two tensors of the file are both stem\.proj\.weight"):
        load_checkpoint(tiny(**JAKETAE), save(both, tmp_path / "both.pth"))


def test_an_explicit_name_wins_over_the_keys(tmp_path: Path) -> None:
    path = save(lucidrains_state(16), tmp_path / "theirs.pth")
    with pytest.raises(CheckpointError, match=r"In the file, not in the model: to_patch_embed\.1\.weight"):
        load_checkpoint(tiny(**LUCIDRAINS), path, layout="timm")
    with pytest.raises(ValueError, match="'google'; expected one of timm, lucidrains, jaketae"):
        load_checkpoint(tiny(**LUCIDRAINS), path, layout="google")


def test_attention_is_refused_and_why(tmp_path: Path) -> None:
    state = lucidrains_state(16)
    state["layers.0.fn.fn.attn.to_qkv.weight"] = torch.zeros(24, 16)
    with pytest.raises(CheckpointError, match=r"attn_dim.*aMLP"):
        load_checkpoint(tiny(**LUCIDRAINS), save(state, tmp_path / "amlp.pth"))


def test_several_heads_are_refused(tmp_path: Path) -> None:
    state = lucidrains_state(16)
    for i in range(2):
        state[f"layers.{i}.fn.fn.sgu.weight"] = torch.zeros(4, 16, 16)
        state[f"layers.{i}.fn.fn.sgu.bias"] = torch.zeros(4, 16)
    with pytest.raises(CheckpointError, match="4 heads"):
        load_checkpoint(tiny(**LUCIDRAINS), save(state, tmp_path / "heads.pth"))


@pytest.mark.parametrize("pretrained", [False, True])
def test_a_model_with_other_settings_is_refused(pretrained: bool, tmp_path: Path) -> None:
    path = save(jaketae_state(16), tmp_path / "theirs.pth")

    def load(**settings: object) -> None:
        if pretrained:
            overlay = {"file": str(path)}
            timm.create_model(
                "gmlp_ti16", pretrained=True, pretrained_cfg_overlay=overlay, **TINY, **settings
            )
        else:
            load_checkpoint(tiny(**settings), path)

    with pytest.raises(CheckpointError, match="create the model with norm_eps=1e-05"):
        load(mlp_ratio=3.0)
    with pytest.raises(CheckpointError, match="create the model with final_norm=False"):
        load(**LUCIDRAINS)
    load(**JAKETAE)


def test_settings_in_config_json_are_held_against_the_model(tmp_path: Path) -> None:
    convert_file(save(lucidrains_state(16), tmp_path / "theirs.pth"), tmp_path / "ours")
    with pytest.raises(CheckpointError, match="create the model with norm_eps=1e-05"):
        load_checkpoint(tiny(mlp_ratio=4.0), tmp_path / "ours")
    load_checkpoint(tiny(**LUCIDRAINS), tmp_path / "ours")


@pytest.mark.parametrize(
    ("kwargs", "to", "why"),
    [
        ({}, "lucidrains", "norm_eps is 1e-05 there and 1e-06 here"),
        ({}, "jaketae", "norm_eps is 1e-05 there and 1e-06 here; final_norm is False there and True here"),
        (LUCIDRAINS, "timm", "norm_eps is 1e-06 there and 1e-05 here"),
        (LUCIDRAINS, "jaketae", "final_norm is False there and True here"),
        (
            {**LUCIDRAINS, "mlp_ratio": 3.5},
            "lucidrains",
            "the hidden width, 56, would have to be a multiple of 16",
        ),
        ({**LUCIDRAINS, "num_classes": 0}, "lucidrains", "there is always a head there, and none here"),
        ({**JAKETAE, "img_size": (32, 64)}, "jaketae", "image and patch are square there, and not here"),
        (LUCIDRAINS, None, "norm_eps is 1e-06 there and 1e-05 here.*Give the name of a folder"),
    ],
)
def test_convert_refuses_what_the_other_cannot_express(
    kwargs: dict, to: str | None, why: str, tmp_path: Path
) -> None:
    model = tiny(**kwargs)
    timm.models.save_for_hf(model, str(tmp_path / "ours"), safe_serialization=True)
    with pytest.raises(UserError, match=why):
        convert_file(tmp_path / "ours", tmp_path / "out.pth", to=to)
    assert not list(tmp_path.glob("*out*"))


def test_a_flat_stem_that_may_be_read_in_two_ways(tmp_path: Path) -> None:
    state = lucidrains_state(16, c=1)  # 64 numbers a patch: 1 x 8 x 8, or 4 x 4 x 4
    path = save(state, tmp_path / "grey.pth")
    with pytest.raises(CheckpointError, match=r"64 numbers.*--patch-size H W"):
        convert_file(path, tmp_path / "ours")
    with pytest.raises(CheckpointError, match="a patch of 5 x 5"):
        convert_file(path, tmp_path / "ours", patch_size=(5, 5))
    convert_file(path, tmp_path / "ours", patch_size=(8, 8))
    model = timm.create_model(f"local-dir:{tmp_path / 'ours'}", pretrained=True, dtype=torch.float64).eval()
    x = images(2, 1, 32, 32).double()
    torch.testing.assert_close(model(x), lucidrains_forward(state, x), rtol=0, atol=1e-10)
    # a live model of this patch tells by itself
    live = tiny(in_chans=1, **LUCIDRAINS, dtype=torch.float64)
    load_checkpoint(live, path)
    torch.testing.assert_close(live(x), lucidrains_forward(state, x), rtol=0, atol=1e-10)


def test_a_flat_stem_for_a_model_of_another_patch(tmp_path: Path) -> None:
    """192 numbers a patch: 3 x 8 x 8, and not 12 channels of the model's 4 x 4."""
    state = lucidrains_state(16)
    model = tiny(patch_size=4, img_size=16, **LUCIDRAINS, dtype=torch.float64)
    report = load_checkpoint(model, save(state, tmp_path / "theirs.pth"))
    assert report.adapted["stem.proj.weight"] == "patch 8 x 8 to 4 x 4, in float32"
    kernel = state["to_patch_embed.1.weight"].reshape(16, 3, 8, 8)
    assert torch.equal(model.stem.proj.weight, resample_patch_embed(kernel, [4, 4]))


@pytest.mark.parametrize("name", ["gmlp_ti16", "s2mlp_wide"])
@pytest.mark.parametrize("classes", [5, 0])
def test_a_folder_says_its_size_and_classes_once(name: str, classes: int, tmp_path: Path) -> None:
    """transformers' TimmWrapper gives timm both model_args and num_classes, so it may not be in both."""
    torch.save(tiny(name).state_dict(), tmp_path / "x.pth")
    convert_file(tmp_path / "x.pth", tmp_path / "y", model=name, img_size=(48, 24), num_classes=classes)
    config = json.loads((tmp_path / "y/config.json").read_text())
    assert config["num_classes"] == config["pretrained_cfg"]["num_classes"] == classes
    assert "num_classes" not in config["model_args"]
    assert config["pretrained_cfg"]["input_size"] == [3, 48, 24]
    source = f"local-dir:{tmp_path / 'y'}"
    model = timm.create_model(source, pretrained=True)
    assert (model.num_classes, model.img_size) == (classes, (48, 24))
    assert timm.data.resolve_input_data_config(model)["input_size"] == (3, 48, 24)
    assert timm.create_model(source, pretrained=True, num_classes=7).num_classes == 7
    assert describe(tmp_path / "y")["classes"] == str(classes)
