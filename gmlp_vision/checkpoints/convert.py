"""A checkpoint to a new file or folder: under other names, at another image size, for other classes."""

from pathlib import Path
from typing import Any

from torch import nn

from gmlp_vision.checkpoints import families
from gmlp_vision.checkpoints.build import Built, build
from gmlp_vision.checkpoints.identify import identify
from gmlp_vision.checkpoints.merge import kernels_of, merge, report_merged
from gmlp_vision.checkpoints.names import OWN, from_ours
from gmlp_vision.checkpoints.outputs import check_files, check_folder
from gmlp_vision.checkpoints.read import Checkpoint
from gmlp_vision.checkpoints.report import Report
from gmlp_vision.checkpoints.rounding import losses
from gmlp_vision.checkpoints.save import DTYPES, check_out_name, is_file_name, save_file, save_folder
from gmlp_vision.checkpoints.settings import differing, settings_of
from gmlp_vision.errors import CheckpointError, UserError
from gmlp_vision.layers.resample import Grid


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
    model: str | None = None,
    prefix: str | None = None,
    spatial: str | None = None,
) -> Report:
    """Reads a checkpoint, carries it to the size that is asked for, and writes it.

    Args:
        source: As for `read_checkpoint`.
        out: One file, replaced if it is there, where the name ends in .safetensors, .pth, .pt, .pth.tar,
            .bin or .ckpt, in capitals or not; else a new folder in timm's local-dir form. A name that ends as
            other files do is refused, but with a slash behind it.
        layout, grid, img_size, patch_size, num_classes, weights, model, prefix, spatial: As for `build`.
        to: Whose names it gets, in one file: 'timm' or another (docs/weights.md); None for this package.
        dtype: Of the numbers written, 'fp32', 'fp16' or 'bf16'; None for the file's own.

    Returns:
        What became of every tensor.

    Raises:
        ValueError: An argument outside what is listed above, or an image that the patch does not divide.
        CheckpointError: The source cannot be read safely, or holds no model that is known here.
        UserError: The file or folder that is asked for cannot express the model, or the folder exists.
    """
    check_out_name(out)
    out = Path(out)
    families.check_layout(to)
    if to is not None and not is_file_name(out):
        raise UserError(
            f"{out} would be a folder, this package's form; with --to, end it in .safetensors or .pth"
        )
    if dtype is not None and dtype not in DTYPES:
        raise ValueError(f"dtype is {dtype!r}; expected one of {', '.join(DTYPES)}")
    if is_file_name(out):
        check_files([out])
    else:
        check_folder(out)
    built = build(
        source,
        weights=weights,
        layout=layout,
        grid=grid,
        img_size=img_size,
        patch_size=patch_size,
        num_classes=num_classes,
        model=model,
        prefix=prefix,
        spatial=spatial,
    )
    if spatial is None:  # else it is what was asked for
        report_merged(kernels_of(built.model), built.report)
        merge(built.model)
    if dtype is not None:
        built.report.notes += _cast(built.model, dtype, built.title)
    if not is_file_name(out):
        if built.identity.name is None:
            raise UserError(
                f"{source} is of no registered size, and timm makes its models by name only, so that no "
                "config.json can say which it is: give the name of a file"
            )
        save_folder(built.model, out)
    elif to in (None, OWN):
        _check_default(built, to)
        save_file(built.model.state_dict(), out)
    else:
        save_file(_in_names_of(built, str(to)), out)
    return built.report


def _cast(model: nn.Module, dtype: str, source: str) -> list[str]:
    """Rounds a model to another dtype; says so where that made numbers 0."""
    before = {name: tensor.detach() for name, tensor in model.state_dict().items()}
    model.to(DTYPES[dtype])
    return losses(before, model.state_dict(), source)


def _check_default(built: Built, to: str | None) -> None:
    """Refuses one file of tensors for a model that its reader would take for another."""
    alone = Checkpoint(built.model.state_dict(), {}, built.title, "raw", "")
    try:
        there = settings_of(identify(alone, model=built.identity.name).model)
    except (
        CheckpointError
    ):  # the tensors do not tell the model at all, so its reader must be told of it anyway
        return
    differences = _differences(there, settings_of(built.model))
    if differences and to is None:
        raise UserError(
            "one file of tensors cannot say how this model differs from the default: "
            f"{'; '.join(differences)}. Give the name of a folder, whose config.json does"
        )
    if differences:
        raise UserError(_cannot(built, to, differences))


def _in_names_of(built: Built, to: str) -> dict[str, Any]:
    """The tensors in another implementation's names, if it can have such a model."""
    layout = families.layouts_of(built.identity.family).get(to)
    title = families.title(built.identity.family)
    if layout is None:
        known = ", ".join([OWN, *families.layouts_of(built.identity.family)])
        raise UserError(f"the names of {to} have none for a {title}; expected one of {known}")
    differences = _differences(layout.settings, settings_of(built.model))
    if layout.cannot is not None:
        differences += layout.cannot(built.model)
    if differences:
        raise UserError(_cannot(built, to, differences))
    return from_ours(built.model.state_dict(), layout.rows_for(built.model) or ())


def _differences(there: Any, here: Any) -> list[str]:
    return [
        f"{name} is {value} there and {here[name]} here" for name, value in differing(there, here).items()
    ]


def _cannot(built: Built, to: str | None, differences: list[str]) -> str:
    return (
        f"{to}'s {families.title(built.identity.family)} cannot express this model: {'; '.join(differences)}"
    )
