"""How much of a gMLP is a convolution? Its accuracy as its W's are replaced by nearest ones of fewer numbers.

Layer by layer on some test images, and all at once on more, before and after an epoch of fine-tuning with
training images. What is measured is kept in a folder, so that a stopped run goes on.
"""

import json
from collections.abc import Iterable, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

import torch
from timm.data import create_dataset, create_loader, resolve_data_config
from timm.utils import random_seed
from torch.utils.data import DataLoader
from tqdm import tqdm

from gmlp_vision.accuracy import accuracy
from gmlp_vision.atomic import make_folders, write_file
from gmlp_vision.checkpoints import Built, build
from gmlp_vision.checkpoints.settings import settings_of
from gmlp_vision.errors import UserError
from gmlp_vision.filters import save_figure
from gmlp_vision.filters.structures import DENSE, Structure, format_structures, plot_structures
from gmlp_vision.layers.resample import Grid
from gmlp_vision.layers.spatial import kind_of
from gmlp_vision.structure_measure import (
    LEARNING,
    Some,
    fine_tune,
    maps_of,
    numbers_of,
    one_by_one,
    sha256_of,
)
from gmlp_vision.verify import check_classes, checked_device, classes_in

FILES = ("structure.json", "structure.md", "structure.png", "structure.pdf")


def study(
    source: str,
    data_dir: Path,
    output: Path,
    kinds: Sequence[str] | None = None,
    *,
    split: str | None = None,
    train_split: str = "train",
    layer_images: int = 2000,
    test_images: int = 10_000,
    train_images: int = 10_000,
    batch_size: int = 128,
    workers: int = 1,
    device: str | None = None,
    seed: int = 0,
    weights: str = "auto",
    model: str | None = None,
    prefix: str | None = None,
) -> list[Structure]:
    """Measures, draws and writes; goes on where an earlier call with the same arguments was stopped.

    Args:
        source: What holds the model, as for `build`: a gMLP or aMLP whose W's are dense.
        data_dir: Holds the folders `train_split` and `split`, each with a folder of images for each class.
        output: A folder, made if it is not there. In it `structure.json`, what was measured; `structure.md`,
            a table; `structure.png` and `.pdf`, a figure.
        kinds: Keys of layers/spatial.py; None for `usual_kinds`. Those of an earlier call stay.
        split: Of the images that are tested; None for 'validation', 'val' or 'test', whichever is there.
        layer_images: Images for each layer and kind.
        test_images, train_images: Images for all layers at once.
        batch_size: Images at a time.
        workers: Processes that read images.
        device: Of torch; None for CUDA or MPS if there is one.
        seed: Of the fine-tuning.
        weights, model, prefix: Of the source, as for `build`.

    Returns:
        A row a kind, the model itself first.

    Raises:
        UserError: An argument outside what is listed above, another model's or run's results in the folder.
        ValueError: No such kind, or none on the model's grid.
        CheckpointError: The source cannot be read, or a kind has no nearest W.
    """
    counts = {"layer_images": layer_images, "test_images": test_images, "train_images": train_images}
    for title, value in {**counts, "batch_size": batch_size}.items():
        if value < 1:
            raise UserError(f"{title} is {value}; expected at least 1")
    device = checked_device(device)
    reading: dict[str, Any] = {"weights": weights, "model": model, "prefix": prefix}
    built = build(source, **reading)
    built.model.float().to(device)
    layers = maps_of(built.model)
    if settings_of(built.model).get("spatial") != DENSE or not layers:
        raise UserError(f"{source} has no dense W's that could be replaced: give a gMLP or an aMLP that has")
    grid = layers[0].grid_size
    chosen = [DENSE, *(k for k in dict.fromkeys(usual_kinds(grid) if kinds is None else kinds) if k != DENSE)]
    _check_kinds(chosen, grid)
    split = split or next((s for s in ("validation", "val", "test") if (data_dir / s).is_dir()), "test")
    for name in (train_split, split):
        if not (data_dir / name).is_dir():  # timm would take all that is in data_dir, for both
            raise UserError(f"{data_dir} has no folder {name}; expected one for training and one for test")
        classes, _ = classes_in(data_dir, name)
        check_classes(classes, built.model.num_classes, data_dir)
    data = {"data": str(data_dir.resolve()), "train_split": train_split, "split": split}
    asked = {f"source's {key}": value for key, value in reading.items() if value not in (None, "auto")}
    asked["weights' sha256"] = sha256_of(built.model)  # a file of the same name may be another one by now
    said = {"model": source, **asked, **data, "seed": seed, "batch_size": batch_size, **LEARNING, **counts}

    def loader(which: str, count: int, is_training: bool) -> DataLoader[Any]:
        dataset: Any = Some(create_dataset("", root=str(data_dir), split=which), count)
        config = resolve_data_config({}, model=built.model)
        return create_loader(
            dataset,
            input_size=(built.model.in_chans, *built.model.img_size),
            **{key: config[key] for key in ("interpolation", "mean", "std", "crop_pct")},
            batch_size=batch_size,
            is_training=is_training,
            scale=(0.8, 1.0),
            color_jitter=0.0,
            num_workers=workers,
            persistent_workers=False,
            use_prefetcher=False,
        )

    few, many = loader(split, layer_images, False), loader(split, test_images, False)
    train = loader(train_split, train_images, True)
    if not len(train):  # the rest of an epoch that is no whole batch is not trained with
        raise UserError(
            f"there are fewer training images than the {batch_size} of a batch: ask for smaller ones"
        )
    rows = _kept(output, said)
    fresh = [kind for kind in chosen if kind not in rows or rows[kind].before is None]
    tuning = [kind for kind in chosen if kind not in rows or rows[kind].after is None]
    total = len(fresh) * (len(few) + len(many)) + len(tuning) * (len(train) + len(many))

    def replaced(kind: str) -> Built:
        made = build(source, spatial=kind, **reading)
        made.model.float().to(device)
        return made

    with tqdm(total=total, desc="batches", disable=None) as progress:
        for kind in fresh:  # all without training first: what costs least tells most
            made = replaced(kind)
            shares = list(made.report.explained.values()) or [1.0] * len(layers)
            row = rows.setdefault(kind, Structure(kind, numbers_of(maps_of(made.model)[0]), shares))
            if not row.alone and kind == DENSE:  # alike for all layers
                row.alone = [100 * accuracy(made.model, _on(few, device, progress))] * len(layers)
            elif not row.alone:
                row.alone = one_by_one(built.model, made.model, _on(few, device, progress))
                _write(output, said, rows)
            row.before = 100 * accuracy(made.model, _on(many, device, progress))
            _write(output, said, rows)
        for kind in tuning:
            tuned = replaced(kind).model
            random_seed(seed)
            fine_tune(tuned, _on(train, device, progress), len(train))
            rows[kind].after = 100 * accuracy(tuned, _on(many, device, progress))
            _write(output, said, rows)
    found = [rows[kind] for kind in (DENSE, *(k for k in rows if k != DENSE))]
    write_file(output / FILES[1], format_structures(found))
    for name in FILES[2:]:
        save_figure(plot_structures(found), output / name)
    return found


def usual_kinds(grid: Grid) -> list[str]:
    """The kinds that a study has by default, for a grid of tokens."""
    sides = [s for s in range(2, min(grid)) if not grid[0] % s and not grid[1] % s]
    cells = [f"{name}:{max(sides)}" for name in ("block", "grid") if sides]
    return ["toeplitz", "7x7", "3x3", "circulant", "axial", "rank:8", *cells]


def _on(batches: DataLoader[Any], device: str, progress: Any) -> Iterable[tuple[torch.Tensor, torch.Tensor]]:
    for images, labels in batches:
        yield images.to(device), labels.to(device)
        progress.update()


def _check_kinds(kinds: Sequence[str], grid: Grid) -> None:
    """Refuses at once what would be refused after hours."""
    for kind in kinds:
        cls, options = kind_of(kind)
        if cls.NO_NEAREST:
            raise UserError(f"{kind} has no nearest W: {cls.NO_NEAREST}")
        cls.nearest(torch.zeros(grid[0] * grid[1], grid[0] * grid[1]), grid, **options)


def _kept(output: Path, said: dict[str, Any]) -> dict[str, Structure]:
    """What an earlier call has measured, if it was asked for the same."""
    path = output / FILES[0]
    if not path.exists():
        make_folders(output)
        return {}
    try:
        told = json.loads(path.read_text(encoding="utf-8"))
        rows = {row["kind"]: Structure(**row) for row in told["kinds"]}
        before = dict(told["said"])
    except (ValueError, KeyError, TypeError) as error:
        raise UserError(f"{path} is no result of this command: {error}; give another folder") from error
    other = [
        f"{key} was {before.get(key)!r}" for key in {**before, **said} if before.get(key) != said.get(key)
    ]
    if other:
        raise UserError(f"{path} is of another study, where {', '.join(other)}: give another folder")
    return rows


def _write(output: Path, said: dict[str, Any], rows: dict[str, Structure]) -> None:
    told = {"said": said, "kinds": [asdict(row) for row in rows.values()]}
    write_file(output / FILES[0], json.dumps(told, indent=1) + "\n")
