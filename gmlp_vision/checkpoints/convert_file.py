"""A checkpoint to a new file or folder: under other names, at another image size, for other classes."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import timm
from torch import nn

from gmlp_vision.checkpoints.adapt import adapt
from gmlp_vision.checkpoints.convert import LAYOUTS, from_ours, recognise, to_ours
from gmlp_vision.checkpoints.grid import Grid, source_grid
from gmlp_vision.checkpoints.into_model import model_settings, stated_settings
from gmlp_vision.checkpoints.load import read_checkpoint
from gmlp_vision.checkpoints.report import Report, first_five
from gmlp_vision.checkpoints.save import DTYPES, is_file_name, save_file, save_folder
from gmlp_vision.checkpoints.sizes import UNNAMED, find_model, read_sizes
from gmlp_vision.errors import UserError

PREPROCESSING: dict[str, Any] = {"mean": list, "std": list, "interpolation": str, "crop_pct": (int, float)}


def convert_file(
    source: str | Path,
    out: str | Path,
    *,
    layout: str | None = None,
    to: str | None = None,
    img_size: tuple[int, int] | None = None,
    grid: Grid | None = None,
    patch_size: tuple[int, int] | None = None,
    num_classes: int | None = None,
    weights: str = "auto",
    dtype: str | None = None,
) -> Report:
    """Reads a checkpoint of a gMLP, carries it to the size that is asked for, and writes it.

    Args:
        source: As for `read_checkpoint`.
        out: One file, replaced if it is there, where the name ends in .safetensors, .pth, .pt, .pth.tar or
            .bin; else a new folder in timm's local-dir form.
        layout: Whose names the file has: 'timm', 'lucidrains' or 'jaketae'; None to tell by the names.
        to: Whose names it gets, in one file; None for this package.
        img_size: (height, width) of the image in pixels; None for the file's own.
        grid: (H, W) of the file's tokens, for a file that does not state its image size.
        patch_size: (height, width) of the file's patch in pixels, where its stem, a matrix, leaves it open.
        num_classes: Another count than the file's gives a new head, all zero; 0 gives none.
        weights: 'ema', 'raw', or 'auto' for EMA where there is one.
        dtype: Of the numbers written, 'fp32', 'fp16' or 'bf16'; None for the file's own.

    Returns:
        What became of every tensor.

    Raises:
        ValueError: An argument outside what is listed above, or an image that the patch does not divide.
        CheckpointError: The source cannot be read safely, or does not hold a gMLP.
        UserError: The file or folder that is asked for cannot express the model, or the folder exists.
    """
    out = Path(out)
    if to is not None and not is_file_name(out):
        raise UserError(
            f"{out} would be a folder, this package's form; with --to, end it in .safetensors or .pth"
        )
    if num_classes is not None and num_classes < 0:
        raise ValueError(f"num_classes is {num_classes}; expected a count, or 0 for no head")
    if dtype is not None and dtype not in DTYPES:
        raise ValueError(f"dtype is {dtype!r}; expected one of {', '.join(DTYPES)}")
    checkpoint = read_checkpoint(source, weights)
    report = Report(checkpoint.source, checkpoint.weights, layout or recognise(checkpoint.state_dict))
    tensors = to_ours(checkpoint.state_dict, report.layout, patch_size)
    sizes = read_sizes(tensors, report.source)
    patch = sizes.shape["patch_size"]
    name, cfg = find_model(sizes)
    grid, how, _ = source_grid(sizes.tokens, patch, checkpoint.config, grid, pretrained_cfg=cfg)
    settings = stated_settings(report.layout, checkpoint.config)
    model = timm.create_model(
        name or UNNAMED,
        pretrained_cfg_overlay=_preprocessing(checkpoint.config),
        img_size=img_size or (grid[0] * patch[0], grid[1] * patch[1]),
        in_chans=sizes.in_chans,
        num_classes=sizes.num_classes if num_classes is None else num_classes,
        dtype=tensors["stem.proj.weight"].dtype,
        **({} if name else sizes.shape),
        # config.json need not say what is so by default
        **{k: v for k, v in settings.items() if v != LAYOUTS["timm"].settings[k]},
    )
    model.load_state_dict(adapt(tensors, model, report, checkpoint.config, grid))
    report.notes = [f"the file's grid is {grid[0]} x {grid[1]} tokens, {how}"]
    if dtype is not None:
        report.notes += _cast(model, dtype)
    if is_file_name(out):
        _check_expressible(model, to)
        save_file(from_ours(model.state_dict(), to or "timm"), out)
    else:
        save_folder(model, out)
    return report


def _preprocessing(config: Mapping[str, Any]) -> dict[str, Any]:
    cfg = config.get("pretrained_cfg")
    if not isinstance(cfg, Mapping):
        return {}
    return {k: cfg[k] for k, kind in PREPROCESSING.items() if isinstance(cfg.get(k), kind) and cfg[k]}


def _cast(model: nn.Module, dtype: str) -> list[str]:
    """Rounds a model to another dtype; says so where that made numbers 0."""
    before = {name: p.detach() for name, p in model.named_parameters()}
    model.to(DTYPES[dtype])
    after = dict(model.named_parameters())
    too_large = [name for name, p in after.items() if not p.isfinite().all()]
    if too_large:
        raise UserError(f"{dtype} cannot hold the numbers of {first_five(too_large)}; take another dtype")
    lost = sum(int(((p != 0) & (after[name] == 0)).sum()) for name, p in before.items())
    return [f"{lost:,} numbers were too small for {dtype} and became 0"] if lost else []


def _check_expressible(model: Any, to: str | None) -> None:
    """Refuses one file of tensors for a model that its reader would take for another."""
    own = model_settings(model)
    expected = LAYOUTS[to or "timm"].settings
    differences = [f"{k} is {v} there and {own[k]} here" for k, v in expected.items() if own[k] != v]
    if to is None and differences:
        raise UserError(
            "one file of tensors cannot say how this model differs from the default: "
            f"{'; '.join(differences)}. Give the name of a folder, whose config.json does"
        )
    if to in ("lucidrains", "jaketae") and not model.num_classes:
        differences.append("there is always a head there, and none here")
    hidden = model.blocks[0].mlp_channels.fc1.out_features
    if to == "lucidrains" and hidden % model.embed_dim:
        differences.append(f"the hidden width, {hidden}, would have to be a multiple of {model.embed_dim}")
    stem = model.stem
    if to == "jaketae" and (stem.img_size[0] != stem.img_size[1] or stem.patch_size[0] != stem.patch_size[1]):
        differences.append("image and patch are square there, and not here")
    if differences:
        raise UserError(f"{to}'s gMLP cannot express this model: {'; '.join(differences)}")
