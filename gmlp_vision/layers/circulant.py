"""A linear map over tokens that knows their offsets around the borders of the grid: a convolution on a torus.

Shapes: B batch, H, W the token grid, N = H * W tokens in row-major order, C channels, G groups of channels.
"""

from collections.abc import Mapping

import torch
from torch import nn

from gmlp_vision.layers.fourier import correlate_on_torus
from gmlp_vision.layers.resample import Grid
from gmlp_vision.layers.rules import CYCLIC_OFFSETS, TOKEN_MAP
from gmlp_vision.layers.structured import Structured

torch.fx.wrap("correlate_on_torus")


class CirculantProjection(Structured):
    """``y[i] = sum_d k[d] x[i + d] + b[i]``, i + d taken around the borders; channel c has the k of group
    c mod G.

    W has N numbers a group, and a call costs N log N a channel, by the Fourier transform.

    On another grid offsets, taken the shorter way round, keep their number, and others are 0; one that is as
    long both ways is divided between them. So what grows comes back exactly. Numbers start at `init_std`.

    The nearest one to a dense W is its mean over all pairs of tokens with an offset; all groups have it.

    Args:
        grid_size: (H, W) of the token grid, in tokens.
        init_std: As for a dense W; see Structured.
        init_bias: All of b at the start.
        groups: G.
        device, dtype: of the parameters.

    Shape: (B, H, W, C) -> (B, H, W, C), C a multiple of G.
    """

    RULES = {"around": CYCLIC_OFFSETS, "bias": TOKEN_MAP}  # noqa: RUF012  a ClassVar in the base
    GROUPED = True

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
        self.around = nn.Parameter(torch.empty(*grid_size, groups, device=device, dtype=dtype))
        self.bias = self.new_bias(device=device, dtype=dtype)
        self.reset_parameters()

    def reset_parameters(self) -> None:
        """As every kind of W starts."""
        nn.init.normal_(self.around, std=self.init_std)
        nn.init.constant_(self.bias, self.init_bias)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        around: torch.Tensor = self.around
        bias: torch.Tensor = self.bias
        if self.dynamic:
            around, bias = self.parameters_on((x.shape[1], x.shape[2]))
        y = correlate_on_torus(x, around).to(x.dtype)
        return y + bias.view(x.shape[1], x.shape[2], 1)

    def matrix_of(self, grid_size: Grid, *parameters: torch.Tensor) -> torch.Tensor:
        return circulant_matrix(parameters[0])

    @classmethod
    def nearest(cls, weight: torch.Tensor, grid_size: Grid, groups: int = 1) -> dict[str, torch.Tensor]:
        n = len(weight)
        index = circulant_matrix(torch.arange(n, device=weight.device).view(*grid_size, 1)).flatten()
        sums = weight.new_zeros(n, dtype=torch.float64).scatter_add(0, index, weight.double().flatten())
        return {"around": (sums / n).view(*grid_size, 1).repeat(1, 1, groups)}

    @classmethod
    def options_of(cls, tensors: Mapping[str, torch.Tensor]) -> dict[str, int] | None:
        known = tensors.keys() == {"around", "bias"} and tensors["around"].ndim == 3
        return {"groups": tensors["around"].shape[2]} if known else None

    def note(self) -> str:
        return "circulant: a convolution around the borders"


def circulant_matrix(around: torch.Tensor) -> torch.Tensor:
    """W, (G, N, N), of the numbers of offsets (H, W, G)."""
    height, width = around.shape[0], around.shape[1]
    rows = torch.arange(height, device=around.device)
    columns = torch.arange(width, device=around.device)
    down = (rows - rows.unsqueeze(1)) % height  # [i, k] for the rows of tokens i and k
    right = (columns - columns.unsqueeze(1)) % width
    w = around[down.unsqueeze(1).unsqueeze(3), right.unsqueeze(1)]  # (H, W, H, W, G)
    return w.flatten(2, 3).flatten(0, 1).permute(2, 0, 1)
