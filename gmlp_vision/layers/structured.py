"""What all kinds of W have in common: linear maps over tokens made of any numbers, often fewer than N^2.

Shapes: B batch, H, W the token grid, N = H * W tokens in row-major order, C channels, G groups of channels.
"""

from collections.abc import Mapping
from typing import Any, ClassVar

import torch
from torch import nn
from torch.nn import functional

from gmlp_vision.layers.ask import Operator
from gmlp_vision.layers.grid_tied import GridTied, Tensors
from gmlp_vision.layers.resample import Grid
from gmlp_vision.layers.rules import TOKEN_MAP


class Structured(GridTied):
    """``y[i, c] = sum_j W_g[i, j] x[j, c] + b[i]``; channel c is of group g = c mod G.

    A class derived from this one is a kind of W. It makes its parameters, with `self.bias` the last of them,
    and calls `reset_parameters`; it has `forward`, which is free to go any way that gives the same as
    `matrix`; and it says in its docstring how it goes to another grid, and what its nearest one is.

    W's numbers start so that the mean square of W's entries is `init_std` squared, as a dense W's is. So a
    kind with zeros in W starts its other numbers higher, and y has the same variance from the start on.

    Args:
        grid_size: (H, W) of the token grid that the map is tied to, in tokens.
        init_std: Standard deviation of a dense W at the start; None: N^-1/2 of whatever grid it is on, which
            keeps the scale of the tokens.
        init_bias: All of b at the start.

    Attributes:
        OPTION: The argument of the class that the number in its key sets, as R in 'rank:R'; '' for none.
        GROUPED: Whether the class takes `groups`.
        NO_NEAREST: Why it has no nearest one to a dense W; '' where it has.

    Shape: (B, H, W, C) -> (B, H, W, C), C a multiple of G.
    """

    RULES = {"bias": TOKEN_MAP}  # noqa: RUF012  a ClassVar in the base
    OPTION: ClassVar[str] = ""
    GROUPED: ClassVar[bool] = False
    NO_NEAREST: ClassVar[str] = ""

    bias: nn.Parameter

    def __init__(self, grid_size: Grid, init_std: float | None = 1e-6, init_bias: float = 1.0) -> None:
        super().__init__(grid_size)
        self.asked_std = init_std
        self.init_std = self._std()
        self.init_bias = init_bias

    def _std(self) -> float:
        tokens: int = self.grid_size[0] * self.grid_size[1]
        return tokens**-0.5 if self.asked_std is None else self.asked_std

    def replace_grid(self, grid_size: Grid, carried: Tensors) -> None:
        super().replace_grid(grid_size, carried)
        self.init_std = self._std()  # for `init_weights`

    def matrix(self, grid_size: Grid | None = None) -> torch.Tensor:
        """W itself, as a call on a grid has it: the slow truth. Gradients flow.

        Args:
            grid_size: (H, W), in tokens; None: the layer's own.

        Returns:
            (G, N, N).

        Raises:
            ValueError: A rule refuses to go to that grid.
        """
        grid = self.grid_size if grid_size is None else grid_size
        same = grid == self.grid_size
        *parameters, _ = tuple(getattr(self, name) for name in self.RULES) if same else self.on_grid(grid)
        return self.matrix_of(grid, *parameters)

    def matrix_of(self, grid_size: Grid, *parameters: torch.Tensor) -> torch.Tensor:
        """W on a grid, (G, N, N), from the parameters of RULES on it, but b."""
        raise NotImplementedError

    @classmethod
    def nearest(
        cls, weight: torch.Tensor, grid_size: Grid, *none: Any, **options: Any
    ) -> dict[str, torch.Tensor]:
        """The W of this kind with the least sum of squared differences from a dense one.

        Args:
            weight: (N, N).
            grid_size: (H, W) that it is over, in tokens.
            options: Those of the class: its OPTION, and `groups`, which are all alike then.

        Returns:
            The parameters of that W, by their names, b left out; float64.

        Raises:
            ValueError: There is none that a formula gives: see NO_NEAREST.
        """
        raise ValueError(f"{cls.__name__} has no nearest one: {cls.NO_NEAREST}")

    @classmethod
    def grid_near(cls, grid_size: Grid, *none: Any, **options: Any) -> Grid:
        """The smallest grid that holds this one and that a W of these options can be on."""
        return grid_size

    @classmethod
    def options_of(cls, tensors: Mapping[str, torch.Tensor]) -> dict[str, int] | None:
        """The arguments of the layer with these tensors, b among them; None if they are not of this kind."""
        raise NotImplementedError

    def note(self) -> str:
        """What a caption of W says of how it is made, or ''."""
        return ""

    def operators(self, grid_size: Grid) -> list[Operator]:
        """W of each group, and b, as `gmlp_vision.layers.ask.operators` tells them."""
        w = self.matrix().detach()
        parts = [""] if len(w) == 1 else [f"group {g}" for g in range(len(w))]
        std, note = self.start_std(), self.note()
        return [
            Operator(part, "token", one, self.bias, std, note) for part, one in zip(parts, w, strict=True)
        ]

    def start_std(self) -> float:
        """The root of the mean square of W's entries at the start."""
        return self.init_std

    def std_of(self, numbers: float) -> float:
        """Of what a row of W is made of, if so many of its entries, in the mean, are not 0: see the class."""
        return self.init_std * (self.grid_size[0] * self.grid_size[1] / numbers) ** 0.5

    def new_bias(self, **dd: Any) -> nn.Parameter:
        """b, not yet filled, for a device and dtype."""
        return nn.Parameter(torch.empty(self.grid_size[0] * self.grid_size[1], **dd))


def map_tokens(x: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor) -> torch.Tensor:
    """``W x + b`` over the tokens.

    Shapes: (B, H, W, C) tokens, (N, N) weight, (N,) bias -> as the tokens.
    """
    tokens = x.flatten(1, 2)
    return functional.linear(tokens.transpose(1, 2), weight, bias).transpose(1, 2).view_as(x)


def map_tokens_by_group(x: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor) -> torch.Tensor:
    """``W_g x + b`` over the tokens, channel c with the W of group c mod G.

    Shapes: (B, H, W, C) tokens, (G, N, N) weight, (N,) bias -> as the tokens.
    """
    tokens = x.flatten(1, 2).unflatten(2, [-1, weight.shape[0]])
    mapped = torch.einsum("gij,bjvg->bivg", weight, tokens).flatten(2)
    return (mapped + bias.unsqueeze(1)).view_as(x)
