"""The statistics of a FilterBank as curves over depth."""

import math
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Any

from gmlp_vision.filters.bank import FilterBank, LayerStats
from gmlp_vision.filters.sheet import COLUMN_WIDTH, FONT

if TYPE_CHECKING:
    from matplotlib.figure import Figure

PANELS = (
    ("toeplitz_share", "share explained by\nthe mean kernel"),
    ("locality", "mean distance looked at\n(tokens)"),
    ("diagonal_share", "mass on the diagonal"),
    ("anisotropy", "anisotropy"),
    ("symmetry", "symmetric share"),
    ("effective_rank", "effective rank"),
    ("rms", "rms of W"),
    ("moved", "rms of W / at init"),
)
DASHED: dict[str, Any] = {"color": "0.5", "linestyle": "--", "linewidth": 0.8}


def plot_stats(
    bank: FilterBank, layers: Iterable[int] | None = None, width: float = COLUMN_WIDTH
) -> "Figure":
    """The statistics of the 'token' and 'kernel' layers over depth; dashed, what random ones would have.

    A dot is a layer; where a block has several, the line runs through their mean. A statistic that no layer
    has gets no panel.

    Args:
        bank: With at least one 'token' or 'kernel' layer; others are left out.
        layers: Block numbers, from 0; None for all.
        width: In inches; from 5 on four panels stand in a row, below that two.

    Raises:
        ValueError: A layer that is not there.
    """
    from matplotlib.figure import Figure
    from matplotlib.ticker import MaxNLocator

    rows = bank.select(layers, ("token", "kernel")).stats()
    blocks = [row.block for row in rows]
    panels = [(x, title) for x, title in PANELS if any(getattr(row, x) is not None for row in rows)]
    columns = 4 if width >= 5 else 2
    lines = math.ceil(len(panels) / columns)
    figure = Figure(figsize=(width, 1.25 * lines + 0.2), layout="constrained")
    for k, (field, title) in enumerate(panels):
        axes = figure.add_subplot(lines, columns, k + 1, sharex=figure.axes[0] if k else None)
        values = _column(rows, field)
        axes.plot(blocks, values, ".", color="C0", markersize=3)
        axes.plot(*_means(blocks, values), "-", color="C0", linewidth=1)
        expected = [1.0] if field == "moved" else _column(rows, f"{field}_random")
        if len(set(expected)) > 1:
            axes.plot(*_means(blocks, expected), **DASHED)
        elif not math.isnan(expected[0]):
            axes.axhline(expected[0], **DASHED)
        if field == "moved":
            axes.set_yscale("log", subs=[])
            decades = [math.log10(value) for value in [1, *values] if value > 0]
            axes.set_ylim(10 ** math.floor(min(decades) - 0.1), 10 ** math.ceil(max(decades) + 0.1))
        elif field in ("toeplitz_share", "anisotropy", "symmetry"):
            axes.set_ylim(0, 1)
        else:
            axes.set_ylim(0, 1.05 * max([value for value in [*values, *expected] if value > 0], default=1))
        axes.set_title(title, fontsize=FONT)
        axes.tick_params(labelsize=FONT - 1, length=2)
        axes.yaxis.get_offset_text().set_fontsize(FONT - 1)
        axes.xaxis.set_major_locator(MaxNLocator(5, integer=True))
        axes.spines[["top", "right"]].set_visible(False)
    figure.supxlabel("layer", fontsize=FONT)
    return figure


def _column(rows: Sequence[LayerStats], field: str) -> list[float]:
    """One number a layer; the one `math.nan` where it is not defined."""
    values = (getattr(row, field, None) for row in rows)
    return [math.nan if value is None else value for value in values]


def _means(blocks: Sequence[int], values: Sequence[float]) -> tuple[list[int], list[float]]:
    """Each block, and the mean over its layers."""
    layers: dict[int, list[float]] = {}
    for block, value in zip(blocks, values, strict=True):
        layers.setdefault(block, []).append(value)
    return list(layers), [sum(numbers) / len(numbers) for numbers in layers.values()]
