"""The linear maps over tokens of a network as plain tensors: what is measured, drawn and written to a page.

Shapes: N = H * W tokens in row-major order, R rows of an operator.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from typing import overload

import torch

from gmlp_vision.filters import measure

Grid = tuple[int, int]


@dataclass(frozen=True, eq=False)
class FilterLayer:
    """One linear map over tokens.

    Attributes:
        name: Where it stands in the network, from the number of its block on, such as 'blocks.3.mixer'.
        block: The N of 'blocks.N'; in a network of stages, the number of the block in the whole network.
        kind: 'token' where row i is the filter of output token i, so R = N and the weight is also
            (H, W, H, W); 'hidden' where a row is a hidden unit over the input tokens; 'kernel' where a row is
            a kernel over offsets, which all tokens share.
        weight: (R, H, W), float32 on the CPU; each row a map over the token grid, or a kernel over H x W
            offsets with its own token at [H // 2, W // 2].
        bias: (R,), or (N,) where the rows are the map's inputs, or None.
        init_std: Standard deviation of the entries at init.
        note: What a caption must say, or ''.

    Raises:
        ValueError: The weight holds NaN or infinity.
    """

    name: str
    block: int
    kind: str
    weight: torch.Tensor
    bias: torch.Tensor | None
    init_std: float
    note: str = ""

    def __post_init__(self) -> None:
        bad = int((~self.weight.isfinite()).sum())
        if bad:
            raise ValueError(
                f"{self.name} holds {bad} values of {self.weight.numel()} that are NaN or infinite; the "
                "training has diverged, or the file is damaged: take an earlier checkpoint"
            )

    @property
    def grid(self) -> Grid:
        """(H, W), in tokens; of a 'kernel' layer, in offsets."""
        return self.weight.shape[1], self.weight.shape[2]

    @property
    def matrix(self) -> torch.Tensor:
        """The weight as (R, H * W)."""
        return self.weight.flatten(1)

    @property
    def by_token(self) -> torch.Tensor:
        """The weight as (H, W, H, W): row and column of the output token, then of the input token.

        Raises:
            ValueError: Another kind than 'token', whose rows are no tokens.
        """
        if self.kind != "token":
            raise ValueError(f"{self.name} is of kind {self.kind!r}: its rows are no tokens")
        return self.weight.unflatten(0, self.grid)

    def filter(self, token: tuple[int, int]) -> torch.Tensor:
        """Where the output token (row, column) looks: its row of W, (H, W).

        Raises:
            ValueError: Another kind than 'token', whose rows are no tokens, or a token outside the grid.
        """
        by_token, (r, c), (h, w) = self.by_token, token, self.grid
        if not (0 <= r < h and 0 <= c < w):
            raise ValueError(
                f"token ({r}, {c}) lies outside the grid of {h} x {w} tokens of {self.name}; rows go from 0 "
                f"to {h - 1}, columns from 0 to {w - 1}"
            )
        return by_token[r, c]

    def stats(self) -> "LayerStats":
        """Every statistic that the kind allows; see `gmlp_vision.filters.measure` for the formulas."""
        rms = measure.rms(self.matrix)
        stats = LayerStats(
            name=self.name,
            block=self.block,
            kind=self.kind,
            grid=f"{self.grid[0]}x{self.grid[1]}",
            note=self.note,
            rms=rms,
            moved=rms / self.init_std if self.init_std else None,
            untrained=rms == 0,
            effective_rank=measure.effective_rank(self.matrix),
        )
        if self.kind == "token":
            return self._with_those_of_tokens(stats)
        if self.kind == "kernel":
            return self._with_those_of_kernels(stats)
        return stats

    def _with_those_of_tokens(self, stats: "LayerStats") -> "LayerStats":
        w, grid = self.matrix, self.grid
        share, random_share = measure.toeplitz_share(w, grid), measure.random_toeplitz_share(grid)
        return replace(
            stats,
            untrained=share is None or (stats.rms <= 1.1 * self.init_std and share <= 1.5 * random_share),
            toeplitz_share=share,
            toeplitz_share_random=random_share,
            locality=measure.locality(w, grid),
            locality_random=measure.random_locality(grid),
            anisotropy=measure.anisotropy(w, grid),
            diagonal_share=measure.diagonal_share(w),
            symmetry=measure.symmetry(w),
        )

    def _with_those_of_kernels(self, stats: "LayerStats") -> "LayerStats":
        return replace(
            stats,
            locality=measure.kernel_locality(self.weight),
            locality_random=measure.random_kernel_locality(self.weight),
            anisotropy=measure.kernel_anisotropy(self.weight),
        )


@dataclass(frozen=True)
class LayerStats:
    """The statistics of one layer; None where one is not defined (W = 0, or another kind of layer).

    Attributes:
        name, block, kind, note: As in `FilterLayer`.
        grid: As in `FilterLayer`, such as '8x8'.
        rms: Root of the mean square of W.
        moved: rms / its value at init, so 1 at init, whatever the family. Where W starts near 0 it is how far
            it has come; where W starts at full scale, only a change of scale.
        untrained: W cannot be told from a fresh one: it is zero, or no larger than at init (by 10 %) while
            its mean kernel explains no more of it than of a random matrix (by half). Of the other kinds only
            zero is told.
        effective_rank, toeplitz_share, toeplitz_share_random, locality, locality_random, anisotropy,
            diagonal_share, symmetry: See the functions of these names in `gmlp_vision.filters.measure`; the
            `_random` ones are what a random matrix on this grid would have, or random kernels of this size.
    """

    name: str
    block: int
    kind: str
    grid: str
    note: str
    rms: float
    moved: float | None
    untrained: bool
    effective_rank: float | None
    toeplitz_share: float | None = None
    toeplitz_share_random: float | None = None
    locality: float | None = None
    locality_random: float | None = None
    anisotropy: float | None = None
    diagonal_share: float | None = None
    symmetry: float | None = None


@dataclass(frozen=True, eq=False)
class FilterBank(Sequence[FilterLayer]):
    """The linear maps over tokens of one network, in the order of its blocks: a sequence of layers.

    Attributes:
        layers: At least one. Their grids may differ.
        source: Where they come from, for captions, and which weights where a checkpoint has a choice.
        grid_source: How the grids are known, such as 'as given'. It may be a guess.
    """

    layers: tuple[FilterLayer, ...]
    source: str
    grid_source: str

    def __len__(self) -> int:
        return len(self.layers)

    @overload
    def __getitem__(self, place: int) -> FilterLayer: ...
    @overload
    def __getitem__(self, place: slice) -> tuple[FilterLayer, ...]: ...
    def __getitem__(self, place: int | slice) -> FilterLayer | tuple[FilterLayer, ...]:
        return self.layers[place]

    def __str__(self) -> str:
        on_tokens = [layer.grid for layer in self if layer.kind != "kernel"]
        kernels = [layer.grid for layer in self if layer.kind == "kernel"]
        parts = []
        if on_tokens:
            a_grid = "grids" if len(set(on_tokens)) > 1 else "a grid"
            parts.append(
                f"{len(on_tokens)} layers on {a_grid} of {_sizes(on_tokens)} tokens, {self.grid_source}"
            )
        if kernels:
            parts.append(f"{len(kernels)} layers of kernels of {_sizes(kernels)} offsets")
        return f"{self.source}: {'; '.join(parts)}"

    @property
    def blocks(self) -> list[int]:
        """The block numbers that have a layer, ascending."""
        return sorted({layer.block for layer in self})

    def select(
        self, blocks: Iterable[int] | None = None, kind: str | Sequence[str] | None = None
    ) -> "FilterBank":
        """The layers of these blocks (None for all) and of this kind, or one of these (None for any).

        Raises:
            ValueError: A block that the bank does not have, or no layer is left.
        """
        there = self.blocks
        wanted = set()
        for block in there if blocks is None else blocks:  # there may be no end of them
            if block not in there:
                raise ValueError(
                    f"there is no layer {block} in {self.source}; it has {there[0]} to {there[-1]}, counted "
                    "from 0 as in 'blocks.0'"
                )
            wanted.add(block)
        kinds = [kind] if isinstance(kind, str) else kind
        layers = tuple(x for x in self if x.block in wanted and (kinds is None or x.kind in kinds))
        if not layers:
            asked = " or ".join(map(repr, kinds or ["any"]))
            kept = " and ".join(sorted({repr(layer.kind) for layer in self if layer.block in wanted}))
            chosen = "" if blocks is None else f" among layers {', '.join(map(str, sorted(wanted)))}"
            raise ValueError(f"{self.source} has no layers of kind {asked}{chosen}, only {kept or 'none'}")
        return replace(self, layers=layers)

    def stats(self) -> list[LayerStats]:
        """One row a layer, in their order."""
        return [layer.stats() for layer in self]


def _sizes(grids: Sequence[Grid]) -> str:
    """'8 x 8, 4 x 4 and 2 x 2': each once, in their order."""
    *most, last = (f"{h} x {w}" for h, w in dict.fromkeys(grids))
    return f"{', '.join(most)} and {last}" if most else last
