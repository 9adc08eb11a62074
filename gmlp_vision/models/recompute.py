"""Activation checkpointing: what a block keeps for the backward pass, and what is then computed again."""

from functools import partial
from typing import Any

import torch
from timm.models import checkpoint
from torch import nn
from torch.utils.checkpoint import CheckpointPolicy, create_selective_checkpoint_contexts

# The product of a linear layer as autograd hands it on: with a bias, or without one.
PRODUCTS = {torch.ops.aten.addmm.default, torch.ops.aten.mm.default}


def recompute(block: nn.Module, x: torch.Tensor, mode: str) -> torch.Tensor:
    """``block(x)``, keeping the products of its widening layers ('selective') or nothing but x ('block')."""
    if mode == "block":
        return checkpoint(block, x)
    contexts = partial(create_selective_checkpoint_contexts, keep_products)
    # only the form without re-entrance can choose, whatever timm is set to
    return checkpoint(block, x, use_reentrant=False, context_fn=contexts)


def keep_products(context: Any, op: Any, *args: Any, **kwargs: Any) -> CheckpointPolicy:
    """The products are most of a block's arithmetic; norms, GELU and gate take most of its memory."""
    if op in PRODUCTS:
        inputs, outputs = args[-1].shape
        # a block's last product, back to its width, is kept by nobody: the backward pass does not ask for it
        if outputs > inputs:
            return CheckpointPolicy.MUST_SAVE
    return CheckpointPolicy.PREFER_RECOMPUTE


def check_mode(mode: str) -> None:
    if mode not in ("selective", "block"):
        raise ValueError(f"mode is {mode!r}; expected 'selective' or 'block'")
