"""Running blocks, and activation checkpointing: what they keep for the backward pass, what is done again."""

from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from functools import partial
from typing import Any

import torch
from timm.models import checkpoint
from torch import nn
from torch.nn.modules.batchnorm import _BatchNorm
from torch.utils.checkpoint import CheckpointPolicy, create_selective_checkpoint_contexts

from gmlp_vision.trunks.run_block import choose, is_watched

# What a linear layer is below autograd: with a bias, and without one.
LINEAR = {torch.ops.aten.addmm.default, torch.ops.aten.mm.default}

Contexts = tuple[AbstractContextManager[Any], AbstractContextManager[Any]]


def run_blocks(blocks: Any, x: torch.Tensor, checkpointing: str) -> torch.Tensor:
    """A row of blocks: one by one, or as the module that holds them where anybody watches that.

    Args:
        blocks: The nn.Sequential that holds them.
        x: Tokens.
        checkpointing: 'selective', 'block', or '' to keep everything.
    """
    if not checkpointing and is_watched(blocks, x):
        return blocks(x)
    for block in blocks:
        x = run_block(block, x, checkpointing)
    return x


def run_block(block: nn.Module, x: torch.Tensor, checkpointing: str) -> torch.Tensor:
    """The only place that calls a block; arguments as `run_blocks`."""
    return recompute(block, x, checkpointing) if checkpointing else choose(block, x)(x)


def recompute(block: nn.Module, x: torch.Tensor, mode: str) -> torch.Tensor:
    """``block(x)``, keeping the products of its widening projections ('selective') or only x ('block')."""
    call = choose(block, x)  # once: the repetition must take the same steps
    norms = [m for m in block.modules() if isinstance(m, _BatchNorm) and m.training]
    if mode == "block" and not norms:
        return checkpoint(call, x)
    # Only the form without re-entrance takes contexts, whatever timm is set to.
    return checkpoint(call, x, use_reentrant=False, context_fn=partial(_contexts, norms, mode, x.shape[-1]))


def _contexts(norms: list[_BatchNorm], mode: str, width: int) -> Contexts:
    """Those of the forward pass and of the repetition."""
    forward: AbstractContextManager[Any] = nullcontext()
    repetition: AbstractContextManager[Any] = nullcontext()
    if mode == "selective":
        forward, repetition = create_selective_checkpoint_contexts(partial(keep_products, width))
    return forward, _without_statistics(norms, repetition) if norms else repetition


@contextmanager
def _without_statistics(norms: list[_BatchNorm], inner: AbstractContextManager[Any]) -> Iterator[None]:
    """Leaves running statistics alone: the forward pass has counted the batch already.

    The norms still compute with the batch's own statistics and save the same tensors, which checkpointing
    compares; with `track_running_stats` off they would not.
    """
    before = [(m, m.momentum, m.num_batches_tracked) for m in norms]
    try:
        for m in norms:
            m.momentum, m.num_batches_tracked = 0.0, None
        with inner:
            yield
    finally:
        for m, momentum, count in before:
            m.momentum, m.num_batches_tracked = momentum, count


def keep_products(width: int, context: Any, op: Any, *args: Any, **kwargs: Any) -> CheckpointPolicy:
    """The products are most of a block's arithmetic; norms, activations and gates take most of its memory.

    Args:
        width: D, the inputs of the projections that widen, by which their products are known.
        context, op, args, kwargs: What torch tells of one operation of the block.
    """
    if op in LINEAR:
        inputs = args[-1].shape[0]
    elif op is torch.ops.aten.convolution.default:
        inputs = args[1].shape[1]
    else:
        return CheckpointPolicy.PREFER_RECOMPUTE
    # The last product of a residual branch need not be kept, as the backward pass does not ask for it; where
    # it has D inputs too, it is.
    return CheckpointPolicy.MUST_SAVE if inputs == width else CheckpointPolicy.PREFER_RECOMPUTE


def check_mode(mode: str) -> None:
    if mode not in ("selective", "block"):
        raise ValueError(f"mode is {mode!r}; expected 'selective' or 'block'")
