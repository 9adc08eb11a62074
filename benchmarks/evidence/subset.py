"""The images that evidence.py trains on: 1,000 of each of CIFAR-10's 10 classes, drawn once and for all.

Choices are made on 500 others of each class, which are held out of training: they stand where the test images
do. They are the same beside the 10,000 and beside all that are left, 4,500 of each class.
"""

import os
import random
from pathlib import Path

from timm.data import is_img_extension

from gmlp_vision.atomic import new_folder
from gmlp_vision.errors import UserError

CLASSES = 10
EACH = 1000
HELD_OUT = 500
SEED = 0


def make_subset(
    data: Path, folder: Path, each: int = EACH, seed: int = SEED, held_out: int = 0, whole: bool = False
) -> None:
    """Makes, or finds made, a folder of links: train/ with `each` images of every class, test/ as it is.

    Args:
        data: Folder with train/ and test/, in each a folder for every class.
        folder: What to make. It appears as a whole or not at all.
        held_out: So many other training images of every class are test/ instead, if any.
        whole: train/ has all images of a class but those, not `each` of them.

    Raises:
        UserError: `data` is not such a folder, or has too few images; `folder` holds anything else.
    """
    data = data.resolve()
    train, test = choose(data, each, seed, held_out, whole)
    links = {f"train/{link}": image for link, image in train.items()}
    links |= {f"test/{link}": image for link, image in test.items()} if held_out else {"test": data / "test"}
    if not folder.exists():
        with new_folder(folder, parents=True) as new:
            for link, target in links.items():
                (new / link).parent.mkdir(parents=True, exist_ok=True)
                (new / link).symlink_to(target)
    if entries(folder) != links:
        count = "" if whole else f"{each} "
        raise UserError(
            f"{folder} does not hold the {count}images a class that seed {seed} draws from {data}, and no "
            "more; remove it or give another --output"
        )


def choose(
    data: Path, each: int, seed: int, held_out: int = 0, whole: bool = False
) -> tuple[dict[str, Path], dict[str, Path]]:
    """Images of train/ to train on and to hold out, each as {class/name: file}."""
    classes, tested = (classes_of(data, split) for split in ("train", "test"))
    if len(classes) != CLASSES or classes != tested:
        raise UserError(
            f"{data} has {len(classes)} class folders in train/ and {len(tested)} in test/; expected "
            f"CIFAR-10's {CLASSES}, of the same names in both"
        )
    # two draws, so that holding images out changes nothing of what is trained on
    draw, other_draw = random.Random(seed), random.Random(f"held out {seed}")
    chosen: dict[str, Path] = {}
    held: dict[str, Path] = {}
    for name in classes:
        images = sorted(p for p in (data / "train" / name).iterdir() if is_img_extension(p.suffix.lower()))
        if len(images) < each + held_out:
            raise UserError(
                f"{data / 'train' / name} holds {len(images)} images; expected {each + held_out} or more"
            )
        drawn = draw.sample(images, each)
        others = other_draw.sample(sorted(set(images) - set(drawn)), held_out)
        if whole:
            drawn = sorted(set(images) - set(others))
        chosen |= {f"{name}/{image.name}": image for image in drawn}
        held |= {f"{name}/{image.name}": image for image in others}
    return chosen, held


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
