"""What tells the grids of a model's layers: a trunk itself, or what speaks for a class of timm's."""

from functools import singledispatch
from typing import Any, Protocol

from torch import nn

from gmlp_vision.layers.resample import Grid

Size = int | tuple[int, int]


class Sized(Protocol):
    """A model whose image size can be another. Sizes are (height, width) in pixels, or one number for both.

    It has also `settings`, where there are any, and `first_conv` and `classifier`, as a trunk has them.
    """

    def sizes(self, img_size: Size | None, patch_size: Size | None) -> tuple[Grid, Grid]:
        """Image and patch size; the present one for None. Raises a ValueError where they do not fit."""

    def grids(self, img_size: Grid, patch_size: Grid | None = None) -> dict[str, Grid]:
        """The grid, in tokens, of every layer that belongs to one, by its name, for such an image."""

    def resize_stem(self, img_size: Grid, patch_size: Grid) -> None:
        """Makes what comes before the first block fit another image and patch size."""

    def set_input_size(self, img_size: Size | None = None, patch_size: Size | None = None) -> None:
        """Carries the weights, in place, to another image or patch size."""


@singledispatch
def sized(model: nn.Module) -> Any:
    """What tells a model's sizes, a `Sized`; None where nothing does, as for a model in a wrapper."""
    # asked of the class: a wrapper may pass on the attributes of what it wraps
    asked = ("sizes", "grids", "set_input_size", "first_conv", "classifier")
    return model if all(hasattr(type(model), name) for name in asked) else None
