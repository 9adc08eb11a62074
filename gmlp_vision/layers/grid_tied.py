"""Layers with parameters that belong to one token grid, and what takes them to another.

Shapes: (H, W) a grid, in tokens; N = H * W tokens in row-major order.
"""

from collections.abc import Iterable, Mapping
from typing import Any, ClassVar, NamedTuple

import torch
from torch import nn

from gmlp_vision.layers.observed import is_observed
from gmlp_vision.layers.resample import Grid, Rule
from gmlp_vision.layers.windows import Windows

Tensors = tuple[torch.Tensor, ...]


class Cache(NamedTuple):
    """What has been carried to other grids, and copies of the parameters from which it was."""

    copies: Tensors
    carried: dict[Grid, Tensors]

    def holds(self, parameters: Tensors) -> bool:
        """Whether the parameters are still what they were, number by number.

        Nothing else tells: a fused optimizer, an edit by ``.data`` or another process leaves no trace in a
        tensor's version. N^2 comparisons are little beside the N^2 E / 2 multiply-adds that follow.
        """
        return len(self.copies) == len(parameters) and all(
            copy.dtype == p.dtype and copy.device == p.device and torch.equal(copy, p)
            for copy, p in zip(self.copies, parameters, strict=True)
        )


EMPTY = Cache((), {})


class GridTied(nn.Module):
    """A layer that has a rule for each of its parameters that belong to a grid.

    It does not check the grid of its input; the trunk checks the image's size.

    Attributes:
        RULES: The rule of each, by the parameter's name.
        grid_size: The grid that the parameters belong to.
        dynamic: Whether a call may be on another grid, to which they are carried then. In eval mode, while no
            gradient to them is asked for, what was carried is cached for the last `MAX_CACHED` grids.
    """

    RULES: ClassVar[dict[str, Rule]] = {}
    MAX_CACHED = 16
    __constants__ = ["dynamic"]  # noqa: RUF012  TorchScript then leaves out the branch that is not taken

    cache = EMPTY

    def __init__(self, grid_size: Grid) -> None:
        super().__init__()
        self.grid_size = grid_size
        self.dynamic = False

    def on_grid(self, grid_size: Grid) -> Tensors:
        """The parameters of RULES, in its order, carried to a grid: new tensors, through which gradients
        flow.

        Raises:
            ValueError: A rule refuses.
        """
        return tuple(
            rule.carry(getattr(self, name), self.grid_size, grid_size) for name, rule in self.RULES.items()
        )

    def parameters_on(self, grid_size: Grid) -> Tensors:
        """As `on_grid`, for a call: on the layer's own grid the parameters themselves, else cached."""
        parameters = tuple(getattr(self, name) for name in self.RULES)
        if grid_size == self.grid_size:
            return parameters
        return self._cached(parameters, grid_size) if self._may_cache(parameters) else self.on_grid(grid_size)

    def replace_grid(self, grid_size: Grid, carried: Tensors) -> None:
        """Ties the layer to another grid; `carried` become its new parameters."""
        self.grid_size = grid_size
        for name, tensor in zip(self.RULES, carried, strict=True):
            requires_grad = getattr(self, name).requires_grad
            setattr(self, name, nn.Parameter(tensor.detach(), requires_grad=requires_grad))
        self.clear_cache()

    def clear_cache(self) -> None:
        """Frees what is cached for other grids. It never goes stale by itself."""
        self.cache = EMPTY

    def train(self, mode: bool = True) -> "GridTied":
        if mode:
            self.clear_cache()
        return super().train(mode)

    def _may_cache(self, parameters: Tensors) -> bool:
        """Whether what this call makes may serve later ones too."""
        if self.training or torch.compiler.is_compiling():
            return False
        # What functional_call puts in a parameter's place may not outlive the call, nor what a transform
        # makes.
        if any(type(p) is not nn.Parameter for p in parameters) or is_observed(parameters[0].data):
            return False
        return not (torch.is_grad_enabled() and any(p.requires_grad for p in parameters))

    def _cached(self, parameters: Tensors, grid_size: Grid) -> Tensors:
        cache = self.cache
        if not cache.holds(parameters):
            cache = Cache(tuple(p.detach().clone() for p in parameters), {})
        if grid_size not in cache.carried:
            # normal tensors even under inference_mode, since a later call may differentiate through them
            with torch.inference_mode(False), torch.no_grad():
                carried = self.on_grid(grid_size)
            newest = dict([*cache.carried.items(), (grid_size, carried)][-self.MAX_CACHED :])
            # replaced as a whole, never edited: another thread may be reading it
            self.cache = cache = cache._replace(carried=newest)
        return cache.carried[grid_size]

    def __getstate__(self) -> dict[str, Any]:
        return {**super().__getstate__(), "cache": EMPTY}  # for deepcopy and pickle

    def extra_repr(self) -> str:
        return f"grid_size={self.grid_size}"


def tied_layers(model: nn.Module) -> dict[str, GridTied]:
    """The layers of a model that belong to the grid of its tokens, by their names; none within windows."""
    inside = tuple(f"{name}." for name, m in model.named_modules() if isinstance(m, Windows))
    return {
        name: m
        for name, m in model.named_modules()
        if isinstance(m, GridTied) and not name.startswith(inside)
    }


def any_size(model: nn.Module) -> tuple[str, str]:
    """Whether a model takes another image size: 'free', 'resampled' or 'fixed', and why if it is fixed."""
    rules = [rule for layer in tied_layers(model).values() for rule in layer.RULES.values()]
    refusals = [rule.refusal for rule in rules if rule.refusal]
    if refusals:
        return "fixed", refusals[0]
    return ("resampled" if rules else "free"), ""


def carry(model: nn.Module, grids: Mapping[str, Grid]) -> list[tuple[GridTied, Grid, Tensors]]:
    """What `replace_grid` takes to bring each layer of a model to its new grid. The model is not touched.

    Args:
        model: With layers that belong to a grid.
        grids: The new one of each, by its name.

    Raises:
        ValueError: A rule refuses, or a parameter is computed or shared, so that none can take its place.
    """
    moved = {name: layer for name, layer in tied_layers(model).items() if layer.grid_size != grids[name]}
    _check_replaceable(model, {f"{name}.{key}" for name, layer in moved.items() for key in layer.RULES})
    # parameters that can be trained, even under inference_mode
    with torch.inference_mode(False), torch.no_grad():
        return [(layer, grids[name], layer.on_grid(grids[name])) for name, layer in moved.items()]


def _check_replaceable(model: nn.Module, names: Iterable[str]) -> None:
    own = {name for name, _ in model.named_parameters()}  # one that is shared has its first name only
    for name in sorted(set(names) - own):
        raise ValueError(
            f"{name} is computed (parametrize, prune) or shared, so no other can take its place: call "
            "remove_parametrizations or prune.remove, or give it a copy"
        )
