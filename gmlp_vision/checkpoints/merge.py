"""Kernels that stand beside W in training (layers/shared_kernel.py), merged into W of a model."""

import copy
import logging
from pathlib import Path
from typing import Any, TypeVar

import timm
from torch import nn

from gmlp_vision.checkpoints.report import Report
from gmlp_vision.layers.fast_form import is_unhooked
from gmlp_vision.layers.grid_tied import check_replaceable
from gmlp_vision.layers.shared_kernel import SharedKernel

MERGED = "merged into W"  # what becomes of a kernel, in a report

logger = logging.getLogger(__name__)

Model = TypeVar("Model", bound=nn.Module)


def merge(model: Model) -> Model:
    """Merges, in place, the kernels that stand beside W in training into W: `spatial="dense+toeplitz"` and
    the like become `spatial="dense"`, also in what timm records of the model.

    What the model computes stays. Its state dict is then that of a plain gMLP, so merge a copy where training
    goes on: ``merge(copy.deepcopy(model))``. W and b become new parameters, and an optimizer made before
    holds the old ones: make a new one. An averaged model is another model, and merged by itself.

    Args:
        model: One of this package, or what holds one. Without such kernels it is left as it is.

    Returns:
        The model itself.

    Raises:
        ValueError: A layer has hooks, which would be lost; or its parameters are computed, shared, sharded or
            quantised; or the model is such a layer itself. Nothing changes.
    """
    layers = kernels_of(model)
    if not layers:
        return model
    if "" in layers:
        raise ValueError("the model is a layer itself, and cannot take another's place: call its merged()")
    check_replaceable(model, layers)
    hooked = [name for name, layer in layers.items() if not is_unhooked(layer)]
    if hooked:
        raise ValueError(f"{hooked[0]} has hooks, which would be lost: take them off, and merge again")
    dense = {layer: layer.merged() for layer in layers.values()}  # all before any is replaced
    for module in list(model.modules()):
        inside = any(layer in dense for layer in module.modules())
        for name, child in module.named_children():
            if child in dense:
                setattr(module, name, dense[child])
        if inside and hasattr(type(module), "restate"):
            restated: Any = module
            restated.restate(spatial="dense")
    logger.info("merged into W: the shared kernels of %d layers", len(dense))
    return model


def save_for_hf(model: nn.Module, save_directory: str | Path, **kwargs: Any) -> None:
    """timm's `save_for_hf`, of a model whose kernels beside W, where it has such, are merged: what is written
    is a plain gMLP, whose tensors timm's own gMLP takes too. The model itself stays as it is.

    Args:
        model: One that `timm.models.save_for_hf` takes.
        save_directory: A folder, made if it is not there.
        kwargs: As timm's takes them: model_config, model_args, safe_serialization.

    Raises:
        ValueError: As `merge`.
    """
    if kernels := kernels_of(model):
        model = merge(copy.deepcopy(model))
        logger.warning("what is written: the shared kernels of %d layers are merged into W", len(kernels))
    timm.models.save_for_hf(model, str(save_directory), **kwargs)


def kernels_of(model: nn.Module) -> dict[str, SharedKernel]:
    """The layers of a model that have a kernel beside W, by their names."""
    return {name: module for name, module in model.named_modules() if isinstance(module, SharedKernel)}


def report_merged(layers: dict[str, SharedKernel], report: Report) -> None:
    """Says in the account of a load that the kernels of these layers are merged."""
    for name, layer in layers.items():
        weight, kernel, _ = (f"{name}.{key}" for key in layer.RULES)
        before = report.adapted.pop(weight, "")
        report.adapted[weight] = f"{before}, its shared kernel added".removeprefix(", ")
        report.adapted.pop(kernel, None)
        report.dropped[kernel] = MERGED
        report.loaded = [loaded for loaded in report.loaded if loaded not in (weight, kernel)]
