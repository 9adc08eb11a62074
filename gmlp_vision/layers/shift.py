"""Moving tokens over their grid by whole places, into new tensors.

Written in place, ``x[:, 1:] = x[:, :-1]``, a shift reads what it has just written: on a CPU it smears the
first row over all others.

Shapes: B batch, H, W the token grid, D channels.
"""

import torch


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
