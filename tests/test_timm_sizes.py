"""timm's own mixers at other sizes: `gmlp_vision.set_input_size`, files, and what timm reads afterwards.

The models have the token grids of the released ones, in networks that are small; one test has them whole.
"""

import copy
import math
from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import pytest
import timm
import torch
from benchmark_scripts import load
from test_checkpoints_adapt import saved
from test_input_size import Doubled, LowRank, Rows, snapshot
from timm.layers import GatedMlp, GluMlp, Mlp, PatchDropout, resample_patch_embed
from timm.models import MlpMixer, get_model_input_config, get_model_traits, save_for_hf
from timm.models.mlp_mixer import Affine, MixerBlock, ResBlock, SpatialGatingBlock
from tiny import TINY, images, perturb, same, same_weights, tiny
from torch import nn
from torch.nn.functional import gelu, interpolate, layer_norm, linear, silu
from torch.nn.utils import parametrize, prune

from gmlp_vision import CheckpointError, load_checkpoint, set_input_size
from gmlp_vision.checkpoints import build, convert_file, describe
from gmlp_vision.checkpoints.names import from_ours
from gmlp_vision.errors import UserError
from gmlp_vision.layers.grid_tied import tied_layers
from gmlp_vision.models.gmlp import LAYOUTS

load("evidence")  # registers resmlp_pico4 and mixer_pico4, names of timm's classes that are small

Grid = tuple[int, int]
Tensors = Mapping[str, torch.Tensor]

RES: dict[str, Any] = {"mlp_ratio": 4, "block_layer": ResBlock, "norm_layer": Affine}
MIXER: dict[str, Any] = {"mlp_ratio": (0.5, 4.0), "block_layer": MixerBlock}
GMIXER: dict[str, Any] = {"mlp_ratio": (1.0, 4.0), "mlp_layer": GluMlp, "act_layer": nn.SiLU}
GMLP: dict[str, Any] = {"mlp_ratio": 6, "block_layer": SpatialGatingBlock, "mlp_layer": GatedMlp}


class Shape(NamedTuple):
    """A shape of released weights: the patch, what makes its blocks, the tags that have it."""

    patch: int
    depth: int
    dim: int
    own: dict[str, Any]
    tags: tuple[str, ...]


SHAPES = {
    "mixer_b16_224": Shape(
        16, 12, 768, MIXER, ("goog_in21k_ft_in1k", "goog_in21k", "miil_in21k", "miil_in21k_ft_in1k")
    ),
    "mixer_l16_224": Shape(16, 24, 1024, MIXER, ("goog_in21k_ft_in1k", "goog_in21k")),
    "gmixer_24_224": Shape(16, 24, 384, GMIXER, ("ra3_in1k",)),
    "resmlp_12_224": Shape(16, 12, 384, RES, ("fb_in1k", "fb_distilled_in1k", "fb_dino")),
    "resmlp_24_224": Shape(16, 24, 384, RES, ("fb_in1k", "fb_distilled_in1k", "fb_dino")),
    "resmlp_36_224": Shape(16, 36, 384, RES, ("fb_in1k", "fb_distilled_in1k")),
    "resmlp_big_24_224": Shape(
        8, 24, 768, RES, ("fb_in1k", "fb_distilled_in1k", "fb_in22k_ft_in1k")
    ),
    "gmlp_s16_224": Shape(16, 30, 256, GMLP, ("ra3_in1k",)),
}  # fmt: skip
TAGS = [f"{name}.{tag}" for name, shape in SHAPES.items() for tag in shape.tags]
AT = (192, 320)  # of 224 x 224: lower and wider

each_shape = pytest.mark.parametrize("name", SHAPES)
KINDS = {"resmlp": RES, "mixer": MIXER, "gmixer": GMIXER, "gmlp": GMLP}
each_kind = pytest.mark.parametrize("kind", KINDS)


def small(name: str, img_size: int | Grid = 224) -> nn.Module:
    """A model with the token grid of a released one, whose width and depth are small."""
    shape = SHAPES[name]
    size = {"patch_size": shape.patch, "num_blocks": 1 + (shape.depth == 36), "embed_dim": 12}
    return perturb(MlpMixer(5, img_size, **size, **shape.own)).eval()


def mixer(kind: str, img_size: int | Grid = 32, **kwargs: Any) -> nn.Module:
    """A small model of each kind of block, over 4 x 4 tokens."""
    size = {"patch_size": 8, "num_blocks": 2, "embed_dim": 12, "num_classes": 5}
    return perturb(MlpMixer(img_size=img_size, **{**size, **KINDS[kind], **kwargs})).eval()


# -- the maths, slowly: R and S over all tokens at once ------------------------------------------------------


def resize_axis(old: int, new: int, antialias: bool) -> torch.Tensor:
    """(new, old): torch's bicubic resize of each unit vector, as a row of pixels."""
    units = torch.eye(old, dtype=torch.float64)[:, None, None]
    return interpolate(units, size=(1, new), mode="bicubic", antialias=antialias)[:, 0, 0].T


def slow_r_and_s(old: Grid, new: Grid) -> tuple[torch.Tensor, torch.Tensor]:
    """R (n', n) and S (n, n')."""
    rs = [resize_axis(a, b, antialias=b < a) for a, b in zip(old, new, strict=True)]
    ss = [
        torch.linalg.pinv(r) if b > a else resize_axis(b, a, antialias=False)
        for r, a, b in zip(rs, old, new, strict=True)
    ]
    return torch.kron(*rs), torch.kron(*(s.contiguous() for s in ss))


def carried(state: Tensors, old: Grid, new: Grid) -> dict[str, torch.Tensor]:
    """The tensors at the new grid, by the formulas of the issue."""
    r, s = slow_r_and_s(old, new)
    laws: dict[str, Callable[[torch.Tensor], torch.Tensor]] = {
        "linear_tokens.weight": lambda w: r @ w @ s,
        "linear_tokens.bias": lambda b: r @ b,
        "gate.proj.weight": lambda w: r @ w @ s,
        "gate.proj.bias": lambda b: r @ b,
        "mlp_tokens.fc1.weight": lambda w: w @ s,
        "mlp_tokens.fc2.weight": lambda w: r @ w,
        "mlp_tokens.fc2.bias": lambda b: r @ b,
    }
    return {
        name: next((law(t) for end, law in laws.items() if name.endswith(end)), t)
        for name, t in state.items()
    }


def slow_forward(p: Tensors, x: torch.Tensor, patch: Grid, kind: str) -> torch.Tensor:
    """A model of timm's written out: tensors and (B, 3, height, width) image to logits."""
    x = nn.functional.conv2d(x, p["stem.proj.weight"], p["stem.proj.bias"], stride=patch)
    x = x.flatten(2).transpose(1, 2)

    def norm(name: str, x: torch.Tensor) -> torch.Tensor:
        if f"{name}.alpha" in p:
            return p[f"{name}.alpha"] * x + p[f"{name}.beta"]
        eps = 1e-5 if name.endswith("gate.norm") else 1e-6
        return layer_norm(x, x.shape[-1:], p[f"{name}.weight"], p[f"{name}.bias"], eps)

    def full(name: str, x: torch.Tensor) -> torch.Tensor:
        return linear(x, p[f"{name}.weight"], p[f"{name}.bias"])

    depth = len({name.split(".")[1] for name in p if name.startswith("blocks.")})
    for i in range(depth):
        b = f"blocks.{i}"
        if kind == "resmlp":
            x = x + p[f"{b}.ls1"] * full(f"{b}.linear_tokens", norm(f"{b}.norm1", x).mT).mT
            y = gelu(full(f"{b}.mlp_channels.fc1", norm(f"{b}.norm2", x)))
            x = x + p[f"{b}.ls2"] * full(f"{b}.mlp_channels.fc2", y)
        elif kind == "gmlp":
            u, v = gelu(full(f"{b}.mlp_channels.fc1", norm(f"{b}.norm", x))).chunk(2, dim=-1)
            v = full(f"{b}.mlp_channels.gate.proj", norm(f"{b}.mlp_channels.gate.norm", v).mT).mT
            x = x + full(f"{b}.mlp_channels.fc2", u * v)
        else:
            for part, flip in (("mlp_tokens", True), ("mlp_channels", False)):
                y = norm(f"{b}.norm{2 - flip}", x)
                y = full(f"{b}.{part}.fc1", y.mT if flip else y)
                if kind == "gmixer":
                    value, gate = y.chunk(2, dim=-1)
                    y = value * silu(gate)
                else:
                    y = gelu(y)
                y = full(f"{b}.{part}.fc2", y)
                x = x + (y.mT if flip else y)
    return full("head", norm("norm", x).mean(dim=1))


def kind_of(name: str) -> str:
    return name.partition("_")[0]


# -- the released shapes -------------------------------------------------------------------------------------


def test_the_table_has_every_tag_with_public_weights() -> None:
    assert sorted(TAGS) == sorted(timm.list_models(module="mlp_mixer", pretrained=True))
    assert len(TAGS) == 19


@each_shape
def test_the_table_tells_the_shapes_of_timm(name: str) -> None:
    shape, model = SHAPES[name], timm.create_model(name, device="meta")
    assert len(model.blocks) == shape.depth
    assert model.stem.proj.weight.shape == (shape.dim, 3, shape.patch, shape.patch)
    size = {"patch_size": shape.patch, "num_blocks": shape.depth, "embed_dim": shape.dim}
    other = MlpMixer(device="meta", **size, **shape.own)
    assert {k: v.shape for k, v in other.state_dict().items()} == {
        k: v.shape for k, v in model.state_dict().items()
    }


@pytest.mark.parametrize("tag", TAGS)
def test_every_tag_in_full_width_on_the_meta_device(tag: str) -> None:
    """One block of it, since all are alike."""
    classes = timm.get_pretrained_cfg(tag).num_classes
    model = timm.create_model(tag, device="meta", num_classes=classes)
    model.blocks = model.blocks[:1]
    for img_size in (AT, 224):
        set_input_size(model, img_size)
        there = timm.create_model(tag, img_size=img_size, device="meta", num_classes=classes).state_dict()
        assert all(there[k].shape == v.shape for k, v in model.state_dict().items())
    assert model(torch.empty(1, 3, 224, 224, device="meta")).shape == (1, classes)


@each_shape
def test_a_file_there_and_back(name: str, tmp_path: Path) -> None:
    """By hand, by loading and by converting: each matrix by its formula, the whole model written out."""
    patch = SHAPES[name].patch
    grids = (224 // patch, 224 // patch), (AT[0] // patch, AT[1] // patch)
    model = small(name).double()
    start = copy.deepcopy(model.state_dict())
    path = saved(model, tmp_path / "x.pth")

    there = carried(start, *grids)
    set_input_size(model, AT)
    assert any(there[k].shape != v.shape for k, v in start.items())
    assert all(same_to(v, there[k], 1e-10) for k, v in model.state_dict().items())
    x = images(1, 3, *AT).double()
    expected = slow_forward(there, x, (patch, patch), kind_of(name))
    assert expected.std() > 1e-3
    assert same_to(model(x), expected, 1e-10)
    loaded = small(name, AT).double()
    load_checkpoint(loaded, path)
    assert same_weights(loaded, model)
    convert_file(path, tmp_path / "z.pth", img_size=AT)
    written = torch.load(tmp_path / "z.pth", weights_only=True)
    assert all(same_to(v, there[k], 1e-10) for k, v in written.items())
    back = saved(loaded, tmp_path / "y.pth")

    set_input_size(model, 224)
    home = carried(there, *grids[::-1])
    assert all(same_to(v, home[k], 1e-10) for k, v in model.state_dict().items())
    x = images(1, 3, 224, 224).double()
    assert same_to(model(x), slow_forward(home, x, (patch, patch), kind_of(name)), 1e-10)
    again = small(name).double()
    report = load_checkpoint(again, back, grid=grids[1])
    assert same_weights(again, model)
    assert len(report.adapted) == sum(there[k].shape != v.shape for k, v in start.items())


def same_to(a: torch.Tensor, b: torch.Tensor, bound: float) -> bool:
    return a.shape == b.shape and bool((a - b).detach().abs().max() <= bound)


@pytest.mark.long
@pytest.mark.parametrize("name", ["resmlp_12_224", "mixer_b16_224"])
def test_a_whole_model_there_and_back(name: str, tmp_path: Path) -> None:
    model = perturb(timm.create_model(name), std=0.02).double().eval()
    there = carried(copy.deepcopy(model.state_dict()), (14, 14), (12, 20))
    path = saved(model, tmp_path / "x.pth")
    convert_file(path, tmp_path / "y.safetensors", img_size=AT)
    loaded = timm.create_model(name, img_size=AT, dtype=torch.float64).eval()
    load_checkpoint(loaded, tmp_path / "y.safetensors")
    assert all(same_to(v, there[k], 1e-10) for k, v in loaded.state_dict().items())
    x = images(1, 3, *AT).double()
    assert same_to(loaded(x), slow_forward(there, x, (16, 16), kind_of(name)), 1e-10)


# -- laws ----------------------------------------------------------------------------------------------------


@each_shape
def test_where_the_grid_grows_mixing_and_resizing_commute(name: str) -> None:
    """Exactly, through the non-linearity of a token MLP too, since fc1 S R x = fc1 x."""
    model, side = small(name).double(), 224 // SHAPES[name].patch
    x = images(2, 12, side**2).double()  # (B, C, N)
    parts = [part_over_tokens(block) for block in model.blocks]
    before = [part(x) for part in parts]
    set_input_size(model, (224, 320))
    r, _ = slow_r_and_s((side, side), (side, 320 // SHAPES[name].patch))
    for part, y in zip(parts, before, strict=True):
        assert y.std() > 1e-2
        assert same_to(part(x @ r.T), y @ r.T, 1e-10)


def part_over_tokens(block: nn.Module) -> nn.Module:
    for name in ("linear_tokens", "mlp_tokens", "mlp_channels.gate.proj"):
        try:
            return block.get_submodule(name)
        except AttributeError:
            continue
    raise AssertionError(block)


@each_shape
def test_a_constant_picture_keeps_its_answer_where_the_grid_shrinks(name: str) -> None:
    model, side = small(name).double(), 224 // SHAPES[name].patch
    x = images(2, 12, 1).double().expand(2, 12, side**2)
    part = part_over_tokens(model.blocks[0])
    before = part(x)
    set_input_size(model, (192, 160))
    new = (192 // SHAPES[name].patch, 160 // SHAPES[name].patch)
    r, _ = slow_r_and_s((side, side), new)
    assert same_to(part(x[..., : new[0] * new[1]]), before @ r.T, 1e-10)


# -- what it keeps -------------------------------------------------------------------------------------------


@each_kind
def test_only_what_belongs_to_the_grid_is_new(kind: str) -> None:
    model = mixer(kind).train()
    before = snapshot(model)
    belongs = {f"{name}.{key}" for name, layer in tied_layers(model).items() for key in layer.RULES}
    assert len(belongs) == {"resmlp": 4, "mixer": 6, "gmixer": 6, "gmlp": 4}[kind]
    set_input_size(model, (48, 24))
    after = snapshot(model)
    assert {k for k in before if after[k][0] != before[k][0]} == belongs
    assert type(model) is MlpMixer
    assert all(type(m).__module__.startswith(("timm.", "torch.")) for m in model.modules())
    assert all(m.training for m in model.modules())
    for name, layer in model.named_modules():
        if isinstance(layer, nn.Linear):
            assert (layer.out_features, layer.in_features) == layer.weight.shape, name
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    model(images(2, 3, 48, 24)).square().sum().backward()
    assert all(p.grad is not None and p.grad.std() > 0 for p in model.parameters() if p.numel() > 5)
    optimizer.step()


@each_kind
def test_the_same_size_keeps_the_parameters_themselves(kind: str) -> None:
    model = mixer(kind)
    before = snapshot(model)
    for call in ({}, {"img_size": 32}, {"img_size": [32, 32], "patch_size": 8}):
        set_input_size(model, **call)
        assert {k: i for k, (i, _) in snapshot(model).items()} == {k: i for k, (i, _) in before.items()}
    set_input_size(model, 64, patch_size=16)  # the same grid
    changed = {k for k, (i, _) in snapshot(model).items() if i != before[k][0]}
    assert changed == {"stem.proj.weight", "stem.proj.bias"}


@each_kind
def test_dtype_requires_grad_and_device_are_kept(kind: str) -> None:
    model = mixer(kind).to(torch.bfloat16)
    layer = next(iter(tied_layers(model).values())).linear
    layer.weight.requires_grad_(False)
    with torch.inference_mode():
        set_input_size(model, (48, 24), patch_size=4)
    assert {p.dtype for p in model.parameters()} == {torch.bfloat16}
    assert not layer.weight.requires_grad
    assert layer.bias.requires_grad
    assert not any(p.is_inference() for p in model.parameters())
    assert all(p.is_contiguous() for p in model.parameters())
    on_meta = mixer(kind).to("meta")
    set_input_size(on_meta, (48, 24))
    assert {p.device.type for p in on_meta.parameters()} == {"meta"}


def test_another_patch_resizes_the_stem_as_timm_does() -> None:
    model = mixer("mixer")
    kernel = model.stem.proj.weight.detach().clone()
    set_input_size(model, patch_size=(4, 16))
    assert torch.equal(model.stem.proj.weight, resample_patch_embed(kernel, (4, 16)))
    assert (model.stem.grid_size, model.stem.num_patches) == ((8, 2), 16)
    assert model.feature_info[0]["reduction"] == 16
    assert model(images()).std() > 1e-3


def test_a_layer_without_a_bias_and_one_that_is_shared() -> None:
    for mlp in (partial(Mlp, bias=False), partial(GluMlp, gate_last=False)):
        model = mixer("mixer", mlp_layer=mlp)
        model.blocks[1].mlp_tokens = model.blocks[0].mlp_tokens
        set_input_size(model, (48, 24))
        assert model.blocks[1].mlp_tokens is model.blocks[0].mlp_tokens
        assert model(images(2, 3, 48, 24)).std() > 1e-3


# -- what it refuses -----------------------------------------------------------------------------------------


def parametrized(model: nn.Module, layer: nn.Module, name: str) -> None:
    parametrize.register_parametrization(layer, "weight", Doubled())


def pruned(model: nn.Module, layer: nn.Module, name: str) -> None:
    prune.l1_unstructured(layer, "weight", amount=0.5)


def shared(model: nn.Module, layer: nn.Module, name: str) -> None:
    layer.weight = model.get_submodule(name.replace("blocks.1", "blocks.0")).weight


def lora(model: nn.Module, layer: nn.Module, name: str) -> None:
    model.set_submodule(name, LowRank(layer, 2))


def scales_inside(model: nn.Module, layer: nn.Module, name: str) -> None:
    layer.register_buffer("scale", torch.ones(16, 1))


def scales_beside(model: nn.Module, layer: nn.Module, name: str) -> None:
    model.hooks = nn.ModuleDict({f"{name.replace('.', '/')}/linear/0": nn.ParameterDict()})
    next(iter(model.hooks.values()))["scale"] = nn.Parameter(torch.ones(16, 1))


def quantised(model: nn.Module, layer: nn.Module, name: str) -> None:
    layer.weight = nn.Parameter(layer.weight.detach().as_subclass(Rows))


def a_shard(model: nn.Module, layer: nn.Module, name: str) -> None:
    layer.weight = nn.Parameter(layer.weight.detach().flatten()[:30])


@each_kind
@pytest.mark.parametrize(
    ("change", "words"),
    [
        (parametrized, r"weight is computed \(parametrize, prune\) or shared"),
        (pruned, r"weight is computed \(parametrize, prune\) or shared"),
        (shared, r"weight is computed \(parametrize, prune\) or shared"),
        (lora, r"is a LowRank, and a plain nn\.Linear was expected: merge"),
        (scales_inside, r"scale, of shape \(16, 1\).*merge it or take it off"),
        (scales_beside, r"scale, of shape \(16, 1\).*merge it or take it off"),
        (quantised, r"weight is a Rows of shape .*grid 4 x 4 .*sharded or quantised"),
        (a_shard, r"weight is a Parameter of shape \(30,\).*grid 4 x 4 .*sharded or quantised"),
    ],
)
def test_what_no_other_can_take_the_place_of(kind: str, change: Callable[..., None], words: str) -> None:
    model = mixer(kind)
    name = list(tied_layers(model))[-1]
    change(model, model.get_submodule(name), name)
    before = snapshot(model)
    with pytest.raises(ValueError, match=rf"{name.replace('.', '.')}.*{words}|{words}"):
        set_input_size(model, 48)
    assert {k: i for k, (i, _) in snapshot(model).items()} == {k: i for k, (i, _) in before.items()}
    assert model.stem.img_size == (32, 32)
    assert tied_layers(model)[name].grid_size == (4, 4)


@pytest.mark.parametrize(
    ("call", "words"),
    [
        ({"img_size": 33}, "height of 33 pixels, which a patch of 8 does not divide"),
        ({"img_size": (32, 44)}, "width of 44 pixels"),
        ({"patch_size": 5}, "a patch of 5 does not divide"),
        ({"img_size": 0}, "height of 0 pixels"),
        ({"img_size": (3, 32, 32)}, r"img_size is \(3, 32, 32\)"),
    ],
)
def test_a_bad_size_leaves_the_model_as_it_was(call: dict[str, Any], words: str) -> None:
    model = mixer("resmlp")
    before, expected = snapshot(model), model(images())
    with pytest.raises(ValueError, match=words):
        set_input_size(model, **call)
    assert {k: i for k, (i, _) in snapshot(model).items()} == {k: i for k, (i, _) in before.items()}
    assert torch.equal(model(images()), expected)


class Mine(ResBlock):
    """A block of a user's own, with timm's layers."""


def other_block() -> nn.Module:
    model = mixer("resmlp")
    model.blocks[1] = nn.Identity()
    return model


def other_mlp() -> nn.Module:
    model = mixer("mixer")
    model.blocks[1].mlp_tokens = PatchDropout(0.5)
    return model


@pytest.mark.parametrize(
    "make",
    [
        lambda: nn.DataParallel(mixer("mixer")),
        lambda: timm.create_model("test_vit"),
        lambda: timm.create_model("resmlp_12_224", img_size=32, features_only=True),
        other_block,
        other_mlp,
    ],
)
def test_another_model_is_refused(make: Callable[[], nn.Module], tmp_path: Path) -> None:
    model = make()
    words = rf"the model is a {type(model).__name__}; expected one of this package, or timm's MlpMixer"
    with pytest.raises(ValueError, match=words):
        set_input_size(model, 64)
    with pytest.raises(ValueError, match=words):
        load_checkpoint(model, saved(mixer("mixer"), tmp_path / "x.pth"))


def test_derived_classes_are_carried_as_theirs() -> None:
    model = mixer("resmlp", block_layer=Mine)
    set_input_size(model, 48)
    assert model(images(2, 3, 48, 48)).std() > 1e-3


def test_ours_by_the_same_function() -> None:
    model = tiny()
    other = copy.deepcopy(model)
    set_input_size(model, img_size=(48, 24), patch_size=4)
    other.set_input_size((48, 24), 4)
    assert same_weights(model, other)
    assert model.img_size == (48, 24)


# -- what timm reads afterwards ------------------------------------------------------------------------------


@each_kind
def test_timms_input_helpers_tell_the_new_size(kind: str) -> None:
    model = mixer(kind)
    set_input_size(model, (48, 24))
    assert (model.stem.img_size, model.stem.grid_size, model.stem.num_patches) == ((48, 24), (6, 3), 18)
    assert get_model_input_config(model)["input_size"] == (3, 48, 24)
    assert get_model_traits(model)["img_size"] == (48, 24)
    assert timm.data.resolve_input_data_config(model=model)["input_size"] == (3, 48, 24)
    assert model.forward_intermediates(images(1, 3, 48, 24))[1][0].shape == (1, 12, 6, 3)
    with pytest.raises(AssertionError, match="doesn't match model"):
        model(images())


REGISTERED = ["resmlp_12_224", "mixer_s32_224", "gmixer_12_224", "gmlp_ti16_224"]


@pytest.mark.parametrize(
    "name", ["resmlp_pico4", "mixer_pico4", *(pytest.param(n, marks=pytest.mark.long) for n in REGISTERED)]
)
def test_saved_for_the_hub_and_read_by_timm_alone(name: str, tmp_path: Path) -> None:
    small, large = (64, (96, 64)) if name in REGISTERED else (32, (48, 24))
    model = perturb(timm.create_model(name, img_size=small, num_classes=5), std=0.05).eval()
    set_input_size(model, large)
    save_for_hf(model, tmp_path / "d", safe_serialization=True)
    loaded = timm.create_model(f"local-dir:{tmp_path / 'd'}", pretrained=True).eval()
    assert same_weights(loaded, model)
    same(loaded(images(1, 3, *large)), model(images(1, 3, *large)))
    assert get_model_input_config(loaded) == get_model_input_config(model)
    third = timm.create_model(name, img_size=small, num_classes=5).eval()
    report = load_checkpoint(third, tmp_path / "d")  # its grid stands in the config
    assert not report.doubtful
    set_input_size(model, small)
    assert same_weights(third, model)


@pytest.mark.long
def test_another_patch_in_a_folder_is_read_here_and_not_by_timm(tmp_path: Path) -> None:
    """timm's entrypoints set the patch themselves, and take no other."""
    model = perturb(timm.create_model("resmlp_12_224", img_size=64, num_classes=5), std=0.05).eval()
    set_input_size(model, (64, 32), patch_size=8)
    save_for_hf(model, tmp_path / "d", safe_serialization=True)
    with pytest.raises(TypeError, match="patch_size"):
        timm.create_model(f"local-dir:{tmp_path / 'd'}", pretrained=True)
    built = build(tmp_path / "d")
    assert same_weights(built.model, model)
    assert built.grid == (8, 4)
    at_home = timm.create_model("resmlp_12_224", img_size=64, num_classes=5).eval()
    load_checkpoint(at_home, tmp_path / "d")
    assert at_home.stem.patch_size == (16, 16)
    assert at_home(images(1, 3, 64, 64)).std() > 1e-3


# -- files ---------------------------------------------------------------------------------------------------


@pytest.mark.long
@pytest.mark.parametrize("name", REGISTERED[:3])
def test_a_name_converted_to_another_size(name: str, tmp_path: Path) -> None:
    model = perturb(timm.create_model(name, img_size=64, num_classes=5), std=0.05).eval()
    path = saved(model, tmp_path / "x.pth")
    grid = model.stem.grid_size
    report = convert_file(path, tmp_path / "d", img_size=(96, 64), grid=grid)
    set_input_size(model, (96, 64))
    assert len(report.adapted) == sum(len(layer.RULES) for layer in tied_layers(model).values())
    loaded = timm.create_model(f"local-dir:{tmp_path / 'd'}", pretrained=True).eval()
    assert same_weights(loaded, model)
    convert_file(path, tmp_path / "y.safetensors", img_size=(96, 64), grid=grid)
    assert same_weights(build(tmp_path / "y.safetensors", grid=model.stem.grid_size).model, model)
    said = describe(tmp_path / "d")
    assert said["architecture"] == name
    assert said["image"] == "3 channels, 96 x 64 pixels"
    assert said["grid"].startswith(f"{model.stem.grid_size[0]} x {model.stem.grid_size[1]} tokens, by the")


@each_kind
def test_a_file_converted_to_another_size(kind: str, tmp_path: Path) -> None:
    model = mixer(kind)
    convert_file(saved(model, tmp_path / "x.pth"), tmp_path / "y.safetensors", img_size=(48, 24))
    set_input_size(model, (48, 24))
    assert same_weights(build(tmp_path / "y.safetensors", grid=(6, 3)).model, model)
    said = describe(saved(mixer(kind, 48), tmp_path / "z.pth"))
    assert said["grid"] == "6 x 6 tokens, guessed to be square, since nothing states it"
    assert said["image"] == "3 channels, 48 x 48 pixels"


def test_a_size_that_is_not_whole_tokens_is_refused_before_anything_is_written(tmp_path: Path) -> None:
    path = saved(mixer("resmlp"), tmp_path / "x.pth")
    with pytest.raises(ValueError, match="width of 44 pixels, which a patch of 8 does not divide"):
        convert_file(path, tmp_path / "y.safetensors", img_size=(48, 44))
    assert not (tmp_path / "y.safetensors").exists()


def test_a_file_of_the_authors_at_another_size(tmp_path: Path) -> None:
    model = mixer("resmlp")
    theirs = tmp_path / "theirs.pth"
    convert_file(saved(model, tmp_path / "x.pth"), theirs, to="deit")
    convert_file(theirs, tmp_path / "at.pth", img_size=(48, 24), to="deit")
    loaded = mixer("resmlp", (48, 24))
    report = load_checkpoint(loaded, tmp_path / "at.pth")
    assert report.layout == "deit"
    set_input_size(model, (48, 24))
    assert same_weights(loaded, model)


def test_a_wider_image_than_the_machine_may_hold_is_refused(tmp_path: Path) -> None:
    path = saved(mixer("resmlp"), tmp_path / "x.pth")
    with pytest.raises(UserError, match="ask for a smaller image"):
        convert_file(path, tmp_path / "y.pth", img_size=(8192, 8192))


def test_a_file_of_another_kind_of_block_is_refused(tmp_path: Path) -> None:
    for kind in KINDS:
        path = saved(mixer(kind), tmp_path / f"{kind}.pth")
        for other in KINDS.keys() - {kind}:
            model = mixer(other, 48)
            before = copy.deepcopy(model.state_dict())
            with pytest.raises(CheckpointError, match=r"In the model, not in the file|of another size"):
                load_checkpoint(model, path)
            assert same_weights(model, before)


def test_a_new_head_other_channels_and_the_meta_device(tmp_path: Path) -> None:
    source = mixer("gmixer")
    path = saved(source, tmp_path / "x.pth")
    model = mixer("gmixer", (48, 24), num_classes=7, in_chans=1)
    head = model.head.weight.detach().clone()
    load_checkpoint(model, path)
    assert torch.equal(model.head.weight, head)
    assert model(images(1, 1, 48, 24)).shape == (1, 7)
    on_meta = mixer("gmixer", (48, 24)).to("meta")
    load_checkpoint(on_meta, path)
    set_input_size(source, (48, 24))
    assert same_weights(on_meta, source)


def test_timms_gmlp_takes_our_files_and_ours_takes_timms(tmp_path: Path) -> None:
    ours = tiny(img_size=(32, 48))
    theirs = mixer("gmlp", 64, embed_dim=16)
    load_checkpoint(theirs, saved(ours, tmp_path / "x.pth"), grid=(4, 6))
    ours.set_input_size(64)
    assert same_weights(theirs, ours)
    same(theirs(images(2, 3, 64, 64)), ours(images(2, 3, 64, 64)))
    set_input_size(theirs, (32, 48))
    again = tiny(img_size=(32, 48))
    load_checkpoint(again, saved(theirs, tmp_path / "y.pth"))
    assert same_weights(again, theirs)


def test_timms_gmlp_refuses_what_it_would_compute_otherwise(tmp_path: Path) -> None:
    save_for_hf(tiny(norm_eps=1e-3), tmp_path / "d", model_args={**TINY, "norm_eps": 1e-3})
    theirs = mixer("gmlp", embed_dim=16)
    with pytest.raises(CheckpointError, match=r"trained with norm_eps=0\.001, .* norm_eps=1e-06"):
        load_checkpoint(theirs, tmp_path / "d")
    ours, path = tiny(), tmp_path / "l.pth"
    torch.save(from_ours(ours.state_dict(), LAYOUTS["lucidrains"].rows), path)
    with pytest.raises(CheckpointError, match=r"trained with norm_eps=1e-05, .* norm_eps=1e-06"):
        load_checkpoint(theirs, path)
    as_there = mixer("gmlp", embed_dim=16, norm_layer=partial(nn.LayerNorm, eps=1e-5))
    assert load_checkpoint(as_there, path).layout == "lucidrains"
    assert same_weights(as_there, ours)


def test_no_size_that_is_not_whole_tokens() -> None:
    """What remains of an image that the patch does not divide, timm drops in silence; here it is refused."""
    model = timm.create_model("resmlp_12_224", img_size=40)
    assert model.stem.grid_size == (2, 2)
    with pytest.raises(ValueError, match="height of 40 pixels, which a patch of 16 does not divide"):
        set_input_size(model, patch_size=16)
    set_input_size(model, 64)
    assert math.prod(model.stem.grid_size) == 16
