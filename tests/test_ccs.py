"""CCS: its circulant matrices, their way to other grids, ResMLP's form. tests/test_zoo.py has the rest."""

from pathlib import Path

import pytest
import timm
import torch
from tiny import images, perturb, same, same_weights
from torch import nn
from zoo import tiny_kwargs

from gmlp_vision.checkpoints import build
from gmlp_vision.layers.fourier import circulants, correlate_in_groups
from gmlp_vision.models.ccs import Affine, CirculantMixing, ResMlpBlock, resample_offsets

every_grid = pytest.mark.parametrize("grid", [(1, 1), (1, 5), (4, 1), (3, 4), (5, 3)])


def make(name: str = "ccs_s16", **kwargs: object) -> nn.Module:
    return perturb(timm.create_model(name, **{**tiny_kwargs(name), **kwargs})).eval()


def test_rows_of_the_matrix() -> None:
    w = torch.tensor([[1.0, 10], [2, 20], [3, 30]])
    matrices = circulants(w)
    assert matrices[0].tolist() == [[1, 2, 3], [3, 1, 2], [2, 3, 1]]
    assert matrices[1].tolist() == [[10, 20, 30], [30, 10, 20], [20, 30, 10]]


@every_grid
def test_equals_the_explicit_matrices(grid: tuple[int, int]) -> None:
    mixing = perturb(CirculantMixing(6, grid, groups=3, dtype=torch.float64), std=1.0)
    x = images(2, *grid, 6).double()
    y = mixing(x)
    assert y.shape == x.shape  # an odd number of tokens too
    for channel, matrix in enumerate(list(circulants(mixing.weight)) * 2):  # groups take turns
        expected = x[..., channel].flatten(1) @ matrix.T
        torch.testing.assert_close(y[..., channel].flatten(1), expected, atol=1e-12, rtol=1e-10)
    assert y.std() > 0.1


@every_grid
def test_the_kernel_shown_is_what_the_token_in_the_middle_takes(grid: tuple[int, int]) -> None:
    mixing = perturb(CirculantMixing(6, grid, groups=3, dtype=torch.float64), std=1.0)
    (operator,) = mixing.operators(grid)
    middle = grid[0] // 2 * grid[1] + grid[1] // 2
    assert torch.equal(operator.weight.flatten(1), circulants(mixing.weight)[:, middle])


def test_an_exported_model_has_products_and_no_complex_numbers() -> None:
    mixing, x = perturb(CirculantMixing(6, (3, 4), groups=3)), images(2, 3, 4, 6)
    program = torch.export.export(mixing, (x,))
    operations = {str(node.target) for node in program.graph.nodes if node.op == "call_function"}
    assert any("matmul" in name for name in operations)
    assert not any("fft" in name for name in operations)
    torch.testing.assert_close(program.module()(x), mixing(x), atol=1e-5, rtol=1e-5)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16, torch.float32, torch.float64])
def test_float32_inside_and_the_dtype_of_x_outside(dtype: torch.dtype) -> None:
    mixing = perturb(CirculantMixing(6, (3, 4), groups=3)).to(dtype)
    x = images(2, 3, 4, 6).to(dtype)
    exact = correlate_in_groups(x.double(), mixing.weight.double())
    for autocast in (False, True):
        with torch.autocast("cpu", torch.bfloat16, enabled=autocast):
            inside, outside = correlate_in_groups(x, mixing.weight), mixing(x)
        assert inside.dtype == (torch.float64 if dtype == torch.float64 else torch.float32)
        assert outside.dtype == dtype
        torch.testing.assert_close(inside.double(), exact, atol=1e-5, rtol=1e-5)
    assert exact.std() > 0.1


def test_on_another_grid_the_mean_of_a_constant_image_stays() -> None:
    w = torch.full((12, 2), 0.25, dtype=torch.float64)
    for grid in ((4, 6), (2, 2), (3, 9)):
        grown = resample_offsets(w, (3, 4), grid)
        torch.testing.assert_close(grown.sum(0), w.sum(0), atol=1e-12, rtol=0)
    neighbours = torch.zeros(64, 1, dtype=torch.float64)
    neighbours[[0, 1, 8, 7, 56, 63]] = 1.0  # near the first token, around the edges too
    grown = resample_offsets(neighbours, (8, 8), (16, 16)).view(16, 16)
    corners = [
        grown[rows, columns].sum()
        for rows in (slice(4), slice(-4, None))
        for columns in (slice(4), slice(-4, None))
    ]
    assert sum(corners).item() == pytest.approx(6.0, abs=0.2)
    assert all(corner > 0.8 for corner in corners)


def test_the_start_keeps_the_variance() -> None:
    torch.manual_seed(0)
    mixing = CirculantMixing(64, (14, 14))
    assert mixing.weight.std().item() == pytest.approx(1 / 14, rel=0.1)
    assert mixing(torch.randn(8, 14, 14, 64)).std().item() == pytest.approx(1.0, rel=0.1)


def test_the_form_of_resmlp() -> None:
    model = timm.create_model("ccs_resmlp_36", **tiny_kwargs("ccs_resmlp_36"), init_values=0.5)
    assert {type(block) for block in model.blocks} == {ResMlpBlock}
    assert not any(isinstance(module, nn.LayerNorm) for module in model.modules())
    assert type(model.norm) is Affine
    assert model.blocks[1].ls2.gamma.tolist() == [0.5] * 16
    x = images(1, 4, 4, 16)
    assert torch.equal(model.norm(x), x)
    unscaled = timm.create_model("ccs_resmlp_36", **tiny_kwargs("ccs_resmlp_36"))
    assert torch.equal(unscaled.blocks[0].ls1.gamma, torch.full((16,), 1e-6))
    bare = timm.create_model("ccs_resmlp_36", **tiny_kwargs("ccs_resmlp_36"), final_norm=False)
    assert isinstance(bare.norm, nn.Identity)


@pytest.mark.parametrize("name", ["ccs_s16", "ccs_resmlp_36"])
def test_a_bare_file_of_no_registered_size_is_known_by_its_tensors(name: str, tmp_path: Path) -> None:
    model = make(name, groups=4, dtype=torch.float64)
    torch.save(model.state_dict(), tmp_path / "some.pth")
    built = build(tmp_path / "some.pth").model
    assert same_weights(built, model)
    same(built(images().double()), model(images().double()))


def test_what_is_refused() -> None:
    for groups in (0, 3):
        with pytest.raises(
            ValueError, match=f"groups is {groups}; expected a divisor of embed_dim, which is 16"
        ):
            make(groups=groups)
    with pytest.raises(ValueError, match=r"form is 'vit'; expected one of 'mixer', 'resmlp'"):
        make(form="vit")
    with pytest.raises(TypeError, match="init_values"):
        make(init_values=0.5)
