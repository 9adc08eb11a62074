"""Figures of a FilterBank: single filters (Figure 3 of the paper), mean kernels, statistics over depth.

Each function returns a matplotlib Figure, for `save_figure` or a notebook.
"""

import math
from collections.abc import Sequence
from typing import TYPE_CHECKING

from gmlp_vision.filters.bank import FilterBank
from gmlp_vision.filters.measure import toeplitz_average, toeplitz_share
from gmlp_vision.filters.sheet import COLUMN_WIDTH, FONT, Picture, draw_sheet
from gmlp_vision.filters.tokens import parse_tokens

if TYPE_CHECKING:
    from matplotlib.figure import Figure

MANY = 12  # layers that a default figure shows all of


def plot_filters(
    bank: FilterBank,
    layers: Sequence[int] | None = None,
    tokens: Sequence[tuple[int, int]] | str = "center,grid:2",
    scale: str = "layer",
    width: float | None = None,
) -> "Figure":
    """A row a layer, a column an output token: where that token looks, its row of W as a map, itself framed.

    Args:
        bank: With at least one 'token' layer; others are left out.
        layers: Block numbers, from 0; None for all up to 12, else 10 spread over the depth.
        tokens: (row, column) of the output tokens, from 0, or a text for `parse_tokens`.
        scale: What shares one colour scale, symmetric about 0: 'figure', 'layer' or 'picture'.
        width: In inches; None for one column of a paper, or more where the pictures need it.

    Raises:
        ValueError: A layer or token that is not there, or an unknown scale.
    """
    bank = bank.select(layers, "token")
    if layers is None and len(bank.layers) > MANY:
        bank = bank.select([bank.layers[i * (len(bank.layers) - 1) // 9].block for i in range(10)])
    chosen = parse_tokens(tokens, bank.grid) if isinstance(tokens, str) else list(tokens)
    filters = [[layer.filter(token) for token in chosen] for layer in bank.layers]
    limits = _limits([[f.abs().max().item() for f in row] for row in filters], scale)
    rows = []
    for i, row in enumerate(filters):
        pictures = []
        for token, values, limit in zip(chosen, row, limits[i], strict=True):
            words = [f"({token[0]}, {token[1]})"] * (i == 0) + [f"±{limit:.2g}"] * (scale == "picture")
            pictures.append(Picture(values, limit, token, "\n".join(words)))
        rows.append(pictures)
    labels = [
        f"layer {layer.block}" + (f"\n±{row[0].limit:.2g}" if scale == "layer" else "")
        for layer, row in zip(bank.layers, rows, strict=True)
    ]
    return draw_sheet(
        rows,
        labels,
        _bar(scale, f"its {scale}"),
        limits[0][0] if scale == "figure" else 1.0,
        title=_title("filter of output token (row, column)", bank),
        width=width,
    )


def plot_kernels(
    bank: FilterBank, layers: Sequence[int] | None = None, scale: str = "layer", width: float | None = None
) -> "Figure":
    """Each layer's mean kernel (`toeplitz_average`), its centre framed, with the share of W that it explains.

    Args:
        bank: With at least one 'token' layer; others are left out.
        layers: Block numbers, from 0; None for all.
        scale: What shares one colour scale, symmetric about 0: 'figure' or 'layer'.
        width: In inches; None for one column of a paper.

    Raises:
        ValueError: A layer that is not there, or an unknown scale.
    """
    bank = bank.select(layers, "token")
    h, w = bank.grid
    kernels = [toeplitz_average(layer.matrix, bank.grid) for layer in bank.layers]
    limits = _limits([[kernel.abs().max().item()] for kernel in kernels], scale, ("figure", "layer"))
    pictures = []
    for layer, kernel, (limit,) in zip(bank.layers, kernels, limits, strict=True):
        share = toeplitz_share(layer.matrix, bank.grid)
        explained = "zero" if share is None else f"{100 * share:.0f} %"
        peak = f", ±{limit:.2g}" if scale == "layer" else ""
        pictures.append(Picture(kernel, limit, (h - 1, w - 1), f"layer {layer.block}\n{explained}{peak}"))
    columns = min(4, len(pictures))
    rows = [pictures[i : i + columns] for i in range(0, len(pictures), columns)]
    return draw_sheet(
        rows,
        [""] * len(rows),
        _bar(scale, "its mean kernel"),
        limits[0][0] if scale == "figure" else 1.0,
        title=_title("mean kernel and the share of W that it explains", bank),
        width=width,
    )


def plot_stats(bank: FilterBank, width: float = 2 * COLUMN_WIDTH) -> "Figure":
    """The statistics of the 'token' layers over depth; dashed, what a random matrix would have.

    Args:
        bank: With at least one 'token' layer.
        width: In inches.
    """
    from matplotlib.figure import Figure
    from matplotlib.ticker import MaxNLocator

    rows = bank.select(kind="token").stats()
    figure = Figure(figsize=(width, 0.5 * width), layout="constrained")
    for axes, (field, title) in zip(figure.subplots(2, 4).flat, PANELS, strict=True):
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


# -- pieces --------------------------------------------------------------------------------------------------


def _limits(
    peaks: list[list[float]], scale: str, scales: Sequence[str] = ("figure", "layer", "picture")
) -> list[list[float]]:
    """What full colour stands for in each picture; never 0, so that an all-zero picture is drawn as zero."""
    if scale not in scales:
        raise ValueError(f"scale is {scale!r}; expected one of {', '.join(scales)}")
    if scale == "figure":
        top = max(max(row) for row in peaks)
        peaks = [[top] * len(row) for row in peaks]
    elif scale == "layer":
        peaks = [[max(row)] * len(row) for row in peaks]
    return [[peak or 1.0 for peak in row] for row in peaks]


def _title(text: str, bank: FilterBank) -> str:
    notes = sorted({layer.note for layer in bank.layers if layer.note})
    return "\n".join([text, *notes])


def _bar(scale: str, of: str) -> str:
    return "weight" if scale == "figure" else f"weight / largest of {of} (±)"
