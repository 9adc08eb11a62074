"""One sum of three branches, with weights for each channel that the branches themselves decide.

Shapes: B batch, H, W the token grid, D width.
"""

import torch
from timm.layers import Mlp
from torch import nn


class Reweight(nn.Module):
    """``a_1 * X_1 + a_2 * X_2 + a_3 * X_3``: the weights are the softmax, over the branches, of
    ``MLP(mean(X_1 + X_2 + X_3))``, the mean over all tokens of an image. The MLP goes D -> D / 4 -> 3 D with
    GELU, and its three numbers for one channel lie side by side.

    From Vision Permutator (https://arxiv.org/abs/2106.12368, Section 3.2, "weighted"); CycleMLP, Hire-MLP
    and Wave-MLP have it too.

    Args:
        dim: D.
        bias: Whether the MLP has biases.
        device, dtype: of the parameters.

    Shape: three times (B, H, W, D) -> (B, H, W, D).
    """

    def __init__(
        self,
        dim: int,
        bias: bool = True,
        device: torch.device | str | None = None,
        dtype: torch.dtype | None = None,
    ) -> None:
        super().__init__()
        self.mlp = Mlp(dim, dim // 4, 3 * dim, bias=bias, device=device, dtype=dtype)

    def forward(self, x: torch.Tensor, y: torch.Tensor, z: torch.Tensor) -> torch.Tensor:
        a = self.mlp((x + y + z).mean(dim=(1, 2), keepdim=True))
        a, b, c = a.unflatten(-1, (-1, 3)).softmax(dim=-1).unbind(dim=-1)
        return a * x + b * y + c * z
