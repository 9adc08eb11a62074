"""Whether anybody but the caller sees the single operations of a call, so that they must be as written."""

import torch
from torch import nn
from torch.autograd import forward_ad
from torch.fx.experimental.proxy_tensor import get_proxy_mode

CALL = nn.Module.__call__  # torch.fx and others put their own in its place for a while


def is_observed(x: torch.Tensor) -> bool:
    """Whether a call with `x` is traced, transformed, or met by a torch function or dispatch mode.

    Args:
        x: What is called with. torch.fx calls with a Proxy, and vmap with a tensor that only looks like one.
    """
    # The stacks of modes and transforms have no public way to ask; torch.compile cannot trace the questions,
    # and asks them itself.
    return (
        type(x) is not torch.Tensor
        or torch.jit.is_tracing()
        or nn.Module.__call__ is not CALL
        or torch._C._len_torch_function_stack() > 0
        or torch._C._len_torch_dispatch_stack() > 0
        or torch._C._functorch.peek_interpreter_stack() is not None
        or forward_ad._current_level >= 0
    )


def may_branch(x: torch.Tensor) -> bool:
    """Whether the values of `x` may decide what is computed: nobody records the steps for other values.

    Unlike `is_observed`, it lets modes by that only look on, such as those of activation checkpointing and of
    counters.
    """
    return not (
        torch.compiler.is_compiling()  # or exporting
        or type(x) is not torch.Tensor
        or torch.jit.is_tracing()
        or get_proxy_mode() is not None
        or is_transformed()
    )


def is_transformed() -> bool:
    """Whether a call is within a transform of torch.func, such as grad or vmap, and not compiled."""
    return not torch.compiler.is_compiling() and torch._C._functorch.peek_interpreter_stack() is not None
