"""Networks of nothing but blocks: stages of several grids, kernels, shifts, and what else filters meet."""

import torch
from torch import nn

from gmlp_vision.layers import SpatialProjection
from gmlp_vision.layers.ask import Operator

GRIDS = ((4, 6), (4, 6), (2, 3))  # of the blocks of `pyramid`


class Kernels(nn.Module):
    """R kernels of S x S offsets, as a convolution has them."""

    def __init__(self, count: int = 5, size: tuple[int, int] = (3, 3)) -> None:
        super().__init__()
        self.weight = nn.Parameter(0.02 * torch.randn(count, *size))

    def operators(self, grid_size: tuple[int, int] | None) -> list[Operator]:
        return [Operator("", "kernel", self.weight, None, init_std=0.02, note="exp of it mixes")]


class Heads(nn.Module):
    """Two maps over the same tokens, which it does not know the grid of."""

    def __init__(self, tokens: int) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.randn(2, tokens, tokens))

    def operators(self, grid_size: tuple[int, int] | None) -> list[Operator]:
        return [
            Operator(f"head{i}", "token", weight, None, init_std=1.0) for i, weight in enumerate(self.weight)
        ]


class Shift(nn.Module):
    NO_OPERATOR = "its tokens mix by fixed shifts"


class Blocks(nn.Module):
    """A network that is one row of blocks."""

    def __init__(self, *layers: nn.Module) -> None:
        super().__init__()
        self.blocks = nn.Sequential(*(nn.ModuleDict({"mix": layer}) for layer in layers))


class Embedding(nn.Module):
    def __init__(self, grid_size: tuple[int, int]) -> None:
        super().__init__()
        self.grid_size = grid_size


def pyramid() -> nn.Module:
    """stages.0 with two blocks on 4 x 6 tokens, stages.1 with one on 2 x 3."""
    layers = [projection(grid) for grid in GRIDS]
    return nn.ModuleDict({"stages": nn.Sequential(Blocks(*layers[:2]), Blocks(*layers[2:]))})


def projection(grid_size: tuple[int, int]) -> SpatialProjection:
    layer = SpatialProjection(grid_size)
    nn.init.normal_(layer.weight)
    nn.init.normal_(layer.bias)
    return layer
