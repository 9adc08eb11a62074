"""What a trunk hands to its blocks, and what of that makes a model another one."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from inspect import signature
from itertools import cycle
from typing import Any, cast

from timm.layers import calculate_drop_path_rates
from torch import nn

from gmlp_vision.trunks.checks import check_rate


def shown_or_forgotten(argument: str) -> bool:
    """Whether shapes show an argument of a block, or training alone asks for it."""
    return argument == "mlp_ratio" or argument.endswith("_rate") or argument.startswith(("init_", "aux_"))


def default_args(block: Callable[..., nn.Module]) -> dict[str, Any]:
    """The defaults of what a class of blocks takes beside what the trunk gives to every class.

    And of the class that it takes for a part, such as the mixer of a MixMlpBlock.
    """
    given = {"drop_path", "norm_eps", "norm", "device", "dtype"}
    own = {
        name: parameter.default
        for name, parameter in signature(block).parameters.items()
        if name not in given and parameter.default is not parameter.empty
    }
    parts = [default_args(value) for value in own.values() if isinstance(value, type)]
    return {**{name: value for part in parts for name, value in part.items()}, **own}


def drop_path_rates(rate: float, depths: Sequence[int], rule: str) -> list[list[float]]:
    """The drop-path rate of each block, stage by stage. Papers give one rate and often no rule.

    Args:
        rate: The largest.
        depths: Blocks of each stage; an isotropic model has one stage.
        rule: 'linear' from 0 at the first block to `rate` at the last, 'stagewise' the same within each stage
            anew, 'constant' for `rate` everywhere.

    Raises:
        ValueError: Another rule, or a rate outside [0, 1).
    """
    check_rate("drop_path_rate", rate)
    if rule == "linear":
        return cast("list[list[float]]", calculate_drop_path_rates(rate, list(depths), stagewise=True))
    if rule == "stagewise":
        return [cast("list[float]", calculate_drop_path_rates(rate, depth)) for depth in depths]
    if rule == "constant":
        return [[rate] * depth for depth in depths]
    raise ValueError(f"drop_path_rule is {rule!r}; expected 'linear', 'stagewise' or 'constant'")


def one_stage_each(own: Mapping[str, Any], depths: Sequence[int]) -> Iterator[list[dict[str, Any]]]:
    """The arguments of the blocks of each stage.

    Args:
        own: A sequence has one value a stage; where that is one again, the blocks take its values in turn.
        depths: Blocks of each stage.

    Raises:
        ValueError: A sequence of another length.
    """
    for name, value in own.items():
        if isinstance(value, list | tuple) and len(value) != len(depths):
            raise ValueError(f"{name} is {value}; expected one value for each of the {len(depths)} stages")
    for stage, depth in enumerate(depths):
        here = {k: v[stage] if isinstance(v, list | tuple) else v for k, v in own.items()}
        turns = {k: cycle(v) if isinstance(v, list | tuple) else None for k, v in here.items()}
        yield [
            {k: v if (turn := turns[k]) is None else next(turn) for k, v in here.items()}
            for _ in range(depth)
        ]
