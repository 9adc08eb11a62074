"""A linear map over tokens that knows the offsets of near tokens only: a convolution with one kernel.

Shapes: B batch, H, W the token grid, N = H * W tokens in row-major order, C channels, G groups of channels, k
the side of the kernel, r = k // 2.
"""

from collections.abc import Mapping

import torch
from torch import nn
from torch.nn import functional

from gmlp_vision.layers.fast_form import fast_form
from gmlp_vision.layers.offsets import kernel_matrix, mean_of_offsets
from gmlp_vision.layers.resample import Grid, crop_or_pad_offsets
from gmlp_vision.layers.rules import ANY_GRID, TOKEN_MAP
from gmlp_vision.layers.structured import Structured


@fast_form()
class LocalProjection(Structured):
    """``y[i, c] = sum_o K_g[r + o] x[i + o, c] + b[i]`` over the offsets o of at most r rows and r columns: a
    ToeplitzProjection whose table is 0 elsewhere. There are no tokens outside of the grid, so zeros.

    It is a depthwise convolution whose channels share their kernel: k^2 N multiply-adds a channel. One
    convolution of all images and channels as single pictures took 5 to 20 times as long on a CPU.

    On another grid K stays, since offsets are counted in tokens, and b is a token map. Offsets that the grid
    does not have do nothing. K starts at `init_std` times the root of N over the tokens that one reaches.

    The nearest one to a dense W has the means of W over equal offsets, which K keeps of all.

    Args:
        grid_size: (H, W) of the token grid that b belongs to, in tokens.
        init_std: As for a dense W; see Structured.
        init_bias: All of b at the start.
        kernel_size: k, odd, so that a token is the centre.
        groups: G; with 1 the kernel has no axis for them.
        device, dtype: of the parameters.

    Shape: (B, H, W, C) -> (B, H, W, C), C a multiple of G.

    Raises:
        ValueError: k is even.
    """

    RULES = {"kernel": ANY_GRID, "bias": TOKEN_MAP}  # noqa: RUF012  a ClassVar in the base
    OPTION = "kernel_size"
    GROUPED = True

    def __init__(
        self,
        grid_size: Grid,
        init_std: float | None = 1e-6,
        init_bias: float = 1.0,
        kernel_size: int = 7,
        groups: int = 1,
        device: torch.device | str | None = None,
        dtype: torch.dtype | None = None,
    ) -> None:
        super().__init__(grid_size, init_std, init_bias)
        check_kernel(kernel_size)
        axes = (groups,) if groups > 1 else ()
        self.kernel = nn.Parameter(torch.empty(kernel_size, kernel_size, *axes, device=device, dtype=dtype))
        self.bias = self.new_bias(device=device, dtype=dtype)
        self.reset_parameters()

    def reset_parameters(self) -> None:
        r, (height, width) = self.kernel.shape[0] // 2, self.grid_size
        reached = [sum(max(0, n - abs(o)) for o in range(-r, r + 1)) for n in (height, width)]
        nn.init.normal_(self.kernel, std=self.std_of(reached[0] * reached[1] / (height * width)))
        nn.init.constant_(self.bias, self.init_bias)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        kernel: torch.Tensor = self.kernel
        bias: torch.Tensor = self.bias
        if self.dynamic:
            kernel, bias = self.parameters_on((x.shape[1], x.shape[2]))
        return convolve(x, kernel) + bias.view(x.shape[1], x.shape[2], 1)

    def fast_forward(self, x: torch.Tensor, grid_size: Grid) -> torch.Tensor:
        """The same, b added in place.

        Shape: (B, N, C), the tokens of a grid in a row -> (B, N, C).
        """
        kernel: torch.Tensor = self.kernel
        bias: torch.Tensor = self.bias
        if self.dynamic:
            kernel, bias = self.parameters_on(grid_size)
        return convolve(x.unflatten(1, grid_size), kernel).add_(bias.view(*grid_size, 1)).flatten(1, 2)

    def matrix_of(self, grid_size: Grid, *parameters: torch.Tensor) -> torch.Tensor:
        w = kernel_matrix(parameters[0], grid_size)
        return w.unsqueeze(0) if w.ndim == 2 else w.permute(2, 0, 1)

    @classmethod
    def nearest(
        cls, weight: torch.Tensor, grid_size: Grid, kernel_size: int = 7, groups: int = 1
    ) -> dict[str, torch.Tensor]:
        check_kernel(kernel_size)
        means = mean_of_offsets(weight, grid_size)
        kernel = crop_or_pad_offsets(means, grid_size, grid_of(kernel_size))
        return {"kernel": kernel if groups == 1 else kernel.unsqueeze(2).repeat(1, 1, groups)}

    @classmethod
    def options_of(cls, tensors: Mapping[str, torch.Tensor]) -> dict[str, int] | None:
        if tensors.keys() != {"kernel", "bias"}:
            return None
        sizes = tuple(tensors["kernel"].shape)
        if len(sizes) not in (2, 3) or sizes[0] != sizes[1] or sizes[0] % 2 == 0:
            return None
        return {"kernel_size": sizes[0], "groups": sizes[2] if len(sizes) == 3 else 1}

    def note(self) -> str:
        k = self.kernel.shape[0]
        return f"a convolution with a kernel of {k} x {k}"


def check_kernel(size: int) -> None:
    """Refuses a side without a middle."""
    if size < 1 or size % 2 == 0:
        raise ValueError(
            f"the kernel is {size} x {size}; expected an odd side, so that a token is its centre"
        )


def grid_of(size: int) -> Grid:
    """The grid whose offsets are those of a kernel."""
    return size // 2 + 1, size // 2 + 1


def convolve(x: torch.Tensor, kernel: torch.Tensor) -> torch.Tensor:
    """``sum_o K[r + o] x[i + o]``, zeros outside: (B, H, W, C) with (k, k) or (k, k, G) -> (B, H, W, C)."""
    channels, size = x.shape[3], kernel.shape[0]
    kernels = kernel.reshape(size, size, -1).permute(2, 0, 1).unsqueeze(1)
    kernels = kernels.repeat(channels // kernels.shape[0], 1, 1, 1)  # channel c is of group c mod G
    y = functional.conv2d(x.permute(0, 3, 1, 2), kernels, padding=size // 2, groups=channels)
    return y.permute(0, 2, 3, 1)
