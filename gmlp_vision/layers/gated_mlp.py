"""Two channel projections with a gate over tokens between them ("Pay Attention to MLPs", Section 2).

Shapes: B batch, H, W the token grid, D width, E hidden width.
"""

from collections.abc import Callable
from typing import Any

import torch
from torch import nn
from torch.nn import functional

from gmlp_vision.layers.fast_form import fast_form
from gmlp_vision.layers.linear import project_channels
from gmlp_vision.layers.resample import Grid
from gmlp_vision.layers.spatial_gating import SpatialGatingUnit


@fast_form(
    fc1=nn.Linear, act=nn.GELU, drop1=nn.Dropout, gate=SpatialGatingUnit, fc2=nn.Linear, drop2=nn.Dropout
)
class GatedMlp(nn.Module):
    """``s(GELU(X U)) V``. The names of its tensors are those of timm's GatedMlp.

    Args:
        dim: D.
        hidden_dim: E.
        grid_size: (H, W) of the token grid, in tokens.
        unit: Makes s from E and the grid; its `out_dim` is the width of what it gives, so of what V takes.
        drop: Dropout after GELU and after V, in [0, 1).
        device, dtype: of the parameters.

    Shape: (B, H, W, D) -> (B, H, W, D).
    """

    def __init__(
        self,
        dim: int,
        hidden_dim: int,
        grid_size: Grid,
        unit: Callable[..., Any] = SpatialGatingUnit,
        drop: float = 0.0,
        device: torch.device | str | None = None,
        dtype: torch.dtype | None = None,
    ) -> None:
        super().__init__()
        dd: dict[str, Any] = {"device": device, "dtype": dtype}
        self.fc1 = nn.Linear(dim, hidden_dim, **dd)  # U
        self.act = nn.GELU()
        self.drop1 = nn.Dropout(drop)
        self.gate = unit(hidden_dim, grid_size, **dd)
        self.fc2 = nn.Linear(self.gate.out_dim, dim, **dd)  # V
        self.drop2 = nn.Dropout(drop)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.drop2(self.fc2(self.gate(self.drop1(self.act(self.fc1(x))))))

    def fast_forward(self, x: torch.Tensor, grid_size: Grid, overwrite: bool) -> torch.Tensor:
        """The same where s is SpatialGatingUnit, in the steps that cost least on a CPU.

        U is applied in halves, so that Z1 and Z2 are whole tensors: LayerNorm would copy the half of one, the
        backward pass would put two gradients together, and ONNX's runtimes would copy both.

        Args:
            x: (B, N, D), the tokens in a row: in a file for another runtime that is done once a block.
            grid_size: (H, W) of them.
            overwrite: Whether each step may be written over the one before: beside its products a block moves
                memory, and on a CPU new memory is dear (docs/speed.md).
        """
        gelu = torch.ops.aten.gelu_ if overwrite else functional.gelu
        u, half = self.fc1, self.fc1.out_features // 2
        z1, z2 = (  # slices, since ONNX's tools do not fold the chunks of a constant
            gelu(project_channels(x, u.weight[rows], u.bias[rows]), approximate=self.act.approximate)
            for rows in (slice(half), slice(half, None))
        )
        gated = self.gate.fast_forward(z1, z2, grid_size, overwrite)
        return project_channels(gated, self.fc2.weight, self.fc2.bias)
