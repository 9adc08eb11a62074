"""Linear maps over tokens within the cells of a grid, or across them: the two of MAXIM's multi-axis gMLP
("MAXIM: Multi-Axis MLP for Image Processing", Tu et al., https://arxiv.org/abs/2201.02973), one alone.

Shapes: B batch, H, W the token grid, N = H * W tokens in row-major order, C channels, s a side in tokens.
"""

from collections.abc import Mapping

import torch
from torch import nn

from gmlp_vision.layers.grid_tied import Tensors
from gmlp_vision.layers.resample import Grid
from gmlp_vision.layers.structured import Structured
from gmlp_vision.layers.windows import cells_apart, cells_together


class CellsProjection(Structured):
    """A dense map over s^2 tokens, which all sets of tokens share that a derived class makes.

    W has s^4 numbers, and a call costs N s^2 a channel. On another grid they stay as they are, and b is
    resized; a grid whose sides s does not divide is refused. Numbers start at `init_std` times sqrt(N) / s.

    The nearest one to a dense W is its mean over the sets.

    Args:
        grid_size: (H, W) of the token grid, in tokens.
        init_std: As for a dense W; see Structured.
        init_bias: All of b at the start.
        side: s.
        device, dtype: of the parameters.

    Attributes:
        NAME: Of the parameter, (s^2, s^2).

    Shape: (B, H, W, C) -> (B, H, W, C).

    Raises:
        ValueError: s does not divide a side of the grid.
    """

    OPTION = "side"
    NAME: str

    def __init__(
        self,
        grid_size: Grid,
        init_std: float | None = 1e-6,
        init_bias: float = 1.0,
        side: int = 7,
        device: torch.device | str | None = None,
        dtype: torch.dtype | None = None,
    ) -> None:
        super().__init__(grid_size, init_std, init_bias)
        check_divides(side, grid_size)
        self.side = side
        self.register_parameter(
            self.NAME, nn.Parameter(torch.empty(side**2, side**2, device=device, dtype=dtype))
        )
        self.bias = self.new_bias(device=device, dtype=dtype)
        self.reset_parameters()

    def reset_parameters(self) -> None:
        """As every kind of W starts."""
        nn.init.normal_(getattr(self, self.NAME), std=self.std_of(self.side**2))
        nn.init.constant_(self.bias, self.init_bias)

    def on_grid(self, grid_size: Grid) -> Tensors:
        check_divides(self.side, grid_size)
        return super().on_grid(grid_size)

    def matrix_of(self, grid_size: Grid, *parameters: torch.Tensor) -> torch.Tensor:
        n = grid_size[0] * grid_size[1]
        weight = getattr(self, self.NAME)
        sets = self._indices(grid_size, self.side, weight.device)
        w = weight.new_zeros(n, n)
        index = (sets.unsqueeze(2), sets.unsqueeze(1))
        return w.index_put(index, weight.expand(len(sets), -1, -1)).unsqueeze(0)

    @classmethod
    def nearest(cls, weight: torch.Tensor, grid_size: Grid, side: int = 7) -> dict[str, torch.Tensor]:
        check_divides(side, grid_size)
        sets = cls._indices(grid_size, side, weight.device)
        return {cls.NAME: weight.double()[sets.unsqueeze(2), sets.unsqueeze(1)].mean(0)}

    @classmethod
    def grid_near(cls, grid_size: Grid, side: int = 7) -> Grid:
        return -(-grid_size[0] // side) * side, -(-grid_size[1] // side) * side

    @classmethod
    def options_of(cls, tensors: Mapping[str, torch.Tensor]) -> dict[str, int] | None:
        known = tensors.keys() == {cls.NAME, "bias"} and tensors[cls.NAME].ndim == 2
        return {"side": round(len(tensors[cls.NAME]) ** 0.5)} if known else None

    @classmethod
    def _indices(cls, grid_size: Grid, side: int, device: torch.device) -> torch.Tensor:
        """The tokens of each set, (N / s^2, s^2)."""
        tokens = torch.arange(grid_size[0] * grid_size[1], device=device)
        return cls.sets(tokens.view(1, *grid_size, 1), side).flatten(0, 2).squeeze(-1)

    @staticmethod
    def sets(x: torch.Tensor, side: int) -> torch.Tensor:
        """(B, H, W, C) to (B, H / s, W / s, s^2, C): the sets of s^2 tokens that the map is over."""
        raise NotImplementedError


class BlockProjection(CellsProjection):
    """The sets are the cells, of s x s tokens that lie together. Alone it mixes nothing between cells."""

    NAME = "within"
    within: nn.Parameter

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        bias: torch.Tensor = self.bias
        if self.dynamic:
            (bias,) = self.parameters_on((x.shape[1], x.shape[2]))
        y = cells_together(self.within @ cells_apart(x, self.side), self.side)
        return y + bias.view(x.shape[1], x.shape[2], 1)

    def note(self) -> str:
        return f"one map of {self.side} x {self.side} tokens within all cells"

    @staticmethod
    def sets(x: torch.Tensor, side: int) -> torch.Tensor:
        return cells_apart(x, side)


class GridProjection(CellsProjection):
    """The sets are dilated grids: s x s tokens, H / s rows and W / s columns apart, which span the image.

    So on a larger grid a number joins tokens that lie further apart, and still parts of the picture equally
    far apart.
    """

    NAME = "across"
    across: nn.Parameter

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        bias: torch.Tensor = self.bias
        if self.dynamic:
            (bias,) = self.parameters_on((x.shape[1], x.shape[2]))
        y = grids_together(self.across @ grids_apart(x, self.side), self.side)
        return y + bias.view(x.shape[1], x.shape[2], 1)

    def note(self) -> str:
        return f"one map of {self.side} x {self.side} tokens across all cells"

    @staticmethod
    def sets(x: torch.Tensor, side: int) -> torch.Tensor:
        return grids_apart(x, side)


def grids_apart(x: torch.Tensor, side: int) -> torch.Tensor:
    """(B, H, W, C) to its dilated grids, (B, H / s, W / s, s^2, C)."""
    x = x.unflatten(2, [side, x.shape[2] // side]).unflatten(1, [side, x.shape[1] // side])
    return x.permute(0, 2, 4, 1, 3, 5).flatten(3, 4)


def grids_together(x: torch.Tensor, side: int) -> torch.Tensor:
    """The reverse of `grids_apart`."""
    return x.unflatten(3, [side, side]).permute(0, 3, 1, 4, 2, 5).flatten(3, 4).flatten(1, 2)


def check_divides(side: int, grid_size: Grid) -> None:
    """Refuses a grid that is not made of whole cells."""
    height, width = grid_size
    if height % side or width % side:
        raise ValueError(
            f"the grid is {height} x {width} tokens, which cells of {side} x {side} do not divide: choose "
            "another image size, or cells of another one"
        )
