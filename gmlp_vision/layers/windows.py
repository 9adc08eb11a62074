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
        b, h, w, _ = x.shape
        rows, columns = h // self.window, w // self.window
        x = x.unflatten(2, (columns, self.window)).unflatten(1, (rows, self.window)).transpose(2, 3)
        x = self.mixer(x.flatten(0, 2))
        x = x.unflatten(0, (b, rows, columns)).transpose(2, 3)
        return x.flatten(1, 2).flatten(2, 3)
