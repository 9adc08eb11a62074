"""A file with W's of one kind into a model with W's of another: shared kernels are merged into W, or added at
0; else each W becomes the nearest one of the model's kind.

The file is first read as what it is: by a model like the one that is to take it, with the file's kinds of W.
"""

from copy import deepcopy
from typing import Any

import torch

from gmlp_vision.checkpoints.adapt import adapt, check_finite
from gmlp_vision.checkpoints.grid import SourceSize
from gmlp_vision.checkpoints.merge import report_merged
from gmlp_vision.checkpoints.names import State, Tensors
from gmlp_vision.checkpoints.report import Report
from gmlp_vision.checkpoints.rounding import joined
from gmlp_vision.errors import CheckpointError
from gmlp_vision.layers.grid_tied import tied_layers
from gmlp_vision.layers.shared_kernel import SharedKernel
from gmlp_vision.layers.spatial import kind_of, projection_of, spatial_of
from gmlp_vision.layers.spatial_projection import SpatialProjection
from gmlp_vision.layers.structured import Structured

NEAREST = ", or take the nearest of its kind, `load_checkpoint(..., fit=True)`"


def as_in_file(model: Any, tensors: Tensors, source: str, fit: bool) -> Any:
    """A model that shares this one's tensors, but has W's of the kinds that the file has.

    Args:
        model: What is to take the tensors.
        tensors: Of the file.
        source: Where they are from, for messages.
        fit: Whether the nearest W will do. Otherwise only dense W's are exchanged, which lose nothing.

    Returns:
        The model itself where its kinds are the file's, or where nothing tells the file's.

    Raises:
        CheckpointError: The kinds differ, and only the nearest W would do.
    """
    layers = _maps(model)
    kinds = [spatial_of(within) for name in layers if (within := _within(tensors, name))]
    known = bool(kinds)
    kinds = kinds or [spatial_of({})]  # in others' names, who have dense ones
    if any(kind != kinds[0] for kind in kinds):  # a tensor is missing or misshapen
        return model
    theirs = {}
    for layer in layers.values():
        if _kind(layer) != kinds[0]:
            try:
                cls, options = kind_of(kinds[0]["spatial"])
                # any grid will do, since the file's is still to be told; cells do not divide every one
                grid = cls.grid_near(layer.grid_size, **options)
                theirs[layer] = projection_of(**kinds[0])(grid, device="meta", dtype=layer.bias.dtype)
            except ValueError:  # a tensor is empty
                return model
    if not theirs:
        return model
    exact = all(isinstance(x, SharedKernel | SpatialProjection) for both in theirs.items() for x in both)
    if not exact and not fit:
        if not known:
            return model
        first, made = next(iter(theirs.items()))
        own = _kind(first)["spatial"]
        raise CheckpointError(
            f"the W's of {source} are {_in_words(kinds[0])}, and the model's {own}: "
            f"create it with {_as_arguments(kinds[0])}"
            + ("" if made.grid_size == first.grid_size else " and an image whose grid their cells divide")
            + ("" if first.NO_NEAREST or kinds[0]["groups"] > 1 else NEAREST)
        )
    # copied: the modules alone
    memo: dict[int, Any] = {id(t): t for t in (*model.parameters(), *model.buffers())}
    like = deepcopy(model, memo | {id(layer): made for layer, made in theirs.items()})
    like.restate(**kinds[0])
    return like


def adapt_kinds(tensors: Tensors, like: Any, model: Any, report: Report, size: SourceSize | None) -> State:
    """What `account` gave for the model of `as_in_file`, as `adapt` gives it for the model itself.

    W's of another kind are exchanged on the file's grid, and then carried to the model's.

    Args:
        tensors, report, size: As for `adapt`.
        like: What `as_in_file` gave.
        model: What is to take the tensors.

    Raises:
        CheckpointError: As `adapt`; or there is no nearest W of the model's kind, or more than one W a layer.
    """
    if like is model or size is None:  # then a tensor is misshapen, and adapt says which
        return adapt(tensors, like, report, size)
    exchanged, file, layers = dict(tensors), _maps(like), _maps(model)
    changed = {name: layer for name, layer in layers.items() if _kind(file[name]) != _kind(layer)}
    merged = {name: x for name in changed if isinstance(x := file[name], SharedKernel)}
    report_merged(merged, report)
    for name, layer in changed.items():
        within = _within(tensors, name)
        named = {f"{name}.{key}": tensor for key, tensor in within.items()}
        check_finite(named, named, report.source)
        w = _matrix(within, size.grids[name], report.source)
        exchanged = {n: t for n, t in exchanged.items() if n not in named or n == f"{name}.bias"}
        nearest = _nearest(layer, w, size.grids[name], report.source)
        dtype = joined(next(iter(within.values())).dtype, layer.bias.dtype)
        exchanged |= {f"{name}.{key}": tensor.to(dtype) for key, tensor in _numbers(nearest).items()}
        _tell(name, nearest, file[name], w, report)
    return adapt(exchanged, model, report, size)


def _matrix(within: Tensors, grid: tuple[int, int], source: str) -> torch.Tensor:
    """W of a layer of a file, (N, N) in float64."""
    kind = spatial_of(within)
    try:
        layer = projection_of(**kind)(grid, device="meta")  # where nothing is drawn
        layer.load_state_dict({n: t.to("cpu", torch.float64) for n, t in within.items()}, assign=True)
    except (RuntimeError, ValueError) as error:
        raise CheckpointError(
            f"{source} has tensors that are none of a {kind['spatial']} W: {error}"
        ) from None
    w = layer.matrix().detach()
    if len(w) > 1:
        raise CheckpointError(
            f"{source} has {len(w)} W's a layer, one for each group of channels: no single one is the nearest"
        )
    return w[0]


def _nearest(layer: Structured, w: torch.Tensor, grid: tuple[int, int], source: str) -> Structured:
    """A layer of this one's kind on the file's grid, in float64, whose W is the nearest; its b is 0."""
    cls: Any = type(layer)
    options = cls.options_of(layer.state_dict()) or {}
    try:
        tensors = cls.nearest(w, grid, **options)
    except ValueError as error:
        raise CheckpointError(f"{source} has W's of another kind than the model, and {error}") from error
    made: Structured = cls(grid, **options, device="meta")
    made.load_state_dict({**tensors, "bias": w.new_zeros(len(w))}, assign=True)
    return made


def _tell(name: str, nearest: Structured, theirs: Structured, w: torch.Tensor, report: Report) -> None:
    """Says in the report what became of the W of one layer."""
    if isinstance(nearest, SharedKernel):
        for key in nearest.RULES.keys() - theirs.RULES.keys():
            report.adapted[f"{name}.{key}"] = "0, since the file has no such kernel"
        return
    if isinstance(theirs, SharedKernel) and isinstance(nearest, SpatialProjection):
        return
    left = (w - nearest.matrix().detach()[0]).square().sum() / w.square().sum()
    report.explained[name] = 1.0 - left.item() if w.any() else 1.0
    for key in _numbers(nearest):
        report.adapted[f"{name}.{key}"] = f"of the {_kind(nearest)['spatial']} W nearest to the file's"


def _numbers(layer: Structured) -> dict[str, torch.Tensor]:
    """What W is made of."""
    return {key: tensor for key, tensor in layer.state_dict().items() if key != "bias"}


def _maps(model: Any) -> dict[str, Structured]:
    return {name: layer for name, layer in tied_layers(model).items() if isinstance(layer, Structured)}


def _within(tensors: Tensors, name: str) -> dict[str, torch.Tensor]:
    start = f"{name}."
    return {key.removeprefix(start): tensor for key, tensor in tensors.items() if key.startswith(start)}


def _kind(layer: Structured) -> dict[str, Any]:
    return spatial_of(layer.state_dict())


def _in_words(kind: dict[str, Any]) -> str:
    return f"{kind['spatial']} in {kind['groups']} groups" if kind["groups"] > 1 else str(kind["spatial"])


def _as_arguments(kind: dict[str, Any]) -> str:
    return ", ".join(f"{k}={v!r}" for k, v in kind.items() if v != 1)
