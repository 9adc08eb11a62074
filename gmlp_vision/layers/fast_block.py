"""A gMLP block that nobody watches from inside: the same equation, in the steps that cost least on a CPU.

U is applied in halves, so that Z1 and Z2 are whole tensors: LayerNorm would copy the half of one, the
backward pass would put two gradients together, and ONNX's runtimes would copy both. Where no gradient is
wanted each step is written over the one before: beside its products a block moves memory, and on a CPU new
memory is dear. docs/speed.md has the figures; there are none of a GPU, so there a block stays as written.

Shapes: B batch, N tokens (or H, W: a grid of them), D width.
"""

from typing import Any

import torch
from timm.layers import DropPath, GatedMlp
from torch import nn
from torch.nn import functional

from gmlp_vision.layers.channel_projection import project_channels
from gmlp_vision.layers.spatial_gating import SpatialGatingUnit
from gmlp_vision.layers.spatial_projection import DynamicSpatialProjection, SpatialProjection

# What each part of a block may be, and nothing derived from it: a subclass may compute, or keep, something
# else. `mlp_channels.norm` is a place between gate and V that timm's GatedMlp has and gMLP leaves empty.
KNOWN: dict[str, set[type[nn.Module]]] = {
    "norm": {nn.LayerNorm},
    "mlp_channels": {GatedMlp},
    "mlp_channels.fc1": {nn.Linear},
    "mlp_channels.act": {nn.GELU},
    "mlp_channels.drop1": {nn.Dropout},
    "mlp_channels.gate": {SpatialGatingUnit},
    "mlp_channels.gate.norm": {nn.LayerNorm},
    "mlp_channels.gate.proj": {SpatialProjection, DynamicSpatialProjection},
    "mlp_channels.norm": {nn.Identity},
    "mlp_channels.fc2": {nn.Linear},
    "mlp_channels.drop2": {nn.Dropout},
    "drop_path": {DropPath, nn.Identity},
}


def may_be_fast(x: torch.Tensor, block: nn.Module) -> bool:
    """Whether nobody sees the steps inside this call, and it pays to choose them.

    Args:
        x: What the block is called with.
        block: Of which the parts are looked at, not the whole.
    """
    if torch.compiler.is_exporting():  # a file of ONNX is only computed; what else is exported may be edited
        return torch.onnx.is_in_onnx_export() and is_unwatched(block)
    # torch.fx calls with a Proxy; a meta tensor has no autocast to ask after
    if torch.jit.is_tracing() or type(x) is not torch.Tensor or x.device.type != "cpu":
        return False
    if torch.is_autocast_enabled("cpu") and torch.get_autocast_dtype("cpu") != x.dtype:
        return False  # the branch may have another dtype than x
    return is_unwatched(block)


def is_unwatched(block: nn.Module) -> bool:
    """Whether all parts of a block are what is expected, with no hook on them or on all modules."""
    return not nn.modules.module._has_any_global_hook() and all_plain(block)


def may_overwrite() -> bool:
    """Whether neither autograd nor a compiler needs the steps as they were."""
    return not (torch.is_grad_enabled() or torch.compiler.is_compiling())


def all_plain(module: nn.Module, path: str = "") -> bool:
    """Whether all parts of a module, which stands at `path` in a block, are what is expected there."""
    return all(is_plain(part, path + name) for name, part in module._modules.items())


def is_plain(part: Any, path: str) -> bool:
    """Whether the class alone says what a part and its own parts compute, and nobody watches them."""
    return (
        type(part) in KNOWN.get(path, set())
        and not (part._forward_hooks or part._forward_pre_hooks)
        and not (part._backward_hooks or part._backward_pre_hooks)
        and "forward" not in vars(part)  # as accelerate puts one there
        and part._compiled_call_impl is None
        and all(map(is_plain_parameter, part._parameters.values()))
        and not is_dropping(part)
        and all_plain(part, f"{path}.")
    )


def is_plain_parameter(parameter: Any) -> bool:
    """Whether it is there, and no quantized one. An exporter has fake tensors in the place of parameters."""
    return type(parameter) is nn.Parameter or (
        torch.compiler.is_exporting() and isinstance(parameter, nn.Parameter)
    )


def is_dropping(part: nn.Module) -> bool:
    """Whether a part is a dropout at work: it draws once for Z, and would draw otherwise for each half.

    A call may be in other steps than the call that it repeats: checkpointing with re-entrance computes a
    block first without gradients, then with them.
    """
    return type(part) is nn.Dropout and part.training and part.p > 0


def fast_forward(x: torch.Tensor, norm: nn.Module, mlp: Any, drop_path: nn.Module) -> torch.Tensor:
    """``x + (Z1 * f(LN(Z2))) V`` with ``Z = GELU(norm(x) U)``, for a block that `may_be_fast`.

    Shape: (B, N, D) -> (B, N, D), or (B, H, W, D) -> (B, H, W, D) if that is what f takes. `x` is left alone.
    """
    overwrite = may_overwrite()
    gelu = torch.ops.aten.gelu_ if overwrite else functional.gelu
    x_normed, u, half = norm(x), mlp.fc1, mlp.fc1.out_features // 2
    z1, z2 = (  # slices, since ONNX's tools do not fold the chunks of a constant
        gelu(project_channels(x_normed, u.weight[rows], u.bias[rows]), approximate=mlp.act.approximate)
        for rows in (slice(half), slice(half, None))
    )
    gate = mlp.gate.proj(mlp.gate.norm(z2))
    gated = gate.mul_(z1) if overwrite else gate * z1
    y = drop_path(project_channels(gated, mlp.fc2.weight, mlp.fc2.bias))
    return y.add_(x) if overwrite else x + y
