"""LightConv: "Pay Less Attention with Lightweight and Dynamic Convolutions", https://arxiv.org/abs/1901.10430

LightConv and DynamicConv of Wu et al., 2019, in two dimensions. Shapes: B batch, H, W the token grid, D
width, h heads, s kernel size.

    X = X + conv(GLU(LN(X) A)) O            A: D -> 2 D; O: D -> D; both with biases
    X = X + MLP(LN(X))                      GLU(a, b) = a * sigmoid(b)

    conv(Z)[t] = sum_o softmax(w)[o] Z[t + o]       o: the s x s offsets around t; Z is 0 outside the grid

    light       w is learned, s x s numbers a head
    dynamic     w is Z[t] times a learned matrix (no bias), so that each token has its own, for each head

The paper has texts only; the block is that of its encoder. The trunk is DeiT's: patch 16, MLP ratio 4,
pre-norm, the mean over tokens, no position table: zeros outside the grid tell where its borders are. Read
where that leaves a choice:

- The kernel is square, of 7 x 7 tokens, in all blocks; the paper's grows from 3 to 31 over them, on
  sentences. The softmax is over all s x s offsets, and is not made up for those outside the grid.
- 16 heads, as in the paper. D / h channels in a row belong to a head, as in the form that the authors train
  with; the form for (B, C, T) in their code deals the channels out in turn instead.
- DropConnect, `weight_drop_rate`, is on the softmax's result, as in the paper.
- Softmax and sums are in float32 at least.
"""

from collections.abc import Mapping
from typing import Any

import torch
from timm.data import IMAGENET_DEFAULT_MEAN, IMAGENET_DEFAULT_STD
from timm.models import generate_default_cfgs, register_model
from torch import nn
from torch.nn import functional

from gmlp_vision.checkpoints.families import isotropic_sizes
from gmlp_vision.layers.ask import Operator
from gmlp_vision.layers.mix_mlp_block import MixMlpBlock
from gmlp_vision.layers.precision import at_least_float32, depthwise_conv_float32
from gmlp_vision.layers.resample import Grid
from gmlp_vision.trunks import Isotropic, cfg, create

torch.fx.wrap("at_least_float32")
torch.fx.wrap("depthwise_conv_float32")
torch.fx.wrap("sum_of_neighbours")

SOURCE = "A reading of the paper, which is about texts; no weights and no code for images were published."
VERIFIED = ("equation",)


class SoftmaxConv(nn.Module):
    """``conv(GLU(X A)) O``. What the weights of conv are, the derived class says.

    It belongs to no grid; `grid_size` is not used.

    Args:
        dim: D.
        heads: h; it divides D.
        kernel_size: s; odd, at least 3.
        weight_drop_rate: Dropout of the weights of conv, in [0, 1].
        device, dtype: of the parameters.

    Shape: (B, H, W, D) -> (B, H, W, D).

    Raises:
        ValueError: `heads` does not divide D, `kernel_size` is even or less than 3, or a rate outside of what
            is listed above.
    """

    def __init__(
        self,
        dim: int,
        grid_size: Grid,
        *,
        heads: int,
        kernel_size: int,
        weight_drop_rate: float = 0.0,
        device: Any = None,
        dtype: torch.dtype | None = None,
    ) -> None:
        super().__init__()
        if heads < 1 or dim % heads:
            raise ValueError(f"heads is {heads}; expected a divisor of embed_dim, which is {dim}")
        if kernel_size < 3 or kernel_size % 2 == 0:
            raise ValueError(f"kernel_size is {kernel_size}; expected an odd number of tokens, at least 3")
        self.heads = heads
        self.kernel_size = kernel_size
        self.fc = nn.Linear(dim, 2 * dim, device=device, dtype=dtype)  # A
        self.weight_drop = nn.Dropout(weight_drop_rate)
        self.proj = nn.Linear(dim, dim, device=device, dtype=dtype)  # O

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        z = functional.glu(self.fc(x), dim=-1)
        return self.proj(self.conv(z).to(z.dtype))

    def conv(self, z: torch.Tensor) -> torch.Tensor:
        """(B, H, W, D) to the same, in float32 or above."""
        raise NotImplementedError


class LightConv(SoftmaxConv):
    """SoftmaxConv with one kernel a head for all tokens."""

    def __init__(
        self, dim: int, grid_size: Grid, device: Any = None, dtype: torch.dtype | None = None, **own: Any
    ) -> None:
        super().__init__(dim, grid_size, device=device, dtype=dtype, **own)
        shape = (self.heads, self.kernel_size, self.kernel_size)
        self.weight = nn.Parameter(torch.empty(shape, device=device, dtype=dtype))  # w
        self.reset_parameters()

    def reset_parameters(self) -> None:
        """w near zero, so nearly a mean over the kernel: Xavier's rule, as in the authors' code."""
        with torch.no_grad():
            nn.init.xavier_uniform_(self.weight.flatten(1).unsqueeze(1))

    def kernels(self) -> torch.Tensor:
        """softmax(w), (h, s, s); entry (i, j) is for the token i - s // 2 rows below and j - s // 2 right."""
        return at_least_float32(self.weight).flatten(1).softmax(1).view_as(self.weight)

    def conv(self, z: torch.Tensor) -> torch.Tensor:
        kernels = self.weight_drop(self.kernels())
        return depthwise_conv_float32(z, kernels.repeat_interleave(z.shape[-1] // self.heads, 0))

    def operators(self, grid_size: Grid) -> list[Operator]:
        """softmax(w), as `gmlp_vision.layers.ask.operators` tells it."""
        taps = self.kernel_size**2
        std = (2 / (taps + taps * self.heads)) ** 0.5 / taps  # of a softmax of small numbers
        return [Operator("", "kernel", self.kernels().detach(), None, std)]


class DynamicConv(SoftmaxConv):
    """SoftmaxConv with a kernel for each token and head, made from the token."""

    NO_OPERATOR = (
        "each token makes its own kernels from what it holds: there is none to show without an image"
    )

    def __init__(
        self, dim: int, grid_size: Grid, device: Any = None, dtype: torch.dtype | None = None, **own: Any
    ) -> None:
        super().__init__(dim, grid_size, device=device, dtype=dtype, **own)
        taps = self.heads * self.kernel_size**2
        self.kernel_fc = nn.Linear(dim, taps, bias=False, device=device, dtype=dtype)

    def conv(self, z: torch.Tensor) -> torch.Tensor:
        weights = at_least_float32(self.kernel_fc(z)).unflatten(-1, [self.heads, -1])
        return sum_of_neighbours(z, self.weight_drop(weights.softmax(-1)), self.kernel_size)


def sum_of_neighbours(z: torch.Tensor, weights: torch.Tensor, kernel_size: int) -> torch.Tensor:
    """``sum_o weights[t, o] z[t + o]``, in float32 or above.

    One offset after the other: all neighbours at once would take s * s times the memory of the tokens.

    Args:
        z: (B, H, W, D); 0 outside.
        weights: (B, H, W, h, s * s), of which D / h channels in a row share one.
        kernel_size: s.
    """
    height, width, border = z.shape[1], z.shape[2], kernel_size // 2
    by_head = at_least_float32(z).unflatten(-1, [weights.shape[3], z.shape[3] // weights.shape[3]])
    padded = functional.pad(by_head, [0, 0, 0, 0, border, border, border, border])
    y = torch.zeros_like(by_head)
    for i in range(kernel_size):
        for j in range(kernel_size):
            here = weights[..., i * kernel_size + j].unsqueeze(-1)
            y = y + here * padded[:, i : i + height, j : j + width]
    return y.flatten(-2)


MIXERS: dict[str, type[SoftmaxConv]] = {"light": LightConv, "dynamic": DynamicConv}


def lightconv_block(dim: int, grid_size: Grid, *, mixer: str, **kwargs: Any) -> MixMlpBlock:
    """A MixMlpBlock whose mixer is said by its key in MIXERS, so that a config.json can hold it.

    Raises:
        ValueError: No such key.
    """
    if mixer not in MIXERS:
        raise ValueError(f"mixer is {mixer!r}; expected one of {', '.join(map(repr, MIXERS))}")
    return MixMlpBlock(dim, grid_size, mixer=MIXERS[mixer], **kwargs)


class LightConvNet(Isotropic):
    """Patches, `depth` blocks of light or dynamic convolutions, final norm, mean pool, linear head.

    Args:
        mixer: A key of MIXERS.
        kwargs: Those of Isotropic, `mlp_ratio` and `proj_drop_rate` of MixMlpBlock, and `heads`,
            `kernel_size` and `weight_drop_rate` of SoftmaxConv; the trunk of the small models by default.

    Raises:
        ValueError: An unknown `mixer`, or what the trunk and the mixer refuse.
        TypeError: An argument that none of them has.
    """

    def __init__(self, mixer: str = "light", **kwargs: Any) -> None:
        super().__init__(lightconv_block, **{**SMALL, "mixer": mixer, **kwargs})


# DeiT-S
SMALL: dict[str, Any] = {
    "patch_size": 16,
    "depth": 12,
    "embed_dim": 384,
    "mlp_ratio": 4.0,
    "heads": 16,
    "kernel_size": 7,
}

SIZES: dict[str, dict[str, Any]] = {
    "lightconv_s16": {**SMALL, "mixer": "light"},
    "dynamicconv_s16": {**SMALL, "mixer": "dynamic"},
}


def sizes_of(state_dict: Mapping[str, torch.Tensor]) -> dict[str, Any] | None:
    """The arguments of the model of this family that has these tensors; None if they are not those of one.

    The matrix that makes kernels does not show how many heads it is for, so of dynamic ones only those with
    the heads of the registered name are known.
    """
    sizes = isotropic_sizes(state_dict, "mlp.fc1.weight")
    w = state_dict.get("blocks.0.mixer.weight")
    if sizes is None or "blocks.0.mixer.fc.weight" not in state_dict:
        return None
    if w is not None and w.ndim == 3:
        return {**sizes, "mixer": "light", "heads": len(w), "kernel_size": w.shape[-1]}
    return {**sizes, "mixer": "dynamic"} if "blocks.0.mixer.kernel_fc.weight" in state_dict else None


default_cfgs = generate_default_cfgs(
    {
        f"{name}.untrained": cfg(
            paper_ids="arXiv:1901.10430",
            paper_name="Pay Less Attention with Lightweight and Dynamic Convolutions",
            fixed_input_size=False,
            mean=IMAGENET_DEFAULT_MEAN,  # DeiT's preprocessing, as it is DeiT's trunk
            std=IMAGENET_DEFAULT_STD,
        )
        for name in SIZES
    }
)


@register_model
def lightconv_s16(pretrained: bool = False, **kwargs: Any) -> nn.Module:
    """LightConv at DeiT-S's size: 20.21 M parameters, patch 16, kernel 7, any image size."""
    return create("lightconv_s16", LightConvNet, SIZES, pretrained, **kwargs)


@register_model
def dynamicconv_s16(pretrained: bool = False, **kwargs: Any) -> nn.Module:
    """DynamicConv at DeiT-S's size: 23.81 M parameters, patch 16, kernel 7, any image size."""
    return create("dynamicconv_s16", LightConvNet, SIZES, pretrained, **kwargs)
