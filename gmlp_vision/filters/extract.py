"""From a network, or only its weights, to its spatial operators. No model is built, and none is imported.

Shapes: N = H * W tokens in row-major order.
"""

import math
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from torch import nn

from gmlp_vision.checkpoints import read_checkpoint
from gmlp_vision.checkpoints.grid import Grid, source_grid
from gmlp_vision.filters.bank import FilterBank
from gmlp_vision.filters.families import FAMILIES, Family, Tensors


def extract(
    source: nn.Module | Mapping[str, torch.Tensor] | str | Path,
    grid: Grid | None = None,
    weights: str = "auto",
) -> FilterBank:
    """The spatial operators of every block of a network.

    Args:
        source: A model, a state dict, or what `gmlp_vision.checkpoints.read_checkpoint` takes: a checkpoint
            file, a folder, 'hf-hub:ID' or the name of a model with released weights.
        grid: (H, W) of the token grid, in tokens. None reads it from the model or from the checkpoint's
            config; where they do not tell, N must be a square number.
        weights: Of a checkpoint: 'ema', 'raw', or 'auto' for EMA where there is one.

    Returns:
        The layers in the order of the blocks, as float32 copies.

    Raises:
        ValueError: No operator of a known family, two networks in one state dict, NaN or infinity in an
            operator, an unknown `weights`, or a choice of them where the source is no checkpoint.
        CheckpointError: The source cannot be read, or `grid` does not fit, or nothing tells the grid.
    """
    tensors: Tensors
    config: Mapping[str, Any] = {}
    if isinstance(source, nn.Module):
        tensors, title = source.state_dict(), type(source).__name__
    elif isinstance(source, Mapping):
        tensors, title = source, "the state dict"
    else:
        checkpoint = read_checkpoint(source, weights)
        tensors, config, title = checkpoint.state_dict, checkpoint.config, checkpoint.source
        if checkpoint.weights == "ema" or weights == "raw":  # there was a choice
            title = f"{title} ({checkpoint.weights} weights)"
    if weights != "auto" and isinstance(source, nn.Module | Mapping):
        raise ValueError(f"weights is {weights!r}, which chooses from a checkpoint, and {title} is none")

    bare = _of_blocks(tensors, title)
    found = _find(bare)
    if not found:
        known = "; ".join(family.models for family in FAMILIES)
        raise ValueError(
            f"{title} has no spatial operator of a known family among its {len(tensors)} tensors "
            f"({', '.join([*list(tensors)[:3], '...'])}); supported are {known}, under timm's names"
        )
    n = bare[f"{found[0][1]}.weight"].shape[1]
    own = _own_grid(source, n) if isinstance(source, nn.Module) else None
    patch = _patch_size(tensors)
    # the sizes in a config are in pixels: without a patch they tell no grid
    told = source_grid(n, patch or (1, 1), config if patch else {}, grid, own=own)
    layers = [layer for block, key, family in found for layer in family.read(key, block, bare, told.size)]
    return FilterBank(tuple(layers), title, told.how)


def _of_blocks(tensors: Tensors, title: str) -> dict[str, torch.Tensor]:
    """The tensors of the blocks, by their keys from 'blocks.' on.

    A map over tokens may be the kernel of a 1-d convolution, (rows, N, 1); here it is (rows, N).
    """
    bare: dict[str, torch.Tensor] = {}
    for full, tensor in tensors.items():
        match = re.search(r"(?:^|\.)(blocks\.\d+\..+)$", full)
        if match is None:
            continue
        if match[1] in bare:
            raise ValueError(f"{title} holds {match[1]} more than once, also as {full}: pass one network")
        bare[match[1]] = tensor[..., 0] if tensor.ndim == 3 and tensor.shape[2] == 1 else tensor
    return bare


def _find(tensors: Tensors) -> list[tuple[int, str, Family]]:
    """(N of 'blocks.N', key without '.weight', family) of every block that mixes tokens, by N."""
    found = []
    for key, tensor in tensors.items():
        _, block, rest = key.split(".", 2)
        for family in FAMILIES:
            if tensor.ndim == 2 and re.fullmatch(rf"{family.key}\.weight", rest):
                found.append((int(block), key.removesuffix(".weight"), family))
    return sorted(found, key=lambda x: x[:2])


def _own_grid(model: nn.Module, n: int) -> Grid | None:
    """timm's patch embeddings and this project's spatial projections know their grid."""
    grids = (getattr(module, "grid_size", None) for module in model.modules())
    return next((g for g in grids if isinstance(g, tuple) and len(g) == 2 and math.prod(g) == n), None)


def _patch_size(tensors: Tensors) -> tuple[int, int] | None:
    """(height, width) in pixels, of the kernel of the stem: the first that goes over pixels."""
    sizes = (tensor.shape[2:] for tensor in tensors.values() if tensor.ndim == 4 and tensor.numel())
    return next(((height, width) for height, width in sizes), None)
