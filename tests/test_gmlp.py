"""The models against the paper, against timm's gMLP, and on bad input."""

import math

import pytest
import timm
import torch
from timm.layers import DropPath
from tiny import images, perturb, tiny
from torch import nn
from torch.nn import functional
from torch.utils.flop_counter import FlopCounterMode
from zoo import tiny_kwargs

from gmlp_vision import GMlp, GMlpBlock
from gmlp_vision.layers import SpatialGatingUnit, SpatialProjection

NAMES = timm.list_models(module="gmlp")
TIMM_NAMES = {"gmlp_ti16": "gmlp_ti16_224", "gmlp_s16": "gmlp_s16_224", "gmlp_b16": "gmlp_b16_224"}


def layer_norm(x: list[float], weight: list[float], bias: list[float], eps: float) -> list[float]:
    mean = sum(x) / len(x)
    var = sum((v - mean) ** 2 for v in x) / len(x)
    return [(v - mean) / math.sqrt(var + eps) * w + b for v, w, b in zip(x, weight, bias, strict=True)]


def affine(x: list[float], weight: list[list[float]], bias: list[float]) -> list[float]:
    return [sum(w * v for w, v in zip(row, x, strict=True)) + b for row, b in zip(weight, bias, strict=True)]


# -- the paper ------------------------------------------------------------------------------------------


@pytest.mark.parametrize("scale", [1.0, 1e-3])  # at 1e-3 the eps of the norms decides the result
def test_block_is_the_papers_equation_written_out(scale: float) -> None:
    block = perturb(GMlpBlock(4, (2, 3), mlp_ratio=3.0)).double()
    x = images(1, 6, 4).double()[0] * scale  # of 2 x 3 tokens
    p = {name: value.tolist() for name, value in block.named_parameters()}
    tokens = x.tolist()

    z = []
    for token in tokens:
        normed = layer_norm(token, p["norm.weight"], p["norm.bias"], 1e-6)
        hidden = affine(normed, p["mlp_channels.fc1.weight"], p["mlp_channels.fc1.bias"])
        z.append([0.5 * v * (1 + math.erf(v / math.sqrt(2))) for v in hidden])
    z1 = [token[:6] for token in z]
    z2 = [
        layer_norm(t[6:], p["mlp_channels.gate.norm.weight"], p["mlp_channels.gate.norm.bias"], 1e-5)
        for t in z
    ]
    w, b = p["mlp_channels.gate.proj.weight"], p["mlp_channels.gate.proj.bias"]
    gated = [
        [z1[i][c] * (sum(w[i][j] * z2[j][c] for j in range(6)) + b[i]) for c in range(6)] for i in range(6)
    ]
    out = [affine(g, p["mlp_channels.fc2.weight"], p["mlp_channels.fc2.bias"]) for g in gated]
    expected = x + torch.tensor(out, dtype=torch.float64)

    assert expected.std() > 0.01 * scale
    torch.testing.assert_close(block(x.view(1, 2, 3, 4)).view(6, 4), expected, atol=1e-12, rtol=1e-10)


def test_row_i_of_w_is_the_filter_of_output_token_i() -> None:
    projection = perturb(SpatialProjection((2, 3)))
    with torch.no_grad():
        for j in range(6):
            one_hot = torch.eye(6)[j].view(1, 2, 3, 1)
            torch.testing.assert_close(
                projection(one_hot).flatten() - projection.bias, projection.weight[:, j]
            )


def test_stem_is_one_linear_map_of_each_patch() -> None:
    model = tiny(img_size=(16, 24), patch_size=(8, 4))
    x = images(2, 3, 16, 24)
    patches = functional.unfold(x, (8, 4), stride=(8, 4)).transpose(1, 2)
    expected = functional.linear(patches, model.stem.proj.weight.flatten(1), model.stem.proj.bias)
    torch.testing.assert_close(model.stem(x).flatten(1, 2), expected, atol=1e-5, rtol=1e-5)


@pytest.mark.parametrize(
    ("name", "gmacs"), [("gmlp_ti16", 1.33), ("gmlp_s16", 4.39), ("gmlp_b16", 15.72), ("gmlp_pico4", 0.09)]
)
def test_multiply_adds(name: str, gmacs: float) -> None:
    model = timm.create_model(name, device="meta")
    with FlopCounterMode(display=False) as counter:
        model(torch.empty(1, *model.default_cfg["input_size"], device="meta"))
    assert round(counter.get_total_flops() / 2e9, 2) == gmacs


@pytest.mark.parametrize("when", ["construction", "init_weights", "reset_classifier", "apply"])
def test_spatial_weights_start_near_zero_and_their_bias_at_one(when: str) -> None:
    model = timm.create_model("gmlp_pico4", depth=2)
    if when == "init_weights":
        perturb(model)
        model.init_weights()
    elif when == "reset_classifier":
        model.reset_classifier(7)
    elif when == "apply":  # a user's own init of "all linear layers"
        model.apply(lambda m: nn.init.xavier_uniform_(m.weight) if isinstance(m, nn.Linear) else None)
    gates = [m for m in model.modules() if isinstance(m, SpatialProjection)]
    assert len(gates) == 2
    for gate in gates:
        assert 0.9e-6 < gate.weight.std() < 1.1e-6
        assert abs(gate.weight.mean()) < 1e-7
        assert (gate.bias == 1).all()


def test_init_weights_draws_everything_anew() -> None:
    model = timm.create_model("gmlp_pico4", depth=1)
    fresh = {k: v.std().item() for k, v in model.state_dict().items()}
    perturb(model)
    model.init_weights()
    for key, value in model.state_dict().items():
        assert value.std().item() == pytest.approx(fresh[key], rel=0.2, abs=1e-7), key


def test_at_init_a_unit_passes_its_first_half_through() -> None:
    unit = SpatialGatingUnit(8, (3, 3))
    z = images(2, 3, 3, 8)
    torch.testing.assert_close(unit(z), z[..., :4], atol=1e-4, rtol=0)


# -- drop path ------------------------------------------------------------------------------------------


def drop_path_rates(model: nn.Module) -> list[float]:
    return [b.drop_path.drop_prob if isinstance(b.drop_path, DropPath) else 0.0 for b in model.blocks]


def test_drop_path_ramps_up_by_default() -> None:
    model = timm.create_model("gmlp_s16", drop_path_rate=0.29, device="meta")
    assert drop_path_rates(model) == pytest.approx([0.01 * i for i in range(30)])


def test_drop_path_constant_is_timms_rule() -> None:
    ours = timm.create_model("gmlp_s16", drop_path_rate=0.2, drop_path_rule="constant", device="meta")
    theirs = timm.create_model("gmlp_s16_224", drop_path_rate=0.2, device="meta")
    assert drop_path_rates(ours) == drop_path_rates(theirs) == [0.2] * 30


def test_dropouts_act_in_training_only() -> None:
    model = tiny(drop_rate=0.3, proj_drop_rate=0.3, drop_path_rate=0.5)
    x = images()
    torch.testing.assert_close(model(x), model(x))
    model.train()
    assert not torch.allclose(model(x), model(x))
    rates = sorted(m.p for m in model.modules() if isinstance(m, nn.Dropout))
    assert rates == [0.3] * 5  # two in each block, one before the head


# -- timm's gMLP ----------------------------------------------------------------------------------------


@pytest.mark.slow
def test_weights_move_both_ways_with_equal_logits_and_gradients() -> None:
    ours, theirs = timm.create_model("gmlp_s16").eval(), timm.create_model("gmlp_s16_224").eval()
    x = images(2, 3, 224, 224)
    for source, target, std in ((theirs, ours, 0.02), (ours, theirs, 0.002)):
        target.load_state_dict(perturb(source, std=std).state_dict())
        with torch.set_grad_enabled(target is theirs):
            logits, expected = ours(x), theirs(x)
        assert expected.std() > 0.05
        torch.testing.assert_close(logits, expected, atol=1e-5, rtol=1e-5)

    logits.square().sum().backward()
    expected.square().sum().backward()
    expected_grads = dict(theirs.named_parameters())
    for name, p in ours.named_parameters():
        assert p.grad.abs().max() > 0, name
        scale = expected_grads[name].grad.abs().max().item()
        torch.testing.assert_close(p.grad, expected_grads[name].grad, atol=1e-4 * scale, rtol=1e-3, msg=name)


@pytest.mark.parametrize("name", TIMM_NAMES)
def test_keys_and_shapes_are_timms(name: str) -> None:
    ours = timm.create_model(name, device="meta").state_dict()
    theirs = timm.create_model(TIMM_NAMES[name], device="meta").state_dict()
    assert [(k, v.shape) for k, v in ours.items()] == [(k, v.shape) for k, v in theirs.items()]


@pytest.mark.parametrize("name", TIMM_NAMES)
def test_default_cfg_agrees_with_timms(name: str) -> None:
    ours = timm.get_pretrained_cfg(name).to_dict()
    theirs = timm.get_pretrained_cfg(TIMM_NAMES[name]).to_dict()
    for key in (
        "num_classes", "input_size", "fixed_input_size", "mean", "std", "crop_pct", "interpolation",
        "first_conv", "classifier", "license",
    ):  # fmt: skip
        assert ours[key] == theirs[key], key


def test_s16_points_at_the_public_weights() -> None:
    ours, theirs = (
        timm.get_pretrained_cfg("gmlp_s16.ra3_in1k"),
        timm.get_pretrained_cfg("gmlp_s16_224.ra3_in1k"),
    )
    assert ours.hf_hub_id == theirs.hf_hub_id == "timm/gmlp_s16_224.ra3_in1k"
    assert "gmlp_s16.ra3_in1k" in timm.list_pretrained("gmlp_*")


@pytest.mark.parametrize("name", NAMES)
def test_default_cfg_names_real_modules_and_the_models_own_size(name: str) -> None:
    model = timm.create_model(name, device="meta")
    cfg = model.default_cfg
    assert model.get_submodule(cfg["classifier"]) is model.get_classifier()
    assert isinstance(model.get_submodule(cfg["first_conv"]), nn.Conv2d)
    assert cfg["input_size"] == (model.in_chans, *model.stem.img_size)
    assert cfg["num_classes"] == model.num_classes
    assert cfg["architecture"] == name


def test_an_unknown_tag_is_timms_error() -> None:
    with pytest.raises(RuntimeError, match=r"Invalid pretrained tag \(nosuch\) for gmlp_s16"):
        timm.create_model("gmlp_s16.nosuch")


# -- arguments ------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", NAMES)
def test_any_entry_of_a_size_can_be_overridden(name: str) -> None:
    kwargs = {**tiny_kwargs(name), "depth": 3, "patch_size": 4, "img_size": (16, 24), "embed_dim": 8}
    model = timm.create_model(name, **{**kwargs, "mlp_ratio": 2, "num_classes": 3})
    assert len(model.blocks) == 3
    assert model.stem.grid_size == (4, 6)
    assert model.blocks[0].mlp_channels.fc1.weight.shape == (16, 8)
    assert model(images(1, 3, 16, 24)).shape == (1, 3)


def test_what_train_py_always_passes_is_accepted() -> None:
    model = timm.create_model(
        "gmlp_pico4", pretrained=False, in_chans=None, num_classes=7, drop_rate=0.1, drop_path_rate=0.1,
        drop_block_rate=None, global_pool="avg", bn_momentum=None, bn_eps=None, scriptable=False,
        checkpoint_path="",
    )  # fmt: skip
    assert model.num_classes == 7
    assert model.head_drop.p == 0.1


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("overlaid", [None, -1, 7])
@pytest.mark.parametrize("asked", [None, 3])
def test_who_says_how_many_classes(name: str, overlaid: int | None, asked: int | None) -> None:
    """The user, then the cfg, then the model; -1 is what train.py --pretrained-path puts into the cfg."""
    overlay = {} if overlaid is None else {"num_classes": overlaid}
    model = timm.create_model(name, pretrained_cfg_overlay=overlay, num_classes=asked, depth=1, device="meta")
    default = 10 if name == "gmlp_pico4" else 1000
    assert model.num_classes == model.head.out_features == (asked or (7 if overlaid == 7 else default))


def test_norms_are_as_asked() -> None:
    model = tiny(norm_eps=1e-3, final_norm=False)
    assert model.blocks[1].norm.eps == 1e-3
    assert model.blocks[1].mlp_channels.gate.norm.eps == 1e-5
    assert isinstance(model.norm, nn.Identity)
    assert tiny().norm.eps == 1e-6


def test_dtype_and_device_reach_every_parameter() -> None:
    model = timm.create_model("gmlp_pico4", depth=1, dtype=torch.bfloat16)
    assert {p.dtype for p in model.parameters()} == {torch.bfloat16}
    assert torch.isfinite(model(images().bfloat16())).all()
    meta = timm.create_model("gmlp_pico4", depth=1, device="meta")
    assert {p.device.type for p in meta.parameters()} == {"meta"}


@pytest.mark.parametrize("in_chans", [1, 4])
def test_in_chans(in_chans: int) -> None:
    assert tiny(in_chans=in_chans)(images(1, in_chans, 32, 32)).std() > 0


@pytest.mark.parametrize(
    ("kwargs", "words"),
    [
        ({"img_size": 225}, ["225", "16", "multiple"]),
        ({"img_size": (224, 100)}, ["width", "100", "16"]),
        ({"img_size": 32, "patch_size": (8, 5)}, ["width", "32", "5"]),
        ({"patch_size": 0}, ["0"]),
        ({"embed_dim": 3, "mlp_ratio": 3}, ["9", "even", "embed_dim or mlp_ratio"]),
        ({"depth": 0}, ["depth", "0", "at least 1"]),
        ({"embed_dim": 0}, ["embed_dim", "0"]),
        ({"drop_rate": 1.0}, ["drop_rate", "1.0", "[0, 1)"]),
        ({"proj_drop_rate": -0.1}, ["proj_drop_rate", "-0.1"]),
        ({"drop_path_rate": 1.5}, ["drop_path_rate", "1.5"]),
        ({"drop_path_rate": float("nan")}, ["drop_path_rate", "nan"]),
        ({"drop_path_rule": "uniform"}, ["'uniform'", "'linear'", "'constant'"]),
        ({"global_pool": "max"}, ["'max'", "'avg'"]),
    ],
)
def test_bad_argument(kwargs: dict, words: list[str]) -> None:
    with pytest.raises(ValueError) as error:  # noqa: PT011  the words are matched below
        timm.create_model("gmlp_ti16", **{"depth": 1, **kwargs})
    assert all(word in str(error.value) for word in words), error.value


def test_unknown_keyword() -> None:
    with pytest.raises(TypeError, match="no_such_option"):
        timm.create_model("gmlp_ti16", no_such_option=1)


@pytest.mark.parametrize("size", [(48, 32), (32, 48)])
def test_an_image_of_another_size(size: tuple[int, int]) -> None:
    model = tiny()
    for call in (model, model.forward_features, model.forward_intermediates):
        with pytest.raises(
            ValueError, match=rf"{size[0]} x {size[1]} .* 32 x 32.*img_size=\({size[0]}, {size[1]}\)"
        ):
            call(images(1, 3, *size))


def test_class_is_usable_without_the_registry() -> None:
    assert GMlp(img_size=32, patch_size=8, depth=1, embed_dim=8, num_classes=2)(images()).shape == (2, 2)
