"""Our weights to this model. Every tensor of the file and of the model is accounted for, or it is an error.

Shapes: N tokens, D width, C image channels, P x P' pixels of a patch, K classes.
"""

from collections.abc import Mapping
from typing import Any

import torch
from timm.layers import resample_patch_embed
from timm.models import adapt_input_conv
from torch import nn
from tqdm import tqdm

from gmlp_vision.checkpoints.grid import Grid, source_grid
from gmlp_vision.checkpoints.report import Report, first_five
from gmlp_vision.errors import CheckpointError
from gmlp_vision.layers.resample import resample_map as resample_bias
from gmlp_vision.layers.resample import resample_operator
from gmlp_vision.layers.spatial_projection import SpatialProjection

Tensors = dict[str, torch.Tensor]

STEM = "stem.proj.weight"
HEAD = ("head.weight", "head.bias")


def adapt(
    state_dict: Mapping[str, torch.Tensor],
    model: nn.Module,
    report: Report,
    config: Mapping[str, Any],
    grid: Grid | None = None,
    overlaid_cfg: Mapping[str, Any] | None = None,
) -> Tensors:
    """A state dict for `model`, complete and in its shapes and dtypes, from one in our names.

    W and b are carried to the model's grid, the stem to its channels and its patch. Where the class counts
    differ the result holds the model's own head. The model itself is not touched.

    Args:
        state_dict: As `to_ours` returns it.
        model: One with the tensor names of Trunk.
        report: Is filled in.
        config: What the file says of its model, in the form of timm's config.json.
        grid: (H, W) of the file's tokens, where the user knows it.
        overlaid_cfg: On timm's way, the model's pretrained cfg, where the user may have put the file's size.

    Raises:
        CheckpointError: A tensor is missing, or has no counterpart, or cannot be brought to its counterpart's
            shape, is not floating point or not finite; or the file's grid is unknown.
    """
    own = model.state_dict()
    tensors = dict(state_dict)
    _settle_head(tensors, own, report)
    _check_names(tensors, own, report.source)
    _carry_tokens(tensors, model, config, grid, overlaid_cfg, report)
    _fit_stem(tensors, own[STEM], report)
    _check_shapes(tensors, own, report.source)
    _cast(tensors, own, report)
    _check_finite(tensors, report.source)
    report.loaded += [name for name in tensors if name not in report.adapted and name not in report.missing]
    return tensors


def _settle_head(tensors: Tensors, own: Tensors, report: Report) -> None:
    """Only a head's class count may differ; then, or where the file has no head, the model keeps its own."""
    theirs, ours = [name for name in HEAD if name in tensors], [name for name in HEAD if name in own]
    if theirs and not ours:
        why = "the model has no head"
    elif ours and not theirs:
        report.missing.update(dict.fromkeys(HEAD, "no head to take, so the model keeps its own"))
        why = ""
    elif len(theirs) == len(ours) == 2 and _class_counts_differ(tensors, own):
        file_k, model_k = len(tensors[HEAD[0]]), len(own[HEAD[0]])
        why = f"it is for {file_k} classes, and the model has {model_k}"
        report.missing.update(dict.fromkeys(HEAD, f"the model keeps its own head, for {model_k} classes"))
    else:
        return
    for name in theirs:
        report.dropped[name] = why
        del tensors[name]
    for name in ours:
        tensors[name] = own[name]


def _class_counts_differ(tensors: Tensors, own: Tensors) -> bool:
    (weight, bias), target = (tensors[name] for name in HEAD), own[HEAD[0]]
    return weight.shape[1:] == target.shape[1:] and bias.shape == weight.shape[:1] != target.shape[:1]


def _check_names(tensors: Tensors, own: Tensors, source: str) -> None:
    missing, unexpected = [n for n in own if n not in tensors], [n for n in tensors if n not in own]
    if missing or unexpected:
        raise CheckpointError(
            f"{source} does not hold this model's weights. "
            f"In the model, not in the file: {first_five(missing) or 'none'}. "
            f"In the file, not in the model: {first_five(unexpected) or 'none'}"
        )
    integers = [f"{name} ({t.dtype})" for name, t in tensors.items() if not t.is_floating_point()]
    if integers:
        raise CheckpointError(f"{source} has tensors that are not floating point: {first_five(integers)}")


def _carry_tokens(
    tensors: Tensors,
    model: nn.Module,
    config: Mapping[str, Any],
    grid: Grid | None,
    overlaid_cfg: Mapping[str, Any] | None,
    report: Report,
) -> None:
    """W and b to the grids of the model's spatial projections. What is no map over N tokens is left alone."""
    layers = {name: m.grid_size for name, m in model.named_modules() if isinstance(m, SpatialProjection)}
    first, stem = tensors[f"{next(iter(layers))}.weight"], tensors[STEM]
    if first.ndim != 2 or len(first) < 1 or stem.ndim != 4 or min(stem.shape) < 1:
        return
    n = len(first)
    old, how, doubtful = source_grid(
        n,
        (stem.shape[2], stem.shape[3]),
        config,
        grid,
        overlaid_cfg,
        own=next(iter(layers.values())),
        pretrained_cfg=getattr(model, "pretrained_cfg", None),
    )
    # a line on a terminal, once it has taken two seconds: wide grids do
    for name, new in tqdm(layers.items(), desc="carrying W", delay=2, leave=False, disable=None):
        weight, bias = f"{name}.weight", f"{name}.bias"
        if old == new or tensors[weight].shape != (n, n) or tensors[bias].shape != (n,):
            continue
        tensors[weight] = resample_operator(tensors[weight], old, new)
        tensors[bias] = resample_bias(tensors[bias], old, new)
        said = f"grid {old[0]} x {old[1]} to {new[0]} x {new[1]}"
        report.adapted |= {weight: said, bias: said}
        report.notes = [f"the file's grid is {old[0]} x {old[1]} tokens, {how}"]
        report.doubtful = doubtful


def _fit_stem(tensors: Tensors, target: torch.Tensor, report: Report) -> None:
    weight, changes = tensors[STEM], []
    if weight.ndim != 4 or min(weight.shape) < 1 or len(weight) != len(target):
        return
    chans, patch = target.shape[1], target.shape[2:]
    if weight.shape[1] != chans:
        changes.append(f"channels {weight.shape[1]} to {chans}")
        weight = adapt_input_conv(chans, weight, base_chans=weight.shape[1])
    if weight.shape[2:] != patch:
        changes.append(f"patch {weight.shape[2]} x {weight.shape[3]} to {patch[0]} x {patch[1]}")
        weight = resample_patch_embed(weight, list(patch))
    if changes:
        tensors[STEM] = weight
        report.adapted[STEM] = ", ".join(changes)


def _check_shapes(tensors: Tensors, own: Tensors, source: str) -> None:
    wrong = [name for name in own if tensors[name].shape != own[name].shape]
    if wrong:
        both = [f"{name} {tuple(tensors[name].shape)} for {tuple(own[name].shape)}" for name in wrong]
        raise CheckpointError(
            f"{source} belongs to a model of another size. These tensors cannot be brought to the shapes "
            f"of this one: {first_five(both)}"
        )


def _cast(tensors: Tensors, own: Tensors, report: Report) -> None:
    for name, target in own.items():
        tensor = tensors[name]
        if tensor.dtype != target.dtype:
            said = f"{tensor.dtype} to {target.dtype}".replace("torch.", "")
            report.adapted[name] = f"{report.adapted[name]}, {said}" if name in report.adapted else said
            tensors[name] = tensor.to(target.dtype)


def _check_finite(tensors: Tensors, source: str) -> None:
    broken = [name for name, tensor in tensors.items() if not tensor.isfinite().all()]
    if broken:
        raise CheckpointError(
            f"{source} holds NaN or infinity in {first_five(broken)}: its training diverged, or it is damaged"
        )
