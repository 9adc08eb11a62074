"""Figures of a FilterBank: filters (Figure 3 of the paper), hidden units, mean kernels.

Each function returns a matplotlib Figure, for `save_figure` or a notebook.
"""

from collections.abc import Callable, Sequence
from inspect import signature
from typing import TYPE_CHECKING

import torch

from gmlp_vision.filters.bank import FilterBank
from gmlp_vision.filters.choose import parse_layers, parse_tokens
from gmlp_vision.filters.curves import plot_stats
from gmlp_vision.filters.measure import toeplitz_average, toeplitz_share
from gmlp_vision.filters.sheet import Picture, draw_sheet

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
    bank = _thinned(bank, layers, "token")
    chosen = parse_tokens(tokens, bank.grid) if isinstance(tokens, str) else list(tokens)
    maps = [[layer.filter(token) for token in chosen] for layer in bank.layers]
    heads = [[f"({r}, {c})" for r, c in chosen], *[[""] * len(chosen)] * (len(maps) - 1)]
    labels = [f"layer {layer.block}" for layer in bank.layers]
    title = _title("filter of output token (row, column)", bank)
    return _draw_rows(maps, heads, labels, scale, title, width, marks=chosen)


def plot_units(
    bank: FilterBank,
    layers: Sequence[int] | None = None,
    count: int = 8,
    scale: str = "layer",
    width: float | None = None,
) -> "Figure":
    """A row a 'hidden' layer of a mixer: what its units of largest norm read or write, the largest first.

    Args:
        bank: With at least one 'hidden' layer; others are left out.
        layers: Block numbers, from 0; None for all up to 12, else 10 spread over the depth.
        count: How many units a layer, at least 1.
        scale: What shares one colour scale, symmetric about 0: 'figure', 'layer' or 'picture'.
        width: In inches; None for one column of a paper, or more where the pictures need it.

    Raises:
        ValueError: No 'hidden' layer, a layer that is not there, or an unknown scale.
    """
    bank = _thinned(bank, layers, "hidden")
    units = [layer.matrix.norm(dim=1).argsort(descending=True)[:count].tolist() for layer in bank.layers]
    maps = [[layer.weight[unit] for unit in row] for layer, row in zip(bank.layers, units, strict=True)]
    heads = [[str(unit) for unit in row] for row in units]
    labels = [f"layer {layer.block}\n{layer.name.partition('mlp_tokens.')[2]}" for layer in bank.layers]
    return _draw_rows(maps, heads, labels, scale, "hidden units of largest norm, by number", width)


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
        caption = f"layer {layer.block}\n{explained}{peak}"
        pictures.append(Picture(kernel, limit, caption, (h - 1, w - 1)))
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


def plot(
    bank: FilterBank,
    what: str = "filters",
    layers: str | None = None,
    tokens: str | None = None,
    scale: str | None = None,
) -> "Figure":
    """One of the figures above, asked for in the words of the command line.

    Args:
        bank: With a layer of the kind that the figure shows.
        what: 'filters', 'kernels', 'stats' or 'units'.
        layers: For `parse_layers`; None for the figure's default, as below.
        tokens: For `parse_tokens`.
        scale: 'figure', 'layer' or 'picture'.

    Raises:
        ValueError: An unknown figure, an option that it does not have, or what the figure itself refuses.
    """
    figures: dict[str, Callable[..., Figure]] = {
        "filters": plot_filters,
        "kernels": plot_kernels,
        "stats": plot_stats,
        "units": plot_units,
    }
    if what not in figures:
        raise ValueError(f"there is no figure {what!r}; expected one of {', '.join(figures)}")
    given = {"layers": layers and parse_layers(layers), "tokens": tokens, "scale": scale}
    given = {name: value for name, value in given.items() if value is not None}
    for name in set(given) - set(signature(figures[what]).parameters):
        raise ValueError(f"the figure of {what} has no {name} to choose (--{name}); leave it out")
    return figures[what](bank, **given)


# -- pieces --------------------------------------------------------------------------------------------------


def _thinned(bank: FilterBank, layers: Sequence[int] | None, kind: str) -> FilterBank:
    """The layers asked for; where none are, all of a shallow network and 10 evenly spread of a deep one."""
    bank = bank.select(layers, kind)
    last = len(bank.blocks) - 1
    if layers is None and last >= MANY:
        bank = bank.select([bank.blocks[i * last // 9] for i in range(10)])
    return bank


def _draw_rows(
    maps: list[list[torch.Tensor]],
    heads: list[list[str]],
    labels: list[str],
    scale: str,
    title: str,
    width: float | None,
    marks: Sequence[tuple[int, int] | None] | None = None,
) -> "Figure":
    limits = _limits([[values.abs().max().item() for values in row] for row in maps], scale)
    rows = []
    for row, row_limits, row_heads in zip(maps, limits, heads, strict=True):
        captions = [
            f"{head}\n±{limit:.2g}".strip() if scale == "picture" else head
            for head, limit in zip(row_heads, row_limits, strict=True)
        ]
        rows.append(list(map(Picture, row, row_limits, captions, marks or [None] * len(row))))
    if scale == "layer":
        labels = [f"{label}\n±{row[0]:.2g}" for label, row in zip(labels, limits, strict=True)]
    bar_limit = limits[0][0] if scale == "figure" else 1.0
    return draw_sheet(rows, labels, _bar(scale, f"its {scale}"), bar_limit, title, width)


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
