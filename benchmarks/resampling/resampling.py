"""Top-1 of one trained gMLP at image sizes that it was not trained at, for several ways to carry W there.

    python benchmarks/resampling/resampling.py CHECKPOINT DATA [--images N]

CHECKPOINT holds the weights of a gmlp_pico4 trained at 32 px, DATA is a folder with one folder a class. The
images are the first N in the order of a seeded permutation, each resized as a whole to the size under test.
"""

import argparse
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
from gmlp_vision.layers import SpatialProjection
from gmlp_vision.layers.resample import axis_matrices, resample_operator

Grid = tuple[int, int]
Rule = Callable[[torch.Tensor, Grid, Grid], torch.Tensor]
Batches = list[tuple[torch.Tensor, torch.Tensor]]

# (height, width, patch); the last keeps the grid of 32 px, and so W and b: there the stem alone is resized
SIZES = [(s, s, 4) for s in (24, 28, 32, 36, 40, 48, 64)] + [(32, 48, 4), (64, 64, 8)]


def two_sided(weight: torch.Tensor, old: Grid, new: Grid) -> torch.Tensor:
    """Rows and columns both resized by R, as if W were a picture."""
    (r_h, _), (r_w, _) = (axis_matrices(o, n, weight.device) for o, n in zip(old, new, strict=True))
    r = torch.kron(r_h, r_w)
    return (r @ weight.double() @ r.T).to(weight.dtype)


def scaled(rule: Rule) -> Rule:
    """The same times n / n': a row sums over more or fewer tokens, and each stands for less or more."""
    return lambda weight, old, new: rule(weight, old, new) * (math.prod(old) / math.prod(new))


def nearest(weight: torch.Tensor, old: Grid, new: Grid) -> torch.Tensor:
    """Rows and columns both taken from the nearest token of the old grid."""
    rows = [((torch.arange(n) + 0.5) * o / n).long() for o, n in zip(old, new, strict=True)]
    index = (rows[0][:, None] * old[1] + rows[1]).flatten()
    return weight[index][:, index]


RULES: dict[str, Rule] = {
    "R W S (this project)": resample_operator,
    "two-sided interpolation": two_sided,
    "two-sided, scaled": scaled(two_sided),
    "nearest, scaled": scaled(nearest),
}


def model_at(state_dict: dict[str, torch.Tensor], size: tuple[int, int, int], rule: Rule) -> torch.nn.Module:
    """The trained model at (height, width, patch): W carried by `rule`, all else by set_input_size."""
    model = timm.create_model("gmlp_pico4", num_classes=state_dict["head.weight"].shape[0])
    model.load_state_dict(state_dict)
    old = [(m, m.grid_size, m.weight.detach()) for m in model.modules() if isinstance(m, SpatialProjection)]
    model.set_input_size(size[:2], patch_size=size[2])
    for projection, grid_size, weight in old:
        projection.weight.data = rule(weight, grid_size, projection.grid_size)
    return model.eval()


def load(folder: str, size: tuple[int, int], images: int, cfg: dict[str, Any]) -> Batches:
    resize = transforms.Resize(size, transforms.InterpolationMode.BICUBIC)
    normalise = transforms.Normalize(cfg["mean"], cfg["std"])
    dataset = datasets.ImageFolder(folder, transforms.Compose([resize, transforms.ToTensor(), normalise]))
    order = torch.randperm(len(dataset), generator=torch.Generator().manual_seed(0))[:images]
    return list(DataLoader(Subset(dataset, order.tolist()), batch_size=100))


@torch.inference_mode()
def top1(model: torch.nn.Module, batches: Batches) -> float:
    right = [model(x).argmax(1) == y for x, y in batches]
    return 100 * torch.cat(right).float().mean().item()


def arguments(argv: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("checkpoint", help="weights of a gmlp_pico4 at 32 px, as timm reads them")
    parser.add_argument("data", help="folder of test images, one folder a class")
    parser.add_argument("--images", type=int, default=2000, help="how many of them (%(default)s)")
    return parser.parse_args(argv)


def main(argv: Sequence[str] | None = None) -> None:
    args = arguments(argv)
    state_dict = timm.models.load_state_dict(args.checkpoint)
    table = {}
    for size in tqdm(SIZES):
        models = {name: model_at(state_dict, size, rule) for name, rule in RULES.items()}
        batches = load(args.data, size[:2], args.images, next(iter(models.values())).default_cfg)
        table[size] = {name: top1(model, batches) for name, model in models.items()}

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
