"""From an image to tokens, and from tokens to fewer and wider ones: the stems and downsamplings of pyramids.

Each takes (B, H, W, C), an image too, and tells with `out_size` the grid that it gives, and with `step` what
must divide the grid that it gets, since the rest would be lost.

Shapes: B batch, H, W a grid of pixels or tokens, H', W' a smaller one, C, D channels.
"""

from collections.abc import Callable
from typing import Any

import torch
from torch import nn

from gmlp_vision.layers.resample import Grid


class ConvEmbed(nn.Module):
    """A convolution, and a norm and an activation where there are any.

    Args:
        in_chans: C.
        dim: D.
        stride, padding: Of the convolution, in places.
        kernel_size: The same; None for the stride, so that patches lie side by side.
        depthwise: Whether each output is of one input alone; D is then a multiple of C.
        norm: Makes the norm behind it from D; None for none.
        act: Makes the activation behind that; None for none.
        bias: Whether the convolution has one.
        device, dtype: of the parameters.

    Shape: (B, H, W, C) -> (B, H', W', D).
    """

    def __init__(
        self,
        in_chans: int,
        dim: int,
        *,
        stride: int,
        kernel_size: int | None = None,
        padding: int = 0,
        depthwise: bool = False,
        norm: Callable[..., nn.Module] | None = None,
        act: Callable[[], nn.Module] | None = None,
        bias: bool = True,
        device: torch.device | str | None = None,
        dtype: torch.dtype | None = None,
    ) -> None:
        super().__init__()
        dd: dict[str, Any] = {"device": device, "dtype": dtype}
        kernel_size = stride if kernel_size is None else kernel_size
        groups = in_chans if depthwise else 1
        self.proj = nn.Conv2d(in_chans, dim, kernel_size, stride, padding, groups=groups, bias=bias, **dd)
        self.norm = nn.Identity() if norm is None else norm(dim, **dd)
        self.act = nn.Identity() if act is None else act()
        # patches side by side leave the rest of an image out
        self.step = stride if kernel_size == stride and padding == 0 else 1

    def out_size(self, size: Grid) -> Grid:
        """The grid for an image or a grid of this size."""
        conv = self.proj
        tall, wide = (
            (n + 2 * int(conv.padding[i]) - conv.kernel_size[i]) // conv.stride[i] + 1
            for i, n in enumerate(size)
        )
        return tall, wide

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = self.proj(x.permute(0, 3, 1, 2)).permute(0, 2, 3, 1)
        return self.act(self.norm(x))


class PatchMerging(nn.Module):
    """Two by two tokens side by side, a norm of their 4 C numbers, a linear layer without bias.

    From Swin Transformer (https://arxiv.org/abs/2103.14030, Section 3.1). The numbers of a token come in the
    order top left, bottom left, top right, bottom right.

    Args:
        in_chans: C.
        dim: D.
        stride: 2.
        norm: Makes the norm from 4 C.
        device, dtype: of the parameters.

    Shape: (B, H, W, C) -> (B, H / 2, W / 2, D).

    Raises:
        ValueError: Another stride.
    """

    step = 2

    def __init__(
        self,
        in_chans: int,
        dim: int,
        *,
        stride: int,
        norm: Callable[..., nn.Module] = nn.LayerNorm,
        device: torch.device | str | None = None,
        dtype: torch.dtype | None = None,
    ) -> None:
        super().__init__()
        if stride != 2:
            raise ValueError(f"a stride is {stride}; two by two tokens are merged, so it is 2 or 1")
        self.norm = norm(4 * in_chans, device=device, dtype=dtype)
        self.reduction = nn.Linear(4 * in_chans, dim, bias=False, device=device, dtype=dtype)

    def out_size(self, size: Grid) -> Grid:
        """The grid for one of this size."""
        return size[0] // 2, size[1] // 2

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = x.unflatten(2, (-1, 2)).unflatten(1, (-1, 2))  # B, H / 2, 2, W / 2, 2, C
        return self.reduction(self.norm(x.permute(0, 1, 3, 4, 2, 5).flatten(3)))
