"""A free W with a kernel beside it in training that all tokens share, and that is merged into W afterwards.

Shapes: B batch, H, W the token grid, N = H * W tokens in row-major order, C channels.
"""

from collections.abc import Mapping

import torch
from torch import nn

from gmlp_vision.layers.fast_form import fast_form
from gmlp_vision.layers.local import check_kernel
from gmlp_vision.layers.offsets import kernel_matrix
from gmlp_vision.layers.resample import Grid, offsets_of
from gmlp_vision.layers.rules import ANY_GRID, OFFSETS, OPERATOR, TOKEN_MAP
from gmlp_vision.layers.spatial_projection import SpatialProjection, map_row_of_tokens
from gmlp_vision.layers.structured import Structured, map_tokens


class SharedKernel(Structured):
    """``y[i] = sum_j (V[i, j] + k[offset of j from i]) x[j] + b[i]``: W is V, any matrix, plus the Toeplitz
    matrix of a kernel k, which is 0 for offsets that it does not have.

    It can be no other W than a dense one, but learns otherwise: what is alike at all tokens is in k, where
    each of them teaches it. The kernel of the derived class is merged into V by `gmlp_vision.merge`, exactly.

    A call adds the matrix of k to V, which is little beside the product for a batch, and then is a dense
    one, in its fast form too.

    On another grid W is that of the dense one, R W S (layers/resample.py), k keeps the number of each offset,
    counted in tokens, and V is the rest. So it does not matter whether a model is merged before it is carried
    or after. Carried each by its own rule, V and k would give another W, since R and S resize what k means.

    The nearest one to a dense W is that W, with k = 0; so `pretrained=True` with such a `spatial` starts as
    the released model.

    Args:
        grid_size: (H, W) of the token grid that V belongs to, in tokens.
        init_std: Standard deviation of V at the start; k starts at 0.
        init_bias: All of b at the start.
        device, dtype: of the parameters.

    Shape: (B, H, W, C) -> (B, H, W, C).
    """

    def __init__(
        self,
        grid_size: Grid,
        init_std: float | None = 1e-6,
        init_bias: float = 1.0,
        device: torch.device | str | None = None,
        dtype: torch.dtype | None = None,
    ) -> None:
        super().__init__(grid_size, init_std, init_bias)
        n = grid_size[0] * grid_size[1]
        self.weight = nn.Parameter(torch.empty(n, n, device=device, dtype=dtype))

    def reset_parameters(self) -> None:
        """As a SpatialProjection starts."""
        nn.init.normal_(self.weight, std=self.init_std)
        nn.init.zeros_(self.shared())
        nn.init.constant_(self.bias, self.init_bias)

    def shared(self) -> torch.Tensor:
        """k."""
        raise NotImplementedError

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        weight, bias = self.whole((x.shape[1], x.shape[2]))
        return map_tokens(x, weight, bias)

    def fast_forward(self, x: torch.Tensor, grid_size: Grid) -> torch.Tensor:
        """As that of a SpatialProjection. Shape: (B, N, C) -> (B, N, C)."""
        weight, bias = self.whole(grid_size)
        return map_row_of_tokens(x, weight, bias)

    def whole(self, grid_size: Grid) -> tuple[torch.Tensor, torch.Tensor]:
        """W and b of a call on this grid."""
        weight: torch.Tensor = self.weight
        bias: torch.Tensor = self.bias
        kernel: torch.Tensor = self.shared()
        if self.dynamic:
            weight, kernel, bias = self.parameters_on(grid_size)
            return weight + kernel_matrix(kernel, grid_size), bias
        return weight + kernel_matrix(kernel, self.grid_size), bias

    def merged(self) -> SpatialProjection:
        """The dense layer that computes the same, with new parameters W and b."""
        # on the meta device nothing is drawn, so a run that goes on draws what it would have
        layer = SpatialProjection(self.grid_size, self.asked_std, self.init_bias, device="meta")
        with torch.inference_mode(False), torch.no_grad():
            weight = self.weight + kernel_matrix(self.shared(), self.grid_size)
            layer.weight = nn.Parameter(weight, requires_grad=self.weight.requires_grad)
            layer.bias = nn.Parameter(self.bias.clone(), requires_grad=self.bias.requires_grad)
        layer.held_as, layer.dynamic = self.held_as, self.dynamic
        layer.train(self.training)
        return layer

    @classmethod
    def carried(
        cls, tensors: Mapping[str, torch.Tensor], old_grid: Grid, new_grid: Grid
    ) -> dict[str, torch.Tensor]:
        kept = super().carried(tensors, old_grid, new_grid)
        name, kernel, _ = cls.RULES
        w = tensors[name].double() + kernel_matrix(tensors[kernel].double(), old_grid)
        rest = OPERATOR.carry(w, old_grid, new_grid) - kernel_matrix(kept[kernel].double(), new_grid)
        return {**kept, name: rest.to(tensors[name].dtype)}

    def matrix_of(self, grid_size: Grid, *parameters: torch.Tensor) -> torch.Tensor:
        weight, kernel = parameters
        return (weight + kernel_matrix(kernel, grid_size)).unsqueeze(0)

    def note(self) -> str:
        rows, columns = self.shared().shape
        return f"a shared kernel of {rows} x {columns} is merged into it"


@fast_form()
class DenseToeplitz(SharedKernel):
    """With k a number for each of the (2 H - 1)(2 W - 1) offsets of the grid, its `table`."""

    RULES = {"weight": OPERATOR, "table": OFFSETS, "bias": TOKEN_MAP}  # noqa: RUF012  a ClassVar in the base

    def __init__(
        self,
        grid_size: Grid,
        init_std: float | None = 1e-6,
        init_bias: float = 1.0,
        device: torch.device | str | None = None,
        dtype: torch.dtype | None = None,
    ) -> None:
        super().__init__(grid_size, init_std, init_bias, device, dtype)
        self.table = nn.Parameter(torch.empty(*offsets_of(grid_size), device=device, dtype=dtype))
        self.bias = self.new_bias(device=device, dtype=dtype)
        self.reset_parameters()

    def shared(self) -> torch.Tensor:
        return self.table

    @classmethod
    def nearest(cls, weight: torch.Tensor, grid_size: Grid) -> dict[str, torch.Tensor]:
        table = torch.zeros(offsets_of(grid_size), dtype=torch.float64, device=weight.device)
        return {"weight": weight.double(), "table": table}

    @classmethod
    def options_of(cls, tensors: Mapping[str, torch.Tensor]) -> dict[str, int] | None:
        return {} if tensors.keys() == {"weight", "table", "bias"} else None


@fast_form()
class DenseKernel(SharedKernel):
    """With k for near offsets alone, its `kernel`, K x K.

    Args:
        kernel_size: K, odd, in tokens. What a grid is too small for is not used on it.

    Raises:
        ValueError: K is even, and such a kernel has no centre.
    """

    RULES = {"weight": OPERATOR, "kernel": ANY_GRID, "bias": TOKEN_MAP}  # noqa: RUF012
    OPTION = "kernel_size"

    def __init__(
        self,
        grid_size: Grid,
        init_std: float | None = 1e-6,
        init_bias: float = 1.0,
        kernel_size: int = 3,
        device: torch.device | str | None = None,
        dtype: torch.dtype | None = None,
    ) -> None:
        check_kernel(kernel_size)
        super().__init__(grid_size, init_std, init_bias, device, dtype)
        self.kernel = nn.Parameter(torch.empty(kernel_size, kernel_size, device=device, dtype=dtype))
        self.bias = self.new_bias(device=device, dtype=dtype)
        self.reset_parameters()

    def shared(self) -> torch.Tensor:
        return self.kernel

    @classmethod
    def nearest(cls, weight: torch.Tensor, grid_size: Grid, kernel_size: int = 3) -> dict[str, torch.Tensor]:
        check_kernel(kernel_size)
        kernel = torch.zeros(kernel_size, kernel_size, dtype=torch.float64, device=weight.device)
        return {"weight": weight.double(), "kernel": kernel}

    @classmethod
    def options_of(cls, tensors: Mapping[str, torch.Tensor]) -> dict[str, int] | None:
        if tensors.keys() != {"weight", "kernel", "bias"}:
            return None
        shape = tuple(tensors["kernel"].shape)
        size = shape[0] if shape else 0
        return {"kernel_size": size} if shape == (size, size) and size % 2 == 1 else None
