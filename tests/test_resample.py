"""The rule that carries W and b to another token grid, against torch's resize and by the laws it states."""

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from PIL import Image
from torch.nn.functional import interpolate

from gmlp_vision.layers.resample import resample_map, resample_operator

Grid = tuple[int, int]

side = st.integers(1, 7)
grids = st.tuples(side, side)
few = settings(max_examples=25, deadline=None)


def noise(*shape: int) -> torch.Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(0), dtype=torch.float64)


def n(grid: Grid) -> int:
    return grid[0] * grid[1]


def resize(maps: torch.Tensor, old: Grid, new: Grid) -> torch.Tensor:
    """(n, C) token maps to (n', C), by torch: width then height, each antialiased only if it shrinks."""
    x = maps.T.reshape(1, -1, *old)
    for size in (new[1], new[0]):
        shrinks = size < x.shape[-1]
        x = interpolate(x, size=(x.shape[-2], size), mode="bicubic", align_corners=False, antialias=shrinks)
        x = x.transpose(-1, -2).contiguous()
    return x.flatten(2)[0].T


def larger(grid: Grid, more: Grid) -> Grid:
    return grid[0] + more[0], grid[1] + more[1]


@few
@given(grids, grids)
def test_bias_is_resized_as_a_picture(old: Grid, new: Grid) -> None:
    b = noise(n(old))
    torch.testing.assert_close(
        resample_map(b, old, new), resize(b[:, None], old, new)[:, 0], atol=1e-12, rtol=0
    )


def test_shrinking_is_pillows_bicubic() -> None:
    picture = noise(9, 12).float()
    for size in ((5, 7), (1, 4), (6, 1), (9, 5)):
        expected = np.asarray(Image.fromarray(picture.numpy()).resize(size[::-1], Image.Resampling.BICUBIC))
        shrunk = resample_map(picture.flatten(), (9, 12), size).reshape(size)
        np.testing.assert_allclose(shrunk.numpy(), expected, atol=1e-5)


@few
@given(grids, grids)
def test_operator_is_r_w_s_written_out(old: Grid, new: Grid) -> None:
    w = noise(n(old), n(old))
    rs, ss = [], []
    for o, m in zip(old, new, strict=True):
        r = resize(torch.eye(o, dtype=torch.float64), (o, 1), (m, 1)).numpy()
        back = resize(torch.eye(m, dtype=torch.float64), (m, 1), (o, 1)).numpy()
        rs.append(r)
        ss.append(np.linalg.pinv(r) if m > o else back)
    expected = np.kron(*rs) @ w.numpy() @ np.kron(*ss)
    np.testing.assert_allclose(resample_operator(w, old, new).numpy(), expected, atol=1e-12)


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.bfloat16])
@given(grids)
@few
def test_equal_grids_change_nothing(dtype: torch.dtype, grid: Grid) -> None:
    w, b = noise(n(grid), n(grid)).to(dtype), noise(n(grid)).to(dtype)
    assert torch.equal(resample_operator(w, grid, grid), w)
    assert torch.equal(resample_map(b, grid, grid), b)


@few
@given(grids, grids)
def test_where_it_grows_mapping_and_resizing_commute(old: Grid, more: Grid) -> None:
    new = larger(old, more)
    w, x = noise(n(old), n(old)), noise(n(old), 3)
    carried = resample_operator(w, old, new)
    torch.testing.assert_close(carried @ resize(x, old, new), resize(w @ x, old, new), atol=1e-10, rtol=0)


@few
@given(grids, grids)
def test_a_bias_of_one_stays_one(old: Grid, new: Grid) -> None:
    ones = torch.ones(n(new), dtype=torch.float64)
    torch.testing.assert_close(resample_map(ones.new_ones(n(old)), old, new), ones, atol=1e-12, rtol=0)


@few
@given(grids, grids)
def test_a_constant_picture_meets_the_resized_row_sums(old: Grid, new: Grid) -> None:
    w = noise(n(old), n(old))
    sums = resample_operator(w, old, new).sum(1)
    torch.testing.assert_close(sums, resize(w.sum(1, keepdim=True), old, new)[:, 0], atol=1e-10, rtol=0)


@pytest.mark.parametrize("new", [(12, 12), (16, 16), (24, 12), (8, 11)])
def test_smooth_filters_come_back(new: Grid) -> None:
    old = (8, 8)
    at = torch.cartesian_prod(torch.arange(8.0), torch.arange(8.0)).double()
    w = torch.exp(-torch.cdist(at, at).square() / (2 * 1.5**2))  # a blur, as trained filters mostly are local
    there = resample_operator(w, old, new)
    back = resample_operator(there, new, old)
    assert (back - w).norm() < 0.03 * w.norm()


def test_one_axis_grows_while_the_other_shrinks() -> None:
    old, new = (4, 6), (6, 3)
    w, x = noise(24, 24), noise(4)
    # along the axis that grows alone, that is on pictures constant along the other, the commuting law holds
    picture = x[:, None].expand(4, 6).reshape(24, 1)
    carried = resample_operator(w, old, new)
    torch.testing.assert_close(
        carried @ resize(picture, old, new), resize(w @ picture, old, new), atol=1e-10, rtol=0
    )


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
def test_computed_in_float64_and_given_back_in_its_own_dtype(dtype: torch.dtype) -> None:
    w, b = noise(24, 24).to(dtype), noise(24).to(dtype)
    carried = resample_operator(w, (4, 6), (6, 3))
    assert torch.equal(carried, resample_operator(w.double(), (4, 6), (6, 3)).to(dtype))
    assert torch.equal(resample_map(b, (4, 6), (6, 3)), resample_map(b.double(), (4, 6), (6, 3)).to(dtype))


def test_differentiable() -> None:
    w, b = noise(6, 6).requires_grad_(), noise(6).requires_grad_()
    assert torch.autograd.gradcheck(lambda t: resample_operator(t, (2, 3), (3, 2)), w)
    assert torch.autograd.gradcheck(lambda t: resample_map(t, (2, 3), (3, 2)), b)


def test_tokens_are_in_row_major_order() -> None:
    # on a 2 x 3 grid W picks token (0, 2); a taller grid keeps it in the last column, a wider one on top
    w = torch.zeros(6, 6, dtype=torch.float64)
    w[:, 2] = 1
    taller = resample_operator(w, (2, 3), (4, 3))[0].reshape(4, 3)
    wider = resample_operator(w, (2, 3), (2, 6))[0].reshape(2, 6)
    assert taller[:, :2].abs().max() == 0
    assert taller[:, 2].abs().max() > 0.4
    assert wider[1].abs().max() == 0
    assert wider[0].abs().max() > 0.4


@pytest.mark.parametrize(
    ("old", "new", "words"),
    [
        ((4, 5), (4, 4), ["(24, 24)", "(4, 5)", "(20, 20)"]),
        ((4, 6), (0, 4), ["(4, 6)", "(0, 4)", "1 x 1"]),
        ((-4, -6), (4, 4), ["(-4, -6)", "1 x 1"]),
    ],
)
def test_a_map_of_another_grid(old: Grid, new: Grid, words: list[str]) -> None:
    with pytest.raises(ValueError) as error:  # noqa: PT011  the words are matched below
        resample_operator(noise(24, 24), old, new)
    assert all(word in str(error.value) for word in words), error.value
    with pytest.raises(ValueError, match=r"grid"):
        resample_map(noise(24), old, new)
