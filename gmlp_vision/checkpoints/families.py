"""What families there are, and what each says of itself.

A family is a module of gmlp_vision.models. By convention it may hold `SIZES`, the arguments of each name;
`TOP1`, the published top-1 of released weights, in %, its source beside it (on ImageNet-1k where that says
nothing else), by the model's name for the weights that pretrained=True loads and by name.tag for others;
`LAYOUTS`, other implementations' names for its tensors; and `sizes_of(state_dict)`, the arguments of a model
whose tensors these are, or None. A module with `NAMES` speaks for models that it did not register, and with
`MODEL` for their class, where the entrypoints take no sizes.
"""

import re
import sys
from collections.abc import Mapping
from functools import cache
from types import ModuleType
from typing import Any

import timm
from torch import nn

from gmlp_vision.checkpoints.hub import did_you_mean
from gmlp_vision.checkpoints.names import OWN, Layout, Tensors
from gmlp_vision.errors import CheckpointError
from gmlp_vision.layers.hidden_width import ratio_of
from gmlp_vision.layers.sized import sized

ROOM = f"{__name__.partition('.')[0]}.models."


def families() -> list[ModuleType]:
    """The modules of families that have been imported, this package's own first."""
    # asked of sys.modules, so that nothing is imported from a room above this one
    found = [
        m for name, m in list(sys.modules.items()) if name.startswith(ROOM) and "." not in name[len(ROOM) :]
    ]
    return sorted(found, key=lambda family: hasattr(family, "NAMES"))


def title(family: ModuleType) -> str:
    """What the family is called: its docstring up to the colon."""
    return (family.__doc__ or family.__name__).partition(":")[0]


def names_of(family: ModuleType) -> list[str]:
    """The registered names of a family, in the order of its own list."""
    if hasattr(family, "NAMES"):
        return list(family.NAMES)
    own = timm.list_models(module=family.__name__.rpartition(".")[2])
    own = [name for name in own if timm.model_entrypoint(name).__module__ == family.__name__]
    order = list(getattr(family, "default_cfgs", {}))
    return sorted(own, key=lambda name: order.index(name) if name in order else len(order))


def family_of_name(name: object) -> ModuleType | None:
    """The family that owns a registered name; None if none does."""
    return next((family for family in families() if name in names_of(family)), None)


def top1_of(name: str) -> float | None:
    """The published top-1 of a registered name's weights, in %; of its first ones where it has no tag."""
    model, _, tag = name.partition(".")
    top1: Mapping[str, float] = getattr(family_of_name(model), "TOP1", {})
    first = timm.get_pretrained_cfg(model)
    return top1.get(model) if tag in ("", getattr(first, "tag", "")) else top1.get(name)


def family_of_model(model: nn.Module) -> ModuleType | None:
    """The family whose file has the class of the model, or that of one of its layers, or that speaks for a
    class of timm's; None if none does.
    """
    known = {family.__name__: family for family in families()}
    told = [*(type(m).__module__ for m in model.modules()), getattr(sized(model), "family", None)]
    return next((known[name] for name in told if name in known), None)


def sizes_of(family: ModuleType, tensors: Tensors) -> dict[str, Any] | None:
    """The arguments of a model of this family whose tensors these are; {} where the family cannot say, None
    where they are not of one.
    """
    read = getattr(family, "sizes_of", None)
    try:
        return {} if read is None else read(tensors)
    except (IndexError, TypeError, ValueError, ZeroDivisionError):
        return None  # a tensor of its name, with fewer axes than the family's or none of its numbers


def sizes_of_name(name: object) -> Mapping[str, Any]:
    """The arguments of a registered name, as far as its family's table says them."""
    family = family_of_name(name)
    sizes: Mapping[str, Mapping[str, Any]] = getattr(family, "SIZES", {})
    return sizes.get(str(name), {})


def layouts_of(family: ModuleType | None) -> dict[str, Layout]:
    """Other implementations' names for the tensors of a family, by what they are called."""
    return getattr(family, "LAYOUTS", {})


def check_layout(name: str | None) -> None:
    """Refuses a name that no family has a layout of.

    Raises:
        ValueError: And lists those there are.
    """
    known = dict.fromkeys([OWN, *(key for family in families() for key in layouts_of(family))])
    if name is not None and name not in known:
        raise ValueError(f"the layout is {name!r}; expected one of {', '.join(known)}")


def check_model(name: str | None) -> None:
    """Refuses a name of no known family.

    Raises:
        ValueError: It is one.
    """
    if name is not None and family_of_name(name) is None:
        raise ValueError(
            f"{name} is no model of this package, nor one of timm's that it knows{did_you_mean(name)}"
        )


def recognise(tensors: Tensors, family: ModuleType | None) -> str:
    """The layout of a family whose marks are all among the names, or our own.

    Raises:
        CheckpointError: Two layouts at once.
    """
    found = [name for name, layout in layouts_of(family).items() if tensors.keys() >= set(layout.marks)]
    if len(found) > 1:
        raise CheckpointError(f"the tensors are those of {' and of '.join(found)}; say which are meant")
    return found[0] if found else OWN


def isotropic_sizes(state_dict: Tensors, widening: str) -> dict[str, Any] | None:
    """Patch, depth, width and MLP ratio of a model on the isotropic trunk, for a family's `sizes_of`.

    Args:
        state_dict: In our names.
        widening: The weight (E, D) of a block's widening projection, by its name in the block.

    Returns:
        None if the tensors are not those of such a model.
    """
    kernel = state_dict.get("stem.proj.weight")
    if kernel is None or kernel.ndim != 4 or min(kernel.shape) < 1:
        return None
    dim, _, height, width = kernel.shape
    sizes = block_sizes(state_dict, widening, dim)
    patch = height if height == width else (height, width)
    return None if sizes is None else {"patch_size": patch, **sizes}


def block_sizes(state_dict: Tensors, widening: str, dim: int) -> dict[str, Any] | None:
    """As `isotropic_sizes`, but for the patch: of a model of width `dim`, whatever its stem."""
    wide = state_dict.get(f"blocks.0.{widening}")
    if wide is None or wide.ndim != 2 or min(wide.shape) < 1:
        return None
    sizes = {
        "depth": len({name.split(".")[1] for name in state_dict if name.startswith("blocks.")}),
        "embed_dim": dim,
        "mlp_ratio": ratio_of(len(wide), dim),
    }
    return sizes if "norm.weight" in state_dict else {**sizes, "final_norm": False}


def pyramid_sizes(state_dict: Tensors, widening: str) -> dict[str, Any] | None:
    """Depths, widths and MLP ratios of a model on the pyramid trunk, for a family's `sizes_of`.

    Args:
        state_dict: In our names.
        widening: The weight (E, D) of a block's widening projection, by its name in the block.

    Returns:
        None if the tensors are not those of such a model.
    """
    depths: dict[int, set[int]] = {}
    for name in state_dict:
        if match := re.match(r"stages\.(\d+)\.blocks\.(\d+)\.", name):
            depths.setdefault(int(match[1]), set()).add(int(match[2]))
    shapes = []
    for stage in range(len(depths)):
        wide = state_dict.get(f"stages.{stage}.blocks.0.{widening}")
        if wide is None or wide.ndim != 2 or min(wide.shape) < 1:
            return None
        shapes.append(wide.shape)
    if not shapes:
        return None
    final_norm = {} if any(name.startswith("norm.") for name in state_dict) else {"final_norm": False}
    return {
        "depths": [len(depths[stage]) for stage in range(len(depths))],
        "embed_dims": [dim for _, dim in shapes],
        "mlp_ratio": [ratio_of(hidden, dim) for hidden, dim in shapes],
        **final_norm,
    }


def anchors() -> set[str]:
    """Tensors of which every network of a known family has one: first convolutions, and marks of layouts."""
    return _anchors_of(tuple(families()))


@cache
def _anchors_of(families: tuple[ModuleType, ...]) -> set[str]:
    marks = {layout.marks[0] for family in families for layout in layouts_of(family).values()}
    cfgs = [timm.models.get_pretrained_cfg(name) for family in families for name in names_of(family)]
    return marks | {
        f"{cfg.first_conv}.weight" for cfg in cfgs if cfg is not None and isinstance(cfg.first_conv, str)
    }


def part(model: Any, which: str) -> Any:
    """The name of a model's 'first_conv' or 'classifier', as it says itself, or as timm's cfg of it says."""
    says = sized(model) or model
    return getattr(says, which) if hasattr(says, which) else model.pretrained_cfg.get(which)
