"""From a network, or only its weights, to its spatial operators. No model is built, and none is imported.

Shapes: N = H * W tokens in row-major order.
"""

import math
import re
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import torch
from torch import nn

from gmlp_vision.checkpoints import read_checkpoint
from gmlp_vision.filters.bank import FilterBank
from gmlp_vision.filters.families import FAMILIES, Family, Tensors

Grid = tuple[int, int]


def extract(
    source: nn.Module | Mapping[str, torch.Tensor] | str | Path, grid: Grid | None = None
) -> FilterBank:
    """The spatial operators of every block of a network.

    Args:
        source: A model, a state dict, or what `gmlp_vision.checkpoints.read_checkpoint` takes: a checkpoint
            file, a folder, 'hf-hub:ID' or the name of a model with released weights.
        grid: (H, W) of the token grid, in tokens. None reads it from the model or from the checkpoint's
            config; where they do not tell, N must be a square number.

    Returns:
        The layers in the order of the blocks, as float32 copies.

    Raises:
        ValueError: No operator of a known family, two networks in one state dict, a grid that does not fit or
            that nothing tells, or NaN or infinity in an operator.
        CheckpointError: The source cannot be read.
    """
    tensors: Tensors
    told: Iterator[Grid] = iter(())
    if isinstance(source, nn.Module):
        tensors, title = source.state_dict(), type(source).__name__
        told = _model_grids(source)
    elif isinstance(source, Mapping):
        tensors, title = source, "the state dict"
    else:
        checkpoint = read_checkpoint(source)
        tensors, title = checkpoint.state_dict, checkpoint.source
        told = _config_grids(checkpoint.config, tensors)

    bare = _without_prefix(tensors, title)
    found = _find(bare)
    if not found:
        known = "; ".join(family.models for family in FAMILIES)
        raise ValueError(
            f"{title} has no spatial operator of a known family among its {len(tensors)} tensors "
            f"({', '.join([*list(tensors)[:3], '...'])}); supported are {known}, under timm's names"
        )
    n = bare[f"{found[0][1]}.weight"].shape[1]
    grid = _resolve_grid(n, grid, told)
    layers = [layer for block, key, family in found for layer in family.read(key, block, bare, grid)]
    return FilterBank(tuple(layers), title)


def _without_prefix(tensors: Tensors, title: str) -> Tensors:
    """The tensors of the blocks, by their keys from 'blocks.' on."""
    bare: dict[str, torch.Tensor] = {}
    for full, tensor in tensors.items():
        match = re.search(r"(?:^|\.)(blocks\.\d+\..+)$", full)
        if match is None:
            continue
        if match[1] in bare:
            raise ValueError(f"{title} holds {match[1]} more than once, also as {full}: pass one network")
        bare[match[1]] = tensor
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


def _resolve_grid(n: int, given: Grid | None, told: Iterator[Grid]) -> Grid:
    if given is not None:
        if given[0] < 1 or given[0] * given[1] != n:
            raise ValueError(
                f"grid is {given[0]} x {given[1]}, but the operators are over {n} tokens: height times width "
                f"must be {n}"
            )
        return given
    for h, w in told:
        if h * w == n:
            return h, w
    side = math.isqrt(n)
    if side**2 != n:
        raise ValueError(
            f"the operators are over {n} tokens, which is no square number, and nothing tells their grid: "
            "give it as grid=(H, W), or --grid H W on the command line"
        )
    return side, side


def _model_grids(model: nn.Module) -> Iterator[Grid]:
    """timm's patch embeddings and this project's spatial projections know their grid."""
    for module in model.modules():
        grid = getattr(module, "grid_size", None)
        if isinstance(grid, tuple) and len(grid) == 2:
            yield grid


def _config_grids(config: Mapping[str, Any], tensors: Tensors) -> Iterator[Grid]:
    """The image sizes that timm's config.json may give, over the patch that the stem's weight tells."""
    patch = next((tuple(t.shape[2:]) for t in tensors.values() if t.ndim == 4), None)
    sizes = [
        (config.get("model_args") or {}).get("img_size"),
        (config.get("pretrained_cfg") or {}).get("input_size"),
        config.get("input_size"),
    ]
    for size in sizes:
        if patch is not None and size is not None:
            height, width = (size, size) if isinstance(size, int) else size[-2:]
            yield height // patch[0], width // patch[1]
