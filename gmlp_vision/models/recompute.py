"""Activation checkpointing: what a block keeps for the backward pass, and what is then computed again."""

from functools import partial
from typing import Any

import torch
from timm.models import checkpoint
from torch import nn
from torch.utils.checkpoint import CheckpointPolicy, create_selective_checkpoint_contexts

# What a linear layer is below autograd: with a bias, and without one.
LINEAR = {torch.ops.aten.addmm.default, torch.ops.aten.mm.default}


def recompute(block: nn.Module, x: torch.Tensor, mode: str) -> torch.Tensor:
    """``block(x)``, keeping the products with U ('selective') or nothing but x ('block')."""
    # a block that chooses its steps would choose others in the backward pass if a hook was removed meanwhile
    settled: Any = getattr(block, "settled", None)
    call = block if settled is None else settled(x)
    if mode == "block":
        return checkpoint(call, x)
    contexts = partial(create_selective_checkpoint_contexts, partial(keep_products, x.shape[-1]))
    # only the form without re-entrance can choose, whatever timm is set to
    return checkpoint(call, x, use_reentrant=False, context_fn=contexts)


def keep_products(width: int, context: Any, op: Any, *args: Any, **kwargs: Any) -> CheckpointPolicy:
    """The products are most of a block's arithmetic; norms, GELU and gate take most of its memory.

    Args:
        width: D, the inputs of U, by which its products are known, be they of the whole or of a half.
        context, op, args, kwargs: What torch tells of one operation of the block.
    """
    if op in LINEAR:
        inputs = args[-1].shape[0]
    elif op is torch.ops.aten.convolution.default:
        inputs = args[1].shape[1]
    else:
        return CheckpointPolicy.PREFER_RECOMPUTE
    # V's product need not be kept, as the backward pass does not ask for it; where V has D inputs too, at
    # an mlp_ratio of 2, it is
    return CheckpointPolicy.MUST_SAVE if inputs == width else CheckpointPolicy.PREFER_RECOMPUTE


def check_mode(mode: str) -> None:
    if mode not in ("selective", "block"):
        raise ValueError(f"mode is {mode!r}; expected 'selective' or 'block'")
