"""A gMLP block where no gradient is wanted: the same equation, each step written over the one before.

Beside its products a block moves memory, and on a CPU new memory is dear; docs/speed.md has the figures.

Shapes: B batch, N tokens (or H, W: a grid of them), D width.
"""

from typing import Any

import torch
from timm.layers import DropPath, GatedMlp
from torch import nn
from torch.nn import functional

from gmlp_vision.layers.spatial_gating import SpatialGatingUnit
from gmlp_vision.layers.spatial_projection import DynamicSpatialProjection, SpatialProjection

# What a block is made of, and nothing derived from it: a subclass may compute, or keep, something else.
KNOWN = {
    DropPath,
    DynamicSpatialProjection,
    GatedMlp,
    SpatialGatingUnit,
    SpatialProjection,
    nn.Dropout,
    nn.GELU,
    nn.Identity,
    nn.LayerNorm,
    nn.Linear,
}


def may_overwrite(x: torch.Tensor, block: nn.Module) -> bool:
    """Whether nobody sees what is inside this call: no autograd, tracer or hook, nor a part put in later.

    Args:
        x: What the block is called with.
        block: Of which the parts are looked at, not the whole.
    """
    if torch.compiler.is_compiling() or torch.jit.is_tracing() or torch.is_grad_enabled():
        return False
    # torch.fx calls with a Proxy; under autocast the branch may have another dtype than x
    if type(x) is not torch.Tensor or torch.is_autocast_enabled(x.device.type):
        return False
    if nn.modules.module._global_forward_hooks or nn.modules.module._global_forward_pre_hooks:
        return False
    return all(map(is_plain, block._modules.values()))


def is_plain(module: Any) -> bool:
    """Whether the class alone says what the module and its parts compute, and nobody watches them."""
    return (
        type(module) in KNOWN
        and not (module.training or module._forward_hooks or module._forward_pre_hooks)
        and "forward" not in vars(module)  # as accelerate puts one there
        and module._compiled_call_impl is None
        and {nn.Parameter}.issuperset(map(type, module._parameters.values()))  # not a quantized one
        and all(map(is_plain, module._modules.values()))
    )


def block_in_place(x: torch.Tensor, norm: nn.Module, mlp: Any) -> torch.Tensor:
    """``x + (Z1 * f(LN(Z2))) V`` with ``Z = GELU(norm(x) U)``, for the parts of a block that `may_overwrite`.

    Shape: (B, N, D) -> (B, N, D), or (B, H, W, D) -> (B, H, W, D) if that is what f takes. `x` is left alone.
    """
    # U in halves, so Z1 and Z2 are whole tensors: LayerNorm would copy the half of one.
    (u1, u2), (c1, c2) = mlp.fc1.weight.chunk(2), mlp.fc1.bias.chunk(2)
    x_normed = norm(x)
    z2 = gelu_(linear(x_normed, u2, c2), mlp.act.approximate)
    gate = mlp.gate.proj(mlp.gate.norm(z2))
    z1 = gelu_(linear(x_normed, u1, c1), mlp.act.approximate)
    return linear(gate.mul_(z1), mlp.fc2.weight, mlp.fc2.bias).add_(x)


def linear(x: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor) -> torch.Tensor:
    """``x weight^T + bias`` over the last dimension, in a new tensor."""
    if x.dtype != torch.float32 or x.device.type != "cpu" or not torch.backends.mkldnn.is_available():
        return functional.linear(x, weight, bias)
    # In float32 torch gives a linear layer to MKL, which is slow on a CPU not of Intel's (docs/speed.md),
    # and a 1 x 1 convolution to oneDNN, which is not. One picture of tokens, channels last:
    pixels = x.reshape(1, x.shape[0], -1, x.shape[-1]).permute(0, 3, 1, 2)
    y = functional.conv2d(pixels, weight[:, :, None, None], bias)
    return y.permute(0, 2, 3, 1).reshape(*x.shape[:-1], -1)


def gelu_(z: torch.Tensor, approximate: str) -> torch.Tensor:
    return torch.ops.aten.gelu_(z, approximate=approximate)
