"""Stems, downsamplings, windows and the second kinds of blocks of the pyramids, against slow forms."""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from tiny import images, perturb, same
from torch import nn
from zoo import batch_norm, depthwise, gelu, linear, norm, swin_mlp

from gmlp_vision.layers.embed import ConvEmbed, PatchMerging
from gmlp_vision.layers.shift import neighbours
from gmlp_vision.layers.windows import Windows
from gmlp_vision.models.convmlp import ConvMlpBlock, ConvTokenizer
from gmlp_vision.models.hire_mlp import RegionMlp
from gmlp_vision.models.posmlp import ConvStem, turned, turned_back
from gmlp_vision.models.raft_mlp import MultiScaleEmbed
from gmlp_vision.models.swin_mlp import WindowMix
from gmlp_vision.models.vip import PermuteLinear


def made(module: nn.Module) -> nn.Module:
    return perturb(module).double().eval()


# -- stems and downsamplings ------------------------------------------------------------------------------


@settings(max_examples=15, deadline=None)
@given(size=st.tuples(st.integers(5, 40), st.integers(5, 40)))
@pytest.mark.parametrize("make", [ConvTokenizer, ConvStem])
def test_stems_tell_their_grid(make: type[nn.Module], size: tuple[int, int]) -> None:
    stem = make(3, 8, stride=4)
    assert stem(images(1, *size, 3)).shape == (1, *stem.out_size(size), 8)
    with pytest.raises(ValueError, match="stride is 2"):
        make(3, 8, stride=2)


def test_merged_tokens_come_in_swins_order() -> None:
    merge = made(PatchMerging(2, 5, stride=2, norm=nn.LayerNorm))
    x, p = images(1, 4, 6, 2).double(), merge.state_dict()
    y = merge(x)[0]
    assert y.shape == (*merge.out_size((4, 6)), 5)
    for i in range(2):
        for j in range(3):
            four = [x[0, 2 * i + a, 2 * j + b] for b in (0, 1) for a in (0, 1)]
            expected = linear(norm(torch.cat(four), p, "norm", 1e-5), p, "reduction")
            torch.testing.assert_close(y[i, j], expected, atol=1e-12, rtol=0)
    with pytest.raises(ValueError, match="a stride is 4"):
        PatchMerging(2, 5, stride=4)


def test_patches_of_several_sizes() -> None:
    embed = made(MultiScaleEmbed(2, 5, stride=2, kernels=(2, 4)))
    x = images(1, 4, 6, 2).double()
    y = embed(x)[0]
    assert y.shape == (*embed.out_size((4, 6)), 5)
    padded = nn.functional.pad(x[0], (0, 0, 1, 1, 1, 1))
    for i in range(2):
        for j in range(3):
            small = x[0, 2 * i : 2 * i + 2, 2 * j : 2 * j + 2]
            large = padded[2 * i : 2 * i + 4, 2 * j : 2 * j + 4]
            numbers = torch.cat([patch.permute(2, 0, 1).flatten() for patch in (small, large)])
            expected = embed.fc.weight @ numbers + embed.fc.bias
            torch.testing.assert_close(y[i, j], expected, atol=1e-12, rtol=0)
    with pytest.raises(ValueError, match=r"\[2, 3\]; expected multiples of the stride 2"):
        MultiScaleEmbed(2, 5, stride=2, kernels=(2, 3))


def test_a_depthwise_embedding() -> None:
    embed = ConvEmbed(4, 8, kernel_size=3, stride=2, padding=1, depthwise=True)
    assert embed.proj.weight.shape == (8, 1, 3, 3)
    assert embed(images(1, 6, 6, 4)).shape == (1, 3, 3, 8)


# -- tokens moved, and windows ----------------------------------------------------------------------------


@settings(max_examples=30, deadline=None)
@given(
    size=st.tuples(st.integers(1, 5), st.integers(1, 5)),
    axis=st.sampled_from([1, 2]),
    reach=st.integers(1, 3),
)
def test_neighbours(size: tuple[int, int], axis: int, reach: int) -> None:
    x = images(2, *size, 3)
    found = neighbours(x, axis, reach)
    assert len(found) == 2 * reach + 1
    for by, moved in zip(range(-reach, reach + 1), found, strict=True):
        for i in range(size[axis - 1]):
            there = x.select(axis, i + by) if 0 <= i + by < size[axis - 1] else torch.zeros(1)
            torch.testing.assert_close(moved.select(axis, i), there.expand_as(x.select(axis, i)))


class Centred(nn.Module):
    """What a window is, less its mean: it tells which tokens are one window."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x - x.mean(dim=(1, 2), keepdim=True)


def test_windows_are_cut_out_and_put_back() -> None:
    x = images(2, 4, 6, 3)
    y = Windows(Centred(), 2)(x)
    for i in range(0, 4, 2):
        for j in range(0, 6, 2):
            window = x[:, i : i + 2, j : j + 2]
            same(y[:, i : i + 2, j : j + 2], window - window.mean(dim=(1, 2), keepdim=True))


@pytest.mark.parametrize("grid", [(8, 12), (12, 8), (4, 8)])
def test_shifted_windows(grid: tuple[int, int]) -> None:
    mix = made(WindowMix(8, grid, window=4, heads=2, shifted=True))
    x = images(1, *grid, 8).double()
    p = {f"mixer.{name}": tensor for name, tensor in mix.state_dict().items()}
    if min(grid) == 4:  # one window high: no shift
        expected = swin_mlp(p, x[0])
    else:
        around = nn.functional.pad(x[0], (0, 0, 2, 2, 2, 2))
        expected = swin_mlp(p, around)[2:-2, 2:-2]
    torch.testing.assert_close(mix(x)[0], expected, atol=1e-12, rtol=0)


@pytest.mark.parametrize("axis", [1, 2])
def test_regions_are_moved_on_and_back(axis: int) -> None:
    """Another start is the same as a picture that is rolled before and back after."""
    x = images(2, 6, 6, 8).double()
    moved, still = (RegionMlp(8, axis, region=3, step=step).double().eval() for step in (2, 0))
    still.load_state_dict(made(moved).state_dict())
    same(moved(x), still(x.roll(2, axis)).roll(-2, axis))
    assert not torch.allclose(moved(x), still(x))


# -- blocks and parameters --------------------------------------------------------------------------------


def test_the_second_block_of_convmlp() -> None:
    block = made(ConvMlpBlock(6, (3, 4), mlp_ratio=2.0))
    x, p = images(1, 3, 4, 6).double(), block.state_dict()
    y = x[0]
    for k in (1, 2):
        if k == 2:
            y = depthwise(norm(y, p, "norm2", 1e-5), p["mixer.conv.weight"][:, 0])
        z = norm(y, p, f"norm{2 * k - 1}", 1e-5)
        y = y + linear(gelu(linear(z, p, f"mlp{k}.fc1")), p, f"mlp{k}.fc2")
    torch.testing.assert_close(block(x)[0], y, atol=1e-12, rtol=0)


def test_a_region_mlp_has_a_batch_norm_within() -> None:
    mlp = made(RegionMlp(4, 2, region=2, step=0))
    x, p = images(1, 1, 2, 4).double(), mlp.state_dict()
    z = batch_norm(p["fc1.weight"] @ x.flatten(), p, "norm.norm").clamp(min=0)
    torch.testing.assert_close(mlp(x).flatten(), p["fc2.weight"] @ z + p["fc2.bias"], atol=1e-12, rtol=0)


@settings(max_examples=20, deadline=None)
@given(seed=st.integers(0, 1000))
def test_gaussians_turn_with_their_offsets(seed: int) -> None:
    """theirs: (columns right, rows up); ours: (rows down, columns right)."""
    spreads, centers = images(2, 2, 2, seed=seed).double(), images(2, 2, seed=seed + 1).double()
    theirs = images(5, 2, seed=seed + 2).double()
    ours = torch.stack([-theirs[:, 1], theirs[:, 0]], 1)
    for g in range(2):
        away = (theirs - centers[g]) @ spreads[g]
        turned_away = (ours - turned(centers)[g]) @ turned(spreads)[g]
        torch.testing.assert_close(turned_away.square().sum(1), away.square().sum(1), atol=1e-10, rtol=1e-10)
    torch.testing.assert_close(turned_back(turned(spreads)), spreads)


def test_a_stage_of_another_size_than_its_segments() -> None:
    with pytest.raises(ValueError, match="a grid of 7 x 8 tokens of width 16, and 8 segments"):
        PermuteLinear(16, (7, 8), segments=8, axis=1)
