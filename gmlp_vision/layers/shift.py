"""Moving tokens over their grid by whole places, into new tensors.

Written in place, ``x[:, 1:] = x[:, :-1]``, a shift reads what it has just written: on a CPU it smears the
first row over all others.

Shapes: B batch, H, W the token grid, D channels.
"""

import torch
from torch import nn


def shift_by_one(x: torch.Tensor, dim: int, forward: bool) -> torch.Tensor:
    """Each token gets what its neighbour had; one at the border, without that neighbour, keeps its own.

    Args:
        x: Any shape.
        dim: The axis along which to move, such as 1 for H in (B, H, W, D).
        forward: Whether towards larger indices: token i then gets what token i - 1 had.

    Returns:
        The same shape.
    """
    last = x.shape[dim] - 1
    if forward:
        return torch.cat([x.narrow(dim, 0, 1), x.narrow(dim, 0, last)], dim)
    return torch.cat([x.narrow(dim, 1, last), x.narrow(dim, last, 1)], dim)


def shift_four_ways(x: torch.Tensor, first: int = 2, second: int = 1) -> torch.Tensor:
    """The quarters of the channels of (B, H, W, D), moved by one token, as `shift_by_one` does.

    Forward and back along one axis, then along the other: right, left, down and up unless told otherwise.
    """
    a, b, c, d = x.chunk(4, dim=-1)
    moved = [
        shift_by_one(a, first, forward=True),
        shift_by_one(b, first, forward=False),
        shift_by_one(c, second, forward=True),
        shift_by_one(d, second, forward=False),
    ]
    return torch.cat(moved, dim=-1)


def neighbours(x: torch.Tensor, dim: int, reach: int) -> list[torch.Tensor]:
    """What the tokens have that lie -reach, ..., reach places further along an axis; zeros outside the grid.

    Args:
        x: (B, H, W, D).
        dim: The axis, 1 for H or 2 for W.
        reach: Places, at least 1.

    Returns:
        2 * reach + 1 tensors of the same shape, views of one; entry i has at place p what x has at
        p + i - reach.
    """
    edges = [0, 0, 0, 0, reach, reach] if dim == 1 else [0, 0, reach, reach]
    padded = nn.functional.pad(x, edges)
    return [padded.narrow(dim, start, x.shape[dim]) for start in range(2 * reach + 1)]
