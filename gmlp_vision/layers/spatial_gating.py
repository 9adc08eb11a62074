"""The spatial gating unit, gMLP's only interaction between tokens ("Pay Attention to MLPs", Section 2.1).

Shapes: B batch, N tokens (or H, W: a grid of them), E hidden width.
"""

import torch
from torch import nn

from gmlp_vision.layers.spatial_projection import SpatialProjection


class SpatialGatingUnit(nn.Module):
    """``s(Z) = Z1 * f(LN(Z2))``: Z1, Z2 the halves of Z along the channels, f a linear map over tokens.

    Args:
        hidden_dim: E, the width of Z; even.
        grid_size: (H, W) of the token grid, in tokens.
        projection: The kind of f.
        device, dtype: of the parameters.

    Shape: (B, N, E) -> (B, N, E / 2), or (B, H, W, E) -> (B, H, W, E / 2) if that is what f takes.
    """

    def __init__(
        self,
        hidden_dim: int,
        grid_size: tuple[int, int],
        projection: type[SpatialProjection] = SpatialProjection,
        device: torch.device | str | None = None,
        dtype: torch.dtype | None = None,
    ) -> None:
        super().__init__()
        # This norm keeps LayerNorm's own eps, 1e-5, while the block's has 1e-6: released weights expect it.
        self.norm = nn.LayerNorm(hidden_dim // 2, device=device, dtype=dtype)
        self.proj = projection(grid_size, device=device, dtype=dtype)

    def forward(self, z: torch.Tensor) -> torch.Tensor:
        z1, z2 = z.chunk(2, dim=-1)
        return z1 * self.proj(self.norm(z2))
