"""The statistics of a FilterBank as curves over depth."""

import math
from typing import TYPE_CHECKING

from gmlp_vision.filters.bank import FilterBank
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


def plot_stats(bank: FilterBank, width: float = COLUMN_WIDTH) -> "Figure":
    """The statistics of the 'token' layers over depth; dashed, what a random matrix would have.

    Args:
        bank: With at least one 'token' layer.
        width: In inches; from 5 on the panels stand in two rows of four, below in four rows of two.
    """
    from matplotlib.figure import Figure
    from matplotlib.ticker import MaxNLocator

    rows = bank.select(kind="token").stats()
    shape = (2, 4) if width >= 5 else (4, 2)
    figure = Figure(figsize=(width, 1.25 * shape[0] + 0.2), layout="constrained")
    for axes, (field, title) in zip(figure.subplots(*shape).flat, PANELS, strict=True):
        values = [getattr(row, field) for row in rows]
        numbers = [math.nan if value is None else value for value in values]
        axes.plot([row.block for row in rows], numbers, ".-", color="C0", linewidth=1, markersize=3)
        baseline = getattr(rows[0], f"{field}_random", None)
        if baseline is not None:
            axes.axhline(baseline, color="0.5", linestyle="--", linewidth=0.8)
        if field == "moved":
            axes.axhline(1, color="0.5", linestyle="--", linewidth=0.8)
            axes.set_yscale("log", subs=[])
            decades = [math.log10(number) for number in [1, *numbers] if number > 0]
            axes.set_ylim(10 ** math.floor(min(decades) - 0.1), 10 ** math.ceil(max(decades) + 0.1))
        elif field in ("toeplitz_share", "anisotropy", "symmetry"):
            axes.set_ylim(0, 1)
        else:
            axes.set_ylim(bottom=0)
        axes.set_title(title, fontsize=FONT)
        axes.tick_params(labelsize=FONT - 1, length=2)
        axes.yaxis.get_offset_text().set_fontsize(FONT - 1)
        axes.xaxis.set_major_locator(MaxNLocator(5, integer=True))
        axes.spines[["top", "right"]].set_visible(False)
    figure.supxlabel("layer", fontsize=FONT)
    return figure
