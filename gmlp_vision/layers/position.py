"""What tells tokens apart by their places.

Shapes: B batch, H, W the token grid, N = H * W tokens in row-major order, D width.
"""

import torch
from torch import nn

from gmlp_vision.layers.grid_tied import GridTied
from gmlp_vision.layers.resample import Grid
from gmlp_vision.layers.rules import TOKEN_MAP


class PositionTable(GridTied):
    """``X + P``, P one learned vector a token.

    Args:
        grid_size: (H, W) of the token grid that the table belongs to.
        dim: D.
        device, dtype: of the parameters.

    Shape: (B, H, W, D) -> (B, H, W, D).
    """

    RULES = {"weight": TOKEN_MAP}  # noqa: RUF012  a ClassVar in the base

    def __init__(
        self,
        grid_size: Grid,
        dim: int,
        device: torch.device | str | None = None,
        dtype: torch.dtype | None = None,
    ) -> None:
        super().__init__(grid_size)
        self.weight = nn.Parameter(torch.empty(grid_size[0] * grid_size[1], dim, device=device, dtype=dtype))
        self.reset_parameters()

    def reset_parameters(self) -> None:
        """Normal with std 0.02, as in ViT."""
        nn.init.trunc_normal_(self.weight, std=0.02)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        weight: torch.Tensor = self.weight
        if self.dynamic:
            (weight,) = self.parameters_on((x.shape[1], x.shape[2]))
        return x + weight.view(x.shape[1:])


class ClassToken(nn.Module):
    """Puts one learned token before those of the grid, which leave it for a row.

    Args:
        dim: D.
        device, dtype: of the parameters.

    Shape: (B, H, W, D) -> (B, 1 + N, D).
    """

    def __init__(
        self, dim: int, device: torch.device | str | None = None, dtype: torch.dtype | None = None
    ) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.empty(dim, device=device, dtype=dtype))
        self.reset_parameters()

    def reset_parameters(self) -> None:
        """Normal with std 0.02, as in ViT."""
        nn.init.trunc_normal_(self.weight, std=0.02)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return torch.cat([self.weight.expand(x.shape[0], 1, -1), x.flatten(1, 2)], dim=1)
