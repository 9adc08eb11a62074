"""A model's top-1 by timm's validate.py, beside the figure that was published for its released weights."""

import json
import sys
from contextlib import redirect_stdout
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import timm
import torch
from timm.data import create_dataset
from timm.models import split_model_name_tag

from gmlp_vision.checkpoints import build
from gmlp_vision.checkpoints.candidates import fits
from gmlp_vision.checkpoints.families import check_model, top1_of
from gmlp_vision.checkpoints.hub import cfg_of, download_pretrained, refuse_page, released_at
from gmlp_vision.checkpoints.report import first_five
from gmlp_vision.checkpoints.save import save_folder
from gmlp_vision.errors import CheckpointError, UserError
from gmlp_vision.run import find_script, run_to_end
from gmlp_vision.temporary import scratch_folder


@dataclass(frozen=True)
class Verified:
    """What was measured, and what was published.

    Attributes:
        top1, top5: In %, of the images.
        images: How many there are.
        size, crop_pct, interpolation: What validate.py made of each image, by its own account: the side in
            pixels, and the part of the image that it shows.
        published: The top-1 that was published for the released weights, in %; None if none is known.
        name: The name and tag of those.
        source: Who says so.
    """

    top1: float
    top5: float
    images: int
    size: int
    crop_pct: float
    interpolation: str
    published: float | None
    name: str
    source: str


def verify(
    name: str,
    data_dir: Path,
    *,
    scripts: Path | None = None,
    checkpoint: str | None = None,
    split: str = "validation",
    crop_pct: float | None = None,
    batch_size: int = 128,
    workers: int = 4,
    device: str | None = None,
    weights: str = "auto",
    prefix: str | None = None,
) -> Verified:
    """Runs timm's validate.py on a folder of images, with the preprocessing of the model's cfg.

    Args:
        name: Of a registered model, with or without a tag.
        data_dir: A folder of a folder a class, in the order of the model's classes; or the folder above it,
            as timm's scripts take it.
        scripts: The folder with validate.py; None for $TIMM_SCRIPTS or the current one.
        checkpoint: What holds the weights, in any names that are known here, as for `read_checkpoint`; None
            for the released ones.
        split: The folder in `data_dir`, if it is there; 'validation' is also called val, eval and the like.
        crop_pct: The part of a side of the image that is shown, above 0 and up to 1; None for the cfg's.
        batch_size: Images at a time.
        workers: Processes that read images; 0 for this one.
        device: Of torch; None for CUDA or MPS if there is one.
        weights, prefix: Of `checkpoint`, as for `read_checkpoint`.

    Raises:
        UserError: An argument outside what is listed above, no script, or a script that wrote no result.
        CheckpointError: There are no weights to be had, or they are those of another model.
        SystemExit: The script failed; its traceback is printed.
    """
    model = split_model_name_tag(name)[0]
    check_model(model)
    cfg = cfg_of(name)
    if cfg is None:
        raise UserError(f"{name} has no pretrained cfg, which would say what its images are like")
    if checkpoint is None and released_at(name) is None:
        refuse_page(name)
        raise CheckpointError(f"{name} has no released weights; give a file of some, --checkpoint FILE")
    if checkpoint is None and (weights != "auto" or prefix is not None):
        raise UserError("--weights and --prefix choose from a file: give one, --checkpoint FILE")
    for title, value, least in (("batch size", batch_size, 1), ("number of workers", workers, 0)):
        if value < least:
            raise UserError(f"the {title} is {value}; expected at least {least}")
    if crop_pct is not None and not 0 < crop_pct <= 1:
        raise UserError(f"crop_pct is {crop_pct}; expected a part of the image, above 0 and up to 1")
    script = find_script("validate.py" if scripts is None else str(scripts.resolve() / "validate.py"))
    device = checked_device(device)
    classes, images = classes_in(data_dir, split)
    if checkpoint is None:
        check_classes(classes, cfg.num_classes, data_dir)
    with scratch_folder() as folder:
        source = name
        if checkpoint is None:
            download_pretrained(name)  # where timm looks for it; what fails is said in a line
        else:
            made = build(checkpoint, model=model, weights=weights, prefix=prefix)
            like = timm.create_model(model, device="meta", **made.identity.settings)
            if not fits(made.identity.tensors, like):
                raise CheckpointError(f"{checkpoint} does not hold the weights of a {model}")
            check_classes(classes, made.model.num_classes, data_dir)
            # else it would have that of the first weights of its name
            shown = {key: getattr(cfg, key) for key in ("mean", "std", "interpolation", "crop_pct")}
            save_folder(made.model, folder / "model", data_config=shown)
            source = f"local-dir:{folder / 'model'}"
        results = folder / "results.json"
        data = ["--data-dir", str(data_dir), "--split", split]
        data += [] if crop_pct is None else ["--crop-pct", str(crop_pct)]
        run = ["--batch-size", str(batch_size), "--workers", str(workers), "--device", device]
        write = ["--results-file", str(results), "--results-format", "json"]
        with redirect_stdout(sys.stderr):  # it prints its result for other scripts
            run_to_end(script, ["--model", source, "--pretrained", *data, *run, *write])
        result = _read(results, script)
    return Verified(
        top1=result["top1"],
        top5=result["top5"],
        images=images,
        size=result["img_size"],
        crop_pct=result["crop_pct"],
        interpolation=result["interpolation"],
        published=top1_of(f"{model}.{cfg.tag}"),
        name=f"{model}.{cfg.tag}",
        source=cfg.origin_url or (f"the card beside {cfg.file}" if cfg.file else "timm's results"),
    )


def _best_device() -> str:
    if torch.cuda.is_available():
        return "cuda"
    return "mps" if torch.backends.mps.is_available() else "cpu"


def checked_device(device: str | None) -> str:
    """A device of torch that can be used, the best there is for None.

    Raises:
        UserError: Nothing can be computed on it.
    """
    device = device or _best_device()
    try:
        torch.ones(1, device=device).item()
    except (RuntimeError, AssertionError) as error:  # no such word; not built, not there, or without numbers
        reason = str(error).partition("\n")[0]
        raise UserError(f"nothing can be computed on the device {device!r}: {reason}") from error
    return device


def classes_in(data_dir: Path, split: str) -> tuple[list[str], int]:
    """The classes that timm will see, in its order, and the number of images.

    Raises:
        UserError: There is no folder of images for each class.
    """
    if not data_dir.is_dir():
        raise UserError(f"{data_dir} is no folder; expected one that holds a folder of images for each class")
    try:
        reader: Any = create_dataset("", root=str(data_dir), split=split).reader
    except RuntimeError as error:  # it has found no image
        raise UserError(f"{data_dir}: {error}") from error
    classes, root = list(reader.class_to_idx), Path(reader.root)
    if not all(name and (root / name).is_dir() for name in classes):
        raise UserError(
            f"{root} does not hold a folder of images for each class; give the folder that does, or the one "
            "above it and its name as the split"
        )
    return classes, len(reader)


def check_classes(classes: list[str], expected: int, data_dir: Path) -> None:
    """Refuses images of another number of classes than a model is for.

    Raises:
        UserError: They are.
    """
    if len(classes) != expected:
        raise UserError(
            f"{data_dir} has images of {len(classes)} classes ({first_five(classes)}), and the model is for "
            f"{expected}: its classes are the folders in alphabetical order, so none may be missing"
        )


def _read(results: Path, script: Path) -> dict[str, Any]:
    try:
        result: dict[str, Any] = json.loads(results.read_text(encoding="utf-8"))
        missing = {"top1", "top5", "img_size", "crop_pct", "interpolation"} - result.keys()
    except (FileNotFoundError, ValueError, AttributeError):
        missing = {"a result"}
    if missing:
        what = ", ".join(sorted(missing))
        raise UserError(f"{script} ended without {what}; expected validate.py of timm {timm.__version__}")
    return result
