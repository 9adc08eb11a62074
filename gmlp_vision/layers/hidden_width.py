"""How wide an MLP is between its two layers."""

import math
from numbers import Real
from typing import Any


def hidden_width(width: int, ratio: Any) -> int:
    """The integer part of `width` times the MLP ratio.

    Raises:
        ValueError: The ratio is no number above 0, or so small that nothing is left.
    """
    if not isinstance(ratio, Real) or not 0 < float(ratio) < math.inf:
        raise ValueError(f"mlp_ratio is {ratio!r}; expected a number above 0, such as 4.0")
    hidden = int(width * float(ratio))
    if hidden < 1:
        raise ValueError(
            f"mlp_ratio is {ratio}, which leaves a width of {width} no hidden channel; expected at least "
            f"1 / {width}"
        )
    return hidden


def ratio_of(hidden: int, width: int) -> float:
    """The inverse: a ratio for which `hidden_width` gives `hidden`, one step up where rounding loses one."""
    ratio = hidden / width
    return ratio if int(width * ratio) == hidden else math.nextafter(ratio, math.inf)
