"""Draws figure.png as the paper's Figures 4 and 9 are: `python figure.py`, from the W in results/.

A column a layer. Rows of pictures: W (128 x 128) before, after, and after training on lines that always
start at position 0; then the row of W of token 64, the middle one: what it takes from the bytes around it.
"""

import argparse
from pathlib import Path

import torch
from matplotlib.figure import Figure
from model import ROWS, TextModel
from results import HERE, read_weights, shares, spatial_weights

TOKEN = 64
REACH = 24  # bytes to each side of it that are drawn


def before(seed: int) -> torch.Tensor:
    """W as train.py starts with it, (6, N, N)."""
    torch.manual_seed(seed)
    weights = spatial_weights(TextModel(*ROWS["split"]))
    assert weights is not None
    return weights


def draw(rows: dict[str, torch.Tensor], curves: dict[str, torch.Tensor]) -> Figure:
    """
    Args:
        rows: W of each layer, (6, N, N), a row of pictures each.
        curves: The same, for the curves below.
    """
    depth = len(next(iter(rows.values())))
    figure = Figure(figsize=(1.5 * depth + 0.5, 1.72 * len(rows) + 1.5), layout="constrained")
    axes = figure.subplots(len(rows) + 1, depth, height_ratios=[1] * len(rows) + [0.75], squeeze=False)
    for line, (name, weights) in zip(axes, rows.items(), strict=False):
        told = shares(weights)
        assert told is not None
        for layer, ax in enumerate(line):
            limit = weights[layer].abs().quantile(0.999).item()
            ax.imshow(weights[layer], cmap="RdBu_r", vmin=-limit, vmax=limit, interpolation="antialiased")
            ax.set(xticks=[], yticks=[])
            ax.set_xlabel(f"Toeplitz share {told['all'][layer]:.2f}", fontsize=7)
        line[0].set_ylabel(name, fontsize=8)
    for layer, ax in enumerate(axes[0]):
        ax.set_title(f"layer {layer}", fontsize=8)
    offsets = torch.arange(-REACH, REACH + 1)
    for layer, ax in enumerate(axes[-1]):
        ax.axhline(0, color="0.8", linewidth=0.6)
        for name, weights in curves.items():
            ax.plot(offsets, weights[layer, TOKEN, TOKEN + offsets], linewidth=0.9, label=name)
        ax.tick_params(labelsize=6)
        ax.set_xlabel("bytes away", fontsize=7)
    axes[-1][0].set_ylabel(f"row {TOKEN} of W", fontsize=8)
    axes[-1][-1].legend(fontsize=5, frameon=False)
    return figure


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
    draw(rows, {"dense W": split, "Toeplitz W": toeplitz}).savefig(args.output, dpi=130)


if __name__ == "__main__":
    main()
