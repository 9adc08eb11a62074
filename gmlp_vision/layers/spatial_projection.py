"""Linear maps over the tokens of an image, shared by all channels.

Shapes: B batch, N = H * W tokens in row-major order, C channels.
"""

import torch
from torch import nn


class SpatialProjection(nn.Module):
    """``y[i] = sum_j W[i, j] x[j] + b[i]`` on the tokens of one grid (the f of Section 2.1 of the paper).

    Row i of W is the filter of output token i: ``W[i].reshape(H, W)`` is its kernel over the grid.

    Args:
        grid_size: (H, W) of the token grid that the map is tied to, in tokens.
        device, dtype: of the parameters.

    Shape: (B, N, C) -> (B, N, C).
    """

    def __init__(
        self,
        grid_size: tuple[int, int],
        device: torch.device | str | None = None,
        dtype: torch.dtype | None = None,
    ) -> None:
        super().__init__()
        self.grid_size = grid_size
        n = grid_size[0] * grid_size[1]
        self.weight = nn.Parameter(torch.empty(n, n, device=device, dtype=dtype))
        self.bias = nn.Parameter(torch.empty(n, device=device, dtype=dtype))
        self.init_weights()

    def init_weights(self) -> None:
        """W near zero and b = 1: the map starts as (nearly) the constant 1, whatever its input (Section 2.1)."""
        nn.init.normal_(self.weight, std=1e-6)
        nn.init.ones_(self.bias)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        # W stands on the left of the (N, C) matrix of each image, so no transpose of x is ever made; as one
        # batched product this is faster than nn.Linear between two transposes, with the same gradients.
        return torch.baddbmm(self.bias.unsqueeze(-1), self.weight.expand(x.shape[0], -1, -1), x)

    def extra_repr(self) -> str:
        return f"grid_size={self.grid_size}"
