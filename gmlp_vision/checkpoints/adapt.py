"""Our weights to this model. Every tensor of the file and of the model is accounted for, or it is an error.

First `account` settles the names and the head; then, once the file's size is known, `adapt` brings each
tensor to the shape of its counterpart. The model itself is not touched.
"""

from collections.abc import Mapping
from typing import Any

import torch
from timm.layers import resample_patch_embed
from timm.models import adapt_input_conv
from tqdm import tqdm

from gmlp_vision.checkpoints.families import family_of_model, part, sizes_of
from gmlp_vision.checkpoints.grid import SourceSize, stem_of
from gmlp_vision.checkpoints.names import State, Tensors
from gmlp_vision.checkpoints.report import Report, first_five
from gmlp_vision.checkpoints.rounding import FLOATS, joined, losses
from gmlp_vision.errors import CheckpointError
from gmlp_vision.layers.grid_tied import tied_layers


def account(state_dict: Tensors, model: Any, report: Report) -> State:
    """The tensors of a file for every name of the model, in the shapes that they have.

    Where the class counts differ, or the file has no head, the result holds the model's own head. The kernel
    of a 1 x 1 convolution is a matrix where the model has a matrix.

    Args:
        state_dict: In our names.
        model: The model that is to take them.
        report: Is filled in.

    Raises:
        CheckpointError: A tensor is missing, or has no counterpart, or is of another kind of numbers.
    """
    own, tensors = model.state_dict(), dict(state_dict)
    _settle_head(tensors, own, part(model, "classifier"), report)
    _check_names(tensors, own, report.source)
    _check_kinds(tensors, own, report.source)
    for name, tensor in tensors.items():
        if tensor.ndim > own[name].ndim == 2 and all(size == 1 for size in tensor.shape[2:]):
            tensors[name] = tensor.flatten(1)
            report.adapted[name] = "kernel of a convolution to a matrix"
    return tensors


def adapt(tensors: Tensors, model: Any, report: Report, size: SourceSize | None) -> State:
    """What `account` gave, in the shapes and dtypes of the model.

    What belongs to a grid is carried to the model's, the stem to its channels and its patch.

    Args:
        tensors: A tensor for every name of the model.
        model: The model.
        report: Is filled in.
        size: Of the file; None leaves what belongs to a grid as it is.

    Raises:
        CheckpointError: A tensor cannot be brought to its counterpart's shape, or is not finite.
    """
    own, adapted = model.state_dict(), dict(tensors)
    _widen(adapted, own)
    if size is not None:
        _carry(adapted, model, size, report)
    _fit_stem(adapted, model, own, report)
    _check_shapes(adapted, own, report.source)
    check_finite(tensors, {n: t for n, t in adapted.items() if n not in report.missing}, report.source)
    wide = dict(adapted)
    _cast(adapted, tensors, own, report)
    for note in losses(wide, adapted, report.source):
        report.add_note(note)
    report.loaded += [name for name in adapted if name not in report.adapted and name not in report.missing]
    return adapted


def _settle_head(tensors: State, own: Tensors, classifier: str, report: Report) -> None:
    """Only a head's class count may differ; then, or where the file has no head, the model keeps its own."""
    theirs, ours = ([name for name in side if name.startswith(f"{classifier}.")] for side in (tensors, own))
    if theirs and not ours:
        why = "the model has no head"
    elif ours and not theirs:
        report.missing.update(dict.fromkeys(ours, "no head to take, so the model keeps its own"))
        why = ""
    elif counts := _class_counts({n: tensors[n] for n in theirs}, {n: own[n] for n in ours}):
        why = f"it is for {counts[0]} classes, and the model has {counts[1]}"
        report.missing.update(dict.fromkeys(ours, f"the model keeps its own head, for {counts[1]} classes"))
    else:
        return
    for name in theirs:
        report.dropped[name] = why
        del tensors[name]
    for name in ours:
        tensors[name] = own[name]


def _class_counts(theirs: Tensors, ours: Tensors) -> tuple[int, int] | None:
    """Those of two heads that differ in nothing else; None for any others."""
    if theirs.keys() != ours.keys() or not all(tensor.ndim for tensor in theirs.values()):
        return None
    counts = {(len(theirs[name]), len(ours[name])) for name in ours}
    if len(counts) != 1 or any(theirs[name].shape[1:] != ours[name].shape[1:] for name in ours):
        return None
    (found,) = counts
    return found if found[0] != found[1] else None


def _check_names(tensors: Tensors, own: Tensors, source: str) -> None:
    missing, unexpected = [n for n in own if n not in tensors], [n for n in tensors if n not in own]
    if missing or unexpected:
        raise CheckpointError(
            f"{source} does not hold this model's weights. "
            f"In the model, not in the file: {first_five(missing) or 'none'}. "
            f"In the file, not in the model: {first_five(unexpected) or 'none'}"
        )


def _check_kinds(tensors: Tensors, own: Tensors, source: str) -> None:
    """A counter may stay whole and a spectrum complex, but none of them is a weight."""
    wrong: dict[str, list[str]] = {}
    for name, tensor in tensors.items():
        if (kind := _kind(own[name])) != _kind(tensor):
            wrong.setdefault(kind, []).append(f"{name} ({tensor.dtype})")
    for kind, names in wrong.items():
        raise CheckpointError(f"{source} has tensors that are not {kind}: {first_five(names)}")


def _kind(tensor: torch.Tensor) -> str:
    if tensor.is_complex():
        return "complex"
    if tensor.is_floating_point():
        return "floating point" if tensor.dtype in FLOATS else "a dtype that torch can cast"
    return "integers"


def _carry(tensors: State, model: Any, size: SourceSize, report: Report) -> None:
    """What belongs to a grid, by the rule of its layer. What does not fit the file's grid is left alone."""
    # a line on a terminal, once it has taken two seconds: wide grids do
    layers = tqdm(tied_layers(model).items(), desc="carrying", delay=2, leave=False, disable=None)
    for layer, module in layers:
        old, new = size.grids[layer], module.grid_size
        file = {key: tensors[f"{layer}.{key}"] for key in module.RULES}
        if old == new or not all(rule.fits(file[key], old) for key, rule in module.RULES.items()):
            continue
        try:
            carried = module.carried(file, old, new)
        except ValueError as error:
            name = next((f"{layer}.{key}" for key, rule in module.RULES.items() if rule.refusal), layer)
            raise CheckpointError(
                f"{report.source} is for another size, and {name} has no other: {error}"
            ) from error
        for key in [key for key in carried if carried[key] is not file[key]]:
            tensors[f"{layer}.{key}"] = carried[key]
            report.add_adapted(f"{layer}.{key}", f"grid {old[0]} x {old[1]} to {new[0]} x {new[1]}")
            report.add_note(grid_note(size))
            report.doubtful = size.doubtful


def grid_note(size: SourceSize) -> str:
    return f"the file's grid is {size.grid[0]} x {size.grid[1]} tokens, {size.how}"


def _fit_stem(tensors: State, model: Any, own: Tensors, report: Report) -> None:
    """The first convolution to the model's channels and, if it cuts patches, to its patch."""
    name = f"{part(model, 'first_conv')}.weight"
    if name not in own:
        _check_channels(tensors, model, report.source)
        return
    weight, target, changes = tensors[name], own[name], []
    if not weight.ndim == target.ndim == 4 or min(weight.shape) < 1 or len(weight) != len(target):
        return
    chans, patch = target.shape[1], target.shape[2:]
    if weight.shape[1] != chans:
        changes.append(f"channels {weight.shape[1]} to {chans}")
        weight = adapt_input_conv(chans, weight, base_chans=weight.shape[1])
    if weight.shape[2:] != patch and stem_of(model, {}).patch_size is not None:
        changes.append(f"patch {weight.shape[2]} x {weight.shape[3]} to {patch[0]} x {patch[1]}")
        weight = resample_patch_embed(weight, list(patch))
    if changes:
        tensors[name] = weight
        # timm computes both in float32, whatever the dtype
        report.adapted[name] = ", ".join(changes + ["in float32"] * (weight.dtype == torch.float64))


def _check_channels(tensors: Tensors, model: Any, source: str) -> None:
    """Refuses a file for other channels than the model's, whose stem has no convolution to adapt."""
    family = family_of_model(model)
    sizes = (sizes_of(family, tensors) or {}) if family is not None else {}
    chans = sizes.get("in_chans")
    if chans is not None and chans != model.in_chans:
        raise CheckpointError(
            f"{source} is for images of {chans} channels, and the model takes {model.in_chans}: its stem has "
            f"no convolution that could be adapted, so create the model with in_chans={chans}"
        )


def _check_shapes(tensors: Tensors, own: Tensors, source: str) -> None:
    wrong = [name for name in own if tensors[name].shape != own[name].shape]
    if wrong:
        both = [f"{name} {tuple(tensors[name].shape)} for {tuple(own[name].shape)}" for name in wrong]
        raise CheckpointError(
            f"{source} belongs to a model of another size. These tensors cannot be brought to the shapes "
            f"of this one: {first_five(both)}"
        )


def _widen(tensors: State, own: Tensors) -> None:
    """To dtypes that hold the file's numbers and the model's, so that nothing is rounded twice."""
    for name, tensor in tensors.items():
        if tensor.dtype in FLOATS and tensor.dtype != own[name].dtype:
            tensors[name] = tensor.to(joined(tensor.dtype, own[name].dtype))


def _cast(tensors: State, file: Tensors, own: Mapping[str, torch.Tensor], report: Report) -> None:
    for name, target in own.items():
        if file[name].dtype != target.dtype:
            said = f"{file[name].dtype} to {target.dtype}".replace("torch.", "")
            report.add_adapted(name, said)
        tensors[name] = tensors[name].to(target.dtype)


def check_finite(file: Tensors, tensors: Tensors, source: str) -> None:
    """Refuses numbers that are none, in a file's tensors or in what has become of them.

    Raises:
        CheckpointError: There are some.
    """
    broken = [name for name, tensor in tensors.items() if not tensor.isfinite().all()]
    damaged = [name for name in broken if not file[name].to(tensors[name].dtype).isfinite().all()]
    if damaged:
        raise CheckpointError(
            f"{source} holds NaN or infinity in {first_five(damaged)}: its training diverged, or it is "
            "damaged"
        )
    if broken:
        dtype = str(tensors[broken[0]].dtype).removeprefix("torch.")
        raise CheckpointError(
            f"{dtype} cannot hold {first_five(broken)} of {source} once they fit this model: make it of a "
            "wider dtype"
        )
