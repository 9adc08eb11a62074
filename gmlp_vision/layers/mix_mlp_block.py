"""The block of most mixers: one residual branch mixes the tokens, another one the channels.

Shapes: B batch, H, W the token grid, N = H * W tokens in row-major order, D width.
"""

from collections.abc import Callable
from typing import Any

import torch
from timm.layers import DropPath, Mlp
from torch import nn

from gmlp_vision.layers.hidden_width import hidden_width
from gmlp_vision.layers.resample import Grid


class MixMlpBlock(nn.Module):
    """``X = X + mix(norm(X))``, then ``X = X + MLP(norm(X))``, the MLP two linear layers with GELU between.

    Args:
        dim: D.
        grid_size: (H, W) of the token grid, in tokens.
        mixer: Makes what mixes the tokens, from D, the grid, device and dtype; it keeps the shape.
        mlp_ratio: The hidden width of the MLP, as a multiple of D.
        proj_drop_rate: Dropout in the MLP, after GELU and at its end, in [0, 1].
        drop_path: Probability that a sample skips a branch, in [0, 1).
        norm: Makes a norm of (B, H, W, D), from D, eps, device and dtype.
        norm_eps: eps of both norms.
        device, dtype: of the parameters.
        own: What the mixer takes beside these.

    Shape: (B, H, W, D) -> (B, H, W, D), or (B, 1 + N, D) -> (B, 1 + N, D) where there is a class token.

    Raises:
        TypeError: An argument that the mixer does not have.
        ValueError: A value that the mixer or a dropout refuses.
    """

    def __init__(
        self,
        dim: int,
        grid_size: Grid,
        *,
        mixer: Callable[..., nn.Module],
        mlp_ratio: float = 4.0,
        proj_drop_rate: float = 0.0,
        drop_path: float = 0.0,
        norm: Callable[..., nn.Module] = nn.LayerNorm,
        norm_eps: float = 1e-6,
        device: torch.device | str | None = None,
        dtype: torch.dtype | None = None,
        **own: Any,
    ) -> None:
        super().__init__()
        dd: dict[str, Any] = {"device": device, "dtype": dtype}
        self.norm1 = norm(dim, eps=norm_eps, **dd)
        self.mixer = mixer(dim, grid_size, **dd, **own)
        self.norm2 = norm(dim, eps=norm_eps, **dd)
        self.mlp = Mlp(dim, hidden_width(dim, mlp_ratio), drop=proj_drop_rate, **dd)
        self.drop_path = DropPath(drop_path) if drop_path > 0 else nn.Identity()  # each call draws anew

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = x + self.drop_path(self.mixer(self.norm1(x)))
        return x + self.drop_path(self.mlp(self.norm2(x)))
