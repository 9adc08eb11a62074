"""The kinds of W, by keys that a config.json can hold, such as 'dense' or 'toeplitz'."""

import re
from collections.abc import Callable, Mapping
from functools import partial
from typing import Any

import torch

from gmlp_vision.layers.axial import AxialProjection
from gmlp_vision.layers.cells import BlockProjection, GridProjection
from gmlp_vision.layers.circulant import CirculantProjection
from gmlp_vision.layers.local import LocalProjection
from gmlp_vision.layers.low_rank import LowRankProjection
from gmlp_vision.layers.posmlp import GqpeProjection, LrpeProjection
from gmlp_vision.layers.shared_kernel import DenseKernel, DenseToeplitz
from gmlp_vision.layers.spatial_projection import SpatialProjection
from gmlp_vision.layers.structured import Structured
from gmlp_vision.layers.toeplitz import ToeplitzProjection

# Capital letters of a key stand for a number, the same one wherever a letter comes twice.
KINDS: dict[str, type[Structured]] = {
    "dense": SpatialProjection,
    "toeplitz": ToeplitzProjection,
    "KxK": LocalProjection,
    "lrpe": LrpeProjection,
    "gqpe": GqpeProjection,
    "circulant": CirculantProjection,
    "axial": AxialProjection,
    "rank:R": LowRankProjection,
    "block:B": BlockProjection,
    "grid:G": GridProjection,
    "dense+toeplitz": DenseToeplitz,
    "dense+KxK": DenseKernel,
}


def kind_of(spatial: str) -> tuple[type[Structured], dict[str, int]]:
    """The class that a key means, and what the number in it sets.

    Args:
        spatial: A key of KINDS, with numbers in the place of capital letters.

    Raises:
        ValueError: No such key.
    """
    for key, cls in KINDS.items():
        found = _pattern(key).fullmatch(spatial) if isinstance(spatial, str) else None
        if found is not None:
            return cls, {cls.OPTION: int(found[1])} if cls.OPTION else {}
    raise ValueError(
        f"spatial is {spatial!r}; expected one of {', '.join(map(repr, KINDS))}, with a number in the place "
        "of a capital letter"
    )


def projection_of(spatial: str, groups: int = 1) -> Callable[..., Structured]:
    """What makes a map over tokens of a kind, from the grid, `init_std`, `init_bias`, device and dtype.

    Args:
        spatial: A key of KINDS, with numbers in the place of capital letters.
        groups: Of channels, each with a W of its own; 1 but for classes with GROUPED.

    Raises:
        ValueError: No such key, or no such number of groups.
    """
    cls, options = kind_of(spatial)
    if groups < 1 or (groups > 1 and not cls.GROUPED):
        grouped = ", ".join(key for key, kind in KINDS.items() if kind.GROUPED)
        raise ValueError(
            f"groups is {groups}; expected at least 1, and with spatial={spatial!r} "
            + (
                "a divisor of the channels"
                if cls.GROUPED
                else f"1, since all channels share one W (a W for each group have {grouped})"
            )
            + (": a Toeplitz W for each group is spatial='lrpe'" if cls is ToeplitzProjection else "")
        )
    made: Any = cls  # the options of a class are its own
    return partial(made, **options, groups=groups) if cls.GROUPED else partial(made, **options)


def spatial_of(tensors: Mapping[str, torch.Tensor]) -> dict[str, Any]:
    """What W is, `spatial` and `groups`, by the tensors that a layer is made of; 'dense' where none fits.

    Args:
        tensors: Of the layer, by their names within it.
    """
    for key, cls in KINDS.items():
        options = cls.options_of(tensors)
        if options is not None:
            number = str(options.get(cls.OPTION, ""))
            spatial = re.sub("[A-Z]", number, key) if cls.OPTION else key
            return {"spatial": spatial, "groups": options.get("groups", 1)}
    return {"spatial": "dense", "groups": 1}


def _pattern(key: str) -> re.Pattern[str]:
    """Of the keys that a key of KINDS stands for: 'KxK' for '3x3', '7x7' and so on."""
    first, *rest = (re.escape(part) for part in re.split("[A-Z]", key))
    return re.compile(first + ("([1-9][0-9]{0,5})" + r"\1".join(rest) if rest else ""))
