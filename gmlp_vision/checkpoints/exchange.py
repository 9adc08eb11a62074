"""A file whose W has a shared kernel beside it, into a model that has none; and the other way round.

The file is first read as what it is: by a model like the one that is to take it, with the file's kinds of W.
"""

from copy import deepcopy
from typing import Any

import torch

from gmlp_vision.checkpoints.merge import report_merged
from gmlp_vision.checkpoints.names import State, Tensors
from gmlp_vision.checkpoints.report import Report
from gmlp_vision.layers.grid_tied import tied_layers
from gmlp_vision.layers.shared_kernel import SharedKernel
from gmlp_vision.layers.spatial import projection_of, spatial_of
from gmlp_vision.layers.spatial_projection import SpatialProjection
from gmlp_vision.layers.structured import Structured


def as_in_file(model: Any, tensors: Tensors) -> Any:
    """A model that shares this one's tensors, but has W's of the kinds that the file has.

    Args:
        model: What is to take the tensors.
        tensors: Of the file.

    Returns:
        The model itself where its kinds are the file's, or where there is no exchange of them.
    """
    layers = _maps(model)
    kinds = [spatial_of(within) for name in layers if (within := _within(tensors, name))]
    kinds = kinds or [spatial_of({})]  # in others' names, who have dense ones
    if any(kind != kinds[0] for kind in kinds):  # a tensor is missing or misshapen
        return model
    make = projection_of(**kinds[0])
    theirs = {
        layer: make(layer.grid_size, device="meta", dtype=layer.bias.dtype)
        for layer in layers.values()
        if spatial_of(layer.state_dict()) != kinds[0]
    }
    known = SharedKernel | SpatialProjection
    if not theirs or not all(isinstance(x, known) for both in theirs.items() for x in both):
        return model
    # copied: the modules alone
    memo: dict[int, Any] = {id(t): t for t in (*model.parameters(), *model.buffers())}
    like = deepcopy(model, memo | {id(layer): made for layer, made in theirs.items()})
    like.restate(**kinds[0])
    return like


def exchange(tensors: State, like: Any, model: Any, report: Report) -> State:
    """The tensors of `as_in_file`'s model as those of the model itself: kernels merged into W, or at 0.

    Args:
        tensors: In the shapes and dtypes of `like`, at the size of the model.
        like: What `as_in_file` gave.
        model: What is to take the tensors.
        report: Is told.
    """
    if like is model:
        return tensors
    file, exchanged, layers = _maps(like), dict(tensors), _maps(model)
    report_merged(
        {n: x for n, x in file.items() if x is not layers[n] and isinstance(x, SharedKernel)}, report
    )
    for name, layer in layers.items():
        if file[name] is layer:
            continue
        *parameters, _ = (exchanged.pop(f"{name}.{key}") for key in file[name].RULES)
        w = file[name].matrix_of(layer.grid_size, *parameters)[0]
        exchanged[f"{name}.bias"] = tensors[f"{name}.bias"]
        own = layer.state_dict()
        for key, tensor in layer.nearest(w, layer.grid_size, **(layer.options_of(own) or {})).items():
            exchanged[f"{name}.{key}"] = tensor.to(own[key].dtype)
            if key not in file[name].RULES:
                report.adapted[f"{name}.{key}"] = "0, since the file has no such kernel"
    return exchanged


def _maps(model: Any) -> dict[str, Structured]:
    return {name: layer for name, layer in tied_layers(model).items() if isinstance(layer, Structured)}


def _within(tensors: Tensors, name: str) -> dict[str, torch.Tensor]:
    start = f"{name}."
    return {key.removeprefix(start): tensor for key, tensor in tensors.items() if key.startswith(start)}
