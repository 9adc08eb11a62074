"""Top-1 of one trained mixer at image sizes that it was not trained at, for several ways to carry it there.

    python benchmarks/resampling/resampling.py CHECKPOINT DATA [--images N]

CHECKPOINT holds the weights of a pico4 model trained at 32 px: of gmlp_pico4, or of resmlp_pico4 or
mixer_pico4 of benchmarks/evidence/, such as a last.pth.tar of timm's train.py. DATA is a folder with one
folder a class. The images are the first N in the order of a seeded permutation, each resized as a whole to
the size under test.

A way to carry a linear layer over tokens is two matrices, A (n', n) for what it gives and B (n, n') for what
it takes: W becomes A W B, a layer from tokens to hidden units W B, one back from them A W. In all ways R
resizes its bias.
"""

import argparse
import copy
import datetime
import math
import os
from collections.abc import Callable, Sequence
from typing import Any

import timm
import torch
from torch.utils.data import DataLoader, Subset
from torchvision import datasets, transforms
from tqdm import tqdm

import gmlp_vision
from gmlp_vision.accuracy import accuracy
from gmlp_vision.checkpoints import build
from gmlp_vision.layers.grid_tied import tied_layers
from gmlp_vision.layers.resample import axis_matrices
from gmlp_vision.layers.rules import OPERATOR, TOKEN_READER_ROWS

Grid = tuple[int, int]
Rule = Callable[[Grid, Grid], tuple[torch.Tensor, torch.Tensor]]
Batches = list[tuple[torch.Tensor, torch.Tensor]]

# (height, width, patch); the last keeps the grid of 32 px, and so the mixers: there the stem alone is resized
SIZES = [(s, s, 4) for s in (24, 28, 32, 36, 40, 48, 64)] + [(32, 48, 4), (64, 64, 8)]


def resize_and_back(old: Grid, new: Grid) -> tuple[torch.Tensor, torch.Tensor]:
    """R and S, as `set_input_size` has them, over all tokens at once."""
    pairs = [axis_matrices(o, n, torch.device("cpu")) for o, n in zip(old, new, strict=True)]
    (r_h, s_h), (r_w, s_w) = pairs
    return torch.kron(r_h.contiguous(), r_w.contiguous()), torch.kron(s_h.contiguous(), s_w.contiguous())


def two_sided(old: Grid, new: Grid) -> tuple[torch.Tensor, torch.Tensor]:
    """Rows and columns both resized by R, as if W were a picture."""
    r, _ = resize_and_back(old, new)
    return r, r.T


def scaled(rule: Rule) -> Rule:
    """The same times n / n': a row sums over more or fewer tokens, and each stands for less or more."""

    def rule_scaled(old: Grid, new: Grid) -> tuple[torch.Tensor, torch.Tensor]:
        a, b = rule(old, new)
        return a, b * (math.prod(old) / math.prod(new))

    return rule_scaled


def nearest(old: Grid, new: Grid) -> tuple[torch.Tensor, torch.Tensor]:
    """Rows and columns both taken from the nearest token of the old grid."""
    rows = [((torch.arange(n) + 0.5) * o / n).long() for o, n in zip(old, new, strict=True)]
    index = (rows[0][:, None] * old[1] + rows[1]).flatten()
    taken = torch.eye(math.prod(old), dtype=torch.float64)[index]
    return taken, taken.T


RULES: dict[str, Rule] = {
    "R W S (this project)": resize_and_back,
    "two-sided interpolation": two_sided,
    "two-sided, scaled": scaled(two_sided),
    "nearest, scaled": scaled(nearest),
}


def model_at(trained: torch.nn.Module, size: tuple[int, int, int], rule: Rule) -> torch.nn.Module:
    """A copy at (height, width, patch): the maps over tokens by `rule`, all else by set_input_size."""
    model = copy.deepcopy(trained)
    old = {name: (layer.grid_size, layer.RULES) for name, layer in tied_layers(model).items()}
    before = model.state_dict()
    gmlp_vision.set_input_size(model, size[:2], patch_size=size[2])
    for name, layer in tied_layers(model).items():
        grid_size, rules = old[name]
        a, b = rule(grid_size, layer.grid_size)
        weight = before[f"{name}.weight"].double()
        if rules["weight"] is OPERATOR:
            carried = a @ weight @ b
        elif rules["weight"] is TOKEN_READER_ROWS:
            carried = weight @ b
        else:
            carried = a @ weight
        model.get_submodule(name).weight.data = carried.float()
    return model.eval()


def load(folder: str, size: tuple[int, int], images: int, cfg: dict[str, Any]) -> Batches:
    resize = transforms.Resize(size, transforms.InterpolationMode.BICUBIC)
    normalise = transforms.Normalize(cfg["mean"], cfg["std"])
    dataset = datasets.ImageFolder(folder, transforms.Compose([resize, transforms.ToTensor(), normalise]))
    order = torch.randperm(len(dataset), generator=torch.Generator().manual_seed(0))[:images]
    return list(DataLoader(Subset(dataset, order.tolist()), batch_size=100))


def arguments(argv: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("checkpoint", help="weights of a pico4 model at 32 px, in any form that is read here")
    parser.add_argument("data", help="folder of test images, one folder a class")
    parser.add_argument("--images", type=int, default=2000, help="how many of them (%(default)s)")
    return parser.parse_args(argv)


def main(argv: Sequence[str] | None = None) -> None:
    args = arguments(argv)
    built = build(args.checkpoint)
    built.model.float()  # the file may be in half precision
    cfg = timm.models.get_pretrained_cfg("gmlp_pico4.cifar10").to_dict()  # all pico4 models see its images
    table = {}
    for size in tqdm(SIZES):
        models = {name: model_at(built.model, size, rule) for name, rule in RULES.items()}
        batches = load(args.data, size[:2], args.images, cfg)
        table[size] = {name: 100 * accuracy(model, batches) for name, model in models.items()}

    print(f"{built.title}, {built.grid[0]} x {built.grid[1]} tokens, {built.how}\n")
    print("| size | " + " | ".join(RULES) + " |")
    print("|---|" + "---|" * len(RULES))
    for (height, width, patch), row in table.items():
        name = f"{height} x {width} px, patch {patch}"
        print(f"| {name} | " + " | ".join(f"{row[rule]:.2f}" for rule in RULES) + " |")
    print(
        f"\n{args.images} images, {os.cpu_count()} CPU cores, {datetime.date.today()}, "
        f"torch {torch.__version__}, timm {timm.__version__}, gmlp-vision {gmlp_vision.__version__}"
    )


if __name__ == "__main__":
    main()
