"""What a layer says of itself, also where its class is not of this package."""

from dataclasses import dataclass
from functools import singledispatch

import torch
from torch import nn

from gmlp_vision.layers.resample import Grid


@dataclass(frozen=True, eq=False)
class Operator:
    """A linear map over tokens that a layer holds.

    Attributes:
        part: What it is called within its layer, such as 'fc1'; '' where the layer has one.
        kind: 'token' where row i is the filter of output token i, 'hidden' where a row is a hidden unit over
            the input tokens, 'kernel' where a row is a kernel over offsets.
        weight: (N, N), (R, N) or (R, h, w), by the kind.
        bias: (R,), or (N,) where the rows are the map's inputs (a mixer's second layer), or None.
        init_std: Standard deviation of the entries of the weight at init.
        note: What a caption must say, or ''.
    """

    part: str
    kind: str
    weight: torch.Tensor
    bias: torch.Tensor | None
    init_std: float
    note: str = ""


@singledispatch
def operators(module: nn.Module, grid_size: Grid) -> list[Operator]:
    """The linear maps over tokens that a layer itself holds: what its own `operators` says, else none.

    Args:
        module: One layer; its children are asked by themselves.
        grid_size: (H, W) of its tokens, where the layer does not know it.
    """
    own = getattr(module, "operators", None)
    return list(own(grid_size)) if callable(own) else []
