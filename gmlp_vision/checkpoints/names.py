"""Other implementations' names for a family's tensors: what a layout is, and one applied, both ways.

In every layout a tensor is the same numbers under another name, and perhaps in another shape. What else
differs, such as a norm's eps, are the layout's settings.
"""

import math
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from fnmatch import fnmatchcase
from typing import Any, NamedTuple

import torch
from torch import nn

from gmlp_vision.errors import CheckpointError
from gmlp_vision.layers.norm import OverChannels

State = dict[str, torch.Tensor]
Tensors = Mapping[str, torch.Tensor]

LEFT_BY_A_TOOL = "left there by a tool, and no weight"
FOR_A_DENSE_HEAD = "the norm of an earlier stage's output, for a dense head; this model has none there"
OWN = "timm"  # the name of this package's own names, which follow timm's; they need no layout


class Target(NamedTuple):
    """What is known of the tensor that one of another implementation must become.

    Attributes:
        shape: Its shape in the model that is to take it; None where there is no model yet.
        patch_size: (height, width) of a patch in pixels, where the user says it.
    """

    shape: tuple[int, ...] | None = None
    patch_size: tuple[int, int] | None = None


class Row(NamedTuple):
    """A module or a tensor, in both languages.

    Attributes:
        ours, theirs: Names; {i} stands for a number, and so does any other letter in braces.
        there: Our tensor in their shape.
        back: Their tensor in ours.
    """

    ours: str
    theirs: str
    there: Callable[[torch.Tensor], torch.Tensor] = lambda tensor: tensor
    back: Callable[[torch.Tensor, Target], torch.Tensor] = lambda tensor, target: tensor


@dataclass(frozen=True)
class Layout:
    """How another implementation names and shapes a family's tensors. Stands in the family's `LAYOUTS`.

    Attributes:
        rows: The pairs, in the order in which they are tried; or what yields them for a model, where the
            names depend on its depths.
        marks: Names of tensors that are in every such file, in their language; one that has them all is taken
            for one of this layout.
        drop: Patterns of what such files may hold and no model of ours has, such as '*.total_ops', and why.
        settings: The arguments, that no tensor shows, with which our model computes what theirs does.
        refuse: Raises a CheckpointError for a file that holds what has no counterpart here.
        cannot: What of a model of ours theirs cannot express, in words.
    """

    rows: Sequence[Row] | Callable[[Any], Iterable[Row]]
    marks: tuple[str, ...]
    drop: Mapping[str, str] = field(default_factory=dict)
    settings: Mapping[str, Any] = field(default_factory=dict)
    refuse: Callable[[Tensors], None] | None = None
    cannot: Callable[[Any], list[str]] | None = None

    def rows_for(self, model: nn.Module | None) -> Sequence[Row] | None:
        """The pairs; None where they depend on a model and there is none."""
        if not callable(self.rows):
            return self.rows
        return None if model is None else list(self.rows(model))


def to_ours(
    state_dict: Tensors,
    layout: Layout,
    rows: Sequence[Row],
    like: Tensors,
    patch_size: tuple[int, int] | None = None,
) -> tuple[State, dict[str, str]]:
    """A state dict in our names and shapes, and the names of what was dropped from it, and why.

    A tensor that the layout does not know keeps its name.

    Args:
        state_dict: In the names of `layout`.
        layout, rows: The layout, and its pairs for the model.
        like: The tensors of the model that is to take them; empty where there is none.
        patch_size: As in `Target`.

    Raises:
        CheckpointError: What the file holds has no counterpart here, or it has one name of ours twice.
    """
    if layout.refuse is not None:
        layout.refuse(state_dict)
    patterns = [(_pattern(row.theirs), row.ours, row.back) for row in rows]
    ours: State = {}
    dropped = {}
    for name, tensor in state_dict.items():
        why = next((why for pattern, why in layout.drop.items() if fnmatchcase(name, pattern)), None)
        if why is not None:
            dropped[name] = why
            continue
        new, change = _translate(name, patterns)
        if new in ours:
            raise CheckpointError(f"two tensors of the file are both {new}")
        target = Target(tuple(like[new].shape) if new in like else None, patch_size)
        ours[new] = tensor if change is None else change(tensor, target)
    return ours, dropped


def from_ours(state_dict: Tensors, rows: Sequence[Row]) -> State:
    """The reverse of `to_ours`: our state dict in the names and shapes of a layout with these pairs."""
    patterns = [(_pattern(row.ours), row.theirs, row.there) for row in rows]
    theirs = {}
    for name, tensor in state_dict.items():
        new, change = _translate(name, patterns)
        theirs[new] = tensor if change is None else change(tensor)
    return theirs


def unflatten_patches(weight: torch.Tensor, target: Target) -> torch.Tensor:
    """The matrix of a patch embedding, (D, C * P * P'), as the kernel of a convolution, (D, C, P, P').

    The matrix shows only how many numbers a patch has. They are read as those of the model's kernel, or of
    the patch that the user says; else, and where these do not fit a model's, as 3 channels and a square
    patch.

    Raises:
        CheckpointError: It cannot be read so.
    """
    if weight.ndim != 2:
        return weight
    size, patch, chans = weight.shape[1], target.patch_size, None
    if target.shape is not None and len(target.shape) == 4:
        chans, patch = target.shape[1], (target.shape[2], target.shape[3])
    if patch is not None and min(patch) > 0:
        channels, rest = divmod(size, math.prod(patch))
        if not rest and channels == (chans or channels):
            return weight.reshape(len(weight), channels, *patch)
    side = math.isqrt(size // 3)
    if 3 * side * side == size and (patch is None or chans is not None):
        return weight.reshape(len(weight), 3, side, side)
    raise CheckpointError(
        f"the patch embedding takes {size} numbers a patch, which are not those of "
        + (f"a patch of {patch[0]} x {patch[1]}" if patch else "a square patch of 3 channels")
        + ": convert the file and say the patch, `gmlp-vision convert IN OUT --patch-size H W`"
    )


def network_rows(model: Any, parts: Callable[[int], Iterable[Row]]) -> Iterator[Row]:
    """The pairs of a pyramid whose stages and downsamplings others number in one list, `network`.

    Args:
        model: A pyramid, by whose stages the numbers are told.
        parts: From the number of a stage to the pairs of its blocks' modules.
    """
    number = 0
    for s, stage in enumerate(model.stages):
        for name, child in stage.downsample.named_children():
            yield Row(over_channels(f"stages.{s}.downsample.{name}", child), f"network.{number}.{name}")
        number += not isinstance(stage.downsample, nn.Identity)
        for ours, theirs, there, back in parts(s):
            yield Row(f"stages.{s}.blocks.{{j}}.{ours}", f"network.{number}.{{j}}.{theirs}", there, back)
        number += 1


def dense_norms() -> dict[str, str]:
    """For `Layout.drop`, where stages and downsamplings stand in one list.

    As a backbone for dense heads such a network has a norm behind each stage, `norm0`, `norm2`, `norm4` and
    `norm6`, and neither the final norm, in whose place the last one stands, nor a head.
    """
    return {f"norm{stage}.*": FOR_A_DENSE_HEAD for stage in (0, 2, 4)}


def over_channels(name: str, module: nn.Module) -> str:
    """The name of a norm, or of what a norm over channels holds: others have that one bare."""
    return f"{name}.norm" if isinstance(module, OverChannels) else name


def as_kernel(tensor: torch.Tensor) -> torch.Tensor:
    """The matrix of a linear layer as the kernel of a 1 x 1 convolution; a bias as it is."""
    return tensor[:, :, None, None] if tensor.ndim == 2 else tensor


def as_matrix(tensor: torch.Tensor, target: Target) -> torch.Tensor:
    """The reverse of `as_kernel`."""
    return tensor.flatten(1) if tensor.ndim == 4 and tensor.shape[2:] == (1, 1) else tensor


def _pattern(name: str) -> re.Pattern[str]:
    """Matches a tensor's whole name, or that of its module and then its own."""
    numbers = re.sub(r"\\{(\w)\\}", r"(?P<\1>\\d+)", re.escape(name))
    return re.compile(rf"{numbers}(?P<leaf>\.[^.]+)?")


def _translate(name: str, patterns: Iterable[tuple[re.Pattern[str], str, Any]]) -> tuple[str, Any]:
    for pattern, new, change in patterns:
        match = pattern.fullmatch(name)
        if match:
            found = match.groupdict()
            leaf = found.pop("leaf") or ""
            return new.format(**found) + leaf, change
    return name, None
