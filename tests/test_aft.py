"""AFT: its mixers against one another, where numbers end, what is refused. tests/test_zoo.py has the rest."""

import pytest
import timm
import torch
from tiny import images, perturb
from torch import nn
from zoo import tiny_kwargs

from gmlp_vision.layers.ask import operators
from gmlp_vision.layers.pair_bias import PairBias, is_near
from gmlp_vision.models.aft import MIXERS, Aft, AftConv, AftFull, AftLocal, AftSimple

NAMES = {"full": "aft_full_s16", "simple": "aft_simple_s16", "local": "aft_local_s16", "conv": "aft_conv_s16"}
every_mixer = pytest.mark.parametrize("mixer", NAMES)


def make(mixer: str, dim: int = 8, grid_size: tuple[int, int] = (4, 5)) -> nn.Module:
    """A perturbed mixer."""
    own = {"local": {"reach": 2}, "conv": {"heads": 4, "kernel_size": 3}}.get(mixer, {})
    return perturb(MIXERS[mixer](dim, grid_size, **own))


def context(k: torch.Tensor, v: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
    """C of (B, N, D) keys and values and (N, N) w, by logarithms in float64: right for any numbers."""
    logs = (k.double().unsqueeze(1) + w.double()[:, :, None]).log_softmax(2)  # (B, t, t', D)
    return (logs.exp() * v.double().unsqueeze(1)).sum(2)


def toeplitz(kernel: torch.Tensor, grid_size: tuple[int, int]) -> torch.Tensor:
    """(N, N): the kernel's entry at the offset of each pair of tokens, 0 outside."""
    half = kernel.shape[0] // 2
    places = [(i, j) for i in range(grid_size[0]) for j in range(grid_size[1])]
    w = torch.zeros(len(places), len(places), dtype=kernel.dtype)
    for t, (i, j) in enumerate(places):
        for s, (k, l) in enumerate(places):  # noqa: E741
            if abs(k - i) <= half and abs(l - j) <= half:
                w[t, s] = kernel[k - i + half, l - j + half]
    return w


# -- the four against one another ---------------------------------------------------------------------------


@torch.no_grad()
def test_conv_is_full_with_the_block_toeplitz_matrix() -> None:
    conv = perturb(AftConv(6, (4, 5), heads=1, kernel_size=5), std=0.5).double()
    full = AftFull(6, (4, 5), rank=20).double()
    full.load_state_dict(
        {**full.state_dict(), **{k: v for k, v in conv.state_dict().items() if k[0] in "qvp"}}
    )
    full.k.weight.copy_(conv.k.weight.expand(6, 6))
    full.k.bias.copy_(conv.k.bias.expand(6))
    full.pairs.u.copy_(toeplitz(conv.log_weights()[0], (4, 5)))
    full.pairs.v.copy_(torch.eye(20))
    x = images(2, 4, 5, 6).double()
    y = conv(x)
    assert y.std() > 0.1
    assert conv.log_weights().std() > 0.1
    torch.testing.assert_close(y, full(x), atol=1e-10 * y.abs().max().item(), rtol=0)


@torch.no_grad()
def test_each_head_of_conv_has_its_own_matrix_and_channels() -> None:
    conv = make("conv").double()
    k, v = images(2, 4, 5, 4, seed=2).double(), images(2, 4, 5, 8, seed=3).double()
    c = conv.context(k, v).flatten(1, 2)
    for head, kernel in enumerate(conv.log_weights()):
        channels = slice(2 * head, 2 * head + 2)
        expected = context(
            k[..., [head, head]].flatten(1, 2), v[..., channels].flatten(1, 2), toeplitz(kernel, (4, 5))
        )
        torch.testing.assert_close(c[..., channels], expected, atol=1e-12, rtol=1e-10)


@torch.no_grad()
def test_local_is_full_with_zeros_far_away() -> None:
    local, full = make("local"), make("full")
    full.load_state_dict(local.state_dict())
    near = is_near(4, 5, 2, full.pairs.u)
    x = images(2, 4, 5, 8)
    assert torch.equal(local.pairs(x), full.pairs(x) * near)
    places = [(i, j) for i in range(4) for j in range(5)]
    assert near.tolist() == [
        [float(max(abs(i - row), abs(j - column)) < 2) for row, column in places] for i, j in places
    ]
    assert (full.pairs(x) * (1 - near)).abs().max() > 0.1  # else nothing would have been cut
    wide = AftLocal(8, (4, 5), reach=5)
    wide.load_state_dict(local.state_dict())
    torch.testing.assert_close(wide(x), full(x))


@every_mixer
def test_every_token_hears_every_other(mixer: str) -> None:
    layer, x = make(mixer), images(1, 4, 5, 8).requires_grad_()
    layer(x)[0, 0, 0].sum().backward()
    heard = x.grad[0].abs().sum(-1)
    assert heard.min() > 1e-3 * heard.max() > 0


@torch.no_grad()
def test_w_is_near_zero_at_the_start_so_all_are_simple() -> None:
    x = images(2, 4, 5, 8)
    simple = perturb(AftSimple(8, (4, 5)))
    for layer in (AftFull(8, (4, 5)), AftLocal(8, (4, 5), reach=2)):
        layer.load_state_dict({**layer.state_dict(), **simple.state_dict()})
        torch.testing.assert_close(layer(x), simple(x), atol=0.01, rtol=0)
        assert 0 < layer.pairs(x).std() < 0.01
    conv = AftConv(8, (4, 5), heads=8, kernel_size=3)
    conv.load_state_dict({**conv.state_dict(), **simple.state_dict()})
    torch.testing.assert_close(conv(x), simple(x))


def test_kernels_are_standardised() -> None:
    conv = make("conv")
    with torch.no_grad():
        conv.gain.copy_(torch.tensor([1.0, 2.0, 3.0, 0.0]))
        conv.bias.copy_(torch.tensor([0.0, 5.0, 0.0, -1.0]))
        before = conv.log_weights().flatten(1)
        conv.weight.mul_(7).add_(3)
    taps = conv.log_weights().flatten(1)
    torch.testing.assert_close(taps.mean(1), conv.bias)
    torch.testing.assert_close(taps.std(1, correction=0), conv.gain)
    torch.testing.assert_close(taps, before)  # so its scale and mean are nothing
    conv.weight.data.fill_(2)
    torch.testing.assert_close(conv.log_weights(), conv.bias[:, None, None].expand(4, 3, 3))


# -- where numbers end ------------------------------------------------------------------------------------


def w_of(layer: nn.Module, channels: int) -> list[torch.Tensor]:
    """w of each channel, from what the layer itself says of its operators."""
    (found,) = operators(layer, (4, 5)) or [None]
    if found is None:
        return [torch.zeros(20, 20)] * channels
    if found.kind == "token":
        return [found.weight] * channels
    return [toeplitz(kernel, (4, 5)) for kernel in found.weight for _ in range(channels // len(found.weight))]


@every_mixer
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_keys_of_two_hundred(mixer: str, dtype: torch.dtype) -> None:
    layer = make(mixer)
    keys = 4 if mixer == "conv" else 8
    k = (
        (200 * images(2, 4, 5, keys, seed=2).sign() + images(2, 4, 5, keys, seed=3))
        .to(dtype)
        .requires_grad_()
    )
    v = images(2, 4, 5, 8, seed=4).to(dtype).requires_grad_()
    c = layer.context(k, v)
    assert c.dtype == torch.float32
    wide = k.repeat_interleave(8 // keys, -1)
    for channel, w in enumerate(w_of(layer, 8)):
        one = slice(channel, channel + 1)
        expected = context(wide[..., one].flatten(1, 2), v[..., one].flatten(1, 2), w)
        got = c.expand(2, 4, 5, 8)[..., one].flatten(1, 2).double()
        torch.testing.assert_close(got, expected, atol=1e-5, rtol=1e-4)
    c.sum().backward()
    for gradient in (k.grad, v.grad):
        assert gradient.isfinite().all()
        assert gradient.abs().max() > 0


@pytest.mark.parametrize("mixer", ["full", "local", "conv"])
@pytest.mark.parametrize("sign", [1, -1])
def test_log_weights_of_two_hundred_give_numbers(mixer: str, sign: int) -> None:
    layer = make(mixer)
    with torch.no_grad():
        if mixer == "conv":
            layer.bias.fill_(200.0 * sign)
        else:
            layer.pairs.u.mul_(100)
            layer.pairs.v.mul_(100 * sign)
    assert max(w.abs().max() for w in w_of(layer, 8)) > 150
    k = (200 * images(1, 4, 5, 4 if mixer == "conv" else 8).sign()).requires_grad_()
    c = layer.context(k, images(1, 4, 5, 8, seed=2))
    c.sum().backward()
    assert c.isfinite().all()
    assert c.abs().max() <= 1.001 * images(1, 4, 5, 8, seed=2).abs().max()  # a mean
    assert all(p.grad is None or p.grad.isfinite().all() for p in (k, *layer.parameters()))


def test_a_kernel_that_leaves_out_the_only_key_that_counts() -> None:
    """1 + (exp(w) - 1) would be 0, above and below the line."""
    conv = make("conv")
    with torch.no_grad():
        conv.bias.fill_(-30.0)
    k, v = torch.full((1, 4, 5, 4), -200.0), images(1, 4, 5, 8)
    k[0, 1, 2] = 200
    torch.testing.assert_close(conv.context(k, v), v[:, 1:2, 2:3].expand_as(v), atol=0.01, rtol=0)


@every_mixer
def test_autocast_leaves_the_sums_in_float32(mixer: str) -> None:
    layer = make(mixer)
    k, v = images(2, 4, 5, 4 if mixer == "conv" else 8), images(2, 4, 5, 8, seed=2)
    expected = layer.context(k, v)
    with torch.autocast("cpu", torch.bfloat16):
        assert torch.equal(layer.context(k, v), expected)
        assert layer(images(2, 4, 5, 8)).dtype == torch.bfloat16


@every_mixer
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_twelve_blocks_stay_finite(mixer: str, dtype: torch.dtype) -> None:
    model = timm.create_model(NAMES[mixer], **{**tiny_kwargs(NAMES[mixer]), "depth": 12})
    model = perturb(model, std=0.3).to(dtype)
    logits = model(images().to(dtype))
    logits.float().square().mean().backward()
    assert logits.isfinite().all()
    assert logits.std() > 1e-3
    for name, p in model.named_parameters():
        assert p.grad.isfinite().all(), name


# -- what it says and refuses -----------------------------------------------------------------------------


@pytest.mark.parametrize("mixer", ["full", "local"])
def test_the_operator_follows_the_image_size(mixer: str) -> None:
    name = NAMES[mixer]
    model = perturb(timm.create_model(name, **tiny_kwargs(name)))
    pairs = model.blocks[0].mixer.pairs
    assert isinstance(pairs, PairBias)
    for size, n in ((32, 16), ((32, 48), 24)):
        model.set_input_size(size)
        (operator,) = operators(model.blocks[0].mixer, pairs.grid_size)
        assert operator.weight.shape == (n, n)
        torch.testing.assert_close(operator.weight, pairs(images(1, *pairs.grid_size, 16)).detach())
        assert "log-weights" in operator.note


def test_init_std_is_that_of_w_at_the_start() -> None:
    layer = AftFull(8, (10, 10))
    (operator,) = operators(layer, (10, 10))
    assert operator.weight.std().item() == pytest.approx(operator.init_std, rel=0.1)


def test_published_sizes_leave_no_room_for_a_position_table() -> None:
    def millions(**kwargs: object) -> float:
        model = timm.create_model("aft_full_s16", device="meta", **kwargs)
        return sum(p.numel() for p in model.parameters()) / 1e6

    assert f"{millions():.1f}" == "22.6"
    assert f"{millions(pos_embed=True):.2f}" == "22.65"
    # the class token of DeiT, a table and factors of 197 rows
    assert f"{millions() + (384 + 197 * 384 + 12 * 2 * 128) / 1e6:.2f}" == "22.66"


def test_an_unknown_mixer_is_refused_with_those_there_are() -> None:
    with pytest.raises(ValueError, match="'linear'; expected one of 'full', 'simple', 'local', 'conv'"):
        timm.create_model("aft_full_s16", mixer="linear")


@pytest.mark.parametrize(
    ("mixer", "kwargs", "error"),
    [
        ("conv", {"heads": 3}, "heads is 3; expected a divisor of embed_dim, which is 16"),
        ("conv", {"heads": 0}, "heads is 0; expected a divisor"),
        ("conv", {"kernel_size": 4}, "kernel_size is 4; expected an odd"),
        ("conv", {"kernel_size": 1}, "kernel_size is 1; expected an odd"),
        ("full", {"rank": 0}, "rank is 0; expected at least 1"),
        ("local", {"reach": 0}, "reach is 0; expected at least 1"),
    ],
)
def test_wrong_values_are_refused(mixer: str, kwargs: dict[str, int], error: str) -> None:
    with pytest.raises(ValueError, match=error):
        timm.create_model(NAMES[mixer], **{**tiny_kwargs(NAMES[mixer]), **kwargs})


def test_an_argument_of_another_mixer_is_refused() -> None:
    with pytest.raises(TypeError, match="reach"):
        timm.create_model("aft_full_s16", **tiny_kwargs("aft_full_s16"), reach=3)


@every_mixer
def test_any_mixer_by_its_name(mixer: str) -> None:
    model = Aft(**{**tiny_kwargs(NAMES[mixer]), "mixer": mixer})
    assert {type(block.mixer) for block in model.blocks} == {MIXERS[mixer]}


def test_a_mixer_is_told_what_no_tensor_shows() -> None:
    """A default would be in no config, and another one in another release."""
    with pytest.raises(TypeError, match="'reach'"):
        Aft(mixer="local", depth=1)
    with pytest.raises(TypeError, match="'heads' and 'kernel_size'"):
        Aft(mixer="conv", depth=1)
