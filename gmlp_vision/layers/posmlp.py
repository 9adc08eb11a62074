"""PosMLP's linear maps over tokens, which know their offsets only, one for each group of channels:
"Parameterization of Cross-Token Relations with Relative Positional Encoding for Vision MLP", Wang et al., ACM
MM 2022, https://arxiv.org/abs/2207.07284

Shapes: B batch, H, W the token grid, N = H * W tokens in row-major order, C channels, G groups.

    y[i, c] = sum_j W_g[i, j] x[j, c] + b[i]        channel c is of group g = c mod G, as in the authors' code

PosMLP itself puts such a map on the first half of Z, without a norm, in windows of a pyramid. Here it stands
in gMLP's units, in the place of their W, so behind the norm.
"""

from collections.abc import Mapping

import torch
from torch import nn

from gmlp_vision.layers.fast_form import fast_form
from gmlp_vision.layers.offsets import toeplitz_matrix
from gmlp_vision.layers.precision import at_least_float32
from gmlp_vision.layers.resample import Grid
from gmlp_vision.layers.structured import Structured, map_tokens_by_group
from gmlp_vision.layers.toeplitz import ToeplitzProjection

torch.fx.wrap("at_least_float32")

NOISE_STD = 0.01  # of centers and spreads at the start, in the authors' code


@fast_form()
class LrpeProjection(ToeplitzProjection):
    """W_g has a learned number for each offset: a ToeplitzProjection, whose table has an axis for the groups
    with one group too.

    The authors' table is for the place of i less that of j, so this one is theirs turned by half a turn. They
    start it and b at 0; in gMLP's units both start as the unit says.
    """

    GROUPED = True

    @classmethod
    def axes_of(cls, groups: int) -> tuple[int, ...]:
        return (groups,)

    @classmethod
    def options_of(cls, tensors: Mapping[str, torch.Tensor]) -> dict[str, int] | None:
        known = tensors.keys() == {"table", "bias"} and tensors["table"].ndim == 3
        return {"groups": tensors["table"].shape[2]} if known else None


class GqpeProjection(Structured):
    """W_g is a Gaussian of the offset: six numbers a group, whatever the grid.

        W_g[i, j] = softmax over j of  -1/2 (d - m)^T S S^T (d - m)

    d is the place of j less that of i, in tokens, rows before columns; m = `centers[g]`, S = `spreads[g]`.
    In the authors' code rows run the other way, so their learned numbers have other signs. b is a token map.

    A call makes W, N^2 numbers a group, and costs N^2 a channel, as a dense W. The six numbers stay as they
    are on another grid. No formula gives the nearest one to a dense W, so a fit is refused.

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

    GROUPED = True
    NO_NEAREST = (
        "W is a softmax of a quadratic form, so no formula gives the nearest one, and a search may end "
        "in another place each time"
    )

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
        self.centers = nn.Parameter(torch.empty(groups, 2, device=device, dtype=dtype))
        self.spreads = nn.Parameter(torch.empty(groups, 2, 2, device=device, dtype=dtype))
        self.bias = self.new_bias(device=device, dtype=dtype)
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

    def matrix_of(self, grid_size: Grid, *parameters: torch.Tensor) -> torch.Tensor:
        return gaussian_matrix(self.centers, self.spreads, *grid_size)

    @classmethod
    def options_of(cls, tensors: Mapping[str, torch.Tensor]) -> dict[str, int] | None:
        known = tensors.keys() == {"centers", "spreads", "bias"} and tensors["centers"].ndim == 2
        return {"groups": len(tensors["centers"])} if known else None

    def note(self) -> str:
        return "a Gaussian of the offset"

    def start_std(self) -> float:
        """The standard deviation of W's entries at the start, but for noise, whatever `init_std` is; 0 where
        there is one token."""
        # on the CPU, since it is a number also where the layer is on the meta device
        centers, spreads = torch.zeros(1, 2, device="cpu"), torch.eye(2, device="cpu").unsqueeze(0)
        return gaussian_matrix(centers, spreads, *self.grid_size).std(correction=0).item()


def gaussian_matrix(centers: torch.Tensor, spreads: torch.Tensor, height: int, width: int) -> torch.Tensor:
    """W, (G, N, N) in float32 or above, of centers (G, 2) and spreads (G, 2, 2)."""
    centers, spreads = at_least_float32(centers), at_least_float32(spreads)
    # W knows offsets only: a table of them first, (2 H - 1, 2 W - 1, G), the centre one's own place
    down = torch.arange(1 - height, height, device=centers.device, dtype=centers.dtype)
    right = torch.arange(1 - width, width, device=centers.device, dtype=centers.dtype)
    away_down = down.unsqueeze(1).unsqueeze(2) - centers[:, 0]
    away_right = right.unsqueeze(1) - centers[:, 1]
    # -1/2 |(d - m) S|^2: as a sum of squares it cannot become positive
    stretched = away_down.unsqueeze(-1) * spreads[:, 0] + away_right.unsqueeze(-1) * spreads[:, 1]
    return toeplitz_matrix(-0.5 * stretched.square().sum(-1), height, width).softmax(1).permute(2, 0, 1)
