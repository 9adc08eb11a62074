"""torch's norms over channels, for tokens that stand on their grid.

Shapes: B batch, H, W the token grid, D width.
"""

from typing import Any

import torch
from torch import nn


class OverChannels(nn.Module):
    """A norm of (B, D, H, W), for (B, H, W, D): a view with their channels first.

    It holds the norm rather than being one, so that `convert_sync_batchnorm`, which puts another class in the
    place of a BatchNorm, changes nothing else.

    Shape: (B, H, W, D) -> (B, H, W, D).
    """

    def __init__(self, norm: nn.Module) -> None:
        super().__init__()
        self.norm = norm

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        # contiguous as it is, but for torch.compile, which expects of a batch norm another layout than it has
        return self.norm(x.permute(0, 3, 1, 2)).permute(0, 2, 3, 1).contiguous()


class BatchNorm(OverChannels):
    """Batch normalisation: each channel over the batch and the grid; arguments as those of nn.LayerNorm."""

    def __init__(self, dim: int, eps: float = 1e-5, **kwargs: Any) -> None:
        super().__init__(nn.BatchNorm2d(dim, eps=eps, **kwargs))


class GroupNorm(OverChannels):
    """Group normalisation with one group: each image over its channels and its grid."""

    def __init__(self, dim: int, eps: float = 1e-5, **kwargs: Any) -> None:
        super().__init__(nn.GroupNorm(1, dim, eps=eps, **kwargs))
