"""Which form of a block a trunk calls: the block itself, or its fast form where nobody can tell.

A block has one contract, its `__call__` with the tokens alone. Whoever wraps it, derives from it, hooks it
or a part of it, replaces a forward, traces, transforms or counts operations meets that call and nothing else.
"""

from collections.abc import Callable
from typing import Any

import torch
from torch import nn

from gmlp_vision.layers.fast_form import is_plain, is_unhooked
from gmlp_vision.layers.observed import is_observed

FORWARD = nn.Sequential.forward


def choose(block: nn.Module, x: torch.Tensor) -> Callable[[torch.Tensor], torch.Tensor]:
    """What to call with `x`, once or, as activation checkpointing does, again in the backward pass.

    Args:
        block: Any module that maps tokens to tokens.
        x: What it will be called with.
    """
    fast: Any = block
    return fast.fast_forward if _may_be_fast(block, x) else block


def is_watched(blocks: nn.Module, x: torch.Tensor) -> bool:
    """Whether a row of blocks must be called as the module that holds them, for hooks or a trace."""
    return (
        type(blocks) is not nn.Sequential
        or nn.Sequential.forward is not FORWARD
        or not is_unhooked(blocks)
        or nn.modules.module._has_any_global_hook()
        or (not torch.compiler.is_compiling() and is_observed(x))
    )


def _may_be_fast(block: nn.Module, x: torch.Tensor) -> bool:
    if not hasattr(type(block), "fast_forward"):  # of the class: a wrapper may hand on that of what it holds
        return False
    if torch.compiler.is_exporting():  # a file of ONNX is only computed; what else is exported may be edited
        return torch.onnx.is_in_onnx_export() and _is_known(block)
    # the figures are of CPUs (docs/speed.md)
    if not isinstance(x, torch.Tensor) or x.device.type != "cpu":
        return False
    if not torch.compiler.is_compiling() and is_observed(x):
        return False
    if torch.is_autocast_enabled("cpu") and torch.get_autocast_dtype("cpu") != x.dtype:
        return False  # the branch may have another dtype than x
    return _is_known(block)


def _is_known(block: nn.Module) -> bool:
    return not nn.modules.module._has_any_global_hook() and is_plain(block)
