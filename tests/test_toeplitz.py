"""Toeplitz W: against the dense unit, its rule, files of it. test_zoo.py has the rest."""

from pathlib import Path

import pytest
import timm
import torch
from tiny import TINY, images, perturb, same, same_weights, tiny
from torch import nn

from gmlp_vision import CheckpointError, load_checkpoint
from gmlp_vision.checkpoints import build, convert_file
from gmlp_vision.errors import UserError
from gmlp_vision.layers import SpatialProjection
from gmlp_vision.layers.ask import operators
from gmlp_vision.layers.offsets import toeplitz_matrix
from gmlp_vision.layers.resample import crop_or_pad_offsets
from gmlp_vision.layers.rules import OFFSETS
from gmlp_vision.layers.spatial_gating import UNITS
from gmlp_vision.layers.toeplitz import ToeplitzProjection
from gmlp_vision.models.gmlp import GMlp

NAME = "gmlp_ti16_toeplitz"


def numbers(*size: int, seed: int = 1) -> torch.Tensor:
    return torch.randn(*size, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


def dense_of(model: nn.Module, **kwargs: object) -> nn.Module:
    """The model with free W that has, as numbers, the W of a Toeplitz one."""
    dense = GMlp(**{**TINY, **kwargs, "spatial": "dense"}).double().eval()
    tensors = {}
    for name, tensor in model.state_dict().items():
        if name.endswith("table"):
            layer = model.get_submodule(name.removesuffix(".table"))
            tensors[name.replace("table", "weight")] = toeplitz_matrix(tensor, *layer.grid_size)
        else:
            tensors[name] = tensor
    dense.load_state_dict(tensors)
    return dense


# -- W ------------------------------------------------------------------------------------------------------


def test_an_entry_of_w_is_that_of_the_offset() -> None:
    table = numbers(5, 7)  # of 3 x 4 tokens
    w = toeplitz_matrix(table, 3, 4).reshape(3, 4, 3, 4)
    for i, j, k, m in torch.cartesian_prod(*map(torch.arange, w.shape)).tolist():
        assert w[i, j, k, m] == table[k - i + 2, m - j + 3]
    # a tap at one row up and two columns right, as a picture moved
    tap = torch.zeros(5, 7, dtype=torch.float64)
    tap[2 - 1, 3 + 2] = 1
    x = numbers(3, 4)
    y = (toeplitz_matrix(tap, 3, 4) @ x.flatten()).reshape(3, 4)
    assert torch.equal(y[1:, :2], x[:2, 2:])
    assert y.count_nonzero() == 4


@pytest.mark.parametrize("unit", UNITS)
def test_it_is_the_dense_unit_with_that_w(unit: str) -> None:
    kwargs = {"unit": unit, "img_size": (24, 32)}
    model = perturb(GMlp(**{**TINY, **kwargs}, spatial="toeplitz")).double().eval()
    x = images(2, 3, 24, 32).double()
    y = model(x)
    assert y.std() > 1e-2
    torch.testing.assert_close(y, dense_of(model, **kwargs)(x), atol=1e-12, rtol=0)


def test_the_gradient_is_that_of_the_dense_unit_summed_over_equal_offsets() -> None:
    layer, x = ToeplitzProjection((3, 4)).double(), numbers(2, 3, 4, 5)
    dense = SpatialProjection((3, 4)).double()
    dense.weight.data = toeplitz_matrix(layer.table.detach(), 3, 4)
    dense.bias.data = layer.bias.detach().clone()
    for each in (layer, dense):
        each(x).square().sum().backward()
    table = torch.zeros(5, 7, dtype=torch.float64)
    for i, j, k, m in torch.cartesian_prod(*map(torch.arange, (3, 4, 3, 4))).tolist():
        table[k - i + 2, m - j + 3] += dense.weight.grad[i * 4 + j, k * 4 + m]
    assert table.abs().max() > 1
    torch.testing.assert_close(layer.table.grad, table, atol=1e-12, rtol=1e-10)
    torch.testing.assert_close(layer.bias.grad, dense.bias.grad)


def test_its_operator_is_w_and_says_what_it_is_made_of() -> None:
    model = tiny(NAME, img_size=(24, 32))
    for size, grid in (((24, 32), (3, 4)), ((32, 48), (4, 6))):
        model.set_input_size(size)
        proj = model.blocks[0].mlp_channels.gate.proj
        (operator,) = operators(proj, grid)
        assert torch.equal(operator.weight, toeplitz_matrix(proj.table, *grid))
        assert f"table of {2 * grid[0] - 1} x {2 * grid[1] - 1} offsets" in operator.note


@pytest.mark.parametrize("unit", UNITS)
def test_it_starts_as_the_dense_one(unit: str) -> None:
    model = GMlp(unit=unit, spatial="toeplitz", img_size=128, patch_size=8, depth=1, embed_dim=8)
    model.init_weights()
    dense = GMlp(unit=unit, img_size=128, patch_size=8, depth=1, embed_dim=8)
    ours, other = (m.blocks[0].mlp_channels.gate.proj for m in (model, dense))
    assert ours.table.std().item() == pytest.approx(other.weight.std().item(), rel=0.1)
    assert torch.equal(ours.bias, other.bias)


# -- other grids --------------------------------------------------------------------------------------------


@pytest.mark.parametrize("new", [(3, 4), (5, 4), (3, 6), (5, 6)])
def test_what_grows_comes_back_exactly(new: tuple[int, int]) -> None:
    table = numbers(5, 7)
    there = crop_or_pad_offsets(table, (3, 4), new)
    assert there.shape == (2 * new[0] - 1, 2 * new[1] - 1)
    assert there.count_nonzero() == 35
    assert torch.equal(crop_or_pad_offsets(there, new, (3, 4)), table)


@pytest.mark.parametrize("new", [(2, 3), (4, 2), (2, 6), (1, 1)])
def test_equal_offsets_keep_their_number(new: tuple[int, int]) -> None:
    table = numbers(5, 7)
    there = crop_or_pad_offsets(table, (3, 4), new)
    for i in range(1 - new[0], new[0]):
        for j in range(1 - new[1], new[1]):
            known = abs(i) < 3 and abs(j) < 4
            assert there[new[0] - 1 + i, new[1] - 1 + j] == (table[2 + i, 3 + j] if known else 0)


def test_gradients_flow_through_the_rule() -> None:
    table = numbers(5, 7).requires_grad_()
    crop_or_pad_offsets(table, (3, 4), (2, 6)).sum().backward()
    assert torch.equal(table.grad[:, 0], torch.tensor([0.0, 1, 1, 1, 0]).double())
    assert table.grad.sum() == 21


def test_a_table_of_another_grid_is_refused() -> None:
    with pytest.raises(ValueError, match=r"the table is \(5, 5\); over grid \(3, 4\) it must be \(5, 7\)"):
        crop_or_pad_offsets(numbers(5, 5), (3, 4), (4, 4))
    with pytest.raises(ValueError, match="at least 1 x 1"):
        crop_or_pad_offsets(numbers(5, 7), (3, 4), (0, 4))


def test_far_from_the_border_a_larger_image_is_filtered_alike() -> None:
    """A table of taps near 0 is a convolution, whatever the grid."""
    layer = ToeplitzProjection((6, 6)).double()
    with torch.no_grad():
        layer.table.zero_()
        layer.table[4:7, 4:7] = numbers(3, 3)
    larger = ToeplitzProjection((8, 9)).double()
    larger.replace_grid((8, 9), layer.on_grid((8, 9)))
    x = numbers(1, 8, 9, 2)
    torch.testing.assert_close(layer(x[:, :6, :6])[:, :5, :5], larger(x)[:, :5, :5])


# -- files --------------------------------------------------------------------------------------------------


def save(model: nn.Module, path: Path) -> Path:
    torch.save(model.state_dict(), path)
    return path


def test_a_bare_file_is_known_by_its_table(tmp_path: Path) -> None:
    model = tiny(NAME)
    built = build(save(model, tmp_path / "bare.pth"))
    assert built.grid == (4, 4)
    same(built.model(images()), model(images()))
    assert build(timm.create_model(NAME).state_dict()).identity.name == NAME
    with pytest.raises(CheckpointError, match=r"bare\.pth are toeplitz, and the model's dense"):
        load_checkpoint(tiny(), tmp_path / "bare.pth")


def test_the_table_tells_the_grid() -> None:
    model = tiny(NAME, img_size=(24, 64))
    built = build(model.state_dict())
    assert (built.grid, built.how) == ((3, 8), "by the shapes of its tensors")
    assert not built.report.doubtful
    same(built.model(images(2, 3, 24, 64)), model(images(2, 3, 24, 64)))
    with pytest.raises(CheckpointError, match=r"the grid 4 x 6 is given, and .* those of 3 x 8"):
        build(model.state_dict(), grid=(4, 6))  # as many tokens


@pytest.mark.parametrize("shape", [(6, 7), (7, 6), (7,), ()])
def test_sizes_that_no_table_has(shape: tuple[int, ...]) -> None:
    assert OFFSETS.grid_of((7, 9)) == (4, 5)
    assert OFFSETS.grid_of(shape) is None


def test_a_file_at_another_size(tmp_path: Path) -> None:
    model = tiny(NAME, img_size=(24, 32))
    convert_file(save(model, tmp_path / "bare.pth"), tmp_path / "folder", grid=(3, 4), img_size=(40, 32))
    back = timm.create_model(f"local-dir:{tmp_path / 'folder'}", pretrained=True).eval()
    model.set_input_size((40, 32))
    assert same_weights(back, model)
    same(back(images(2, 3, 40, 32)), model(images(2, 3, 40, 32)))
    assert model.blocks[0].mlp_channels.gate.proj.table[0].abs().max() == 0


@pytest.mark.parametrize("to", ["lucidrains", "jaketae"])
def test_others_have_no_table(to: str, tmp_path: Path) -> None:
    model = tiny(NAME, norm_eps=1e-5, final_norm=to == "lucidrains")
    timm.models.save_for_hf(model, str(tmp_path / "ours"))
    with pytest.raises(UserError, match="W is any matrix there, and toeplitz here"):
        convert_file(tmp_path / "ours", tmp_path / "theirs.pth", to=to)
