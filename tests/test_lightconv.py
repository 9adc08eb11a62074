"""LightConv, DynamicConv: their kernels, DropConnect, what is refused. tests/test_zoo.py has the rest."""

from pathlib import Path

import pytest
import timm
import torch
from tiny import images, perturb, same, same_weights
from torch import nn
from torch.nn import functional
from zoo import tiny_kwargs

from gmlp_vision.checkpoints import build
from gmlp_vision.errors import CheckpointError
from gmlp_vision.models.lightconv import MIXERS, DynamicConv, LightConv, sum_of_neighbours

NAMES = {"light": "lightconv_s16", "dynamic": "dynamicconv_s16"}
every_mixer = pytest.mark.parametrize("mixer", NAMES)


def make(mixer: str = "light", **kwargs: object) -> nn.Module:
    name = NAMES[mixer]
    return perturb(timm.create_model(name, **{**tiny_kwargs(name), **kwargs})).eval()


def test_dynamic_is_light_where_every_token_makes_the_same_kernels() -> None:
    light = perturb(LightConv(8, (4, 5), heads=2, kernel_size=3), std=0.5).double()
    weights = light.kernels().detach().flatten(1).expand(2, 4, 5, 2, 9)
    z = images(2, 4, 5, 8).double()
    y = light.conv(z)
    assert y.std() > 0.1
    torch.testing.assert_close(sum_of_neighbours(z, weights, 3), y, atol=1e-12, rtol=1e-10)


def test_dynamic_is_an_unfolded_sum() -> None:
    layer = perturb(DynamicConv(8, (4, 5), heads=4, kernel_size=5), std=0.5).double()
    z = images(2, 4, 5, 8).double()
    weights = layer.kernel_fc(z).view(2, 20, 4, 25).softmax(-1)  # (B, N, h, s * s)
    neighbours = functional.unfold(z.permute(0, 3, 1, 2), 5, padding=2).view(2, 4, 2, 25, 20)
    expected = torch.einsum("bnhk,bhckn->bnhc", weights, neighbours).reshape(2, 4, 5, 8)
    torch.testing.assert_close(layer.conv(z), expected, atol=1e-12, rtol=1e-10)
    assert expected.std() > 0.1


def test_kernels_sum_to_one_and_zeros_stand_outside() -> None:
    for mixer in MIXERS.values():
        layer = perturb(mixer(8, (5, 5), heads=2, kernel_size=3), std=0.5)
        y = layer.conv(torch.ones(1, 5, 5, 8))[0]
        torch.testing.assert_close(y[1:-1, 1:-1], torch.ones(3, 3, 8), atol=1e-6, rtol=0)
        assert y[0].max() < 0.99
        assert y[:, -1].max() < 0.99


def test_a_head_has_neighbouring_channels() -> None:
    layer = perturb(LightConv(8, (5, 5), heads=2, kernel_size=3), std=1.0)
    impulse = torch.zeros(1, 5, 5, 8)
    impulse[0, 2, 2] = 1.0
    y = layer.conv(impulse)[0].permute(2, 0, 1)
    assert all(torch.equal(y[c], y[c // 4 * 4]) for c in range(8))
    assert not torch.allclose(y[0], y[4], atol=1e-3)


def test_kernels_start_near_a_mean() -> None:
    torch.manual_seed(0)
    layer = LightConv(4000, (5, 5), heads=500, kernel_size=3)
    (operator,) = layer.operators((5, 5))
    assert operator.weight.std().item() == pytest.approx(operator.init_std, rel=0.1)
    torch.testing.assert_close(operator.weight.mean(0), torch.full((3, 3), 1 / 9), atol=1e-3, rtol=0)


@every_mixer
def test_weights_are_dropped_in_training_only(mixer: str) -> None:
    layer = perturb(MIXERS[mixer](8, (5, 5), heads=2, kernel_size=3, weight_drop_rate=0.5), std=0.5)
    z = torch.ones(1, 5, 5, 8)
    torch.manual_seed(0)
    assert layer.train().conv(z)[0, 1:-1, 1:-1].std() > 0.05
    torch.testing.assert_close(layer.eval().conv(z)[0, 1:-1, 1:-1], torch.ones(3, 3, 8), atol=1e-6, rtol=0)


@every_mixer
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32])
def test_sums_are_in_float32(mixer: str, dtype: torch.dtype) -> None:
    layer = perturb(MIXERS[mixer](16, (6, 6), heads=4, kernel_size=5), std=0.1)
    x = images(2, 6, 6, 16)
    expected = layer(x)
    with torch.autocast("cpu", torch.bfloat16):
        assert layer.conv(x).dtype == torch.float32
        assert layer(x).dtype == torch.bfloat16
        assert (layer(x) - expected).norm() < 0.03 * expected.norm()
    moved = layer.to(dtype)(x.to(dtype))
    assert moved.dtype == dtype
    assert (moved - expected).norm() < 0.03 * expected.norm()


def test_a_bare_file_of_no_registered_size_is_known_by_its_tensors(tmp_path: Path) -> None:
    model = make(heads=2, kernel_size=5)
    torch.save(model.state_dict(), tmp_path / "some.pth")
    built = build(tmp_path / "some.pth").model
    assert same_weights(built, model)
    same(built(images()), model(images()))


def test_of_dynamic_ones_the_heads_of_the_name_are_known(tmp_path: Path) -> None:
    model = make("dynamic", heads=16, kernel_size=7)
    torch.save(model.state_dict(), tmp_path / "some.pth")
    same(build(tmp_path / "some.pth").model(images()), model(images()))
    torch.save(make("dynamic", heads=8).state_dict(), tmp_path / "other.pth")  # or 72 taps of another kind
    with pytest.raises(CheckpointError, match=r"kernel_fc\.weight"):
        build(tmp_path / "other.pth")


def test_what_is_refused() -> None:
    with pytest.raises(ValueError, match="heads is 3; expected a divisor of embed_dim, which is 16"):
        make(heads=3)
    with pytest.raises(ValueError, match="kernel_size is 4; expected an odd number of tokens, at least 3"):
        make("dynamic", kernel_size=4)
    with pytest.raises(ValueError, match=r"mixer is 'dyn'; expected one of 'light', 'dynamic'"):
        timm.create_model("lightconv_s16", mixer="dyn")
