"""The spatial gating unit, gMLP's only interaction between tokens ("Pay Attention to MLPs", Section 2.1).

Shapes: B batch, H, W the token grid, E hidden width.
"""

import torch
from torch import nn

from gmlp_vision.layers.fast_form import fast_form
from gmlp_vision.layers.resample import Grid
from gmlp_vision.layers.spatial_projection import SpatialProjection


@fast_form(norm=nn.LayerNorm, proj=SpatialProjection)
class SpatialGatingUnit(nn.Module):
    """``s(Z) = Z1 * f(LN(Z2))``: Z1, Z2 the halves of Z along the channels, f a linear map over tokens.

    Args:
        hidden_dim: E, the width of Z; even.
        grid_size: (H, W) of the token grid, in tokens.
        device, dtype: of the parameters.

    Attributes:
        out_dim: The width of what comes out, E / 2.

    Shape: (B, H, W, E) -> (B, H, W, E / 2).

    Raises:
        ValueError: E is odd, so Z has no halves.
    """

    def __init__(
        self,
        hidden_dim: int,
        grid_size: Grid,
        device: torch.device | str | None = None,
        dtype: torch.dtype | None = None,
    ) -> None:
        super().__init__()
        if hidden_dim < 2 or hidden_dim % 2:
            raise ValueError(
                f"the hidden width is {hidden_dim}; the spatial gating unit splits it in halves, so it must "
                "be even: change embed_dim or mlp_ratio, whose product it is"
            )
        self.out_dim = hidden_dim // 2
        # This norm keeps LayerNorm's own eps, 1e-5, while the block's has 1e-6: released weights expect it.
        self.norm = nn.LayerNorm(self.out_dim, device=device, dtype=dtype)
        self.proj = SpatialProjection(grid_size, device=device, dtype=dtype)

    def forward(self, z: torch.Tensor) -> torch.Tensor:
        z1, z2 = z.chunk(2, dim=-1)
        return z1 * self.proj(self.norm(z2))

    def fast_forward(self, z1: torch.Tensor, z2: torch.Tensor, overwrite: bool) -> torch.Tensor:
        """The same of halves that are whole tensors; `overwrite` as in `GatedMlp.fast_forward`."""
        gate = self.proj.fast_forward(self.norm(z2))
        return gate.mul_(z1) if overwrite else gate * z1
