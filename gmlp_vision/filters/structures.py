"""What is left of a model's accuracy where its W's are made of fewer numbers: a table and a figure."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from gmlp_vision.filters.sheet import FONT

if TYPE_CHECKING:
    from matplotlib.figure import Figure

DENSE = "dense"
COLOURS = (
    "#0072b2",
    "#d55e00",
    "#009e73",
    "#cc79a7",
    "#e69f00",
    "#56b4e9",
    "#666666",
    "#117733",
)  # by Okabe, Ito
MARKERS = "osD^vPX*"


@dataclass
class Structure:
    """What is known of one kind of W in the place of a model's own. Accuracies in %.

    Attributes:
        kind: Its key, such as 'rank:8'; 'dense' for the model itself.
        numbers: Of which a W is made, all groups together.
        shares: Of each W, the part that the nearest one explains, in [0, 1].
        alone: Accuracy with the W of one layer replaced, layer by layer; for 'dense' of the model itself, on
            the same images.
        before, after: Accuracy with all of them replaced, before fine-tuning and after; None until measured.
    """

    kind: str
    numbers: int
    shares: list[float]
    alone: list[float] = field(default_factory=list)
    before: float | None = None
    after: float | None = None


def format_structures(rows: Sequence[Structure]) -> str:
    """A table in Markdown, a row a kind."""
    lines = [
        "| W | numbers a layer | share of W, mean (least) | one layer replaced: mean (least) "
        "| all replaced | and fine-tuned |",
        "|---|---|---|---|---|---|",
    ]
    for row in rows:
        shares, alone = (
            _mean_and_least(values, scale) for values, scale in ((row.shares, 100), (row.alone, 1))
        )
        cells = (row.kind, f"{row.numbers:,}", shares, alone, _told(row.before), _told(row.after))
        lines.append(f"| {' | '.join(cells)} |")
    return "\n".join(lines) + "\n"


def plot_structures(rows: Sequence[Structure], width: float = 6.75) -> "Figure":
    """Left, accuracy with the W of one layer replaced, over depth; right, with all replaced.

    Args:
        rows: As measured, 'dense' first: dashed lines are the model itself, and itself fine-tuned.
        width: In inches.
    """
    from matplotlib.figure import Figure
    from matplotlib.ticker import MaxNLocator

    (dense,) = (row for row in rows if row.kind == DENSE)
    kinds = [row for row in rows if row.kind != DENSE]
    figure = Figure(figsize=(width, 2.6), layout="constrained")
    left, right = figure.subplots(1, 2, width_ratios=(1, 1.1))
    for k, row in enumerate(kinds):
        style = {"color": COLOURS[k % len(COLOURS)], "marker": MARKERS[k % len(MARKERS)]}
        left.plot(range(len(row.alone)), row.alone, linewidth=0.9, markersize=3, label=row.kind, **style)
    if dense.alone:
        left.axhline(dense.alone[0], color="0.4", linestyle="--", linewidth=0.8)
    left.set_xlabel("layer whose W alone is replaced", fontsize=FONT)
    left.set_ylabel("top-1, %", fontsize=FONT)
    left.xaxis.set_major_locator(MaxNLocator(integer=True))

    places = range(len(kinds))
    for shift, name, filled in ((-0.2, "before", False), (0.2, "after", True)):
        values = [getattr(row, name) for row in kinds]
        right.bar(
            [place + shift for place, value in zip(places, values, strict=True) if value is not None],
            [value for value in values if value is not None],
            0.38,
            color="#0072b2" if filled else "white",
            edgecolor="#0072b2",
            linewidth=0.8,
            label="and fine-tuned for an epoch" if filled else "all W replaced",
        )
        model = getattr(dense, name)
        if model is not None:
            line = {"color": "#0072b2" if filled else "0.4", "linestyle": "--", "linewidth": 0.8}
            right.axhline(model, label="the model, fine-tuned" if filled else "the model", **line)
    right.set_xticks(places, [row.kind for row in kinds], rotation=30, ha="right", rotation_mode="anchor")
    right.set_ylabel("top-1, %", fontsize=FONT)
    right.set_ylim(0, 100)
    for axes, columns in ((left, 4), (right, 2)):
        # above: within, it would cover the bars of a good model
        axes.legend(
            loc="lower center",
            bbox_to_anchor=(0.5, 1.0),
            ncols=columns,
            fontsize=FONT - 1.5,
            frameon=False,
            handlelength=1.6,
            columnspacing=1.0,
        )
        axes.tick_params(labelsize=FONT - 1, length=2, pad=2)
        axes.spines[["top", "right"]].set_visible(False)
    return figure


def _mean_and_least(values: Sequence[float], scale: float) -> str:
    if not values:
        return "-"
    mean, least = scale * sum(values) / len(values), scale * min(values)
    return f"{mean:.1f}" if len(set(values)) == 1 else f"{mean:.1f} ({least:.1f})"


def _told(value: float | None) -> str:
    return "-" if value is None else f"{value:.2f}"
