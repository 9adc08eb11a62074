"""A number for each pair of tokens, as a product of low rank.

Shapes: H, W the token grid, N = H * W tokens in row-major order, R the rank.
"""

import torch
from torch import nn

from gmlp_vision.layers.grid_tied import GridTied
from gmlp_vision.layers.precision import matmul_float32
from gmlp_vision.layers.resample import Grid
from gmlp_vision.layers.rules import TOKEN_MAP

torch.fx.wrap("matmul_float32")

FACTOR_STD = 0.02  # of u and v at the start


class PairBias(GridTied):
    """``w = u v^T``, for layers that add w to the logarithms of the weights of a mean.

    To another grid u and v go as token maps. A mean does not weigh by how many tokens there are, so w is the
    same function of two places on every grid, without a factor.

    Args:
        grid_size: (H, W) of the token grid that u and v belong to.
        rank: R.
        reach: Where positive, w is 0 for tokens that are this far apart, or further, along either axis.
        device, dtype: of the parameters.

    Attributes:
        init_std: Standard deviation of w at the start.

    Shape: (B, H, W, any), of which only the grid is read -> (N, N), in float32 or above.

    Raises:
        ValueError: `rank` is not positive.
    """

    RULES = {"u": TOKEN_MAP, "v": TOKEN_MAP}  # noqa: RUF012  a ClassVar in the base

    def __init__(
        self,
        grid_size: Grid,
        rank: int,
        reach: int = 0,
        device: torch.device | str | None = None,
        dtype: torch.dtype | None = None,
    ) -> None:
        super().__init__(grid_size)
        if rank < 1:
            raise ValueError(f"rank is {rank}; expected at least 1")
        self.reach = reach
        self.init_std = FACTOR_STD**2 * rank**0.5
        n = grid_size[0] * grid_size[1]
        self.u = nn.Parameter(torch.empty(n, rank, device=device, dtype=dtype))
        self.v = nn.Parameter(torch.empty(n, rank, device=device, dtype=dtype))
        self.reset_parameters()

    def reset_parameters(self) -> None:
        """Normal, so small that w is near zero."""
        nn.init.trunc_normal_(self.u, std=FACTOR_STD)
        nn.init.trunc_normal_(self.v, std=FACTOR_STD)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        u: torch.Tensor = self.u
        v: torch.Tensor = self.v
        if self.dynamic:
            u, v = self.parameters_on((x.shape[1], x.shape[2]))
        return self.product(u, v, x.shape[1], x.shape[2])

    def product(self, u: torch.Tensor, v: torch.Tensor, height: int, width: int) -> torch.Tensor:
        """w of u and v (N, R) that belong to a grid of this height and width, in tokens."""
        w = matmul_float32(u, v.transpose(0, 1))
        if self.reach > 0:
            w = w * is_near(height, width, self.reach, w)
        return w


def is_near(height: int, width: int, reach: int, like: torch.Tensor) -> torch.Tensor:
    """(N, N) with the device and dtype of `like`: 1 for tokens less than `reach` apart on both axes, or 0."""
    rows = torch.arange(height, device=like.device)
    columns = torch.arange(width, device=like.device)
    near_rows = (rows.unsqueeze(1) - rows).abs() < reach
    near_columns = (columns.unsqueeze(1) - columns).abs() < reach
    near = near_rows.unsqueeze(1).unsqueeze(3) & near_columns.unsqueeze(1)  # (H, W, H, W)
    return near.flatten(2, 3).flatten(0, 1).to(like.dtype)
