"""Layers with parameters that belong to one token grid, and what takes them to another.

Shapes: (H, W) a grid, in tokens; N = H * W tokens in row-major order.
"""

from collections.abc import Mapping
from typing import Any, ClassVar, NamedTuple

import torch
from torch import nn

from gmlp_vision.layers.observed import is_observed
from gmlp_vision.layers.resample import Grid
from gmlp_vision.layers.rules import Rule, carry_by
from gmlp_vision.layers.tied_linear import TiedLinear, linears_on_grid
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
        held_as: The name under which a trunk was built with the layer; '' where it is in none. Under another
            one it stands in a wrapper.
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
        self.held_as = ""
        self.dynamic = False

    def on_grid(self, grid_size: Grid) -> Tensors:
        """The parameters of RULES, in its order, carried to a grid: new tensors, through which gradients
        flow.

        Raises:
            ValueError: A rule refuses.
        """
        tensors = {name: getattr(self, name) for name in self.RULES}
        return tuple(self.carried(tensors, self.grid_size, grid_size).values())

    @classmethod
    def carried(
        cls, tensors: Mapping[str, torch.Tensor], old_grid: Grid, new_grid: Grid
    ) -> dict[str, torch.Tensor]:
        """The parameters of RULES, all of them and in its order, from one grid to another: each by its rule.

        Raises:
            ValueError: A rule refuses.
        """
        return carry_by(cls.RULES, tensors, old_grid, new_grid)

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

    def has_of_its_own(self, name: str) -> bool:
        """Whether a tensor of this name in the layer is the layer's, not a tool's: here all are."""
        return True

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


Tied = GridTied | TiedLinear


def tied_layers(model: nn.Module) -> dict[str, Tied]:
    """The layers of a model that belong to the grid of its tokens, by their names; none within windows."""
    foreign = {
        f"{name}.{part}".removeprefix("."): layer
        for name, m in model.named_modules()
        for part, layer in linears_on_grid(m).items()
    }
    return {**own_layers(model), **foreign}


def own_layers(model: nn.Module) -> dict[str, GridTied]:
    """Those of the tied layers that are of this package."""
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


def carry(model: nn.Module, grids: Mapping[str, Grid]) -> list[tuple[Tied, Grid, Tensors]]:
    """What `replace_grid` takes to bring each layer of a model to its new grid. The model is not touched.

    Args:
        model: With layers that belong to a grid.
        grids: The new one of each, by its name.

    Raises:
        ValueError: A rule refuses; a parameter is computed, shared, sharded or quantised, so that none can
            take its place; or a tool has put tensors of the old grid around the layer, or in its name.
    """
    moved = {name: layer for name, layer in tied_layers(model).items() if layer.grid_size != grids[name]}
    check_replaceable(model, moved)
    _check_alone(model, moved)
    # parameters that can be trained, even under inference_mode
    with torch.inference_mode(False), torch.no_grad():
        return [(layer, grids[name], layer.on_grid(grids[name])) for name, layer in moved.items()]


def check_replaceable(model: nn.Module, moved: Mapping[str, Tied]) -> None:
    """Refuses layers of a model, by their names, whose parameters are no plain ones of their own.

    Raises:
        ValueError: They are computed, shared, sharded or quantised.
    """
    for name, layer in moved.items():
        if isinstance(layer, TiedLinear) and not layer.is_plain:
            raise ValueError(
                f"{name} is a {type(layer.linear).__name__}, and a plain nn.Linear was expected: merge "
                "what a tool has put there, or take it off (peft: merge_and_unload), and put it on again at "
                "the new image size"
            )
    own = dict(model.named_parameters())  # one that is shared has its first name only
    tied = {f"{name}.{key}": (layer, key) for name, layer in moved.items() for key in layer.RULES}
    for name, (layer, key) in sorted(tied.items()):
        if name not in own:
            raise ValueError(
                f"{name} is computed (parametrize, prune) or shared, so no other can take its place: call "
                "remove_parametrizations or prune.remove, or give it a copy"
            )
        # FSDP2 and quantisers put tensors of their own there; FSDP1, and 4 bits packed, leave other shapes
        found, grid = own[name], layer.grid_size
        if type(found) is not nn.Parameter or not layer.RULES[key].fits(found, grid):
            raise ValueError(
                f"{name} is a {type(found).__name__} of shape {tuple(found.shape)}, and a plain parameter of "
                f"grid {grid[0]} x {grid[1]} was expected: it may be sharded or quantised; change the image "
                "size before that"
            )


def _check_alone(model: nn.Module, moved: Mapping[str, Tied]) -> None:
    """Refuses where a tool holds tensors that belong to a layer's old grid: nothing tells how to carry them.

    LoRA's factors of W stand in a wrapper around the layer; a quantiser's scales for the rows of W stand
    beside the model's parts, under the layer's name.
    """
    shapes = {n: tuple(t.shape) for n, t in (*model.named_parameters(), *model.named_buffers())}
    for own, layer in moved.items():
        holder, _, key = own.rpartition(".")
        is_wrapped = layer.held_as not in ("", key)
        sizes = {n for rule in layer.RULES.values() for n in rule.leading(layer.grid_size)} - {1}
        for name, shape in shapes.items():
            path = name.replace("/", ".").replace(":", ".")  # no name of a module may have a dot
            is_tools = (is_wrapped and name.startswith(f"{holder}.")) or own in path
            is_layers = name.startswith(f"{own}.") and layer.has_of_its_own(name.removeprefix(f"{own}."))
            if is_tools and not is_layers and sizes.intersection(shape):
                raise ValueError(
                    f"{name}, of shape {shape}, belongs to the grid of {own} too, and nothing tells how to "
                    "carry it: merge it or take it off (peft: merge_and_unload), and put it on again at the "
                    "new image size"
                )
