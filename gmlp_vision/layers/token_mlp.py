"""Linear layers that read and write tokens, with something else than tokens between, and Mixer's MLP of two.

Each channel is mixed by itself, and none of it needs a transpose.

Shapes: B batch, H, W the token grid, N = H * W tokens in row-major order, D width, K hidden units.
"""

import math
from typing import Any

import torch
from torch import nn

from gmlp_vision.layers.ask import Operator
from gmlp_vision.layers.grid_tied import GridTied
from gmlp_vision.layers.resample import Grid
from gmlp_vision.layers.rules import TOKEN_MAP, TOKEN_READER


class TokenReader(GridTied):
    """``A X + a``: each of K hidden units is a sum over the tokens.

    Args:
        grid_size: (H, W) of the token grid that A belongs to, in tokens.
        hidden_dim: K.
        device, dtype: of the parameters: A^T (N, K), a (K,).

    Shape: (B, H, W, D) -> (B, K, D).
    """

    RULES = {"weight": TOKEN_READER}  # noqa: RUF012  a ClassVar in the base

    def __init__(
        self, grid_size: Grid, hidden_dim: int, device: Any = None, dtype: torch.dtype | None = None
    ) -> None:
        super().__init__(grid_size)
        tokens = grid_size[0] * grid_size[1]
        self.weight = nn.Parameter(torch.empty(tokens, hidden_dim, device=device, dtype=dtype))
        self.bias = nn.Parameter(torch.empty(hidden_dim, device=device, dtype=dtype))
        self.reset_parameters()

    def reset_parameters(self) -> None:
        nn.init.xavier_uniform_(self.weight)
        nn.init.zeros_(self.bias)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        weight: torch.Tensor = self.weight
        if self.dynamic:
            (weight,) = self.parameters_on((x.shape[1], x.shape[2]))
        return map_rows(x.flatten(1, 2), weight.t(), self.bias)

    def operators(self, grid_size: Grid) -> list[Operator]:
        """A, as `gmlp_vision.layers.ask.operators` tells it."""
        return [Operator("", "hidden", self.weight.T, self.bias, xavier_std(self.weight))]


class TokenWriter(GridTied):
    """``C Z + c``: each token is a sum over K hidden units.

    Args:
        grid_size: (H, W) of the token grid that C and c belong to, in tokens.
        hidden_dim: K.
        device, dtype: of the parameters: C (N, K), c (N,).

    Shape: (B, K, D) -> (B, H, W, D).
    """

    RULES = {"weight": TOKEN_MAP, "bias": TOKEN_MAP}  # noqa: RUF012  a ClassVar in the base

    def __init__(
        self, grid_size: Grid, hidden_dim: int, device: Any = None, dtype: torch.dtype | None = None
    ) -> None:
        super().__init__(grid_size)
        tokens = grid_size[0] * grid_size[1]
        self.weight = nn.Parameter(torch.empty(tokens, hidden_dim, device=device, dtype=dtype))
        self.bias = nn.Parameter(torch.empty(tokens, device=device, dtype=dtype))
        self.reset_parameters()

    def reset_parameters(self) -> None:
        nn.init.xavier_uniform_(self.weight)
        nn.init.zeros_(self.bias)

    def forward(self, z: torch.Tensor, height: int, width: int) -> torch.Tensor:
        """The grid is asked for, since the hidden units do not tell it."""
        weight: torch.Tensor = self.weight
        bias: torch.Tensor = self.bias
        if self.dynamic:
            weight, bias = self.parameters_on((height, width))
        return map_rows(z, weight, bias).unflatten(1, [height, width])

    def operators(self, grid_size: Grid) -> list[Operator]:
        """C, as `gmlp_vision.layers.ask.operators` tells it."""
        note = "transposed: where a hidden unit writes"
        return [Operator("", "hidden", self.weight.T, self.bias, xavier_std(self.weight), note)]


class TokenMlp(nn.Module):
    """``C GELU(A X + a) + c``, Mixer's MLP over tokens.

    Args:
        dim: Not used: each channel is mixed by itself.
        grid_size: (H, W) of the token grid, in tokens.
        token_dim: K.
        device, dtype: of the parameters.

    Shape: (B, H, W, D) -> (B, H, W, D).

    Raises:
        ValueError: `token_dim` is not positive.
    """

    def __init__(
        self,
        dim: int,
        grid_size: Grid,
        *,
        token_dim: int,
        device: Any = None,
        dtype: torch.dtype | None = None,
    ) -> None:
        super().__init__()
        if token_dim < 1:
            raise ValueError(f"token_dim is {token_dim}; expected at least 1")
        self.fc1 = TokenReader(grid_size, token_dim, device, dtype)
        self.act = nn.GELU()
        self.fc2 = TokenWriter(grid_size, token_dim, device, dtype)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.fc2(self.act(self.fc1(x)), x.shape[1], x.shape[2])

    def operators(self, grid_size: Grid) -> list[Operator]:
        """The product of both layers, each of which tells its own."""
        reads, writes = self.fc1.weight.double(), self.fc2.weight.double()
        bias = writes @ self.fc1.bias.double() + self.fc2.bias.double()
        std = math.sqrt(reads.shape[1]) * xavier_std(reads) * xavier_std(writes)
        return [Operator("product", "token", writes @ reads.T, bias, std, "ignores the non-linearity")]


def map_rows(x: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor) -> torch.Tensor:
    """``W x + b`` over the rows of each image.

    Shapes: (B, R, D), (R', R) weight, (R',) bias -> (B, R', D).
    """
    return torch.baddbmm(bias.unsqueeze(-1), weight.expand(x.shape[0], -1, -1), x)


def xavier_std(weight: torch.Tensor) -> float:
    """Of nn.init.xavier_uniform_ (Glorot and Bengio 2010, equation 16)."""
    return math.sqrt(2 / sum(weight.shape))
