"""A file into a model, all three verbs in one call: by hand, and as timm does it for pretrained=True."""

import logging
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from torch import nn

from gmlp_vision.checkpoints.adapt import HEAD, STEM, adapt
from gmlp_vision.checkpoints.convert import LAYOUTS, layout_named, recognise, to_ours
from gmlp_vision.checkpoints.grid import Grid
from gmlp_vision.checkpoints.load import read_checkpoint, select_weights
from gmlp_vision.checkpoints.report import Report
from gmlp_vision.errors import CheckpointError
from gmlp_vision.layers.spatial_projection import SpatialProjection

logger = logging.getLogger(__name__)


def load_checkpoint(
    model: nn.Module,
    source: str | Path,
    *,
    weights: str = "auto",
    layout: str | None = None,
    grid: Grid | None = None,
    sha256: str | None = None,
) -> Report:
    """Loads any checkpoint into a live model of this package, at the model's own size.

    Args:
        model: Changed in place, unless there is an error: then it is as it was.
        source: A file, a folder, 'hf-hub:OWNER/NAME' or a timm model name; see `read_checkpoint`.
        weights: 'ema', 'raw', or 'auto' for EMA where there is one.
        layout: Whose names the file has: 'timm', 'lucidrains' or 'jaketae'; None to tell by the names.
        grid: (H, W) of the file's tokens, for a file that does not state its image size.
        sha256: Hash that the file must have, in hex.

    Returns:
        What became of every tensor.

    Raises:
        ValueError: An unknown `weights` or `layout`, or a model that is none of this package's.
        CheckpointError: The source cannot be read safely, or does not hold the weights of such a model.
    """
    # MLP-Mixer in timm has such a stem too, and a wrapper has our layers, under longer names
    if STEM not in model.state_dict() or not any(isinstance(m, SpatialProjection) for m in model.modules()):
        raise ValueError(f"the model is a {type(model).__name__}; expected one of this package, unwrapped")
    checkpoint = read_checkpoint(source, weights, sha256)
    report = Report(checkpoint.source, checkpoint.weights, layout or recognise(checkpoint.state_dict))
    tensors = _as_ours(checkpoint.state_dict, model, report, checkpoint.config)
    model.load_state_dict(adapt(tensors, model, report, checkpoint.config, grid))
    return report


def checkpoint_filter_fn(state_dict: Mapping[str, Any], model: nn.Module) -> dict[str, torch.Tensor]:
    """timm's pretrained_filter_fn: what it read, made to fit `model` whole, or an error.

    Where a class count differs timm looks at nothing any more, and a file of another architecture "loads". So
    what it gets from here is complete, and the model's cfg is set right where its next steps would spoil it.

    Raises:
        CheckpointError: As `load_checkpoint`. Not a TypeError: timm would call again with one argument.
    """
    cfg: dict[str, Any] = getattr(model, "pretrained_cfg", {})
    source = str(cfg.get("file") or cfg.get("hf_hub_id") or cfg.get("url") or "the state dict")
    state_dict, taken = select_weights(state_dict, "auto", source)
    report = Report(source, taken or "ema or raw", recognise(state_dict))
    config: dict[str, Any] = {}
    if cfg.get("source") in ("local-dir", "hf-hub"):  # then timm made the cfg from the config.json there
        config = {"model_args": getattr(model, "pretrained_model_args", {}), "pretrained_cfg": cfg}
    tensors = _as_ours(state_dict, model, report, config)
    if cfg.get("num_classes") == -1:
        why = "the pretrained cfg has num_classes=-1, timm's way to ask for a new head"
        report.dropped |= {name: why for name in HEAD if tensors.pop(name, None) is not None}
    adapted = adapt(tensors, model, report, config, overlaid_cfg=cfg)
    _tell_timm(cfg, model, report)
    logger.log(logging.WARNING if report.missing or report.doubtful else logging.INFO, "%s", report)
    return adapted


def _as_ours(
    state_dict: Mapping[str, torch.Tensor], model: nn.Module, report: Report, config: Mapping[str, Any]
) -> dict[str, torch.Tensor]:
    check_settings(model, stated_settings(report.layout, config), report.source)
    kernel = model.state_dict()[STEM].shape
    return to_ours(state_dict, report.layout, (kernel[2], kernel[3]), kernel[1])


def stated_settings(layout: str, config: Mapping[str, Any]) -> dict[str, Any]:
    """The arguments of GMlp that no tensor shows and that a file was trained with, as far as it tells.

    Raises:
        ValueError: An unknown layout.
        CheckpointError: The config has something else in their place.
    """
    if layout != "timm":
        return layout_named(layout).settings
    args = config.get("model_args")
    stated = {k: args[k] for k in LAYOUTS["timm"].settings if k in args} if isinstance(args, Mapping) else {}
    for name, value in stated.items():
        if type(value) is not type(LAYOUTS["timm"].settings[name]):
            raise CheckpointError(f"the file's config says {name}={value!r}, which is no value for it")
    return stated


def check_settings(model: nn.Module, settings: Mapping[str, Any], source: str) -> None:
    """Refuses a model that would compute something else from the same tensors."""
    own = model_settings(model)
    for name, value in settings.items():
        if own[name] != value:
            raise CheckpointError(
                f"{source} was trained with {name}={value}, and this model has {name}={own[name]}, which "
                f"computes something else: create the model with {name}={value}"
            )


def model_settings(model: Any) -> dict[str, Any]:
    """The arguments of a GMlp that no tensor of it shows."""
    return {"norm_eps": model.blocks[0].norm.eps, "final_norm": isinstance(model.norm, nn.LayerNorm)}


def _tell_timm(cfg: dict[str, Any], model: Any, report: Report) -> None:
    """What timm does next goes by the cfg, which by now must describe the adapted tensors, not the file."""
    size = cfg.get("input_size")
    if size and size[0] != model.in_chans:
        cfg["input_size"] = (model.in_chans, *size[1:])  # or it would adapt the channels again, or warn
    if HEAD[0] not in report.missing and 0 <= cfg.get("num_classes", -1) != model.num_classes > 0:
        cfg["num_classes"] = model.num_classes  # or it would drop a head that fits
        cfg.pop("label_names", None)
        cfg.pop("label_descriptions", None)
