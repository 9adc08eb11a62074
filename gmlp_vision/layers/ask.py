"""What a layer says of itself, also where its class is not of this package."""

from collections.abc import Iterator
from dataclasses import dataclass
from functools import singledispatch

import torch
from torch import nn

from gmlp_vision.layers.resample import Grid


@dataclass(frozen=True, eq=False)
class Operator:
    """A linear map over tokens that a layer holds.

    Attributes:
        part: What it is called within its layer, such as 'fc1'; '' where the layer has one.
        kind: 'token' where row i is the filter of output token i, 'hidden' where a row is a hidden unit over
            the input tokens, 'kernel' where a row is a kernel over offsets, its own token at
            [h // 2, w // 2].
        weight: (N, N), (R, N) or (R, h, w), by the kind.
        bias: (R,), or (N,) where the rows are the map's inputs (a mixer's second layer), or None.
        init_std: Standard deviation of the entries of the weight at init; 0 where they start at 0.
        note: What a caption must say, or ''.

    Raises:
        ValueError: Another kind, or a weight that is not of its shape.
    """

    part: str
    kind: str
    weight: torch.Tensor
    bias: torch.Tensor | None
    init_std: float
    note: str = ""

    def __post_init__(self) -> None:
        if self.kind not in SHAPES:
            raise ValueError(f"the kind of an operator is {self.kind!r}; expected one of {', '.join(SHAPES)}")
        shape = tuple(self.weight.shape)
        if len(shape) != (3 if self.kind == "kernel" else 2) or (
            self.kind == "token" and shape[0] != shape[1]
        ):
            raise ValueError(
                f"the weight of an operator of kind {self.kind!r} is {shape}; expected {SHAPES[self.kind]}"
            )


SHAPES = {"token": "(N, N)", "hidden": "(R, N)", "kernel": "(R, h, w)"}


@singledispatch
def operators(module: nn.Module, grid_size: Grid | None) -> list[Operator]:
    """The linear maps over tokens that a layer itself holds: those of its class's `operators`, else none.

    A layer that mixes tokens and holds no such map says why in an attribute of its class, `NO_OPERATOR`.

    Args:
        module: One layer; its children are asked by themselves.
        grid_size: (H, W) of its tokens, where the layer does not know it; None where nothing tells it.
    """
    # asked of the class: a wrapper may pass on the attributes of what it wraps, which is asked by itself
    own = getattr(type(module), "operators", None)
    return list(own(module, grid_size)) if callable(own) else []


def layers_with_operators() -> list[str]:
    """The names of the classes that say which maps over tokens they hold, for messages."""
    own = {cls for cls in _derived(nn.Module) if hasattr(cls, "operators")}
    return sorted({cls.__name__ for cls in own | (set(operators.registry) - {object})})


def _derived(cls: type[nn.Module]) -> Iterator[type[nn.Module]]:
    for derived in cls.__subclasses__():
        yield derived
        yield from _derived(derived)
