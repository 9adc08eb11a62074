"""The spatial operators of a network as plain tensors: what is measured, drawn and written to a page.

Shapes: N = H * W tokens in row-major order, R rows of an operator.
"""

from collections.abc import Iterable
from dataclasses import dataclass, replace

import torch

from gmlp_vision.filters import measure


@dataclass(frozen=True, eq=False)
class FilterLayer:
    """One linear map over tokens.

    Attributes:
        name: Key of the operator in the state dict, without prefix and '.weight', such as
            'blocks.3.mlp_channels.gate.proj'.
        block: The N of 'blocks.N'.
        kind: 'token' where row i is the filter of output token i, so R = N and the weight is also
            (H, W, H, W); 'hidden' where a row is a hidden unit of a mixer.
        weight: (R, H, W), float32 on the CPU; each row a map over the token grid.
        bias: (R,), or (H * W,) where the rows are the map's inputs (a mixer's second layer), or None.
        init_std: Standard deviation of the entries at timm's init.
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
    def grid(self) -> tuple[int, int]:
        """(H, W), in tokens."""
        return self.weight.shape[1], self.weight.shape[2]

    @property
    def matrix(self) -> torch.Tensor:
        """The weight as (R, N)."""
        return self.weight.flatten(1)

    @property
    def by_token(self) -> torch.Tensor:
        """The weight as (H, W, H, W): row and column of the output token, then of the input token.

        Raises:
            ValueError: A 'hidden' layer, whose rows are no tokens.
        """
        if self.kind != "token":
            raise ValueError(f"{self.name} is of kind 'hidden': its rows are no tokens")
        return self.weight.unflatten(0, self.grid)

    def filter(self, token: tuple[int, int]) -> torch.Tensor:
        """Where the output token (row, column) looks: its row of W, (H, W).

        Raises:
            ValueError: A 'hidden' layer, whose rows are no tokens, or a token outside the grid.
        """
        by_token, (r, c), (h, w) = self.by_token, token, self.grid
        if not (0 <= r < h and 0 <= c < w):
            raise ValueError(f"token ({r}, {c}) lies outside the grid of {h} x {w} tokens, counted from 0")
        return by_token[r, c]

    def stats(self) -> "LayerStats":
        """Every statistic that the kind allows; see `gmlp_vision.filters.measure` for the formulas."""
        w, grid = self.matrix, self.grid
        rms = measure.rms(w)
        untrained = rms == 0
        of_tokens: dict[str, float | None] = {}
        if self.kind == "token":
            share, random_share = measure.toeplitz_share(w, grid), measure.random_toeplitz_share(grid)
            untrained = share is None or (rms <= 1.1 * self.init_std and share <= 1.5 * random_share)
            of_tokens = {
                "toeplitz_share": share,
                "toeplitz_share_random": random_share,
                "locality": measure.locality(w, grid),
                "locality_random": measure.random_locality(grid),
                "anisotropy": measure.anisotropy(w, grid),
                "diagonal_share": measure.diagonal_share(w),
                "symmetry": measure.symmetry(w),
            }
        return LayerStats(
            name=self.name,
            block=self.block,
            kind=self.kind,
            note=self.note,
            rms=rms,
            moved=rms / self.init_std,
            untrained=untrained,
            effective_rank=measure.effective_rank(w),
            **of_tokens,
        )


@dataclass(frozen=True)
class LayerStats:
    """The statistics of one layer; None where one is not defined (W = 0, or a 'hidden' layer).

    Attributes:
        name, block, kind, note: As in `FilterLayer`.
        rms: Root of the mean square of W.
        moved: rms / its value at timm's init. 1 at init, whatever the family. gMLP starts with W near 0 (std
            1e-6), so there it is how far W has come; ResMLP and mixers start at full scale, and there it is
            only a change of scale.
        untrained: W cannot be told from a fresh one: it is zero, or no larger than at init (by 10 %) while
            its mean kernel explains no more of it than of a random matrix (by half). Of a 'hidden' layer only
            zero is told.
        effective_rank, toeplitz_share, toeplitz_share_random, locality, locality_random, anisotropy,
            diagonal_share, symmetry: See the functions of these names in `gmlp_vision.filters.measure`; the
            `_random` ones are what a random matrix on this grid would have.
    """

    name: str
    block: int
    kind: str
    note: str
    rms: float
    moved: float
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
class FilterBank:
    """The spatial operators of one network, in the order of its blocks.

    Attributes:
        layers: At least one; all on one grid.
        source: Where they come from, for captions, and which weights where a checkpoint has a choice.
        grid_source: How the grid is known, such as 'as given'. It may be a guess.
    """

    layers: tuple[FilterLayer, ...]
    source: str
    grid_source: str

    def __str__(self) -> str:
        h, w = self.grid
        return f"{self.source}: {len(self.layers)} layers on a grid of {h} x {w} tokens, {self.grid_source}"

    @property
    def grid(self) -> tuple[int, int]:
        """(H, W), in tokens."""
        return self.layers[0].grid

    @property
    def blocks(self) -> list[int]:
        """The block numbers that have a layer, ascending."""
        return sorted({layer.block for layer in self.layers})

    def select(self, blocks: Iterable[int] | None = None, kind: str | None = None) -> "FilterBank":
        """The layers of these blocks (None for all) and of this kind (None for both).

        Raises:
            ValueError: A block that the bank does not have, or no layer is left.
        """
        wanted = self.blocks if blocks is None else list(blocks)
        unknown = sorted(set(wanted) - set(self.blocks))
        if unknown:
            raise ValueError(
                f"there is no layer {unknown[0]} in {self.source}; it has {self.blocks[0]} to "
                f"{self.blocks[-1]}, counted from 0 as in 'blocks.0'"
            )
        layers = tuple(x for x in self.layers if x.block in wanted and kind in (None, x.kind))
        if not layers:
            kinds = " and ".join(sorted({repr(layer.kind) for layer in self.layers}))
            raise ValueError(f"{self.source} has no layers of kind {kind!r}, only {kinds}")
        return replace(self, layers=layers)

    def stats(self) -> list[LayerStats]:
        """One row a layer, in their order."""
        return [layer.stats() for layer in self.layers]
