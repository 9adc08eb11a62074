"""All kinds of W: each is its explicit matrix, goes to other grids by a rule, and is the nearest one."""

import re
from pathlib import Path

import pytest
import torch
from tiny import images, perturb, same, tiny
from torch import nn
from torch.utils.flop_counter import FlopCounterMode

from gmlp_vision.export import export_model
from gmlp_vision.layers import SpatialProjection
from gmlp_vision.layers.ask import operators
from gmlp_vision.layers.resample import Grid, resample_operator
from gmlp_vision.layers.spatial import KINDS, kind_of, projection_of, spatial_of
from gmlp_vision.layers.structured import Structured, map_tokens_by_group

# A key of each kind, and its number of groups; each fits grids of even sides.
EACH = {
    "dense": 1,
    "toeplitz": 1,
    "3x3": 3,
    "lrpe": 3,
    "gqpe": 3,
    "circulant": 3,
    "axial": 1,
    "rank:3": 1,
    "block:2": 1,
    "grid:2": 1,
    "dense+toeplitz": 1,
    "dense+3x3": 1,
}
LINEAR = [key for key in EACH if key not in ("gqpe", "rank:3") and not key.startswith("dense")]
FITTED = [key for key in EACH if key != "gqpe"]
every_kind = pytest.mark.parametrize("spatial", EACH)
grids = pytest.mark.parametrize("grid", [(4, 6), (6, 2)])


def numbers(*size: int, seed: int = 1) -> torch.Tensor:
    return torch.randn(*size, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


def layer_of(spatial: str, grid: Grid, groups: int | None = None) -> Structured:
    """With numbers of size 1, in float64."""
    made = projection_of(spatial, EACH.get(spatial, 1) if groups is None else groups)(grid)
    return perturb(made.double(), std=1.0)


def with_nearest(spatial: str, weight: torch.Tensor, grid: Grid) -> Structured:
    cls, options = kind_of(spatial)
    layer = projection_of(spatial)(grid).double()
    tensors = cls.nearest(weight, grid, **options)
    layer.load_state_dict({**tensors, "bias": layer.bias})
    return layer


def test_every_kind_is_tested() -> None:
    assert len({kind_of(key)[0] for key in EACH}) == len(KINDS)


# -- the matrix ---------------------------------------------------------------------------------------------


@every_kind
@grids
def test_a_call_is_a_product_with_the_matrix(spatial: str, grid: Grid) -> None:
    layer, x = layer_of(spatial, grid), numbers(2, *grid, 6, seed=2)
    w = layer.matrix()
    n = grid[0] * grid[1]
    assert w.shape == (EACH[spatial], n, n)
    y = torch.empty_like(x)
    for c in range(6):
        y[..., c] = (x[..., c].flatten(1) @ w[c % len(w)].T + layer.bias).view(2, *grid)
    assert y.std() > 0.1
    torch.testing.assert_close(layer(x), y, atol=1e-12, rtol=1e-12)


@every_kind
def test_gradients_are_those_of_the_matrix(spatial: str) -> None:
    layer, x = layer_of(spatial, (4, 6)), numbers(2, 4, 6, 6, seed=2).requires_grad_()

    def gradients(y: torch.Tensor) -> tuple[torch.Tensor, ...]:
        return torch.autograd.grad(y.square().sum(), [x, *layer.parameters()])

    slow = gradients(map_tokens_by_group(x, layer.matrix(), layer.bias))
    assert all(g.abs().max() > 0.1 for g in slow)
    for ours, expected in zip(gradients(layer(x)), slow, strict=True):
        torch.testing.assert_close(ours, expected, atol=1e-9, rtol=1e-10)


@every_kind
def test_another_grid_for_good_for_a_call_and_as_a_matrix(spatial: str) -> None:
    layer, x = layer_of(spatial, (4, 6)), numbers(2, 6, 4, 6, seed=2)
    w = layer.matrix((6, 4))
    layer.dynamic = True
    y = layer.eval()(x)
    torch.testing.assert_close(y, map_tokens_by_group(x, w, layer.on_grid((6, 4))[-1]), atol=1e-10, rtol=0)
    layer.replace_grid((6, 4), layer.on_grid((6, 4)))
    torch.testing.assert_close(layer.matrix(), w)
    torch.testing.assert_close(layer(x), y)


@pytest.mark.parametrize("spatial", ["toeplitz", "lrpe", "gqpe", "circulant", "block:2", "grid:2"])
def test_what_knows_offsets_or_cells_grows_and_comes_back(spatial: str) -> None:
    layer = layer_of(spatial, (4, 6))
    w = layer.matrix()
    for grid in ((6, 8), (4, 6)):
        layer.replace_grid(grid, layer.on_grid(grid))
    torch.testing.assert_close(layer.matrix(), w, atol=1e-12, rtol=0)


@pytest.mark.parametrize(("spatial", "groups"), [("circulant", 1), ("circulant", 6), ("lrpe", 6)])
def test_channels_in_turn_belong_to_the_groups(spatial: str, groups: int) -> None:
    layer, x = layer_of(spatial, (4, 6), groups), numbers(2, 4, 6, 6, seed=2)
    expected = map_tokens_by_group(x, layer.matrix(), layer.bias)
    torch.testing.assert_close(layer(x), expected, atol=1e-12, rtol=1e-12)


@every_kind
def test_it_starts_as_large_as_a_dense_one(spatial: str) -> None:
    torch.manual_seed(0)
    made = projection_of(spatial)((16, 24), 0.01, 0.5)
    size = made.matrix().square().mean().sqrt().item()
    expected = made.start_std() if spatial == "gqpe" else 0.01
    assert size == pytest.approx(expected, rel=0.4 if spatial in ("3x3", "block:2", "grid:2") else 0.15)
    assert made.bias.eq(0.5).all()
    if spatial != "gqpe":
        still = projection_of(spatial)((4, 6), 0.0)
        assert still.matrix().eq(0).all()


def test_one_that_keeps_the_scale_of_the_tokens_does_so_on_another_grid() -> None:
    layer = projection_of("dense")((16, 16), None)
    assert layer.init_std == 1 / 16
    layer.replace_grid((24, 24), layer.on_grid((24, 24)))
    layer.reset_parameters()
    assert layer.matrix().std().item() == pytest.approx(1 / 24, rel=0.02)


# multiply-adds a channel over (6, 8) tokens, as docs/structure.md has them; FFTs are not counted
MACS = {
    "dense": 48**2,
    "toeplitz": 48**2,
    "3x3": 9 * 48,
    "axial": 48 * (6 + 8),
    "rank:3": 2 * 48 * 3,
    "block:2": 48 * 4,
    "grid:2": 48 * 4,
    "lrpe": 48**2,
    "gqpe": 48**2,
    "dense+toeplitz": 48**2,
    "dense+3x3": 48**2,
}


@pytest.mark.parametrize("spatial", MACS)
def test_a_call_costs_what_the_page_says(spatial: str) -> None:
    layer = projection_of(spatial)((6, 8))
    with torch.no_grad(), FlopCounterMode(display=False) as counter:
        layer(images(2, 6, 8, 16))
    assert counter.get_total_flops() == 2 * 2 * 16 * MACS[spatial]


@every_kind
def test_its_operators_are_its_matrix(spatial: str) -> None:
    layer = layer_of(spatial, (4, 6))
    found = operators(layer, (4, 6))
    assert [one.part for one in found] == ([""] if len(found) == 1 else [f"group {g}" for g in range(3)])
    assert torch.equal(torch.stack([one.weight for one in found]), layer.matrix())
    assert all(one.bias is layer.bias for one in found)
    assert all(bool(one.note) != (spatial == "dense") for one in found)


@every_kind
def test_in_half_precision_and_on_no_device(spatial: str) -> None:
    layer = projection_of(spatial, EACH[spatial])((4, 6), dtype=torch.bfloat16)
    assert layer(images(1, 4, 6, 6).bfloat16()).dtype == torch.bfloat16
    meta = projection_of(spatial, EACH[spatial])((4, 6), device="meta")
    assert meta(torch.empty(1, 4, 6, 6, device="meta")).shape == (1, 4, 6, 6)
    assert operators(meta, (4, 6))[0].init_std >= 0


@pytest.mark.filterwarnings("ignore:`torch.jit:FutureWarning")
@pytest.mark.parametrize("grid", [(4, 6), (3, 5), (1, 7), (2, 1)])
def test_every_form_of_a_circulant(grid: Grid) -> None:
    layer, x = layer_of("circulant", grid), numbers(2, *grid, 6, seed=2)
    expected = map_tokens_by_group(x, layer.matrix(), layer.bias)
    for form in (layer, torch.export.export(layer, (x,)).module(), torch.jit.script(layer)):
        torch.testing.assert_close(form(x), expected, atol=1e-12, rtol=1e-12)


@pytest.mark.long
@pytest.mark.filterwarnings("ignore:`torch.jit:FutureWarning")
@pytest.mark.parametrize("spatial", ["block:2", "grid:2"])  # test_contract.py has kinds of registered names
def test_every_form_of_a_model_without_a_name_of_its_own(spatial: str, tmp_path: Path) -> None:
    model = tiny(spatial=spatial)
    expected = model(images())
    dynamic = ({0: torch.export.Dim("batch")},)
    same(torch.jit.script(model)(images()), expected)
    same(torch.export.export(model, (images(),), dynamic_shapes=dynamic).module()(images()), expected)
    same(torch.compile(model, fullgraph=True, backend="aot_eager")(images()), expected)
    assert export_model(model, tmp_path / "model.onnx", "onnx", dynamic_batch=True).difference < 1e-4


# -- what each is -------------------------------------------------------------------------------------------


def test_a_circulant_moves_with_the_picture() -> None:
    layer, x = layer_of("circulant", (4, 6)), numbers(1, 4, 6, 3, seed=2)
    layer.bias.data.zero_()
    moved = layer(x.roll((1, 2), dims=(1, 2)))
    torch.testing.assert_close(moved, layer(x).roll((1, 2), dims=(1, 2)))


def test_an_entry_of_a_circulant_is_that_of_the_offset_around() -> None:
    layer = layer_of("circulant", (3, 4), 1)
    w = layer.matrix().view(3, 4, 3, 4)
    for i, j, k, m in torch.cartesian_prod(*map(torch.arange, w.shape)).tolist():
        assert w[i, j, k, m] == layer.around[(k - i) % 3, (m - j) % 4, 0]


@pytest.mark.parametrize(("old", "new"), [((3, 4), (5, 7)), ((4, 4), (6, 5)), ((2, 5), (3, 6))])
def test_offsets_around_keep_their_number_the_shorter_way(old: Grid, new: Grid) -> None:
    layer = layer_of("circulant", old, 1)
    k, there = layer.around[..., 0].detach(), layer.on_grid(new)[0][..., 0].detach()
    for i in range(-(old[0] // 2), old[0] // 2 + 1):
        for j in range(-(old[1] // 2), old[1] // 2 + 1):
            share = (0.5 if 2 * abs(i) == old[0] else 1) * (0.5 if 2 * abs(j) == old[1] else 1)
            assert there[i % new[0], j % new[1]].item() == pytest.approx(
                share * k[i % old[0], j % old[1]].item()
            )
    assert there.sum().item() == pytest.approx(k.sum().item())


def test_a_circulant_is_carried_in_full_under_autocast() -> None:
    layer = layer_of("circulant", (4, 4), 1)
    exact = layer.on_grid((6, 5))[0]
    with torch.autocast("cpu", torch.bfloat16):
        assert torch.equal(layer.on_grid((6, 5))[0], exact)


def test_an_axial_one_sees_its_row_and_column() -> None:
    w = layer_of("axial", (4, 6)).matrix().view(4, 6, 4, 6)
    for i, j, k, m in torch.cartesian_prod(*map(torch.arange, w.shape)).tolist():
        assert bool(w[i, j, k, m]) == (i == k or j == m)


def test_cells_lie_together_and_grids_span_the_image() -> None:
    block, grid = (layer_of(key, (4, 6)).matrix().view(4, 6, 4, 6) for key in ("block:2", "grid:2"))
    for i, j, k, m in torch.cartesian_prod(*map(torch.arange, block.shape)).tolist():
        assert bool(block[i, j, k, m]) == (i // 2 == k // 2 and j // 2 == m // 2)
        assert bool(grid[i, j, k, m]) == (i % 2 == k % 2 and j % 3 == m % 3)
    for w in (block, grid):
        assert len(w[w != 0].unique()) == 16  # shared by all sets


def test_on_the_grid_of_one_cell_it_is_dense() -> None:
    for key in ("block:4", "grid:4"):
        layer = layer_of(key, (4, 4))
        assert torch.equal(layer.matrix()[0], next(layer.parameters()))


def test_a_low_rank_one_goes_as_the_product_does() -> None:
    layer = layer_of("rank:3", (4, 6))
    assert torch.linalg.matrix_rank(layer.matrix()[0]) == 3
    for grid in ((6, 8), (3, 7), (2, 2)):
        expected = resample_operator(layer.matrix()[0], (4, 6), grid)
        torch.testing.assert_close(layer.matrix(grid)[0], expected, atol=1e-10, rtol=1e-10)


def test_an_axis_goes_by_itself() -> None:
    """Its rows alone, on a grid that grows in height, are what a dense W makes of them."""
    layer = layer_of("axial", (4, 6))
    layer.columns.data.zero_()
    expected = resample_operator(layer.matrix()[0], (4, 6), (7, 6))
    torch.testing.assert_close(layer.matrix((7, 6))[0], expected, atol=1e-10, rtol=1e-10)


@pytest.mark.parametrize("spatial", ["block:4", "grid:4"])
def test_a_grid_without_whole_cells_is_refused(spatial: str) -> None:
    with pytest.raises(ValueError, match=r"grid is 4 x 6 tokens, which cells of 4 x 4 do not divide: choose"):
        projection_of(spatial)((4, 6))
    layer = projection_of(spatial)((4, 8))
    with pytest.raises(ValueError, match="6 x 8 tokens"):
        layer.on_grid((6, 8))
    with pytest.raises(ValueError, match="4 x 6 tokens"):
        type(layer).nearest(numbers(24, 24), (4, 6), side=4)


# -- the nearest --------------------------------------------------------------------------------------------


@pytest.mark.parametrize("spatial", FITTED)
@grids
def test_the_nearest_of_one_of_the_kind_is_itself(spatial: str, grid: Grid) -> None:
    w = layer_of(spatial, grid, 1).matrix()[0].detach()
    torch.testing.assert_close(with_nearest(spatial, w, grid).matrix()[0], w, atol=1e-12, rtol=1e-10)


@pytest.mark.parametrize("spatial", LINEAR)
@grids
def test_what_is_left_is_orthogonal_to_the_kind(spatial: str, grid: Grid) -> None:
    w = numbers(24, 24)[: grid[0] * grid[1], : grid[0] * grid[1]]
    left = w - with_nearest(spatial, w, grid).matrix()[0]
    assert left.norm() > 1
    for seed in range(3):
        other = perturb(layer_of(spatial, grid, 1), seed=seed).matrix()[0]
        assert (left * other).sum().abs() < 1e-9 * left.norm() * other.norm()


@pytest.mark.parametrize("spatial", FITTED)
def test_none_of_the_kind_is_nearer(spatial: str) -> None:
    w, grid = numbers(24, 24), (4, 6)
    found = with_nearest(spatial, w, grid)
    best = (w - found.matrix()[0]).norm()
    for seed in range(5):
        other = perturb(with_nearest(spatial, w, grid), seed=seed, std=0.01)
        assert (w - other.matrix()[0]).norm() > best


@pytest.mark.parametrize("rank", [1, 3, 24, 30])
def test_a_cut_decomposition(rank: int) -> None:
    w, grid = numbers(24, 24), (4, 6)
    left = w - with_nearest(f"rank:{rank}", w, grid).matrix()[0]
    assert left.norm().item() == pytest.approx(torch.linalg.svdvals(w)[rank:].norm().item(), abs=1e-9)


def test_groups_have_the_same_nearest() -> None:
    for key in ("lrpe", "circulant"):
        cls, _ = kind_of(key)
        (name, one), (_, three) = (
            next(iter(cls.nearest(numbers(24, 24), (4, 6), groups=g).items())) for g in (1, 3)
        )
        assert torch.equal(three, one.expand_as(three)), name


def test_a_gaussian_has_no_nearest() -> None:
    cls, _ = kind_of("gqpe")
    with pytest.raises(ValueError, match="no nearest one: W is a softmax of a quadratic form, so no formula"):
        cls.nearest(numbers(24, 24), (4, 6))


# -- keys ---------------------------------------------------------------------------------------------------


@every_kind
def test_tensors_tell_the_key(spatial: str) -> None:
    layer: nn.Module = layer_of(spatial, (4, 6))
    assert spatial_of(layer.state_dict()) == {"spatial": spatial, "groups": EACH[spatial]}


@pytest.mark.parametrize(
    "key", ["", "Dense", "dense ", "rank", "rank:", "rank:0", "rank:-1", "rank:1.5", "rank:R", "rank:08",
            "block:", "grid:x", "toeplitz:3", "rank:3\n", None, 7]
)  # fmt: skip
def test_another_key_is_refused_with_those_there_are(key: object) -> None:
    known = ", ".join(re.escape(repr(kind)) for kind in KINDS)
    with pytest.raises(ValueError, match=rf"spatial is .*; expected one of {known}, with a number in the pl"):
        projection_of(key)


@pytest.mark.parametrize("spatial", ["dense", "axial", "rank:3", "block:2", "grid:2"])
def test_groups_where_there_are_none(spatial: str) -> None:
    with pytest.raises(ValueError, match=f"groups is 2; .*spatial='{spatial}' 1, since all channels share"):
        projection_of(spatial, 2)


def test_the_default_kind_is_the_dense_one() -> None:
    assert type(projection_of("dense")((2, 2))) is SpatialProjection
