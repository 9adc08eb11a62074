"""Mixing within windows: the grid is cut into equal ones, and each is a grid of its own.

Shapes: B batch, H, W the token grid, w the side of a window, D width.
"""

import torch
from torch import nn


class Windows(nn.Module):
    """What a mixer does to the windows of a grid.

    Layers in it belong to the grid of a window, whatever the image's: `tied_layers` leaves them out.

    Args:
        mixer: A module that maps (B, w, w, D) to itself.
        window: w, in tokens; it divides H and W.

    Shape: (B, H, W, D) -> (B, H, W, D).
    """

    def __init__(self, mixer: nn.Module, window: int) -> None:
        super().__init__()
        self.mixer = mixer
        self.window = window

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        windows = cells_apart(x, self.window)
        side = [self.window, self.window]
        mixed = self.mixer(windows.flatten(0, 2).unflatten(1, side))
        return cells_together(mixed.reshape(windows.shape), self.window)


def cells_apart(x: torch.Tensor, side: int) -> torch.Tensor:
    """(B, H, W, C) to its cells, (B, H / s, W / s, s^2, C)."""
    x = x.unflatten(2, [x.shape[2] // side, side]).unflatten(1, [x.shape[1] // side, side])
    return x.transpose(2, 3).flatten(3, 4)


def cells_together(x: torch.Tensor, side: int) -> torch.Tensor:
    """The reverse of `cells_apart`."""
    return x.unflatten(3, [side, side]).transpose(2, 3).flatten(3, 4).flatten(1, 2)
