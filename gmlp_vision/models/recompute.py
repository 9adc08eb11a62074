"""Activation checkpointing: what a block keeps for the backward pass, and what it then computes again."""

from functools import partial
from typing import Any

import torch
from timm.models import checkpoint
from torch import nn
from torch.utils.checkpoint import CheckpointPolicy, create_selective_checkpoint_contexts

MODES = ("selective", "block")

# A linear layer's product, as it reaches the dispatcher: with a bias, without one, and where it is kept whole.
PRODUCTS = {torch.ops.aten.addmm.default, torch.ops.aten.mm.default, torch.ops.aten.linear.default}


def keep_products(_: Any, op: Any, *args: Any, **kwargs: Any) -> CheckpointPolicy:
    """Keeps the products of the linear layers, most of the arithmetic; norms, GELU and gate are made again."""
    return CheckpointPolicy.MUST_SAVE if op in PRODUCTS else CheckpointPolicy.PREFER_RECOMPUTE


def recompute(block: nn.Module, x: torch.Tensor, mode: str) -> torch.Tensor:
    """``block(x)``, keeping the products of its linear layers ('selective') or nothing but x ('block')."""
    if mode == "block":
        return checkpoint(block, x)
    contexts = partial(create_selective_checkpoint_contexts, keep_products)
    # only torch's non-reentrant form knows what an op is; timm's switch may ask for the other one
    return checkpoint(block, x, use_reentrant=False, context_fn=contexts)
