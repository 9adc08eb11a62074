"""A sheet of pictures with captions, laid out in inches on one matplotlib axes. Knows nothing of networks.

matplotlib is imported when a sheet is drawn, so that numbers can be had without it.
"""

import io
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import torch

from gmlp_vision.atomic import write_file
from gmlp_vision.filters.options import check_ending

if TYPE_CHECKING:
    from matplotlib.figure import Figure

FIGURE_FILES = (".pdf", ".png", ".svg")
COLOURS = "RdBu_r"  # diverging, with white at 0, and told apart by the colour-blind
COLUMN_WIDTH = 3.25  # inches, of a column in a two-column paper
TILE = 0.5  # inches, the least width of a picture
GAP = 0.06
LINE = 0.13  # a line of text
FONT = 7  # points


@dataclass(frozen=True)
class Picture:
    """A map of (H, W) values, drawn so that `limit` is full colour, perhaps with a frame around one cell."""

    values: torch.Tensor
    limit: float
    caption: str
    mark: tuple[int, int] | None

    def height(self, width: float) -> float:
        """At this width, for square cells."""
        return width * self.values.shape[0] / self.values.shape[1]


def draw_sheet(
    rows: Sequence[Sequence[Picture]],
    labels: Sequence[str],
    bar: str,
    bar_limit: float,
    title: str = "",
    width: float | None = None,
) -> "Figure":
    """Pictures in rows, all of one width and each of its own shape, over one colour bar.

    Args:
        rows: The pictures; some rows may be shorter.
        labels: One a row, at its left; empty ones take no room.
        bar: What the colours mean.
        bar_limit: The value at the ends of the colour bar.
        title: One line or more above all.
        width: In inches; None for one column of a paper, or more where the pictures need it.
    """
    from matplotlib.cm import ScalarMappable
    from matplotlib.colors import Normalize
    from matplotlib.figure import Figure
    from matplotlib.patches import Rectangle
    from matplotlib.patheffects import withStroke

    columns = max(map(len, rows))
    left = 0.62 if any(labels) else 0.05
    if width is None:
        width = max(COLUMN_WIDTH, left + 0.05 + columns * (TILE + GAP))
    tile_w = (width - left - 0.05) / columns - GAP
    heads = [max(LINE * len(picture.caption.splitlines()) for picture in row) for row in rows]
    maps = [
        max(LINE * len(label.splitlines()), *(picture.height(tile_w) for picture in row))
        for row, label in zip(rows, labels, strict=True)
    ]
    top = 0.03 + LINE * len(title.splitlines())
    height = top + sum(heads) + sum(maps) + len(rows) * GAP + 0.4

    figure = Figure(figsize=(width, height))
    axes = figure.add_axes((0, 0, 1, 1))
    middle = (left + width - GAP) / 2
    axes.text(middle, top - 0.03, title, ha="center", va="bottom", fontsize=FONT)
    y = top
    for row, label, head, tall in zip(rows, labels, heads, maps, strict=True):
        y += head
        axes.text(left - GAP, y + tall / 2, label, ha="right", va="center", fontsize=FONT, linespacing=1.3)
        for column, picture in enumerate(row):
            x, tile_h = left + column * (tile_w + GAP), picture.height(tile_w)
            axes.imshow(
                picture.values.numpy(),
                cmap=COLOURS,
                vmin=-picture.limit,
                vmax=picture.limit,
                extent=(x, x + tile_w, y + tile_h, y),
                interpolation="nearest",
                aspect="auto",
            )
            axes.text(x + tile_w / 2, y - 0.02, picture.caption, ha="center", va="bottom", fontsize=FONT - 1)
            axes.add_patch(Rectangle((x, y), tile_w, tile_h, fill=False, linewidth=0.3, edgecolor="0.6"))
            if picture.mark is None:
                continue
            cell_h, cell_w = tile_h / picture.values.shape[0], tile_w / picture.values.shape[1]
            corner = (x + picture.mark[1] * cell_w, y + picture.mark[0] * cell_h)
            frame = Rectangle(corner, cell_w, cell_h, fill=False, linewidth=0.5, edgecolor="black")
            frame.set_path_effects([withStroke(linewidth=1.0, foreground="white")])  # seen on dark cells too
            axes.add_patch(frame)
        y += tall + GAP
    axes.set(xlim=(0, width), ylim=(height, 0))
    axes.set_axis_off()

    long = min(0.6 * (width - left), 2.5)
    place = ((middle - long / 2) / width, 0.33 / height, long / width, 0.06 / height)
    colours = ScalarMappable(Normalize(-bar_limit, bar_limit), COLOURS)
    colour_bar = figure.colorbar(colours, cax=figure.add_axes(place), orientation="horizontal")
    colour_bar.set_ticks(
        [-bar_limit, 0, bar_limit], labels=[f"\N{MINUS SIGN}{bar_limit:.2g}", "0", f"{bar_limit:.2g}"]
    )
    colour_bar.ax.tick_params(labelsize=FONT - 1, length=2, pad=1)
    colour_bar.outline.set_linewidth(0.3)
    colour_bar.set_label(bar, fontsize=FONT, labelpad=1)
    return figure


def save_figure(figure: "Figure", path: str | Path, dpi: int = 300) -> None:
    """Writes a figure as PDF, SVG or PNG, by the ending of the path; an older file is replaced at the end.

    Args:
        figure: From one of this package's functions, or any.
        path: Ends in .pdf, .png or .svg.
        dpi: Dots per inch of PNG, and of the pictures inside PDF and SVG.

    Raises:
        ValueError: Another ending.
        OSError: The folder is not there or cannot be written.
    """
    import matplotlib

    kind = check_ending(path, FIGURE_FILES, "a figure is")[1:]
    # No date and no random ids: the same figure is the same file. Text stays text: selectable in a PDF (Type
    # 42), set in the reader's font in an SVG.
    dates = {"pdf": {"CreationDate": None}, "svg": {"Date": None}}
    fixed = matplotlib.rc_context({"pdf.fonttype": 42, "svg.fonttype": "none", "svg.hashsalt": "gmlp-vision"})
    data = io.BytesIO()
    with fixed:
        figure.savefig(data, format=kind, dpi=dpi, metadata=dates.get(kind))
    write_file(path, data.getbuffer())
