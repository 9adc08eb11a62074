"""Linear layers of other people's models that belong to the grid of the tokens, and do not say so.

Shapes: (H, W) a grid, in tokens; N = H * W tokens in row-major order.
"""

from collections.abc import Mapping
from functools import singledispatch
from typing import Any

import torch
from torch import nn
from torch.nn.utils import parametrize

from gmlp_vision.layers.resample import Grid
from gmlp_vision.layers.rules import Rule, carry_by


class TiedLinear:
    """An nn.Linear over the tokens of a grid, seen as the layers of this package that belong to one.

    Args:
        linear: What stands in the layer's place; a tool may have put another there.
        rules: The rule of each of its parameters that belong to the grid, by the parameter's name.
        grid_size: The grid that they belong to.
    """

    held_as = ""  # a tool that wraps it stands in its place, so `is_plain` tells

    def __init__(self, linear: nn.Module, rules: Mapping[str, Rule], grid_size: Grid) -> None:
        self.linear = linear
        self.RULES = {k: rule for k, rule in rules.items() if getattr(linear, k, linear) is not None}
        self.grid_size = grid_size

    @property
    def is_plain(self) -> bool:
        """Whether it is an nn.Linear. A parametrized one is, by another class; that it is computed tells."""
        return type(self.linear) is nn.Linear or (
            isinstance(self.linear, nn.Linear) and parametrize.is_parametrized(self.linear)
        )

    def has_of_its_own(self, name: str) -> bool:
        """Whether a tensor of this name in the layer is the layer's, not a tool's."""
        return name in ("weight", "bias")

    def on_grid(self, grid_size: Grid) -> tuple[torch.Tensor, ...]:
        """The parameters of RULES, in its order, carried to a grid: new tensors.

        Raises:
            ValueError: A rule refuses.
        """
        tensors = {name: getattr(self.linear, name) for name in self.RULES}
        return tuple(self.carried(tensors, self.grid_size, grid_size).values())

    def carried(
        self, tensors: Mapping[str, torch.Tensor], old_grid: Grid, new_grid: Grid
    ) -> dict[str, torch.Tensor]:
        """The parameters of RULES, all of them and in its order, from one grid to another: each by its rule.

        Raises:
            ValueError: A rule refuses.
        """
        return carry_by(self.RULES, tensors, old_grid, new_grid)

    def replace_grid(self, grid_size: Grid, carried: tuple[torch.Tensor, ...]) -> None:
        """Ties the layer to another grid; `carried` become its new parameters."""
        self.grid_size = grid_size
        for name, tensor in zip(self.RULES, carried, strict=True):
            requires_grad = getattr(self.linear, name).requires_grad
            setattr(self.linear, name, nn.Parameter(tensor.detach(), requires_grad=requires_grad))
        linear: Any = self.linear
        linear.out_features, linear.in_features = linear.weight.shape


@singledispatch
def linears_on_grid(module: nn.Module) -> dict[str, TiedLinear]:
    """The linear layers over the tokens of a network, by their names in it; none of a class that no family
    speaks for.
    """
    return {}
