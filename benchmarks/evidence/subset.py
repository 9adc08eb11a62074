"""The images that evidence.py trains on: 1,000 of each of CIFAR-10's 10 classes, drawn once and for all."""

import os
import random
from pathlib import Path

from timm.data import is_img_extension

from gmlp_vision.atomic import new_folder
from gmlp_vision.errors import UserError

CLASSES = 10
EACH = 1000
SEED = 0


def make_subset(data: Path, folder: Path, each: int = EACH, seed: int = SEED) -> None:
    """Makes, or finds made, a folder of links: train/ with `each` images of every class, test/ as it is.

    Args:
        data: Folder with train/ and test/, in each a folder for every class.
        folder: What to make. It appears as a whole or not at all.

    Raises:
        UserError: `data` is not such a folder, or has too few images; `folder` holds anything else.
    """
    data = data.resolve()
    links = {f"train/{link}": image for link, image in choose(data, each, seed).items()}
    links["test"] = data / "test"
    if not folder.exists():
        with new_folder(folder, parents=True) as new:
            for link, target in links.items():
                (new / link).parent.mkdir(parents=True, exist_ok=True)
                (new / link).symlink_to(target)
    if entries(folder) != links:
        raise UserError(
            f"{folder} does not hold the {each} images a class that seed {seed} draws from {data}, "
            "and no more; remove it or give another --output"
        )


def choose(data: Path, each: int, seed: int) -> dict[str, Path]:
    """`each` images of every class of train/: {class/name: file}."""
    classes, tested = (classes_of(data, split) for split in ("train", "test"))
    if len(classes) != CLASSES or classes != tested:
        raise UserError(
            f"{data} has {len(classes)} class folders in train/ and {len(tested)} in test/; expected "
            f"CIFAR-10's {CLASSES}, of the same names in both"
        )
    draw = random.Random(seed)
    chosen: dict[str, Path] = {}
    for name in classes:
        images = sorted(p for p in (data / "train" / name).iterdir() if is_img_extension(p.suffix.lower()))
        if len(images) < each:
            raise UserError(f"{data / 'train' / name} holds {len(images)} images; expected {each} or more")
        chosen |= {f"{name}/{image.name}": image for image in draw.sample(images, each)}
    return chosen


def classes_of(data: Path, split: str) -> list[str]:
    if not (data / split).is_dir():
        raise UserError(
            f"{data} has no folder {split}/; expected train/ and test/, in each a folder for every class"
        )
    return sorted(path.name for path in (data / split).iterdir() if path.is_dir())


def entries(folder: Path) -> dict[str, Path | None]:
    """All under a folder but its folders: where a link leads, which is not followed, and None for a file."""
    paths = [Path(place, name) for place, folders, files in os.walk(folder) for name in (*folders, *files)]
    return {
        str(path.relative_to(folder)): path.readlink() if path.is_symlink() else None
        for path in paths
        if path.is_symlink() or not path.is_dir()
    }
