"""A file into a live model: by hand, and as timm does it for pretrained=True."""

import logging
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

import torch
from torch import nn

from gmlp_vision.checkpoints import families
from gmlp_vision.checkpoints.adapt import account
from gmlp_vision.checkpoints.exchange import adapt_kinds, as_in_file
from gmlp_vision.checkpoints.grid import source_size
from gmlp_vision.checkpoints.merge import MERGED
from gmlp_vision.checkpoints.names import State, Tensors, to_ours
from gmlp_vision.checkpoints.read import read_checkpoint
from gmlp_vision.checkpoints.report import Report
from gmlp_vision.checkpoints.settings import check_settings, settings_of, settings_of_name, stated_settings
from gmlp_vision.checkpoints.unwrap import unwrap
from gmlp_vision.layers.resample import Grid
from gmlp_vision.layers.sized import sized

logger = logging.getLogger(__name__)


def load_checkpoint(
    model: nn.Module,
    source: str | Path | Tensors,
    *,
    weights: str = "auto",
    layout: str | None = None,
    grid: Grid | None = None,
    sha256: str | None = None,
    prefix: str | None = None,
    fit: bool = False,
) -> Report:
    """Loads any checkpoint into a live model, at the model's own size.

    Args:
        model: One of this package, or timm's ResMLP, MLP-Mixer, gMixer or gMLP. Changed in place, unless
            there is an error: then it is as it was. One on the meta device gets parameters on the CPU, so
            move it and make its optimizer afterwards.
        source: A file, a folder, 'hf-hub:OWNER/NAME', a timm model name or a state dict; see
            `read_checkpoint`.
        weights: 'ema', 'raw', or 'auto' for EMA where there is one.
        layout: Whose names the file has: 'timm' for this package's own, or one of the model's family's
            (docs/weights.md); None to tell by the names.
        grid: (H, W) of the file's tokens, for a file that does not state its image size.
        sha256: Hash that the file must have, in hex.
        prefix: Of the network that is meant, where the file holds more than one; see `read_checkpoint`.
        fit: Whether a file whose W's are of another kind (docs/structure.md) may be taken, each W replaced by
            the nearest of the model's kind. The report says what share of it that explains. Not without a
            word, since the model then computes something else; `pretrained=True` with a `spatial` is one.

    Returns:
        What became of every tensor.

    Raises:
        ValueError: An unknown `weights` or `layout`, or a model that is none of these.
        CheckpointError: The source cannot be read safely, or does not hold the weights of such a model.
    """
    if sized(model) is None:
        raise ValueError(
            f"the model is a {type(model).__name__}; expected one of this package, or timm's MlpMixer with "
            "blocks of timm's own, unwrapped"
        )
    families.check_layout(layout)
    checkpoint = read_checkpoint(source, weights, sha256, prefix)
    report = Report(
        checkpoint.source,
        checkpoint.weights,
        dropped=dict(checkpoint.outside),
        notes=list(checkpoint.notes),
    )
    like = as_in_file(model, checkpoint.state_dict, checkpoint.source, fit)
    tensors = _as_ours(checkpoint.state_dict, like, report, checkpoint.config, layout)
    tensors = account(tensors, like, report)
    size = source_size(tensors, like, checkpoint.config, grid)
    adapted = adapt_kinds(tensors, like, model, report, size)
    if _on_meta(model):
        _assign(model, adapted, report)
    else:
        model.load_state_dict(adapted)
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
    network = unwrap(state_dict, "auto", source)
    report = Report(
        source,
        network.weights or "ema or raw",
        dropped=dict(network.outside),
        notes=list(network.notes),
    )
    config: dict[str, Any] = {}
    if cfg.get("source") in ("local-dir", "hf-hub"):  # then timm made the cfg from the config.json there
        args = getattr(model, "pretrained_model_args", {})
        config = {"architecture": cfg.get("architecture"), "model_args": args, "pretrained_cfg": cfg}
    # timm has no way to ask for it, and who names another kind than the weights have means the nearest
    like: Any = as_in_file(model, network.tensors, source, fit=True)
    tensors = _as_ours(network.tensors, like, report, config)
    if cfg.get("num_classes") == -1:
        why = "the pretrained cfg has num_classes=-1, timm's way to ask for a new head"
        report.dropped |= {name: why for name in _head(tensors, model)}
        tensors = {name: tensor for name, tensor in tensors.items() if name not in report.dropped}
    tensors = account(tensors, like, report)
    size = source_size(tensors, like, config, overlaid_cfg=cfg)
    adapted = adapt_kinds(tensors, like, model, report, size)
    _tell_timm(cfg, model, report)
    watch = report.missing or report.doubtful or report.explained or MERGED in report.dropped.values()
    logger.log(logging.WARNING if watch else logging.INFO, "%s", report)
    return adapted


def _on_meta(model: nn.Module) -> bool:
    return any(parameter.is_meta for parameter in model.parameters())


def _assign(model: Any, tensors: Tensors, report: Report) -> None:
    """Gives a model that has no numbers those of a file, as its parameters; a head of its own is drawn."""
    own = dict(model.named_parameters(remove_duplicate=False))
    with torch.device("cpu"), torch.inference_mode(False), torch.no_grad():
        # copies in the model's strides: two tensors of a file may be one, and would stay one in training
        new = {
            name: torch.empty_like(tensor, device="cpu").copy_(tensors[name])
            for name, tensor in model.state_dict().items()
            if name not in report.missing
        }
        model.load_state_dict(new, strict=False, assign=True)
        if report.missing:
            model.reset_classifier(model.num_classes)
        for module in model.modules():
            for name, buffer in module.named_buffers(recurse=False):
                if buffer.is_meta:  # in no file: what a mixture has counted in training, which starts at 0
                    setattr(module, name, torch.zeros_like(buffer, device="cpu"))
    for name, parameter in model.named_parameters(remove_duplicate=False):
        parameter.requires_grad_(own[name].requires_grad)


def _as_ours(
    state_dict: Tensors,
    model: nn.Module,
    report: Report,
    config: Mapping[str, Any],
    layout: str | None = None,
) -> State:
    """The tensors in our names, once the model is known to compute with them what they were trained for."""
    family = families.family_of_model(model)
    report.layout = layout or families.recognise(state_dict, family)
    other = families.layouts_of(family).get(report.layout)
    if other is None:
        own = settings_of(model)
        named = config.get("architecture")
        # what a config does not state is as the name has it by default
        known = family is not None and families.family_of_name(named) is family
        default = settings_of_name(str(named)) if known else {}
        check_settings(model, {**default, **stated_settings(config, own)}, report.source)
        return dict(state_dict)
    check_settings(model, other.settings, report.source)
    tensors, dropped = to_ours(state_dict, other, other.rows_for(model) or (), model.state_dict())
    report.dropped |= dropped
    return tensors


def _head(names: Iterable[str], model: Any) -> list[str]:
    return [name for name in names if name.startswith(f"{model.classifier}.")]


def _tell_timm(cfg: dict[str, Any], model: Any, report: Report) -> None:
    """What timm does next goes by the cfg, which by now must describe the adapted tensors, not the file."""
    size = cfg.get("input_size")
    if size and size[0] != model.in_chans:
        cfg["input_size"] = (model.in_chans, *size[1:])  # or it would adapt the channels again, or warn
    if not _head(report.missing, model) and 0 <= cfg.get("num_classes", -1) != model.num_classes > 0:
        cfg["num_classes"] = model.num_classes  # or it would drop a head that fits
        cfg.pop("label_names", None)
        cfg.pop("label_descriptions", None)
