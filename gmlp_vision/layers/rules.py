"""The rules by which parameters go from one token grid to another, made of the functions of resample.py."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass

import torch

from gmlp_vision.layers.resample import (
    Grid,
    axis_matrices,
    check_grids,
    crop_or_pad_cyclic,
    crop_or_pad_offsets,
    grid_of_offsets,
    offsets_of,
    resample_map,
    resample_operator,
    resample_reader,
)


@dataclass(frozen=True)
class Rule:
    """How a parameter that belongs to a token grid goes to another one.

    Attributes:
        carry: (tensor, old grid, new grid) to the tensor on the new grid; pure. One that cannot raises a
            ValueError that says why.
        leading: The first sizes of the tensor on a grid: they tell whether a file's tensor fits a grid.
        axis: The axis of the tensor that is the first of these; 0 but for the weights of some plain layers.
        refusal: Why there is no other grid for it, or ''.
        grid_of: The only grid on which a tensor has these sizes, where they tell it; else None.
    """

    carry: Callable[[torch.Tensor, Grid, Grid], torch.Tensor]
    leading: Callable[[Grid], tuple[int, ...]]
    refusal: str = ""
    grid_of: Callable[[tuple[int, ...]], Grid | None] = lambda sizes: None
    axis: int = 0

    @property
    def axes(self) -> range:
        """The axes of the tensor whose sizes belong to the grid."""
        return range(self.axis, self.axis + len(self.leading((1, 1))))

    def fits(self, tensor: torch.Tensor, grid: Grid) -> bool:
        """Whether the tensor may be one of this grid."""
        return tensor.shape[self.axes.start : self.axes.stop] == self.leading(grid)


def carry_by(
    rules: Mapping[str, Rule], tensors: Mapping[str, torch.Tensor], old_grid: Grid, new_grid: Grid
) -> dict[str, torch.Tensor]:
    """Tensors, in the order of their rules, from one grid to another: each by its rule.

    Raises:
        ValueError: A rule refuses.
    """
    return {name: rule.carry(tensors[name], old_grid, new_grid) for name, rule in rules.items()}


def fixed(why: str, leading: Callable[[Grid], tuple[int, ...]]) -> Rule:
    """The rule of a parameter that has no meaning on another grid."""

    def refuse(tensor: torch.Tensor, old_grid: Grid, new_grid: Grid) -> torch.Tensor:
        raise ValueError(why)

    return Rule(refuse, leading, refusal=why)


OPERATOR = Rule(resample_operator, lambda grid: (grid[0] * grid[1],) * 2)
TOKEN_MAP = Rule(resample_map, lambda grid: (grid[0] * grid[1],))
TOKEN_READER = Rule(resample_reader, lambda grid: (grid[0] * grid[1],))
# The same of a layer that holds A^T, (outputs, n), as nn.Linear does: A^T S
TOKEN_READER_ROWS = Rule(
    lambda rows, old, new: resample_reader(rows.T, old, new).T.contiguous(),
    lambda grid: (grid[0] * grid[1],),
    axis=1,
)
ANY_GRID = Rule(lambda tensor, old_grid, new_grid: tensor, lambda grid: ())
OFFSETS = Rule(crop_or_pad_offsets, offsets_of, grid_of=grid_of_offsets)
CYCLIC_OFFSETS = Rule(
    crop_or_pad_cyclic,
    lambda grid: grid,
    grid_of=lambda sizes: (sizes[0], sizes[1]) if len(sizes) >= 2 else None,
)


def of_axis(axis: int, operator: bool) -> Rule:
    """The law of OPERATOR, or of TOKEN_MAP, along one axis of the grid alone.

    Args:
        axis: 0 for the height, 1 for the width.
        operator: Whether the tensor is a map (n, n) over the n rows or columns; else it is (n, ...), what
            belongs to each.
    """

    def carry(tensor: torch.Tensor, old_grid: Grid, new_grid: Grid) -> torch.Tensor:
        check_grids(old_grid, new_grid)
        r, s = axis_matrices(old_grid[axis], new_grid[axis], tensor.device)
        carried = torch.tensordot(r, tensor.double(), dims=1)
        return (carried @ s if operator else carried).to(tensor.dtype)

    return Rule(carry, lambda grid: (grid[axis],) * (2 if operator else 1))
