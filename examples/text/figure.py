"""Draws figure.png as the paper's Figures 4 and 9 are: `python figure.py`, from the W in results/.

A column a layer. Rows of pictures: W (128 x 128) before, after, and after training on lines that always
start at position 0. Below, what a byte takes from those around it: the row of W of the middle one, and the
mean of all rows, each with its own byte in the middle; then the same row of a W that is Toeplitz by nature.
"""

import argparse
import io
from pathlib import Path

import numpy as np
import torch
from corpus import N
from matplotlib.figure import Figure
from model import ROWS, TextModel
from PIL import Image
from results import HERE, read_weights, shares, spatial_weights

from gmlp_vision.filters import toeplitz_average

TOKEN = 64
REACH = 24  # bytes to each side of it that are drawn


def before(seed: int) -> torch.Tensor:
    """W as train.py starts with it, (6, N, N)."""
    torch.manual_seed(seed)
    weights = spatial_weights(TextModel(*ROWS["split"]))
    assert weights is not None
    return weights


def draw(pictures: dict[str, torch.Tensor], dense: torch.Tensor, toeplitz: torch.Tensor) -> Figure:
    """
    Args:
        pictures: W of each layer, (6, N, N), a row of pictures each.
        dense, toeplitz: The same, for the curves below.
    """
    depth = len(dense)
    figure = Figure(figsize=(1.5 * depth + 0.5, 1.72 * len(pictures) + 2.6), layout="constrained")
    ratios = [1.0] * len(pictures) + [0.7, 0.7]
    axes = figure.subplots(len(ratios), depth, height_ratios=ratios)
    for row, (name, weights) in zip(axes, pictures.items(), strict=False):
        told = shares(weights)
        assert told is not None
        for layer, ax in enumerate(row):
            limit = weights[layer].abs().quantile(0.999).item()
            ax.imshow(
                weights[layer].numpy(), cmap="RdBu_r", vmin=-limit, vmax=limit, interpolation="antialiased"
            )
            ax.set(xticks=[], yticks=[])
            ax.set_xlabel(f"Toeplitz share {told['all'][layer]:.2f}", fontsize=7)
        row[0].set_ylabel(name, fontsize=8)
    for layer, ax in enumerate(axes[0]):
        ax.set_title(f"layer {layer}", fontsize=8)
    around = np.arange(-REACH, REACH + 1)
    for layer, (above, below) in enumerate(axes[-2:].T):
        mean = toeplitz_average(dense[layer], (1, N)).flatten().numpy()
        above.plot(around, dense[layer, TOKEN].numpy()[TOKEN + around], linewidth=0.5, label=f"row {TOKEN}")
        above.plot(around, mean[N - 1 + around], linewidth=1.2, label="mean row")
        below.plot(around, toeplitz[layer, TOKEN].numpy()[TOKEN + around], linewidth=1.2, color="tab:green")
        below.set_xlabel("bytes away", fontsize=7)
        for ax in (above, below):
            ax.axhline(0, color="0.8", linewidth=0.6, zorder=0)
            ax.tick_params(labelsize=6)
    axes[-2][0].set_ylabel("dense W", fontsize=8)
    axes[-1][0].set_ylabel("Toeplitz W", fontsize=8)
    axes[-2][-1].legend(fontsize=5, frameon=False)
    return figure


def write_picture(figure: Figure, path: Path) -> None:
    """In 64 colours: W is mostly noise, which no picture file makes small."""
    whole = io.BytesIO()
    figure.savefig(whole, dpi=100)
    Image.open(whole).convert("RGB").quantize(64).save(path, optimize=True)


def main(argv: list[str] | None = None) -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("folder", type=Path, nargs="?", default=HERE / "results", help="where the W are")
    parser.add_argument("-o", "--output", type=Path, default=HERE / "figure.png")
    args = parser.parse_args(argv)
    found = {row: args.folder / f"{row}.0.npz" for row in ("split", "lines", "toeplitz")}
    for row, path in found.items():
        if not path.exists():
            parser.error(f"there is no {path}: make it with train.py {row} --out {args.folder}")
    split, lines, toeplitz = (read_weights(path) for path in found.values())
    rows = {"W before": before(0), "W after": split, "W after,\nlines from position 0": lines}
    write_picture(draw(rows, split, toeplitz), args.output)


if __name__ == "__main__":
    main()
