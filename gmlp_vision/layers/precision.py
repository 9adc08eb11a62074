"""Operations that are done in float32 or above, whatever autocast or the dtype of a model says.

torch.fx cannot trace the question for autocast: a module that calls one of these names it to `torch.fx.wrap`.
"""

from contextlib import AbstractContextManager, nullcontext

import torch
from torch.nn import functional


def at_least_float32(x: torch.Tensor) -> torch.Tensor:
    """`x`, as float32 if it has a shorter float."""
    return x if x.dtype == torch.float32 or x.dtype == torch.float64 else x.float()


def matmul_float32(a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
    """``a @ b``."""
    a, b = at_least_float32(a), at_least_float32(b)
    if torch.jit.is_scripting():  # TorchScript knows no autocast that depends on the device
        return a @ b
    else:  # noqa: RET505  it compiles no other form
        with without_autocast(a):
            return a @ b


def depthwise_conv_float32(x: torch.Tensor, kernels: torch.Tensor) -> torch.Tensor:
    """Each channel of (B, H, W, C) with its own of (C, s, s), s odd, zeros outside: (B, H, W, C).

    Kernel entry (i, j) is for the token i - s // 2 rows further down and j - s // 2 columns further right.
    """
    x, kernels = at_least_float32(x).permute(0, 3, 1, 2), at_least_float32(kernels).unsqueeze(1)
    padding, groups = kernels.shape[-1] // 2, kernels.shape[0]
    if torch.jit.is_scripting():
        y = functional.conv2d(x, kernels, padding=padding, groups=groups)
    else:
        with without_autocast(x):
            y = functional.conv2d(x, kernels, padding=padding, groups=groups)
    return y.permute(0, 2, 3, 1)


def without_autocast(x: torch.Tensor) -> AbstractContextManager[object]:
    """No autocast on the device of `x`, for the time of a `with`."""
    kind = x.device.type
    if kind == "meta" or not torch.is_autocast_enabled(kind):
        return nullcontext()
    return torch.autocast(kind, enabled=False)
