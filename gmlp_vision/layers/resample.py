"""Carrying what belongs to a token grid to another grid: pure functions on tensors.

Shapes: n = H * W tokens of the old grid, n' = H' * W' tokens of the new one, both in row-major order.

Let R resize token maps from the old grid to the new one, and S bring them back. Then

    W' = R W S        b' = R b

so W' takes a picture on the new grid back to the old one, does there what W has learned, and resizes what
comes out. R and S are Kronecker products of one matrix for the height and one for the width, and stay so.
docs/resampling.md has the reasons for this rule, its laws and what it measures.

A table of offsets between tokens is not resized: each offset, counted in tokens, keeps its number.
"""

import torch
from torch import nn

Grid = tuple[int, int]


def resample_operator(weight: torch.Tensor, old_grid: Grid, new_grid: Grid) -> torch.Tensor:
    """``R W S``: the linear map `weight` over tokens, carried from one grid to another.

    Computed in float64, then brought back to the dtype of `weight`; differentiable.

    Args:
        weight: (n, n), row i the filter of output token i.
        old_grid: (H, W), in tokens.
        new_grid: (H', W'), in tokens.

    Returns:
        (n', n').

    Raises:
        ValueError: `weight` is not a map over the tokens of the old grid, or a grid has none.
    """
    n = check_grids(old_grid, new_grid)
    if weight.shape != (n, n):
        raise ValueError(f"the weight is {tuple(weight.shape)}; over grid {old_grid} it must be ({n}, {n})")
    r_h, s_h = axis_matrices(old_grid[0], new_grid[0], weight.device)
    r_w, s_w = axis_matrices(old_grid[1], new_grid[1], weight.device)
    maps = weight.double().reshape(*old_grid, *old_grid)
    # einsum contracts from the left: with W first it goes axis by axis, and no (n', n) matrix is made
    maps = torch.einsum("hwij,ah,bw,ic,jd->abcd", maps, r_h, r_w, s_h, s_w)
    return maps.flatten(2, 3).flatten(0, 1).to(weight.dtype)


def resample_map(values: torch.Tensor, old_grid: Grid, new_grid: Grid) -> torch.Tensor:
    """``R b``: a token map, such as the bias of a linear map over tokens, resized from one grid to another.

    A constant map stays as it is. Computed in float64, then brought back to the dtype of `values`;
    differentiable.

    Args:
        values: (n, ...), what belongs to each token: a number, or more.
        old_grid: (H, W), in tokens.
        new_grid: (H', W'), in tokens.

    Returns:
        (n', ...).

    Raises:
        ValueError: `values` does not have one entry for each token of the old grid, or a grid has none.
    """
    n = check_grids(old_grid, new_grid)
    if values.shape[:1] != (n,):
        raise ValueError(f"the map is {tuple(values.shape)}; over grid {old_grid} its first size must be {n}")
    r_h, _ = axis_matrices(old_grid[0], new_grid[0], values.device)
    r_w, _ = axis_matrices(old_grid[1], new_grid[1], values.device)
    maps = torch.einsum("hw...,ah,bw->ab...", values.double().unflatten(0, old_grid), r_h, r_w)
    return maps.flatten(0, 1).to(values.dtype)


def resample_reader(weight: torch.Tensor, old_grid: Grid, new_grid: Grid) -> torch.Tensor:
    """``S^T A``: a layer that reads tokens and gives something else, such as hidden units, on another grid.

    Where the grid grows, it makes of a picture that was resized to the new grid what it made of the picture:
    ``(S^T A)^T R = A^T``. Computed in float64, then brought back to the dtype of `weight`; differentiable.

    Args:
        weight: (n, ...), what is read of each token: A, whose columns are the layer's outputs.
        old_grid: (H, W), in tokens.
        new_grid: (H', W'), in tokens.

    Returns:
        (n', ...).

    Raises:
        ValueError: `weight` does not have one row for each token of the old grid, or a grid has none.
    """
    n = check_grids(old_grid, new_grid)
    if weight.shape[:1] != (n,):
        raise ValueError(
            f"the weight is {tuple(weight.shape)}; over grid {old_grid} its first size must be {n}"
        )
    _, s_h = axis_matrices(old_grid[0], new_grid[0], weight.device)
    _, s_w = axis_matrices(old_grid[1], new_grid[1], weight.device)
    maps = torch.einsum("hw...,ha,wb->ab...", weight.double().unflatten(0, old_grid), s_h, s_w)
    return maps.flatten(0, 1).to(weight.dtype)


def crop_or_pad_offsets(table: torch.Tensor, old_grid: Grid, new_grid: Grid) -> torch.Tensor:
    """What belongs to each offset between two tokens of a grid, for the offsets of another grid.

    Equal offsets keep their numbers; those that the old grid does not have get 0. So what grows comes back
    exactly. Differentiable.

    Args:
        table: (2 H - 1, 2 W - 1, ...); [H - 1 + i, W - 1 + j] is for i rows down and j columns right.
        old_grid: (H, W), in tokens.
        new_grid: (H', W'), in tokens.

    Returns:
        (2 H' - 1, 2 W' - 1, ...).

    Raises:
        ValueError: `table` is not of the old grid, or a grid has no tokens.
    """
    check_grids(old_grid, new_grid)
    if table.shape[:2] != offsets_of(old_grid):
        raise ValueError(
            f"the table is {tuple(table.shape)}; over grid {old_grid} it must be {offsets_of(old_grid)}"
        )
    rows, columns = (new - old for new, old in zip(new_grid, old_grid, strict=True))  # at either end
    return nn.functional.pad(table, [0, 0] * (table.ndim - 2) + [columns, columns, rows, rows])


def crop_or_pad_cyclic(values: torch.Tensor, old_grid: Grid, new_grid: Grid) -> torch.Tensor:
    """What belongs to each offset around the borders of a grid, for the offsets of another grid.

    Offsets are taken the shorter way round, and then as in `crop_or_pad_offsets`. Half of an even side is as
    long both ways: there the two halves of a number are the offsets of a larger grid, and their sum is that
    of a smaller one. So what grows comes back exactly. Computed in float64, then brought back to the dtype of
    `values`; differentiable.

    Args:
        values: (H, W, ...); [i, j] is for i rows down and j columns right, around the borders.
        old_grid: (H, W), in tokens.
        new_grid: (H', W'), in tokens.

    Returns:
        (H', W', ...).

    Raises:
        ValueError: `values` is not of the old grid, or a grid has no tokens.
    """
    check_grids(old_grid, new_grid)
    if values.shape[:2] != old_grid:
        raise ValueError(
            f"the values are {tuple(values.shape)}; over grid {old_grid} they must be {old_grid}"
        )
    down, right = (_cyclic(*sides, values.device) for sides in zip(old_grid, new_grid, strict=True))
    return torch.einsum("hw...,ah,bw->ab...", values.double(), down, right).to(values.dtype)


def _cyclic(old: int, new: int, device: torch.device) -> torch.Tensor:
    """(new, old) matrix of `crop_or_pad_cyclic` along one axis."""
    matrix = torch.zeros(new, old, dtype=torch.float64, device="cpu")
    for offset in range(-(old // 2), old // 2 + 1):
        if abs(offset) <= new // 2:
            matrix[offset % new, offset % old] += 0.5 if 2 * abs(offset) == old else 1.0
    return matrix.to(device)


def offsets_of(grid_size: Grid) -> tuple[int, int]:
    """How many offsets two tokens of a grid can have, along each axis."""
    return 2 * grid_size[0] - 1, 2 * grid_size[1] - 1


def grid_of_offsets(sizes: tuple[int, ...]) -> Grid | None:
    """The grid of a table of offsets with these sizes; None if it is of none."""
    if len(sizes) < 2 or sizes[0] % 2 == 0 or sizes[1] % 2 == 0:
        return None
    return (sizes[0] + 1) // 2, (sizes[1] + 1) // 2


@torch.compiler.assume_constant_result  # a compiled model then holds them; it need not make them in each call
def axis_matrices(old: int, new: int, device: torch.device) -> tuple[torch.Tensor, torch.Tensor]:
    """R (new, old) and S (old, new) of one axis, in float64; both keep a constant map as it is.

    Where the axis grows, R loses nothing and S is its pseudo-inverse: S R = 1. Where it shrinks, S is the
    resize back, since a pseudo-inverse would invent the detail that R has averaged away.
    """
    r = resize_matrix(old, new)
    s = torch.linalg.pinv(r) if new > old else resize_matrix(new, old)
    # torch.compile(dynamic=True) takes the sizes of a parameter as they are; those of another constant become
    # unknowns that nothing in the call tells, which ends in an IndexError of its own
    r, s = (nn.Parameter(matrix.to(device), requires_grad=False) for matrix in (r, s))
    return r, s


def resize_matrix(old: int, new: int) -> torch.Tensor:
    """(new, old) matrix of torch's bicubic resize of one axis, antialiased where it shrinks, in float64."""
    # One axis at a time: antialiased, torch's cubic has another constant. One resize of both axes would
    # interpolate an axis that grows differently because the other one shrinks.
    # And that axis as the width: torch 2.14 gives wrong numbers, antialiased, for a picture one pixel wide.
    basis = torch.eye(old, dtype=torch.float64, device="cpu").reshape(1, old, 1, old)
    columns = nn.functional.interpolate(
        basis, size=(1, new), mode="bicubic", align_corners=False, antialias=new < old
    )
    return columns.reshape(old, new).T


def check_grids(old_grid: Grid, new_grid: Grid) -> int:
    """The number of tokens of the old grid, once each grid is known to have some."""
    if min(*old_grid, *new_grid) < 1:
        raise ValueError(f"cannot go from grid {old_grid} to {new_grid}: a grid has at least 1 x 1 tokens")
    return old_grid[0] * old_grid[1]
