"""PosMLP's maps over tokens in gMLP's units: against the Toeplitz one, files, what is refused."""

from pathlib import Path

import pytest
import torch
from tiny import TINY, images, perturb, same, tiny

from gmlp_vision import CheckpointError, load_checkpoint
from gmlp_vision.checkpoints import build
from gmlp_vision.layers.posmlp import GqpeProjection, LrpeProjection, gaussian_matrix
from gmlp_vision.layers.spatial_gating import UNITS
from gmlp_vision.layers.structured import map_tokens_by_group
from gmlp_vision.layers.toeplitz import ToeplitzProjection
from gmlp_vision.models.gmlp import GMlp

every_kind = pytest.mark.parametrize("spatial", ["lrpe", "gqpe"])


def numbers(*size: int, seed: int = 1) -> torch.Tensor:
    return torch.randn(*size, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


def test_lrpe_of_one_group_is_the_toeplitz_map() -> None:
    lrpe, toeplitz = LrpeProjection((3, 4)).double(), ToeplitzProjection((3, 4)).double()
    with torch.no_grad():
        lrpe.table.copy_(numbers(5, 7, 1))
        lrpe.bias.copy_(numbers(12, seed=2))
        toeplitz.table.copy_(lrpe.table[..., 0])
        toeplitz.bias.copy_(lrpe.bias)
    x = numbers(2, 3, 4, 5, seed=3)
    assert lrpe(x).std() > 0.1
    torch.testing.assert_close(lrpe(x), toeplitz(x), atol=1e-12, rtol=0)


def test_channels_in_turn_belong_to_the_groups() -> None:
    w, x = numbers(3, 12, 12), numbers(2, 3, 4, 6, seed=2)
    y = map_tokens_by_group(x, w, torch.zeros(12).double())
    for c in range(6):
        expected = x[..., c].flatten(1) @ w[c % 3].T
        torch.testing.assert_close(y[..., c].flatten(1), expected)


def test_the_gaussian_is_the_authors_quadratic_form() -> None:
    """Their score, a product of five monomials of the offset with five numbers, but for its constant."""
    centers, spreads = numbers(2, 2), numbers(2, 2, 2, seed=2)
    w = gaussian_matrix(centers, spreads, 3, 4).permute(1, 2, 0).reshape(3, 4, 3, 4, 2)
    (a, b), (_, c) = ((spreads @ spreads.mT)[:, i].unbind(-1) for i in range(2))
    m, n = centers.unbind(-1)
    scores = torch.empty_like(w)
    for i, j, k, l in torch.cartesian_prod(*map(torch.arange, w.shape[:4])).tolist():  # noqa: E741
        y, x = k - i, l - j
        scores[i, j, k, l] = (
            (a * m + b * n) * y + (c * n + b * m) * x - (a * y * y + c * x * x) / 2 - b * x * y
        )
    expected = scores.flatten(2, 3).softmax(2).reshape(w.shape)
    torch.testing.assert_close(w, expected, atol=1e-12, rtol=1e-10)


def test_gqpe_starts_as_a_blur_and_never_overflows() -> None:
    layer = GqpeProjection((8, 8), groups=3)
    w = gaussian_matrix(layer.centers, layer.spreads, 8, 8)
    torch.testing.assert_close(w.sum(2), torch.ones(3, 64))
    assert (w.reshape(3, 8, 8, 8, 8)[:, 4, 4, 4, 4] - 0.159).abs().max() < 0.02  # 1 / (2 pi)
    with torch.no_grad():
        layer.centers.fill_(200.0)
        layer.spreads.mul_(200.0)
    layer(images(1, 8, 8, 6)).sum().backward()
    assert all(p.grad.isfinite().all() for p in layer.parameters())


@every_kind
def test_an_operator_a_group_and_how_it_started(spatial: str) -> None:
    model = GMlp(spatial=spatial, groups=3, img_size=96, patch_size=8, depth=1, embed_dim=16)
    found = model.blocks[0].mlp_channels.gate.proj.operators((12, 12))
    assert [operator.part for operator in found] == ["group 0", "group 1", "group 2"]
    for operator in found:
        assert operator.weight.std().item() == pytest.approx(operator.init_std, rel=0.1)
    meta = model.to("meta").blocks[0].mlp_channels.gate.proj.operators((12, 12))
    assert [operator.init_std for operator in meta] == [operator.init_std for operator in found]


@every_kind
@pytest.mark.parametrize("unit", UNITS)
def test_in_every_unit(unit: str, spatial: str) -> None:
    model = tiny(unit=unit, spatial=spatial, groups=3)
    y = model(images())
    assert y.std() > 1e-2
    with torch.autocast("cpu", torch.bfloat16):
        assert (model(images()) - y).norm() < 0.03 * y.norm()


@every_kind
@pytest.mark.parametrize("kwargs", [{}, {"embed_dim": 24}])
def test_a_bare_file_is_known_by_its_tensors(spatial: str, kwargs: dict[str, int], tmp_path: Path) -> None:
    model = perturb(GMlp(**{**TINY, **kwargs}, mlp_ratio=6.0, spatial=spatial, groups=3)).eval()
    torch.save(model.state_dict(), tmp_path / "bare.pth")
    built = build(tmp_path / "bare.pth", grid=(4, 4))
    assert {k: built.model.block_args[k] for k in ("spatial", "groups")} == {"spatial": spatial, "groups": 3}
    same(built.model(images()), model(images()))


def test_tensors_say_the_kind_whatever_the_name(tmp_path: Path) -> None:
    torch.save(tiny(spatial="toeplitz").state_dict(), path := tmp_path / "bare.pth")
    built = build(path, model="gmlp_s16_lrpe")
    assert built.model.block_args["spatial"] == "toeplitz"
    with pytest.raises(CheckpointError, match=r"bare\.pth are toeplitz, and the model's lrpe"):
        load_checkpoint(tiny(spatial="lrpe"), path)


@pytest.mark.parametrize(
    ("kwargs", "error"),
    [
        (
            {"spatial": "lrpe", "groups": 5},
            "groups is 5; expected a divisor of the channels of W, which are 48",
        ),
        ({"spatial": "gqpe", "groups": 0}, "groups is 0; expected at least 1"),
        ({"spatial": "dense", "groups": 4}, "groups is 4; .* 1, since all channels share one W"),
        ({"spatial": "toeplitz", "groups": 4}, "groups is 4; .* 1, since all channels share one W"),
    ],
)
def test_wrong_groups_are_refused(kwargs: dict[str, object], error: str) -> None:
    with pytest.raises(ValueError, match=error):
        tiny(**kwargs)
