"""S2-MLP: its shift, its stem, what it refuses. tests/test_zoo.py has the rest."""

import pytest
import timm
import torch
from tiny import images, perturb
from torch import nn
from torch.nn import functional
from zoo import tiny_kwargs

from gmlp_vision.layers.shift import shift_by_one, shift_four_ways
from gmlp_vision.models.s2mlp import SIZES, SpatialShift


def test_each_token_gets_its_neighbours_value_and_the_border_keeps_its_own() -> None:
    x = torch.tensor([[1.0, 2, 3], [4, 5, 6]])
    kept = x.clone()
    assert shift_by_one(x, 1, forward=True).tolist() == [[1, 1, 2], [4, 4, 5]]
    assert shift_by_one(x, 1, forward=False).tolist() == [[2, 3, 3], [5, 6, 6]]
    assert shift_by_one(x, 0, forward=True).tolist() == [[1, 2, 3], [1, 2, 3]]
    assert shift_by_one(x, 0, forward=False).tolist() == [[4, 5, 6], [4, 5, 6]]
    assert torch.equal(x, kept)  # moved in place, some of the later ones would differ too


@pytest.mark.parametrize("dim", [0, 1])
def test_a_single_token_stays(dim: int) -> None:
    x = torch.tensor([[7.0]])
    assert (
        shift_by_one(x, dim, forward=True).tolist() == shift_by_one(x, dim, forward=False).tolist() == [[7]]
    )


def test_inside_the_image_the_shift_is_the_papers_depthwise_convolution() -> None:
    x = images(2, 5, 6, 8)
    kernels = torch.zeros(8, 1, 3, 3)
    for group, (row, column) in enumerate([(1, 0), (1, 2), (0, 1), (2, 1)]):  # where each quarter looks
        kernels[2 * group : 2 * group + 2, 0, row, column] = 1
    expected = functional.conv2d(x.permute(0, 3, 1, 2), kernels, groups=8).permute(0, 2, 3, 1)
    torch.testing.assert_close(shift_four_ways(x)[:, 1:-1, 1:-1], expected, atol=0, rtol=0)


def test_an_image_spreads_by_one_token_a_block() -> None:
    kwargs = {**tiny_kwargs("s2mlp_wide"), "img_size": 56, "global_pool": ""}
    model = perturb(timm.create_model("s2mlp_wide", **kwargs)).eval()
    assert len(model.blocks) == 2
    x = images(1, 3, 56, 56)
    other = x.clone()
    other[..., :8, :8] += 1  # the token in the corner
    moved = (model.forward_features(x) - model.forward_features(other)).abs().sum(-1).view(7, 7) > 0
    expected = torch.tensor([[i + j <= 2 for j in range(7)] for i in range(7)])
    assert torch.equal(moved, expected)


def test_the_stem_is_a_linear_map_and_a_norm() -> None:
    model = perturb(timm.create_model("s2mlp_wide", **tiny_kwargs("s2mlp_wide")))
    x = images()
    patches = functional.unfold(x, 8, stride=8).transpose(1, 2)
    e = functional.linear(patches, model.stem.proj.weight.flatten(1), model.stem.proj.bias)
    expected = functional.layer_norm(e, (16,), model.stem.norm.weight, model.stem.norm.bias, eps=1e-6)
    torch.testing.assert_close(model.embed(x).flatten(1, 2), expected, atol=1e-5, rtol=1e-5)


@pytest.mark.parametrize(("name", "count"), [("s2mlp_wide", 71_473_920), ("s2mlp_deep", 53_533_056)])
def test_parameters_without_the_head(name: str, count: int) -> None:
    model = timm.create_model(name, num_classes=0, device="meta")
    assert sum(p.numel() for p in model.parameters()) == count


@pytest.mark.parametrize("dim", [1, 18])
def test_channels_that_do_not_make_four_groups_are_refused(dim: int) -> None:
    with pytest.raises(
        ValueError, match=f"embed_dim is {dim}; .* choose {dim - dim % 4} or {dim + 4 - dim % 4}"
    ):
        timm.create_model("s2mlp_wide", **{**tiny_kwargs("s2mlp_wide"), "embed_dim": dim})


def test_an_argument_that_nobody_has_is_refused() -> None:
    with pytest.raises(TypeError, match="heads"):
        timm.create_model("s2mlp_wide", **tiny_kwargs("s2mlp_wide"), heads=4)


def test_a_branch_is_left_out_as_often_as_said() -> None:
    model = timm.create_model("s2mlp_wide", **tiny_kwargs("s2mlp_wide"), drop_path_rate=0.25)
    assert isinstance(model.blocks[0].drop_path, nn.Identity)
    assert model.blocks[1].drop_path.drop_prob == 0.25
    block = perturb(model).blocks[1].train()
    x = images(1, 1, 1, 16).expand(4000, -1, -1, -1)
    with torch.no_grad():
        kept = (block.drop_path(torch.ones_like(x)) > 0).float().mean()
        both = (block(x) == x).all(-1).float().mean()  # each branch draws for itself
    assert kept.item() == pytest.approx(0.75, abs=0.03)
    assert both.item() == pytest.approx(0.25**2, abs=0.02)


def test_names() -> None:
    assert {type(b.mixer) for n in SIZES for b in timm.create_model(n, depth=1).blocks} == {SpatialShift}
