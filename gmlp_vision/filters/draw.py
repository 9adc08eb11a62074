"""Figures of a FilterBank: filters (Figure 3 of the gMLP paper), hidden units, kernels.

Each function returns a matplotlib Figure, for `save_figure` or a notebook.
"""

from collections.abc import Callable, Iterable, Sequence
from inspect import signature
from itertools import chain, zip_longest
from typing import TYPE_CHECKING

import torch

from gmlp_vision.filters.bank import FilterBank, FilterLayer
from gmlp_vision.filters.curves import plot_stats
from gmlp_vision.filters.measure import toeplitz_average, toeplitz_share
from gmlp_vision.filters.options import parse_layers, parse_tokens, tokens_on
from gmlp_vision.filters.sheet import Picture, draw_sheet

if TYPE_CHECKING:
    from matplotlib.figure import Figure

MANY = 12  # layers that a default figure shows all of
MOST_TOKENS = 256  # a page of more is wider than matplotlib draws
SCALES = ("figure", "layer", "picture")


def plot_filters(
    bank: FilterBank,
    layers: Iterable[int] | None = None,
    tokens: Sequence[tuple[int, int]] | str = "center,grid:2",
    scale: str = "layer",
    width: float | None = None,
) -> "Figure":
    """A row a layer, a column an output token: where that token looks, its row of W as a map, itself framed.

    Args:
        bank: With at least one 'token' layer; others are left out.
        layers: Block numbers, from 0; None for all up to 12, else 10 spread over the depth.
        tokens: (row, column) of the output tokens, from 0, on the grid of every layer; or a text for
            `parse_tokens`, whose names are other tokens on another grid.
        scale: What shares one colour scale, symmetric about 0: 'figure', 'layer' or 'picture'.
        width: In inches; None for one column of a paper, or more where the pictures need it.

    Raises:
        ValueError: A layer that is not there, a token that a layer does not have, more than 256 tokens, or an
            unknown scale.
    """
    bank = _thinned(bank, layers, "token")
    if isinstance(tokens, str):
        names = parse_tokens(tokens)
        chosen = [tokens_on(layer.grid, names) for layer in bank]
    else:
        chosen = [list(tokens)] * len(bank)
    if max(map(len, chosen)) > MOST_TOKENS:
        raise ValueError(
            f"{max(map(len, chosen))} tokens are asked for; expected at most {MOST_TOKENS}, side by side"
        )
    maps = [[layer.filter(token) for token in row] for layer, row in zip(bank, chosen, strict=True)]
    heads = [
        [f"({r}, {c})" if k == 0 or row != chosen[k - 1] else "" for r, c in row]
        for k, row in enumerate(chosen)
    ]
    title = _title(["filter of output token (row, column)"], bank)
    return _draw_rows(maps, heads, _labels(bank), scale, title, width, marks=chosen)


def plot_units(
    bank: FilterBank,
    layers: Iterable[int] | None = None,
    count: int = 8,
    scale: str = "layer",
    width: float | None = None,
) -> "Figure":
    """A row a 'hidden' layer: what its units of largest norm read or write, the largest first.

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
    units = [_largest(layer, count) for layer in bank]
    maps = [[layer.weight[unit] for unit in row] for layer, row in zip(bank, units, strict=True)]
    heads = [[str(unit) for unit in row] for row in units]
    return _draw_rows(maps, heads, _labels(bank), scale, "hidden units of largest norm, by number", width)


def plot_kernels(
    bank: FilterBank,
    layers: Iterable[int] | None = None,
    count: int = 8,
    scale: str = "layer",
    width: float | None = None,
) -> "Figure":
    """Kernels over offsets, their centres framed.

    Of a 'token' layer its mean kernel (`toeplitz_average`), with the share of W that it explains; of a
    'kernel' layer, in a row of its own, its kernels of largest norm, by number, the largest first.

    Args:
        bank: With at least one 'token' or 'kernel' layer; others are left out.
        layers: Block numbers, from 0; None for all.
        count: How many kernels of a 'kernel' layer, at least 1.
        scale: What shares one colour scale, symmetric about 0: 'figure', 'layer' or 'picture'.
        width: In inches; None for one column of a paper, or more where the pictures need it.

    Raises:
        ValueError: A layer that is not there, or an unknown scale.
    """
    bank = bank.select(layers, ("token", "kernel"))
    maps, heads = [], []
    lines: dict[str, None] = {}
    for layer in bank:
        if layer.kind == "kernel":
            numbers = _largest(layer, count)
            maps.append([layer.weight[k] for k in numbers])
            heads.append([str(k) for k in numbers])
            lines["kernels of largest norm, by number"] = None
        else:
            share = toeplitz_share(layer.matrix, layer.grid)
            maps.append([toeplitz_average(layer.matrix, layer.grid)])
            heads.append(["zero" if share is None else f"{100 * share:.0f} %"])
            lines["mean kernel and the share of W that it explains"] = None
    marks = [[(values.shape[0] // 2, values.shape[1] // 2) for values in row] for row in maps]
    labels, title = _labels(bank), _title(list(lines), bank)
    if any(layer.kind == "kernel" for layer in bank):
        return _draw_rows(maps, heads, labels, scale, title, width, marks)
    limits = _limits(_peaks(maps), scale)
    pictures = []
    for label, (kernel,), (explained,), (limit,), (mark,) in zip(
        labels, maps, heads, limits, marks, strict=True
    ):
        peak = "" if scale == "figure" else f", ±{limit:.2g}"
        pictures.append(Picture(kernel, limit, f"{label}\n{explained}{peak}", mark))
    rows = [pictures[i : i + 4] for i in range(0, len(pictures), 4)]
    bar_limit = limits[0][0] if scale == "figure" else 1.0
    return draw_sheet(rows, [""] * len(rows), _bar(scale, "its mean kernel"), bar_limit, title, width)


FIGURES: dict[str, Callable[..., "Figure"]] = {
    "filters": plot_filters,
    "kernels": plot_kernels,
    "stats": plot_stats,
    "units": plot_units,
}


def plot(
    bank: FilterBank,
    what: str | None = None,
    layers: str | None = None,
    tokens: str | None = None,
    scale: str | None = None,
) -> "Figure":
    """One of the figures above, asked for in the words of the command line.

    Args:
        bank: With a layer of the kind that the figure shows.
        what: 'filters', 'kernels', 'stats' or 'units'; None for the first of filters, kernels and units for
            which there are layers.
        layers: For `parse_layers`; None for the figure's default, as above.
        tokens: For `parse_tokens`.
        scale: 'figure', 'layer' or 'picture'.

    Raises:
        ValueError: An unknown figure, an option that it does not have, or what the figure itself refuses.
    """
    if what is None:
        first = {"token": "filters", "kernel": "kernels", "hidden": "units"}
        what = next(figure for kind, figure in first.items() if any(layer.kind == kind for layer in bank))
    check_options(what, layers, tokens, scale)
    chosen = None if layers is None else chain.from_iterable(parse_layers(layers))
    given = {"layers": chosen, "tokens": tokens, "scale": scale}
    return FIGURES[what](bank, **{name: value for name, value in given.items() if value is not None})


def check_options(what: str | None, layers: str | None, tokens: str | None, scale: str | None) -> None:
    """Refuses what `plot` would refuse whatever the bank.

    Raises:
        ValueError: As `plot`.
    """
    if what is not None and what not in FIGURES:
        raise ValueError(f"there is no figure {what!r}; expected one of {', '.join(FIGURES)}")
    for name, value in (("layers", layers), ("tokens", tokens), ("scale", scale)):
        if what is not None and value is not None and name not in signature(FIGURES[what]).parameters:
            raise ValueError(f"the figure of {what} has no {name} to choose (--{name}); leave it out")
    if layers is not None:
        parse_layers(layers)
    if tokens is not None:
        parse_tokens(tokens)
    if scale is not None:
        _check_scale(scale)


# -- pieces --------------------------------------------------------------------------------------------------


def _thinned(bank: FilterBank, layers: Iterable[int] | None, kind: str) -> FilterBank:
    """The layers asked for; where none are, all of a shallow network and 10 evenly spread of a deep one."""
    bank = bank.select(layers, kind)
    last = len(bank.blocks) - 1
    if layers is None and last >= MANY:
        bank = bank.select([bank.blocks[i * last // 9] for i in range(10)])
    return bank


def _largest(layer: FilterLayer, count: int) -> list[int]:
    """The rows of largest norm, the largest first."""
    return layer.matrix.norm(dim=1).argsort(descending=True)[:count].tolist()


def _labels(layers: Sequence[FilterLayer]) -> list[str]:
    """'layer N', and below it what tells a layer from the others of its block, if there are any."""
    labels = []
    for layer in layers:
        names = [other.name.split(".") for other in layers if other.block == layer.block]
        common = next((k for k, parts in enumerate(zip_longest(*names)) if len(set(parts)) > 1), None)
        rest = "" if common is None else ".".join(layer.name.split(".")[common:])
        labels.append(f"layer {layer.block}\n{rest}".strip())
    return labels


def _draw_rows(
    maps: list[list[torch.Tensor]],
    heads: list[list[str]],
    labels: list[str],
    scale: str,
    title: str,
    width: float | None,
    marks: Sequence[Sequence[tuple[int, int]]] | None = None,
) -> "Figure":
    limits = _limits(_peaks(maps), scale)
    rows = []
    for k, (row, row_limits, row_heads) in enumerate(zip(maps, limits, heads, strict=True)):
        captions = [
            f"{head}\n±{limit:.2g}".strip() if scale == "picture" else head
            for head, limit in zip(row_heads, row_limits, strict=True)
        ]
        rows.append(list(map(Picture, row, row_limits, captions, marks[k] if marks else [None] * len(row))))
    if scale == "layer":
        labels = [f"{label}\n±{row[0]:.2g}" for label, row in zip(labels, limits, strict=True)]
    bar_limit = limits[0][0] if scale == "figure" else 1.0
    return draw_sheet(rows, labels, _bar(scale, f"its {scale}"), bar_limit, title, width)


def _peaks(maps: list[list[torch.Tensor]]) -> list[list[float]]:
    return [[values.abs().max().item() for values in row] for row in maps]


def _limits(peaks: list[list[float]], scale: str) -> list[list[float]]:
    """What full colour stands for in each picture; never 0, so that an all-zero picture is drawn as zero."""
    _check_scale(scale)
    if scale == "figure":
        top = max(max(row) for row in peaks)
        peaks = [[top] * len(row) for row in peaks]
    elif scale == "layer":
        peaks = [[max(row)] * len(row) for row in peaks]
    return [[peak or 1.0 for peak in row] for row in peaks]


def _check_scale(scale: str) -> None:
    if scale not in SCALES:
        raise ValueError(f"scale is {scale!r}; expected one of {', '.join(SCALES)}")


def _title(lines: list[str], bank: FilterBank) -> str:
    return "\n".join([*lines, *sorted({layer.note for layer in bank if layer.note})])


def _bar(scale: str, of: str) -> str:
    return "weight" if scale == "figure" else f"weight / largest of {of} (±)"
