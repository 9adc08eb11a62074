"""PosMLP's linear maps over tokens, which know their offsets only, one for each group of channels:
"Parameterization of Cross-Token Relations with Relative Positional Encoding for Vision MLP", Wang et al., ACM
MM 2022, https://arxiv.org/abs/2207.07284

Shapes: B batch, H, W the token grid, N = H * W tokens in row-major order, C channels, G groups.

    y[i, c] = sum_j W_g[i, j] x[j, c] + b[i]        channel c is of group g = c mod G, as in the authors' code

PosMLP itself puts such a map on the first half of Z, without a norm, in windows of a pyramid. Here it stands
in gMLP's units, in the place of their W, so behind the norm.
"""

import torch
from torch import nn

from gmlp_vision.layers.ask import Operator
from gmlp_vision.layers.grid_tied import GridTied
from gmlp_vision.layers.precision import at_least_float32
from gmlp_vision.layers.resample import OFFSETS, TOKEN_MAP, Grid, offsets_of
from gmlp_vision.layers.toeplitz import toeplitz_matrix

torch.fx.wrap("at_least_float32")

NOISE_STD = 0.01  # of centers and spreads at the start, in the authors' code


class LrpeProjection(GridTied):
    """W_g has a learned number for each offset; with one group it is a ToeplitzProjection.

    The authors' table is for the place of i less that of j, so this one is theirs turned by half a turn. They
    start it and b at 0; in gMLP's units both start as the unit says.

    Args:
        grid_size: (H, W) of the token grid that the table belongs to, in tokens.
        init_std: Standard deviation of the table at the start.
        init_bias: All of b at the start.
        groups: G.
        device, dtype: of the parameters.

    Shape: (B, H, W, C) -> (B, H, W, C), C a multiple of G.
    """

    RULES = {"table": OFFSETS, "bias": TOKEN_MAP}  # noqa: RUF012  a ClassVar in the base

    def __init__(
        self,
        grid_size: Grid,
        init_std: float = 1e-6,
        init_bias: float = 1.0,
        groups: int = 1,
        device: torch.device | str | None = None,
        dtype: torch.dtype | None = None,
    ) -> None:
        super().__init__(grid_size)
        self.init_std = init_std
        self.init_bias = init_bias
        self.table = nn.Parameter(torch.empty(*offsets_of(grid_size), groups, device=device, dtype=dtype))
        self.bias = nn.Parameter(torch.empty(grid_size[0] * grid_size[1], device=device, dtype=dtype))
        self.reset_parameters()

    def reset_parameters(self) -> None:
        """As a SpatialProjection starts."""
        nn.init.normal_(self.table, std=self.init_std)
        nn.init.constant_(self.bias, self.init_bias)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        table: torch.Tensor = self.table
        bias: torch.Tensor = self.bias
        if self.dynamic:
            table, bias = self.parameters_on((x.shape[1], x.shape[2]))
        return map_tokens_by_group(x, toeplitz_matrix(table, x.shape[1], x.shape[2]), bias)

    def operators(self, grid_size: Grid) -> list[Operator]:
        """W of each group, and b, as `gmlp_vision.layers.ask.operators` tells them."""
        w = toeplitz_matrix(self.table.detach(), *self.grid_size)
        return by_group(w, self.bias, self.init_std, "Toeplitz: made of a table of offsets")


class GqpeProjection(GridTied):
    """W_g is a Gaussian of the offset: six numbers a group, whatever the grid.

        W_g[i, j] = softmax over j of  -1/2 (d - m)^T S S^T (d - m)

    d is the place of j less that of i, in tokens, rows before columns; m = `centers[g]`, S = `spreads[g]`.
    In the authors' code rows run the other way, so their learned numbers have other signs. b is a token map.

    W is a mean and cannot start near 0. As theirs does, it starts at m = 0 and S = 1 with noise of std 0.01,
    so as a blur over the next tokens. b starts as the unit says, where theirs starts at 0.

    Args:
        grid_size: (H, W) of the token grid that b belongs to, in tokens.
        init_std: Not used.
        init_bias: All of b at the start.
        groups: G.
        device, dtype: of the parameters.

    Shape: (B, H, W, C) -> (B, H, W, C), C a multiple of G.
    """

    RULES = {"bias": TOKEN_MAP}  # noqa: RUF012  a ClassVar in the base

    def __init__(
        self,
        grid_size: Grid,
        init_std: float = 1e-6,
        init_bias: float = 1.0,
        groups: int = 1,
        device: torch.device | str | None = None,
        dtype: torch.dtype | None = None,
    ) -> None:
        super().__init__(grid_size)
        self.init_bias = init_bias
        self.centers = nn.Parameter(torch.empty(groups, 2, device=device, dtype=dtype))
        self.spreads = nn.Parameter(torch.empty(groups, 2, 2, device=device, dtype=dtype))
        self.bias = nn.Parameter(torch.empty(grid_size[0] * grid_size[1], device=device, dtype=dtype))
        self.reset_parameters()

    def reset_parameters(self) -> None:
        """A round Gaussian of std 1 token around the token itself, but for noise."""
        nn.init.normal_(self.centers, std=NOISE_STD)
        nn.init.normal_(self.spreads, std=NOISE_STD)
        with torch.no_grad():
            self.spreads.diagonal(dim1=1, dim2=2).add_(1.0)
        nn.init.constant_(self.bias, self.init_bias)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        bias: torch.Tensor = self.bias
        if self.dynamic:
            (bias,) = self.parameters_on((x.shape[1], x.shape[2]))
        w = gaussian_matrix(self.centers, self.spreads, x.shape[1], x.shape[2]).to(x.dtype)
        return map_tokens_by_group(x, w, bias)

    def operators(self, grid_size: Grid) -> list[Operator]:
        """W of each group, and b, as `gmlp_vision.layers.ask.operators` tells them."""
        centers, spreads = self.centers.detach(), self.spreads.detach()
        w = gaussian_matrix(centers, spreads, *self.grid_size)
        # a number, also where the layer is on the meta device
        start = gaussian_matrix(
            torch.zeros(1, 2, device="cpu"), torch.eye(2, device="cpu").unsqueeze(0), *self.grid_size
        )
        return by_group(w, self.bias, start.std().item(), "a Gaussian of the offset")


def map_tokens_by_group(x: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor) -> torch.Tensor:
    """``W_g x + b`` over the tokens, channel c with the W of group c mod G.

    Shapes: (B, H, W, C) tokens, (N, N, G) weight, (N,) bias -> as the tokens.
    """
    tokens = x.flatten(1, 2).unflatten(2, [-1, weight.shape[2]])
    mapped = torch.einsum("ijg,bjvg->bivg", weight, tokens).flatten(2)
    return (mapped + bias.unsqueeze(1)).view_as(x)


def gaussian_matrix(centers: torch.Tensor, spreads: torch.Tensor, height: int, width: int) -> torch.Tensor:
    """W, (N, N, G) in float32 or above, of centers (G, 2) and spreads (G, 2, 2)."""
    centers, spreads = at_least_float32(centers), at_least_float32(spreads)
    # W knows offsets only: a table of them first, (2 H - 1, 2 W - 1, G), the centre one's own place
    down = torch.arange(1 - height, height, device=centers.device, dtype=centers.dtype)
    right = torch.arange(1 - width, width, device=centers.device, dtype=centers.dtype)
    away_down = down.unsqueeze(1).unsqueeze(2) - centers[:, 0]
    away_right = right.unsqueeze(1) - centers[:, 1]
    # -1/2 |(d - m) S|^2: as a sum of squares it cannot become positive
    stretched = away_down.unsqueeze(-1) * spreads[:, 0] + away_right.unsqueeze(-1) * spreads[:, 1]
    return toeplitz_matrix(-0.5 * stretched.square().sum(-1), height, width).softmax(1)


def by_group(w: torch.Tensor, bias: torch.Tensor, init_std: float, note: str) -> list[Operator]:
    """An operator for each group of (N, N, G)."""
    return [Operator(f"group {g}", "token", one, bias, init_std, note) for g, one in enumerate(w.unbind(2))]
