"""Linear maps over the tokens of an image, shared by all channels.

Shapes: B batch, N = H * W tokens in row-major order, C channels.
"""

from typing import Any, NamedTuple

import torch
from torch import nn

from gmlp_vision.layers.resample import resample_bias, resample_operator


class SpatialProjection(nn.Module):
    """``y[i] = sum_j W[i, j] x[j] + b[i]`` on the tokens of one grid (the f of Section 2.1 of the paper).

    Row i of W is the filter of output token i: ``W[i].reshape(H, W)`` is its kernel over the grid.

    Args:
        grid_size: (H, W) of the token grid that the map is tied to, in tokens.
        device, dtype: of the parameters.

    Shape: (B, N, C) -> (B, N, C).
    """

    def __init__(
        self,
        grid_size: tuple[int, int],
        device: torch.device | str | None = None,
        dtype: torch.dtype | None = None,
    ) -> None:
        super().__init__()
        self.grid_size = grid_size
        n = grid_size[0] * grid_size[1]
        self.weight = nn.Parameter(torch.empty(n, n, device=device, dtype=dtype))
        self.bias = nn.Parameter(torch.empty(n, device=device, dtype=dtype))
        self.init_weights()

    def init_weights(self) -> None:
        """W near zero and b = 1: the map starts as (nearly) the constant 1 for any input (Section 2.1)."""
        nn.init.normal_(self.weight, std=1e-6)
        nn.init.ones_(self.bias)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return project(x, self.weight, self.bias)

    def on_grid(self, grid_size: tuple[int, int]) -> tuple[torch.Tensor, torch.Tensor]:
        """W and b carried to another grid, (H, W) in tokens: new tensors through which gradients flow."""
        return (
            resample_operator(self.weight, self.grid_size, grid_size),
            resample_bias(self.bias, self.grid_size, grid_size),
        )

    def replace_grid(self, grid_size: tuple[int, int], weight: torch.Tensor, bias: torch.Tensor) -> None:
        """Ties the map to another grid, (H, W) in tokens; `weight` and `bias` become its new parameters."""
        self.grid_size = grid_size
        self.weight = nn.Parameter(weight.detach(), requires_grad=self.weight.requires_grad)
        self.bias = nn.Parameter(bias.detach(), requires_grad=self.bias.requires_grad)

    def extra_repr(self) -> str:
        return f"grid_size={self.grid_size}"


class Kept(NamedTuple):
    """What has been carried to other grids from W and b as they were then."""

    # The very storages of W and b, which keeps their addresses from being given to other tensors meanwhile.
    sources: tuple[torch.Tensor, ...]
    versions: tuple[int, ...]
    operators: dict[tuple[int, int], tuple[torch.Tensor, torch.Tensor]]

    @classmethod
    def of(cls, *parameters: torch.Tensor) -> "Kept":
        return cls(tuple(p.detach() for p in parameters), tuple(p._version for p in parameters), {})

    def holds(self, *parameters: torch.Tensor) -> bool:
        """Whether these are still the tensors it was made from, unchanged."""
        return self.versions == tuple(p._version for p in parameters) and all(
            source.data_ptr() == p.data_ptr() for source, p in zip(self.sources, parameters, strict=True)
        )


NOTHING_KEPT = Kept((), (), {})


class DynamicSpatialProjection(SpatialProjection):
    """The same map on whatever grid its input has: W and b, which belong to `grid_size`, are carried there.

    The grid is read off the input and kept nowhere, so a call cannot meet the grid of another one, be it in
    another thread or recomputed in the backward pass.

    In eval mode, while no gradient to W and b is asked for, what was carried is kept for later calls. It is
    made anew once W or b have changed; an edit by ``.data`` leaves no trace and needs `clear_cache`.

    Shape: (B, H, W, C) -> (B, H, W, C).
    """

    # Kept for this many grids, the last ones made. For 576 tokens in float32 each takes 1.3 MB a layer.
    MAX_KEPT = 16

    kept = NOTHING_KEPT

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        weight, bias = self.operator((x.shape[1], x.shape[2]))
        return project(x.flatten(1, 2), weight, bias).view_as(x)

    def operator(self, grid_size: tuple[int, int]) -> tuple[torch.Tensor, torch.Tensor]:
        """W and b on a grid, (H, W) in tokens: themselves on their own, else as carried there."""
        can_keep = self.can_keep()
        if not can_keep:
            # an optimizer may step next, and a fused one changes W without a trace in its version
            self.clear_cache()
        if grid_size == self.grid_size:
            return self.weight, self.bias
        return self.kept_on_grid(grid_size) if can_keep else self.on_grid(grid_size)

    def kept_on_grid(self, grid_size: tuple[int, int]) -> tuple[torch.Tensor, torch.Tensor]:
        """What `on_grid` gives, without gradients: kept from an earlier call, or made and kept now."""
        kept = self.kept if self.kept.holds(self.weight, self.bias) else Kept.of(self.weight, self.bias)
        if grid_size not in kept.operators:
            # a normal tensor even under inference_mode, since a later call may differentiate through it
            with torch.inference_mode(False), torch.no_grad():
                made = self.on_grid(grid_size)
            newest = dict([*kept.operators.items(), (grid_size, made)][-self.MAX_KEPT :])
            # replaced as a whole, never edited: another thread may be reading it
            self.kept = kept = kept._replace(operators=newest)
        return kept.operators[grid_size]

    def can_keep(self) -> bool:
        """Whether what this call makes may serve later ones too."""
        if self.training or torch.compiler.is_compiling():
            return False
        parameters = (self.weight, self.bias)
        # What functional_call or vmap puts in a parameter's place may not outlive the call, and an inference
        # tensor has no version.
        if any(type(p) is not nn.Parameter or p.is_inference() for p in parameters):
            return False
        return not (torch.is_grad_enabled() and any(p.requires_grad for p in parameters))

    def clear_cache(self) -> None:
        """Forgets what was kept for other grids; needed only after W or b was edited by ``.data``."""
        self.kept = NOTHING_KEPT

    def train(self, mode: bool = True) -> "DynamicSpatialProjection":
        if mode:
            self.clear_cache()
        return super().train(mode)

    def __getstate__(self) -> dict[str, Any]:
        return {**super().__getstate__(), "kept": NOTHING_KEPT}  # for deepcopy and pickle


def project(x: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor) -> torch.Tensor:
    """``W x + b`` for (B, N, C) tokens, (N, N) weight and (N,) bias."""
    if not torch.jit.is_scripting():  # noqa: SIM102  TorchScript would compile what stands after an `and`
        if torch.compiler.is_exporting() and torch.onnx.is_in_onnx_export():
            # ONNX's product repeats W for each image by itself; expanded, it would be copied
            return weight @ x + bias.unsqueeze(-1)
    # W stands on the left of the (N, C) matrix of each image, so no transpose of x is ever made; as one
    # batched product this is faster than nn.Linear between two transposes, with the same gradients.
    return torch.baddbmm(bias.unsqueeze(-1), weight.expand(x.shape[0], -1, -1), x)
