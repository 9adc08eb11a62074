"""From a network to the linear maps over tokens that its layers say they hold.

Shapes: N = H * W tokens in row-major order.
"""

import math
import re
from collections import Counter
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import NamedTuple

import torch
from torch import nn

from gmlp_vision.checkpoints.build import build
from gmlp_vision.filters.bank import FilterBank, FilterLayer
from gmlp_vision.layers.ask import Operator, layers_with_operators, operators
from gmlp_vision.layers.resample import Grid

# in a module's name the outermost block, and before it the network that the block is of
BLOCK = re.compile(
    r"(?:(?P<network>.+?)\.)??(?P<block>(?P<stage>stages\.\d+\.)?blocks\.(?P<number>\d+))(?=\.|$)"
)


def extract(
    source: nn.Module | Mapping[str, torch.Tensor] | str | Path,
    grid: Grid | None = None,
    weights: str = "auto",
    model: str | None = None,
    prefix: str | None = None,
) -> FilterBank:
    """The linear maps over tokens of every block of a network.

    Args:
        source: A network, a state dict, or what `gmlp_vision.checkpoints.read_checkpoint` takes: a checkpoint
            file, a folder, 'hf-hub:ID' or the name of a model with released weights. All but a network are
            built into one first, so what computes a map is shown as it acts.
        grid: (H, W) of the tokens, for a source that does not tell; without it N must be a square number.
        weights: Of a checkpoint: 'ema', 'raw', or 'auto' for EMA where there is one.
        model: The registered name of the model whose weights these are, where the tensors leave it open.
        prefix: Of the network that is meant, where a checkpoint or a state dict holds more than one.

    Returns:
        The layers in the order of the blocks, as float32 copies.

    Raises:
        ValueError: No layer holds such a map, and the message has what they say of it; two networks in one; a
            map outside of any block; a grid that does not fit, or none that is known; NaN or infinity in a
            map; an unknown `weights` or `model`, or one (or a `prefix`) where the source leaves nothing open.
        CheckpointError: The source cannot be read or built, or does not tell its grid.
    """
    if weights != "auto" and isinstance(source, nn.Module | Mapping):
        raise ValueError(
            f"weights is {weights!r}, which chooses from a checkpoint; a {type(source).__name__} is none"
        )
    if isinstance(source, nn.Module):
        for name, value in (("model", model), ("prefix", prefix)):
            if value is not None:
                raise ValueError(
                    f"{name} is {value!r}, which says what a file holds; this is a network already"
                )
        return _read(source, type(source).__name__, grid, "as the model's own")
    built = build(source, weights=weights, grid=grid, model=model, prefix=prefix)
    return _read(built.model, built.title, None, built.how)


class Found(NamedTuple):
    """A map over tokens that a layer holds.

    Attributes:
        network: The name of the network that the layer is of; '' where that is the source itself.
        name: Of the layer in its network, from the number of its block on, and of its part.
        block: The number of its block.
        operator: The map.
        grids: Those that its tokens may lie on, the likeliest first.
    """

    network: str
    name: str
    block: int
    operator: Operator
    grids: list[Grid]


def _read(model: nn.Module, title: str, grid: Grid | None, how: str) -> FilterBank:
    """The bank of a live network; `how` tells whence it knows a grid that it has of its own."""
    with torch.no_grad():
        found = sorted(find(model, title, grid), key=lambda x: x.block)
    if not found:
        raise ValueError(_nothing(model, title))
    networks = sorted({repr(x.network) for x in found})
    if len(networks) > 1:
        raise ValueError(f"{title} holds more than one network, {' and '.join(networks)}: pass one")
    layers: list[FilterLayer] = []
    hows: dict[str, None] = {}
    for x in found:
        size = None
        if x.operator.kind != "kernel":
            size, told = _grid_of(x, grid, how)
            hows[told] = None
        layers.append(_layer(x, size))
    sizes = {layer.grid for layer in layers if layer.kind != "kernel"}
    if grid is not None and grid not in sizes:
        own = " and ".join(f"{h} x {w}" for h, w in sorted(sizes)) or "none, since it holds kernels only"
        raise ValueError(
            f"the grid {grid[0]} x {grid[1]} is given; {title} tells its own, {own}: leave it out"
        )
    return FilterBank(tuple(layers), title, "; ".join(hows))


# -- pieces --------------------------------------------------------------------------------------------------


def find(model: nn.Module, title: str, grid: Grid | None) -> Iterator[Found]:
    counts: Counter[str] = Counter()  # the blocks of each network
    block = 0
    met: list[Grid] = []  # what embeddings and layers have said, the latest last
    for name, module in model.named_modules(remove_duplicate=False):  # one that is shared acts in every block
        place = BLOCK.match(name)
        network = (place and place["network"]) or ""
        if place and place[0] == name:
            block = counts[network] if place["stage"] else int(place["number"])
            counts[network] += 1
        met += _grids(module)
        for operator in operators(module, met[-1] if met else grid):
            full = f"{name}.{operator.part}".strip(".")
            if place is None:
                raise ValueError(
                    f"{title} has a map over tokens outside of 'blocks.N', {full}: pass a whole network"
                )
            grids = [*_grids(*module.modules()), *reversed(met)]
            yield Found(network, full[place.start("block") :], block, operator, grids)


def _grids(*modules: nn.Module) -> list[Grid]:
    """timm's patch embeddings and this package's layers tell the grid of their tokens."""
    told = (getattr(module, "grid_size", None) for module in modules)
    return [(size[0], size[1]) for size in told if isinstance(size, tuple) and len(size) == 2]


def _grid_of(found: Found, given: Grid | None, how: str) -> tuple[Grid, str]:
    """The grid of a map over N tokens, and how it is known."""
    n = found.operator.weight.shape[1]
    for size in found.grids:
        if math.prod(size) == n:
            return size, how
    side = math.isqrt(n)
    if given is None and side**2 == n:
        return (side, side), "guessed to be square, since nothing states it"
    if given is None:
        raise ValueError(f"{found.name} is over {n} tokens, and nothing tells their grid: give `grid=(H, W)`")
    if min(given) < 1 or math.prod(given) != n:
        raise ValueError(
            f"the grid {given[0]} x {given[1]} is given, but {found.name} is over {n} tokens: height and "
            f"width are at least 1, and their product is {n}"
        )
    return given, "as given"


def _layer(found: Found, size: Grid | None) -> FilterLayer:
    operator = found.operator
    weight = _own(operator.weight, found.name)
    return FilterLayer(
        name=found.name,
        block=found.block,
        kind=operator.kind,
        weight=weight if size is None else weight.unflatten(1, size),
        bias=None if operator.bias is None else _own(operator.bias, found.name),
        init_std=operator.init_std,
        note=operator.note,
    )


def _own(tensor: torch.Tensor, name: str) -> torch.Tensor:
    """A copy: a bank stays as it is while its network trains on."""
    if tensor.is_meta:
        raise ValueError(f"{name} is on the meta device, where there are no numbers: load weights first")
    return tensor.detach().to("cpu", torch.float32, copy=True)


def _nothing(model: nn.Module, title: str) -> str:
    """Why there is nothing to show, in the words of the layers."""
    reasons = dict.fromkeys(getattr(type(module), "NO_OPERATOR", "") for module in model.modules())
    told = [reason for reason in reasons if reason]
    if told:
        return f"{title} has no map over tokens to show: {'; '.join(told)}"
    return (
        f"{title} has no layer that is known to hold a map over tokens; known are "
        f"{', '.join(layers_with_operators())}, and layers with a method `operators`"
    )
