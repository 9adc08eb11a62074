"""The two figures of families.py: top-1 against what a model costs, every family a labelled point."""

import math
import statistics
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from families import MODELS, RECIPES, kind_of
from family_report import Row, read_rows
from matplotlib.axes import Axes
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure
from matplotlib.text import Text
from matplotlib.ticker import LogLocator
from matplotlib.transforms import Bbox
from subset import CLASSES, EACH

from gmlp_vision.errors import UserError
from gmlp_vision.filters.sheet import save_figure

Point = tuple[float, float, str]  # cost, top-1, family

# Where a label may stand: (angle, points between its edge and its point), the best first
PLACES = [
    (turn * math.pi / 8, gap)
    for gap in (5, 9, 14, 20, 28, 38, 50, 65)
    for turn in (0, 8, 4, 12, 2, 14, 6, 10, 1, 15, 7, 9, 3, 13, 5, 11)
]


def figures(output: Path, seeds: Sequence[int], recipe: Mapping[str, Any]) -> str:
    """Writes both into `output`, a panel a recipe; that of time only where speeds were measured.

    Raises:
        UserError: There are no runs.
    """
    rows = read_rows(output, seeds)
    if not rows:
        raise UserError(f"{output} has no runs of families; train some, such as adamw_gmlp")
    images = recipe["epochs"] * CLASSES * EACH

    def macs(row: Row, recipe: str) -> float:
        return row.macs / 1e6

    def minutes(row: Row, recipe: str) -> float:
        return images / row.images[recipe] / 60

    drawn = {"families_macs": draw(rows, macs, "10$^6$ multiply-adds an image, without FFTs")}
    measured = [row for row in rows if row.images]
    if measured:
        label = f"minutes of training, {images:,} images at the measured rate"
        drawn["families_time"] = draw(measured, minutes, label)
    for name, figure in drawn.items():
        save_figure(figure, output / f"{name}.png", dpi=150)
    return "\n".join(str(output / f"{name}.png") for name in drawn)


def draw(rows: Sequence[Row], cost: Callable[[Row, str], float], label: str) -> Figure:
    """A panel for each recipe, over the same axes.

    Args:
        cost: From a row and a recipe to what goes along the x axis.
        label: What that is.
    """
    figure = Figure(figsize=(15, 7.5), layout="constrained")
    FigureCanvasAgg(figure)
    panels = figure.subplots(1, len(RECIPES), sharex=True, sharey=True, squeeze=False)[0]
    points = {
        recipe: [(cost(r, recipe), statistics.mean(r.top1(recipe)), r.family) for r in rows if r.top1(recipe)]
        for recipe in RECIPES
    }
    for axes, recipe in zip(panels, RECIPES, strict=True):
        axes.set_xscale("log")
        for kind, color in (("isotropic", "C0"), ("pyramid", "C1")):
            own = [(x, y) for x, y, family in points[recipe] if kind_of(MODELS[family]) == kind]
            axes.scatter([x for x, _ in own], [y for _, y in own], s=16, color=color, label=kind)
        axes.xaxis.set_major_locator(LogLocator(subs=(1, 2, 5)))
        axes.xaxis.set_major_formatter("{x:g}")
        axes.xaxis.set_minor_formatter("")
        axes.set_title(recipe)
        axes.set_xlabel(label)
        axes.spines[["top", "right"]].set_visible(False)
        axes.margins(0.1)
    panels[0].set_ylabel("top-1, %")
    figure.legend(*panels[0].get_legend_handles_labels(), loc="outside upper right", ncols=2, frameon=False)
    figure.draw_without_rendering()
    figure.set_layout_engine("none")  # labels would move the points
    for axes, recipe in zip(panels, RECIPES, strict=True):
        put_labels(axes, points[recipe])
    return figure


def put_labels(axes: Axes, points: Sequence[Point]) -> None:
    """A label at each point, in the first place where it covers nothing that is there already."""
    pixels = axes.get_figure().dpi / 72  # in a point
    spots = [tuple(axes.transData.transform((x, y))) for x, y, _ in points]
    taken = [Bbox.from_extents(x - 4, y - 4, x + 4, y + 4) for x, y in spots]
    frame = axes.get_window_extent()
    for (x, y, name), spot in zip(points, spots, strict=True):
        label = axes.annotate(
            name,
            (x, y),
            xytext=(0, 0),
            textcoords="offset points",
            ha="center",
            va="center",
            fontsize=7,
            arrowprops={"arrowstyle": "-", "linewidth": 0.4, "color": "0.5", "shrinkA": 0, "shrinkB": 2},
        )
        size = Text.get_window_extent(label)  # without the line to the point
        boxes = [place_box(spot, size, angle, gap * pixels) for angle, gap in PLACES]
        covered = [
            box.count_overlaps(taken)
            + (not frame.fully_containsx(box.x0))
            + (not frame.fully_containsx(box.x1))
            for box in boxes
        ]
        best = boxes[covered.index(min(covered))]
        taken.append(best)
        label.set_position(tuple((np.mean(best.get_points(), axis=0) - spot) / pixels))


def place_box(spot: tuple[float, float], size: Bbox, angle: float, gap: float) -> Bbox:
    """The box of a label of this size beside a point, in pixels."""
    x = spot[0] + math.cos(angle) * (gap + size.width / 2)
    y = spot[1] + math.sin(angle) * (gap + size.height / 2)
    return Bbox.from_bounds(x - size.width / 2, y - size.height / 2, size.width, size.height)
