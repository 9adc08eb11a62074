"""A linear map over tokens along the two axes of the grid.

Shapes: B batch, H, W the token grid, N = H * W tokens in row-major order, C channels.
"""

from collections.abc import Mapping

import torch
from torch import nn

from gmlp_vision.layers.resample import Grid
from gmlp_vision.layers.rules import TOKEN_MAP, of_axis
from gmlp_vision.layers.structured import Structured


class AxialProjection(Structured):
    """``y[i, j] = sum_k A[i, k] x[k, j] + sum_l C[j, l] x[i, l] + b[i, j]``: a token sees its own column and
    row.

    W = A (x) 1 + 1 (x) C has H^2 + W^2 numbers, and a call costs N (H + W) of them a channel. A multiple of 1
    may go from A to C without a change of W.

    On another grid A and C go as an operator of their own axis does, R A S (layers/resample.py). That is not
    R W S, which would mix along both axes. Numbers start at `init_std` times sqrt(N / (H + W)).

    The nearest one to a dense W: A and C are the means of W over the pairs of tokens of a column, or a row;
    what both claim of the diagonal is divided evenly.

    Args:
        grid_size: (H, W) of the token grid, in tokens.
        init_std: As for a dense W; see Structured.
        init_bias: All of b at the start.
        device, dtype: of the parameters.

    Shape: (B, H, W, C) -> (B, H, W, C).
    """

    RULES = {  # noqa: RUF012  a ClassVar in the base
        "rows": of_axis(0, operator=True),
        "columns": of_axis(1, operator=True),
        "bias": TOKEN_MAP,
    }

    def __init__(
        self,
        grid_size: Grid,
        init_std: float | None = 1e-6,
        init_bias: float = 1.0,
        device: torch.device | str | None = None,
        dtype: torch.dtype | None = None,
    ) -> None:
        super().__init__(grid_size, init_std, init_bias)
        height, width = grid_size
        self.rows = nn.Parameter(torch.empty(height, height, device=device, dtype=dtype))  # A
        self.columns = nn.Parameter(torch.empty(width, width, device=device, dtype=dtype))  # C
        self.bias = self.new_bias(device=device, dtype=dtype)
        self.reset_parameters()

    def reset_parameters(self) -> None:
        """As every kind of W starts."""
        std = self.std_of(self.grid_size[0] + self.grid_size[1])
        nn.init.normal_(self.rows, std=std)
        nn.init.normal_(self.columns, std=std)
        nn.init.constant_(self.bias, self.init_bias)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        rows: torch.Tensor = self.rows
        columns: torch.Tensor = self.columns
        bias: torch.Tensor = self.bias
        if self.dynamic:
            rows, columns, bias = self.parameters_on((x.shape[1], x.shape[2]))
        along_columns = (rows @ x.flatten(2)).view_as(x)
        return along_columns + columns @ x + bias.view(x.shape[1], x.shape[2], 1)

    def matrix_of(self, grid_size: Grid, *parameters: torch.Tensor) -> torch.Tensor:
        rows, columns = parameters
        one, other = (torch.eye(n, device=rows.device, dtype=rows.dtype) for n in grid_size)
        return (torch.kron(rows, other) + torch.kron(one, columns)).unsqueeze(0)

    @classmethod
    def nearest(cls, weight: torch.Tensor, grid_size: Grid) -> dict[str, torch.Tensor]:
        pairs = weight.double().view(*grid_size, *grid_size)
        rows = torch.einsum("ijkj->ik", pairs) / grid_size[1]
        columns = torch.einsum("ijil->jl", pairs) / grid_size[0]
        half = rows.diagonal().mean() / 2  # of the mean of W's diagonal, which is in both
        rows.diagonal().sub_(half)
        columns.diagonal().sub_(half)
        return {"rows": rows, "columns": columns}

    @classmethod
    def options_of(cls, tensors: Mapping[str, torch.Tensor]) -> dict[str, int] | None:
        return {} if tensors.keys() == {"rows", "columns", "bias"} else None

    def note(self) -> str:
        return "axial: the sum of a map along columns and one along rows"
