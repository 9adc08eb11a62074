"""A source to a model that holds its weights: any file, folder, hub repository, model name or state dict."""

from collections.abc import Mapping
from dataclasses import dataclass
from functools import reduce
from pathlib import Path
from typing import Any

import torch

from gmlp_vision.checkpoints import families
from gmlp_vision.checkpoints.adapt import account, grid_note
from gmlp_vision.checkpoints.candidates import Identity
from gmlp_vision.checkpoints.exchange import adapt_kinds, as_in_file
from gmlp_vision.checkpoints.grid import SourceSize, source_size, stem_of
from gmlp_vision.checkpoints.identify import identify
from gmlp_vision.checkpoints.names import Tensors
from gmlp_vision.checkpoints.read import Checkpoint, read_checkpoint
from gmlp_vision.checkpoints.report import Report
from gmlp_vision.checkpoints.rounding import FLOATS, joined
from gmlp_vision.checkpoints.save import LABELS
from gmlp_vision.checkpoints.settings import settings_of
from gmlp_vision.checkpoints.values import check_memory, check_values
from gmlp_vision.errors import CheckpointError
from gmlp_vision.layers.resample import Grid
from gmlp_vision.layers.sized import sized

# What a config says of the images, of where the weights come from, and of what the classes are called.
KEPT: dict[str, Any] = {
    **{"mean": list, "std": list, "interpolation": str, "crop_pct": (int, float)},
    **{"tag": str, "description": str},
    **{"label_names": (list, dict), "label_descriptions": dict},
}


@dataclass(frozen=True)
class Built:
    """A model made from a source.

    Attributes:
        model: On the CPU, in eval mode, in the widest dtype of the file.
        report: What became of every tensor.
        title: What was read, and which weights of it where there was a choice.
        grid: (H, W) of the file's tokens.
        how: How that is known.
        identity: What the source is.
    """

    model: Any
    report: Report
    title: str
    grid: Grid
    how: str
    identity: Identity


def build(
    source: str | Path | Tensors,
    *,
    weights: str = "auto",
    layout: str | None = None,
    grid: Grid | None = None,
    img_size: tuple[int, int] | None = None,
    patch_size: tuple[int, int] | None = None,
    num_classes: int | None = None,
    model: str | None = None,
    prefix: str | None = None,
    spatial: str | None = None,
) -> Built:
    """Makes the model whose weights a source holds.

    Args:
        source: As for `read_checkpoint`.
        weights: 'ema', 'raw', or 'auto' for EMA where there is one.
        layout: Whose names the file has: 'timm' for this package's own, or another (docs/weights.md); None to
            tell by the names.
        grid: (H, W) of the file's tokens, for a file that does not state its image size.
        img_size: (height, width) of the image in pixels; None for the file's own.
        patch_size: (height, width) of the file's patch in pixels, where its stem, a matrix, leaves it open.
        num_classes: Another count than the file's gives a new head, as a new model has it; 0 gives none.
        model: The registered name of such a model, where the tensors leave it open.
        prefix: Of the network that is meant, where the source holds more than one; see `read_checkpoint`.
        spatial: The kind of W that the model gets, the nearest of it to each W of the file; None for the
            file's own.

    Raises:
        ValueError: An argument outside what is listed above, or an image that the patch does not divide.
        CheckpointError: The source cannot be read safely, or holds no model that is known here.
        UserError: What is asked for is far larger than the source.
    """
    check_values(
        layout=layout,
        model=model,
        img_size=img_size,
        grid=grid,
        patch_size=patch_size,
        num_classes=num_classes,
    )
    checkpoint = read_checkpoint(source, weights, prefix=prefix)
    identity = identify(checkpoint, model=model, layout=layout, patch_size=patch_size)
    stem = stem_of(identity.model, identity.tensors)
    if patch_size is not None and stem.patch_size != patch_size:
        (p, q), (height, width) = patch_size, stem.reduction
        raise CheckpointError(
            f"patch_size is {p} x {q}, and the stem of {checkpoint.source} takes {height} x {width} pixels a "
            "token: leave it out"
        )
    size = size_of(identity, checkpoint, grid)
    classes = identity.num_classes if num_classes is None else num_classes
    kind = {} if spatial is None else {"spatial": spatial, "groups": 1}
    if kind and not kind.keys() <= settings_of(identity.model).keys():
        raise CheckpointError(
            f"{checkpoint.source} is a {families.title(identity.family)}, which has no W's of other kinds: "
            "gMLP and aMLP have"
        )
    made = _create(identity, checkpoint, size, img_size=img_size, num_classes=classes, **kind)
    report = Report(checkpoint.source, checkpoint.weights, identity.layout)
    report.dropped |= {**checkpoint.outside, **identity.dropped}
    report.notes += checkpoint.notes
    like = as_in_file(made, identity.tensors, checkpoint.source, fit=True) if kind else made
    made.load_state_dict(adapt_kinds(account(identity.tensors, like, report), like, made, report, size))
    if size is None:  # a tensor is misshapen, and adapt has said which
        raise CheckpointError(f"{checkpoint.source}: no image size gives its tensors their shapes")
    if size.grids:  # else no tensor depends on it
        report.add_note(grid_note(size))
        report.doubtful = size.doubtful
    title = checkpoint.source
    if checkpoint.weights == "ema" or weights == "raw":  # there was a choice
        title = f"{title} ({checkpoint.weights} weights)"
    return Built(made.eval(), report, title, size.grid, size.how, identity)


def size_of(identity: Identity, checkpoint: Checkpoint, grid: Grid | None = None) -> SourceSize | None:
    """The image size of an identified checkpoint; None where no size gives its tensors their shapes.

    Raises:
        CheckpointError: As `source_size`.
    """
    return source_size(identity.tensors, identity.model, checkpoint.config, grid, own=False)


def widest(tensors: Tensors) -> torch.dtype:
    """The smallest floating dtype that holds the numbers of all the tensors; float32 where there are none."""
    found = [tensor.dtype for tensor in tensors.values() if tensor.dtype in FLOATS]
    return reduce(joined, found, found[0]) if found else torch.float32


def _create(identity: Identity, checkpoint: Checkpoint, size: SourceSize | None, **kwargs: Any) -> Any:
    if kwargs["img_size"] is None:
        kwargs.pop("img_size")
        if size is not None:
            kwargs["img_size"] = size.image
    if identity.name is not None:
        # with the class count of the file timm drops the names of classes that a model does not have
        kwargs["pretrained_cfg_overlay"] = {**_kept(checkpoint.config), "num_classes": identity.num_classes}
    kwargs.update(in_chans=identity.in_chans, dtype=widest(identity.tensors))
    planned = identity.create(**kwargs, device="meta")
    sized(planned).sizes(None, None)  # timm's own would drop what the patch leaves of an image
    check_memory(planned, identity.tensors)
    return identity.create(**kwargs)


def _kept(config: Mapping[str, Any]) -> dict[str, Any]:
    """What a file's config says of its model's training, for another config."""
    cfg = config.get("pretrained_cfg")
    if not isinstance(cfg, Mapping):
        return {}
    cfg = {**cfg, **{k: config[k] for k in LABELS if k in config}}
    return {k: cfg[k] for k, kind in KEPT.items() if isinstance(cfg.get(k), kind) and cfg[k]}
