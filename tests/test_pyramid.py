"""The pyramid trunk: levels of features, stages as modules, image sizes. test_contract.py has the rest."""

from functools import partial
from itertools import accumulate
from operator import mul
from pathlib import Path

import pytest
import timm
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from timm.models import save_for_hf
from timm.optim import create_optimizer_v2
from tiny import PYRAMID_NAMES, images, perturb, same, tiny
from torch import nn
from zoo import tiny_kwargs

import gmlp_vision  # noqa: F401  registers the names
from gmlp_vision.layers.embed import ConvEmbed
from gmlp_vision.layers.mix_mlp_block import MixMlpBlock
from gmlp_vision.layers.norm import BatchNorm, GroupNorm
from gmlp_vision.trunks import Pyramid
from gmlp_vision.trunks.block_args import drop_path_rates, one_stage_each

every_name = pytest.mark.parametrize("name", PYRAMID_NAMES)


class Scale(nn.Module):
    """A mixer that mixes nothing, and takes two arguments."""

    def __init__(self, dim, grid_size, factor=1.0, turn=0, device=None, dtype=None):
        super().__init__()
        self.grid_size, self.factor, self.turn = grid_size, factor, turn
        self.linear = nn.Linear(dim, dim, device=device, dtype=dtype)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.factor * self.linear(x)


def toy(**kwargs: object) -> Pyramid:
    given = {"embed_dims": (8, 12, 12), "depths": (1, 2, 1), "strides": (4, 2, 1), "img_size": 32}
    parts = {"stem": ConvEmbed, "downsample": ConvEmbed}
    return perturb(
        Pyramid(partial(MixMlpBlock, mixer=Scale), **{**parts, **given, "num_classes": 5, **kwargs})
    ).eval()


# -- levels of features -----------------------------------------------------------------------------------


def stage_outputs(model: nn.Module, x: torch.Tensor) -> list[torch.Tensor]:
    x, outputs = model.embed(x), []
    for stage in model.stages:
        x = stage.downsample(x)
        for block in stage.blocks:
            x = block(x)
        outputs.append(x)
    return outputs


@every_name
def test_forward_intermediates(name: str) -> None:
    model, x = tiny(name), images()
    first, last = stage_outputs(model, x)
    final, (a, b) = model.forward_intermediates(x, output_fmt="NHWC")
    same(final, model.forward_features(x))
    same(a, first)
    same(b, last)
    (a, b) = model.forward_intermediates(x, norm=True, intermediates_only=True)
    same(a.permute(0, 2, 3, 1), first)  # the norm is as wide as the last stage
    same(b.permute(0, 2, 3, 1), model.norm(last))
    final, (a,) = model.forward_intermediates(x, indices=[0], stop_early=True, output_fmt="NLC")
    same(a, first.flatten(1, 2))
    same(final, first)


@every_name
@pytest.mark.parametrize("prune_norm", [True, False])
@pytest.mark.parametrize("index", [0, 1])
def test_what_is_pruned_is_saved_and_loaded_so(
    name: str, index: int, prune_norm: bool, tmp_path: Path
) -> None:
    model, x = tiny(name), images()
    expected = model.forward_intermediates(x, [index], norm=not prune_norm, output_fmt="NHWC")[1][0]
    assert model.prune_intermediate_layers([index], prune_norm) == [index]
    same(model(x), expected)
    save_for_hf(model, tmp_path)
    loaded = timm.create_model(f"local-dir:{tmp_path}", pretrained=True).eval()
    same(loaded(x), expected)
    loaded.reset_classifier(3, "avg")
    assert loaded(x).shape == (2, 3)


def test_what_must_divide_an_image_is_that_of_the_stages_that_stay() -> None:
    model = timm.create_model("swin_mlp_t_c24", device="meta")  # windows of 8 tokens, down to 1/32
    assert model.size_step == (256, 256)
    model.prune_intermediate_layers([0])
    assert model.size_step == (32, 32)
    assert model(torch.empty(1, 3, 96, 32, device="meta")).shape == (1, 24, 8, 96)


@every_name
def test_a_head_does_not_stay_without_its_stage(name: str) -> None:
    with pytest.raises(ValueError, match="prune_head is False"):
        tiny(name).prune_intermediate_layers([0], prune_head=False)


@every_name
def test_features_only(name: str) -> None:
    kwargs = {k: v for k, v in tiny_kwargs(name).items() if k != "num_classes"}
    full, backbone = tiny(name), timm.create_model(name, features_only=True, **kwargs).eval()
    backbone.model.load_state_dict(
        {k: v for k, v in full.state_dict().items() if not k.startswith(("head", "norm"))}
    )
    maps, expected = backbone(images()), stage_outputs(full, images())
    assert backbone.feature_info.channels() == list(full.embed_dims)
    assert backbone.feature_info.reduction() == list(accumulate(full.strides, mul))
    assert backbone.feature_info.module_name() == ["stages.0", "stages.1"]
    for m, e in zip(maps, expected, strict=True):
        same(m.permute(0, 2, 3, 1), e)


@every_name
def test_layer_decay_falls_from_head_to_stem(name: str) -> None:
    model = tiny(name)
    optimizer = create_optimizer_v2(model, opt="adamw", lr=1e-3, weight_decay=0.05, layer_decay=0.5)
    scale = {id(p): g["lr_scale"] for g in optimizer.param_groups for p in g["params"]}
    blocks = [block for stage in model.stages for block in stage.blocks]
    parts = [model.stem, *blocks, model.head]
    scales = [scale[id(next(part.parameters()))] for part in parts]
    assert scales == sorted(scales)
    assert len(set(scales)) == len(parts)
    assert scales[-1] == 1.0


# -- stages are modules -----------------------------------------------------------------------------------


@every_name
@pytest.mark.parametrize("mode", ["selective", "block"])
def test_checkpointing_reaches_the_blocks_of_every_stage(name: str, mode: str) -> None:
    model, calls, seen = tiny(name).train(), [], []
    for stage in model.stages:
        stage.register_forward_hook(lambda *_: seen.append(1))
        stage.blocks[0].register_forward_pre_hook(lambda *_: calls.append(1))
    expected = gradients(model)
    assert (len(calls), len(seen)) == (2, 2)
    model.set_grad_checkpointing(mode=mode)
    for key, grad in gradients(model).items():
        torch.testing.assert_close(grad, expected[key], atol=1e-6, rtol=1e-5)
    assert (len(calls), len(seen)) == (6, 4)
    model.set_grad_checkpointing(False)
    gradients(model)
    assert (len(calls), len(seen)) == (8, 6)


def gradients(model: nn.Module) -> dict[str, torch.Tensor]:
    model.zero_grad()
    model(images()).square().sum().backward()
    return {name: p.grad.clone() for name, p in model.named_parameters()}


# -- what the blocks get ----------------------------------------------------------------------------------


def test_one_value_a_stage_or_one_a_block_in_turn() -> None:
    model = toy(depths=(1, 3, 1), factor=(1.0, 2.0, 3.0), turn=(5, (6, 7), 8))
    blocks = [[block.mixer for block in stage.blocks] for stage in model.stages]
    assert [[m.factor for m in stage] for stage in blocks] == [[1.0], [2.0] * 3, [3.0]]
    assert [[m.turn for m in stage] for stage in blocks] == [[5], [6, 7, 6], [8]]
    assert [stage[0].grid_size for stage in blocks] == [(8, 8), (4, 4), (4, 4)]
    with pytest.raises(ValueError, match=r"factor is \(1.0, 2.0\); expected one value for each of the 3"):
        toy(factor=(1.0, 2.0))
    with pytest.raises(TypeError, match="heads"):
        toy(heads=2)
    assert list(one_stage_each({}, (2, 1))) == [[{}, {}], [{}]]


def test_what_changes_the_arithmetic_is_a_setting() -> None:
    settings = toy(factor=(1.0, 2.0, 3.0)).settings()
    assert settings["factor"] == (1.0, 2.0, 3.0)
    assert settings["turn"] == 0
    assert settings["strides"] == (4, 2, 1)
    assert "mlp_ratio" not in settings


@pytest.mark.parametrize(
    ("rule", "rates"),
    [
        ("linear", [[0.0, 0.1], [0.2, 0.3]]),
        ("stagewise", [[0.0, 0.3], [0.0, 0.3]]),
        ("constant", [[0.3, 0.3], [0.3, 0.3]]),
    ],
)
def test_drop_path_rules(rule: str, rates: list[list[float]]) -> None:
    found = drop_path_rates(0.3, [2, 2], rule)
    assert found == [pytest.approx(stage) for stage in rates]


@pytest.mark.parametrize(
    ("kwargs", "message"),
    [
        ({"depths": (1, 2)}, r"embed_dims is \[8, 12, 12\]; expected one value a stage"),
        ({"depths": (1, 0, 1)}, r"depths\[1\] is 0"),
        ({"strides": (4, 2)}, r"strides is \[4, 2\]"),
        ({"img_size": 36}, "36 x 36 pixels.*multiples of 8 x 8"),
        ({"drop_path_rule": "square"}, "'square'; expected 'linear', 'stagewise' or 'constant'"),
    ],
)
def test_arguments_that_make_no_pyramid(kwargs: dict[str, object], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        toy(**kwargs)


# -- image sizes ------------------------------------------------------------------------------------------


@settings(max_examples=30, deadline=None)
@given(
    size=st.tuples(st.integers(1, 40), st.integers(1, 40)),
    kernel=st.integers(1, 7),
    stride=st.integers(1, 4),
    padding=st.integers(0, 3),
)
def test_the_grid_that_an_embedding_tells_is_the_one_it_gives(
    size: tuple[int, int], kernel: int, stride: int, padding: int
) -> None:
    embed = ConvEmbed(2, 3, kernel_size=kernel, stride=stride, padding=padding)
    told = embed.out_size(size)
    if min(told) < 1:
        with pytest.raises(RuntimeError):
            embed(torch.randn(1, *size, 2))
    else:
        assert embed(torch.randn(1, *size, 2)).shape == (1, *told, 3)


def test_pixels_that_a_stem_would_leave_out_are_refused() -> None:
    model = toy()  # patches side by side
    assert model.size_step == (8, 8)
    assert model(images(1, 3, 40, 24)).shape == (1, 5)
    with pytest.raises(ValueError, match=r"36 x 32 pixels.*multiples of 8 x 8"):
        model(images(1, 3, 36, 32))
    overlapping = toy(stem=lambda *args, **kwargs: ConvEmbed(*args, kernel_size=7, padding=2, **kwargs))
    assert overlapping.size_step == (8, 8)  # of the downsampling
    with pytest.raises(ValueError, match="keeps its stride"):
        model.set_input_size(patch_size=8)


# -- norms over channels ----------------------------------------------------------------------------------


def test_norms_over_channels() -> None:
    x = images(2, 3, 5, 4).double()
    batch = perturb(BatchNorm(4, eps=1e-3, dtype=torch.float64).train())
    centred = x - x.mean(dim=(0, 1, 2))
    expected = centred / (centred.square().mean(dim=(0, 1, 2)) + 1e-3).sqrt()
    same(batch(x), expected * batch.norm.weight + batch.norm.bias)
    group = perturb(GroupNorm(4, eps=1e-3, dtype=torch.float64))
    centred = x - x.mean(dim=(1, 2, 3), keepdim=True)
    expected = centred / (centred.square().mean(dim=(1, 2, 3), keepdim=True) + 1e-3).sqrt()
    same(group(x), expected * group.norm.weight + group.norm.bias)


def test_a_synchronised_batch_norm_takes_its_place() -> None:
    model = toy(norm=BatchNorm)
    with torch.no_grad():
        expected = model(images())
        converted = nn.SyncBatchNorm.convert_sync_batchnorm(model)
        assert isinstance(converted.norm.norm, nn.SyncBatchNorm)
        same(converted(images()), expected)
