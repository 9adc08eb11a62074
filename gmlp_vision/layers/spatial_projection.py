"""Linear maps over the tokens of an image, shared by all channels.

Shapes: B batch, H, W the token grid, N = H * W tokens in row-major order, C channels.
"""

from collections.abc import Mapping

import torch
from torch import nn

from gmlp_vision.layers.ask import Operator
from gmlp_vision.layers.fast_form import fast_form
from gmlp_vision.layers.resample import Grid
from gmlp_vision.layers.rules import OPERATOR, TOKEN_MAP
from gmlp_vision.layers.structured import Structured, map_tokens


@fast_form()
class SpatialProjection(Structured):
    """``y[i] = sum_j W[i, j] x[j] + b[i]`` over the tokens of a grid (the f of Section 2.1 of the gMLP
    paper).

    Row i of W is the filter of output token i: ``W[i].reshape(H, W)`` is its kernel over the grid.

    On another grid W is R W S (layers/resample.py). The nearest one to a dense W is that W.

    Args:
        grid_size: (H, W) of the token grid that the map is tied to, in tokens.
        init_std: Standard deviation of W at the start.
        init_bias: All of b at the start.
        device, dtype: of the parameters.

    Shape: (B, H, W, C) -> (B, H, W, C).
    """

    RULES = {"weight": OPERATOR, "bias": TOKEN_MAP}  # noqa: RUF012  a ClassVar in the base

    def __init__(
        self,
        grid_size: Grid,
        init_std: float | None = 1e-6,
        init_bias: float = 1.0,
        device: torch.device | str | None = None,
        dtype: torch.dtype | None = None,
    ) -> None:
        super().__init__(grid_size, init_std, init_bias)
        n = grid_size[0] * grid_size[1]
        self.weight = nn.Parameter(torch.empty(n, n, device=device, dtype=dtype))
        self.bias = self.new_bias(device=device, dtype=dtype)
        self.reset_parameters()

    def reset_parameters(self) -> None:
        """By default W near zero and b = 1: the map starts as (nearly) the constant 1 (Section 2.1)."""
        nn.init.normal_(self.weight, std=self.init_std)
        nn.init.constant_(self.bias, self.init_bias)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        weight: torch.Tensor = self.weight
        bias: torch.Tensor = self.bias
        if self.dynamic:
            weight, bias = self.parameters_on((x.shape[1], x.shape[2]))
        return map_tokens(x, weight, bias)

    def fast_forward(self, x: torch.Tensor, grid_size: Grid) -> torch.Tensor:
        """W on the left of the (N, C) matrix of each image, so that no transpose is ever made.

        Shape: (B, N, C), the tokens of a grid in a row -> (B, N, C).
        """
        weight: torch.Tensor = self.weight
        bias: torch.Tensor = self.bias
        if self.dynamic:
            weight, bias = self.parameters_on(grid_size)
        return map_row_of_tokens(x, weight, bias)

    def matrix_of(self, grid_size: Grid, *parameters: torch.Tensor) -> torch.Tensor:
        return parameters[0].unsqueeze(0)

    @classmethod
    def nearest(cls, weight: torch.Tensor, grid_size: Grid) -> dict[str, torch.Tensor]:
        return {"weight": weight.double()}

    @classmethod
    def options_of(cls, tensors: Mapping[str, torch.Tensor]) -> dict[str, int] | None:
        return {} if tensors.keys() == {"weight", "bias"} else None

    def operators(self, grid_size: Grid) -> list[Operator]:
        """W and b themselves, as `gmlp_vision.layers.ask.operators` tells them."""
        return [Operator("", "token", self.weight, self.bias, self.init_std)]


def map_row_of_tokens(x: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor) -> torch.Tensor:
    """``W x + b`` over tokens in a row, without a transpose.

    Shapes: (B, N, C) tokens, (N, N) weight, (N,) bias -> as the tokens.
    """
    if torch.compiler.is_exporting():
        # ONNX's product repeats W for each image by itself; expanded, it would be copied. And quantisers
        # take what is added to a product for a bias of its last dimension (NNCF's bias correction).
        return weight @ x - (-bias).unsqueeze(-1)
    return torch.baddbmm(bias.unsqueeze(-1), weight.expand(len(x), -1, -1), x)
