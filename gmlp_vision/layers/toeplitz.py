"""A linear map over tokens that knows their offsets only.

Shapes: B batch, H, W the token grid, N = H * W tokens in row-major order, C channels, G groups of channels.
"""

from collections.abc import Mapping

import torch
from torch import nn

from gmlp_vision.layers.fast_form import fast_form
from gmlp_vision.layers.offsets import makes_w, map_offsets, mean_of_offsets, toeplitz_matrix
from gmlp_vision.layers.resample import Grid, offsets_of
from gmlp_vision.layers.rules import OFFSETS, TOKEN_MAP
from gmlp_vision.layers.spatial_projection import map_row_of_tokens
from gmlp_vision.layers.structured import Structured

torch.fx.wrap("map_offsets")


@fast_form()
class ToeplitzProjection(Structured):
    """``y[i, c] = sum_j T_g[offset of j from i] x[j, c] + b[i]``: a dense W that is block-Toeplitz.

    ``T[H - 1 + i, W - 1 + j]`` is for the token i rows further down and j columns further right. W, N x N,
    then depends on offsets alone: (2 H - 1)(2 W - 1) numbers in the place of N^2, and equal filters at all
    tokens. The gMLP paper uses such W in its language models (its appendix C shows that a free W becomes
    much like one) and a free W for images. Tokens have no one order in two dimensions, so the two-dimensional
    offset is this project's reading.

    On another grid T is not resized: equal offsets keep their number, others are 0. b is a token map. The
    nearest one to a dense W has the means of W over equal offsets; its groups are alike. On large grids W is
    never made, and the cost is N (H + W) in the place of N^2 (layers/offsets.py).

    Args:
        grid_size: (H, W) of the token grid that the table belongs to, in tokens.
        init_std: Standard deviation of the table at the start.
        init_bias: All of b at the start.
        groups: G; with 1 the table has no axis for them. In models groups are those of LrpeProjection.
        device, dtype: of the parameters.

    Shape: (B, H, W, C) -> (B, H, W, C), C a multiple of G.
    """

    RULES = {"table": OFFSETS, "bias": TOKEN_MAP}  # noqa: RUF012  a ClassVar in the base

    def __init__(
        self,
        grid_size: Grid,
        init_std: float | None = 1e-6,
        init_bias: float = 1.0,
        groups: int = 1,
        device: torch.device | str | None = None,
        dtype: torch.dtype | None = None,
    ) -> None:
        super().__init__(grid_size, init_std, init_bias)
        axes = self.axes_of(groups)
        self.table = nn.Parameter(torch.empty(*offsets_of(grid_size), *axes, device=device, dtype=dtype))
        self.bias = self.new_bias(device=device, dtype=dtype)
        self.reset_parameters()

    @classmethod
    def axes_of(cls, groups: int) -> tuple[int, ...]:
        """The sizes that the table has beside those of the offsets."""
        return (groups,) if groups > 1 else ()

    def reset_parameters(self) -> None:
        """As a SpatialProjection starts, so that W and b have the same distribution."""
        nn.init.normal_(self.table, std=self.init_std)
        nn.init.constant_(self.bias, self.init_bias)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        table: torch.Tensor = self.table
        bias: torch.Tensor = self.bias
        if self.dynamic:
            table, bias = self.parameters_on((x.shape[1], x.shape[2]))
        return map_offsets(x, table, bias)

    def fast_forward(self, x: torch.Tensor, grid_size: Grid) -> torch.Tensor:
        """The same; where W is made, on the left of each image's tokens.

        Shape: (B, N, C), the tokens of a grid in a row -> (B, N, C).
        """
        table: torch.Tensor = self.table
        bias: torch.Tensor = self.bias
        if self.dynamic:
            table, bias = self.parameters_on(grid_size)
        if table.ndim == 2 and makes_w(*grid_size):
            return map_row_of_tokens(x, toeplitz_matrix(table, *grid_size), bias)
        return map_offsets(x.unflatten(1, grid_size), table, bias).flatten(1, 2)

    def matrix_of(self, grid_size: Grid, *parameters: torch.Tensor) -> torch.Tensor:
        w = toeplitz_matrix(parameters[0], *grid_size)
        return w.unsqueeze(0) if w.ndim == 2 else w.permute(2, 0, 1)

    @classmethod
    def nearest(cls, weight: torch.Tensor, grid_size: Grid, groups: int = 1) -> dict[str, torch.Tensor]:
        means, axes = mean_of_offsets(weight, grid_size), cls.axes_of(groups)
        return {"table": means.view(*means.shape, *(1 for _ in axes)).repeat(1, 1, *axes)}

    @classmethod
    def options_of(cls, tensors: Mapping[str, torch.Tensor]) -> dict[str, int] | None:
        return {} if tensors.keys() == {"table", "bias"} and tensors["table"].ndim == 2 else None

    def note(self) -> str:
        rows, columns = self.table.shape[:2]
        return f"Toeplitz: made of a table of {rows} x {columns} offsets"
