"""What an argument may be whatever the source is: asked before that is read."""

from torch import nn

from gmlp_vision.checkpoints import families
from gmlp_vision.checkpoints.names import Tensors
from gmlp_vision.errors import UserError
from gmlp_vision.layers.resample import Grid

LARGEST_SIDE = 2**14  # of an image in pixels, or of a grid in tokens
MOST_CLASSES = 10**6
LARGEST_MODEL = 2**32  # bytes, where the source itself is not larger


def check_values(
    *,
    layout: str | None = None,
    model: str | None = None,
    img_size: Grid | None = None,
    grid: Grid | None = None,
    patch_size: Grid | None = None,
    num_classes: int | None = None,
) -> None:
    """Refuses values that no source can make right; None is always right.

    Args:
        layout, model: Names, as for `build`.
        img_size, grid, patch_size: (height, width), in pixels or tokens.
        num_classes: 0 for no head.

    Raises:
        ValueError: And says what was expected.
    """
    families.check_layout(layout)
    families.check_model(model)
    for name, size, unit in (
        ("img_size", img_size, "pixels"),
        ("grid", grid, "tokens"),
        ("patch_size", patch_size, "pixels"),
    ):
        if size is None:
            continue
        expected = f"expected height and width of 1 to {LARGEST_SIDE} {unit}"
        if not isinstance(size, tuple | list) or [type(side) for side in size] != [int, int]:
            raise ValueError(f"{name} is {size!r}; {expected}, as (H, W)")
        if not all(1 <= side <= LARGEST_SIDE for side in size):
            raise ValueError(f"{name} is {size[0]} x {size[1]}; {expected}")
    if num_classes is not None and not 0 <= num_classes <= MOST_CLASSES:
        raise ValueError(
            f"num_classes is {num_classes}; expected a count up to {MOST_CLASSES}, or 0 for no head"
        )


def check_memory(model: nn.Module, tensors: Tensors) -> None:
    """Refuses a model far larger than its source: W grows with the fourth power of the image's side.

    Args:
        model: As it would be, on the meta device.
        tensors: Of the source.

    Raises:
        UserError: And says how much memory it would take.
    """
    needed, given = (sum(t.nbytes for t in state.values()) for state in (model.state_dict(), tensors))
    if needed > max(LARGEST_MODEL, 4 * given):
        raise UserError(
            f"this is a model of {needed / 1e9:,.1f} GB, from weights of {given / 1e9:.2g}; expected at "
            f"most {LARGEST_MODEL / 1e9:.1f} GB, or 4 times theirs: ask for a smaller image or fewer "
            "classes"
        )
