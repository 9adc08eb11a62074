"""A linear map over tokens that knows their offsets only, shared by all channels.

Shapes: B batch, H, W the token grid, N = H * W tokens in row-major order, C channels.
"""

from collections.abc import Mapping

import torch
from torch import nn

from gmlp_vision.layers.resample import OFFSETS, TOKEN_MAP, Grid, offsets_of
from gmlp_vision.layers.structured import Structured, map_tokens


class ToeplitzProjection(Structured):
    """``y[i] = sum_j T[offset of j from i] x[j] + b[i]``: a SpatialProjection whose W is block-Toeplitz.

    ``T[H - 1 + i, W - 1 + j]`` is for the token i rows further down and j columns further right. W, N x N,
    then depends on offsets alone: (2 H - 1)(2 W - 1) numbers in the place of N^2, and equal filters at all
    tokens. The gMLP paper uses such W in its language models (its appendix C shows that a free W becomes
    much like one) and a free W for images. Tokens have no one order in two dimensions, so the two-dimensional
    offset is this project's reading.

    On another grid T is not resized: equal offsets keep their number, others are 0. b is a token map.

    Args:
        grid_size: (H, W) of the token grid that the table belongs to, in tokens.
        init_std: Standard deviation of the table at the start.
        init_bias: All of b at the start.
        device, dtype: of the parameters.

    Shape: (B, H, W, C) -> (B, H, W, C).
    """

    RULES = {"table": OFFSETS, "bias": TOKEN_MAP}  # noqa: RUF012  a ClassVar in the base

    def __init__(
        self,
        grid_size: Grid,
        init_std: float = 1e-6,
        init_bias: float = 1.0,
        device: torch.device | str | None = None,
        dtype: torch.dtype | None = None,
    ) -> None:
        super().__init__(grid_size, init_std, init_bias)
        self.table = nn.Parameter(torch.empty(*offsets_of(grid_size), device=device, dtype=dtype))
        self.bias = self.new_bias(device=device, dtype=dtype)
        self.reset_parameters()

    def reset_parameters(self) -> None:
        """As a SpatialProjection starts, so that W and b have the same distribution."""
        nn.init.normal_(self.table, std=self.init_std)
        nn.init.constant_(self.bias, self.init_bias)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        table: torch.Tensor = self.table
        bias: torch.Tensor = self.bias
        if self.dynamic:
            table, bias = self.parameters_on((x.shape[1], x.shape[2]))
        return map_tokens(x, toeplitz_matrix(table, x.shape[1], x.shape[2]), bias)

    def matrix_of(self, grid_size: Grid, *parameters: torch.Tensor) -> torch.Tensor:
        return toeplitz_matrix(parameters[0], *grid_size).unsqueeze(0)

    @classmethod
    def nearest(cls, weight: torch.Tensor, grid_size: Grid) -> dict[str, torch.Tensor]:
        return {"table": mean_of_offsets(weight, grid_size)}

    @classmethod
    def options_of(cls, tensors: Mapping[str, torch.Tensor]) -> dict[str, int] | None:
        return {} if tensors.keys() == {"table", "bias"} and tensors["table"].ndim == 2 else None

    def note(self) -> str:
        rows, columns = self.table.shape
        return f"Toeplitz: made of a table of {rows} x {columns} offsets"


def toeplitz_matrix(table: torch.Tensor, height: int, width: int) -> torch.Tensor:
    """W, (N, N, ...), of the table (2 H - 1, 2 W - 1, ...) of a grid of this height and width, in tokens."""
    rows = torch.arange(height, device=table.device)
    columns = torch.arange(width, device=table.device)
    down = rows - rows.unsqueeze(1) + (height - 1)  # [i, k] for the rows of tokens i and k
    right = columns - columns.unsqueeze(1) + (width - 1)
    w = table[down.unsqueeze(1).unsqueeze(3), right.unsqueeze(1)]  # (H, W, H, W, ...)
    return w.flatten(2, 3).flatten(0, 1)


def mean_of_offsets(weight: torch.Tensor, grid_size: Grid) -> torch.Tensor:
    """The table, (2 H - 1, 2 W - 1) in float64, of the Toeplitz matrix nearest to W, (N, N): the mean over
    all pairs of tokens with an offset."""
    n = grid_size[0] * grid_size[1]
    sizes = offsets_of(grid_size)
    numbers = torch.arange(sizes[0] * sizes[1], device=weight.device).view(sizes)
    index = toeplitz_matrix(numbers, *grid_size).flatten()
    values = weight.double().reshape(n * n)
    total = torch.zeros(len(numbers.flatten()), dtype=values.dtype, device=weight.device)
    counts = total.scatter_add(0, index, torch.ones_like(values))
    return (total.scatter_add(0, index, values) / counts).view(sizes)
