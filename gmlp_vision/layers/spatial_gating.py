"""gMLP's spatial units, its only interaction between tokens ("Pay Attention to MLPs", Section 2.1, Table 3).

Shapes: B batch, H, W the token grid, N = H * W tokens, E hidden width.

With f(Z) = W LN(Z) + b, a linear map over tokens that all channels share:

    split           Z1 * f(Z2)      Z1, Z2 the halves of Z along the channels
    multiplicative  Z * f(Z)
    additive        Z + f(Z)
    linear          f(Z)

W is any matrix, or one of another kind, perhaps another one for each group of channels (layers/spatial.py).

The paper compares them in language models. How the last two start it does not say; see there.
"""

import math
from collections.abc import Callable
from functools import partial
from typing import Any

import torch
from torch import nn

from gmlp_vision.layers.fast_form import fast_form
from gmlp_vision.layers.local import LocalProjection
from gmlp_vision.layers.posmlp import LrpeProjection
from gmlp_vision.layers.resample import Grid
from gmlp_vision.layers.shared_kernel import DenseKernel, DenseToeplitz
from gmlp_vision.layers.spatial import projection_of
from gmlp_vision.layers.spatial_projection import SpatialProjection
from gmlp_vision.layers.toeplitz import ToeplitzProjection


@fast_form(
    norm=nn.LayerNorm,
    proj=(
        SpatialProjection,
        ToeplitzProjection,
        LrpeProjection,
        LocalProjection,
        DenseToeplitz,
        DenseKernel,
    ),
)
class SpatialGatingUnit(nn.Module):
    """``s(Z) = Z1 * f(LN(Z2))``: Z1, Z2 the halves of Z along the channels, f a linear map over tokens.

    Args:
        hidden_dim: E, the width of Z; even.
        grid_size: (H, W) of the token grid, in tokens.
        projection: Makes W and b, from the grid, `init_std`, device and dtype.
        init_std: Standard deviation of W at the start.
        device, dtype: of the parameters.

    Attributes:
        out_dim: The width of what comes out, E / 2.

    Shape: (B, H, W, E) -> (B, H, W, E / 2). An `extra` like what comes out is added to the gate, f(Z2).

    Raises:
        ValueError: E is odd, so Z has no halves.
    """

    def __init__(
        self,
        hidden_dim: int,
        grid_size: Grid,
        projection: Callable[..., nn.Module] = SpatialProjection,
        init_std: float = 1e-6,
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
        self.proj: Any = projection(grid_size, init_std, device=device, dtype=dtype)

    def forward(self, z: torch.Tensor, extra: torch.Tensor | None = None) -> torch.Tensor:
        z1, z2 = z.chunk(2, dim=-1)
        gate = self.proj(self.norm(z2))
        if extra is not None:
            gate = gate + extra
        return z1 * gate

    def fast_forward(
        self, z1: torch.Tensor, z2: torch.Tensor, grid_size: Grid, overwrite: bool
    ) -> torch.Tensor:
        """The same of halves that are whole tensors, (B, N, E / 2); the rest as in
        `GatedMlp.fast_forward`."""
        gate = self.proj.fast_forward(self.norm(z2), grid_size)
        return gate.mul_(z1) if overwrite else gate * z1


class UnsplitUnit(nn.Module):
    """What the units have in common that keep all E channels. How f and Z meet, the derived class says.

    Args:
        hidden_dim: E, the width of Z.
        grid_size: (H, W) of the token grid, in tokens.
        projection: Makes W and b, from the grid, `init_std`, `init_bias`, device and dtype.
        init_std, init_bias: Of W and b at the start.
        device, dtype: of the parameters.

    Attributes:
        out_dim: The width of what comes out, E.

    Shape: (B, H, W, E) -> (B, H, W, E).
    """

    def __init__(
        self,
        hidden_dim: int,
        grid_size: Grid,
        projection: Callable[..., nn.Module],
        init_std: float | None,
        init_bias: float,
        device: torch.device | str | None = None,
        dtype: torch.dtype | None = None,
    ) -> None:
        super().__init__()
        self.out_dim = hidden_dim
        # eps 1e-5, as in the split unit
        self.norm = nn.LayerNorm(hidden_dim, device=device, dtype=dtype)
        self.proj = projection(grid_size, init_std, init_bias, device=device, dtype=dtype)


class MultiplicativeUnit(UnsplitUnit):
    """``s(Z) = Z * f(Z)``. It starts as the split unit: W near zero and b = 1, so s(Z) is nearly Z."""

    def __init__(
        self,
        hidden_dim: int,
        grid_size: Grid,
        projection: Callable[..., nn.Module] = SpatialProjection,
        init_std: float = 1e-6,
        device: torch.device | str | None = None,
        dtype: torch.dtype | None = None,
    ) -> None:
        super().__init__(hidden_dim, grid_size, projection, init_std, 1.0, device, dtype)

    def forward(self, z: torch.Tensor) -> torch.Tensor:
        return z * self.proj(self.norm(z))


class AdditiveUnit(UnsplitUnit):
    """``s(Z) = Z + f(Z)``. W starts near zero and b at 0, so that s(Z) is nearly Z here too."""

    def __init__(
        self,
        hidden_dim: int,
        grid_size: Grid,
        projection: Callable[..., nn.Module] = SpatialProjection,
        init_std: float = 1e-6,
        device: torch.device | str | None = None,
        dtype: torch.dtype | None = None,
    ) -> None:
        super().__init__(hidden_dim, grid_size, projection, init_std, 0.0, device, dtype)

    def forward(self, z: torch.Tensor) -> torch.Tensor:
        return z + self.proj(self.norm(z))


class LinearUnit(UnsplitUnit):
    """``s(Z) = f(Z)``.

    With W near zero nothing of the image would pass. So W starts normal with std N^-1/2, which keeps the
    scale of the tokens, and b at 0.
    """

    def __init__(
        self,
        hidden_dim: int,
        grid_size: Grid,
        projection: Callable[..., nn.Module] = SpatialProjection,
        init_std: float | None = None,
        device: torch.device | str | None = None,
        dtype: torch.dtype | None = None,
    ) -> None:
        super().__init__(hidden_dim, grid_size, projection, init_std, 0.0, device, dtype)

    def forward(self, z: torch.Tensor) -> torch.Tensor:
        # W's product comes with tokens and channels exchanged in memory. The other units multiply it by Z or
        # add it, which ends that. Here the layer after the unit would make a product for each image out of
        # one, and copy each: without gradients, in bf16, a third of the speed (docs/speed.md)
        return self.proj(self.norm(z)).contiguous()


UNITS: dict[str, type[nn.Module]] = {
    "split": SpatialGatingUnit,
    "linear": LinearUnit,
    "additive": AdditiveUnit,
    "multiplicative": MultiplicativeUnit,
}


def unit_of(
    unit: str, spatial: str, groups: int = 1, init_std: float | None = None
) -> Callable[..., nn.Module]:
    """What makes a spatial unit, said by keys so that a config.json can hold it.

    Args:
        unit: A key of UNITS.
        spatial, groups: What its W is; as `projection_of` takes them.
        init_std: Standard deviation of W, or of the table it is made of, at the start; None: the unit's own.

    Raises:
        ValueError: No such key, or no such number of groups or standard deviation.
    """
    if unit not in UNITS:
        raise ValueError(f"unit is {unit!r}; expected one of {', '.join(map(repr, UNITS))}")
    made = partial(UNITS[unit], projection=projection_of(spatial, groups))
    if init_std is None:
        return made
    if spatial == "gqpe" or not 0 <= init_std < math.inf:
        raise ValueError(
            f"init_std is {init_std}; expected "
            + ("None: the W of spatial='gqpe' has no scale" if spatial == "gqpe" else "a number, 0 or more")
        )
    return partial(made, init_std=init_std)
