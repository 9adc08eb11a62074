"""torch's norms over channels, for tokens that stand on their grid.

Shapes: B batch, H, W the token grid, D width.
"""

from typing import Any

import torch
from torch import nn


class OverChannels(nn.Module):
    """A norm of torch's, for (B, H, W, D).

    It holds the norm rather than being one, so that `convert_sync_batchnorm`, which puts another class in the
    place of a BatchNorm, changes nothing else.

    Shape: (B, H, W, D) -> (B, H, W, D).
    """

    def __init__(self, norm: nn.Module) -> None:
        super().__init__()
        self.norm = norm


class BatchNorm(OverChannels):
    """Batch normalisation: each channel over the batch and the grid; arguments as those of nn.LayerNorm."""

    def __init__(self, dim: int, eps: float = 1e-5, **kwargs: Any) -> None:
        super().__init__(nn.BatchNorm1d(dim, eps=eps, **kwargs))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        # As a batch of tokens. With the channels first, torch.compile expects of a batch norm, and of its
        # gradient, another layout than they have.
        return self.norm(x.flatten(0, 2)).view_as(x)


class GroupNorm(OverChannels):
    """Group normalisation with one group: each image over its channels and its grid."""

    def __init__(self, dim: int, eps: float = 1e-5, **kwargs: Any) -> None:
        super().__init__(nn.GroupNorm(1, dim, eps=eps, **kwargs))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        # contiguous as it is, but torch.compile expects another layout of the norm
        return self.norm(x.permute(0, 3, 1, 2)).permute(0, 2, 3, 1).contiguous()
