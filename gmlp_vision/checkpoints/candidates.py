"""The models of one family that some tensors may be of.

Only names whose sizes and first block agree are made at all, and on the meta device.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cache, cached_property
from types import ModuleType
from typing import Any

import timm
from torch import nn

from gmlp_vision.checkpoints import families
from gmlp_vision.checkpoints.families import part
from gmlp_vision.checkpoints.names import OWN, Layout, State, Tensors, to_ours
from gmlp_vision.layers.grid_tied import tied_layers

DEPTHS = ("depth", "depths", "num_blocks")  # the arguments by which models say them

# Arguments that say how a model is made or called, or that the file's tensors tell better than its config.
NOT_ITS_OWN = {
    *("img_size", "in_chans", "num_classes", "dynamic_img_size", "device", "dtype"),
    *("features_only", "out_indices", "checkpoint_path", "cache_dir", "scriptable", "exportable", "no_jit"),
}


@dataclass(frozen=True)
class Identity:
    """What a checkpoint is.

    Attributes:
        family: The module of its family.
        name: The registered name by which such a model is made; None where the family's class makes it.
        args: The arguments beside the name.
        model: Such a model at its default size, on the meta device.
        tensors: In our names.
        dropped: Tensors of the file that are none of the model's, and why.
        layout: Whose names the file has.
        settings: What the file states of those arguments that no tensor need show.
    """

    family: ModuleType
    name: str | None
    args: Mapping[str, Any]
    model: Any
    tensors: State
    dropped: Mapping[str, str] = field(default_factory=dict)
    layout: str = OWN
    settings: Mapping[str, Any] = field(default_factory=dict)

    def create(self, **kwargs: Any) -> Any:
        """Such a model, with untrained weights."""
        return create(self.family, self.name, {**self.args, **kwargs})

    @property
    def in_chans(self) -> int:
        """Channels of the image."""
        kernel = self.tensors.get(f"{part(self.model, 'first_conv')}.weight")
        return int(self.model.in_chans if kernel is None or kernel.ndim < 2 else kernel.shape[1])

    @property
    def num_classes(self) -> int:
        """Width of the logits; 0 for no head."""
        weight = self.tensors.get(f"{part(self.model, 'classifier')}.weight")
        return 0 if weight is None or not weight.ndim else len(weight)


def create(family: ModuleType, name: str | None, args: Mapping[str, Any]) -> Any:
    """A model of a family, by a registered name or, without one, by the family's class."""
    if name is not None:
        return timm.create_model(name, **args)
    return family.MODEL(**args)


def fits(tensors: Tensors, model: Any) -> bool:
    """Whether tensors are those of a model, at whatever image size, channels and class count."""
    head = f"{part(model, 'classifier')}."
    own, file = (
        {name: tuple(tensor.shape) for name, tensor in side.items() if not name.startswith(head)}
        for side in (model.state_dict(), tensors)
    )
    free = {f"{part(model, 'first_conv')}.weight": [1]}
    for layer, module in tied_layers(model).items():
        for key, rule in module.RULES.items():
            free[f"{layer}.{key}"] = list(rule.axes)
    return own.keys() == file.keys() and all(_alike(file[n], own[n], free.get(n, [])) for n in own)


def _alike(shape: tuple[int, ...], like: tuple[int, ...], free: list[int]) -> bool:
    """Whether two shapes agree but for these axes; a matrix may be the kernel of a convolution."""
    if len(like) == 2 and len(shape) > 2 and set(shape[2:]) == {1}:
        shape = shape[:2]
    return len(shape) == len(like) and all(
        a == b or i in free for i, (a, b) in enumerate(zip(shape, like, strict=True))
    )


@dataclass
class Reading:
    """Tensors, read as those of one family.

    Attributes:
        family: The family's module.
        names: Those of its registered names that come into question.
        state: The tensors, in the file's names.
        config: What the file says of its model.
        layout: Whose names the file has; None to tell by them.
        patch_size: (height, width) in pixels, where the user says it.
        spoken: Whose names it has, as told.
        other: That layout; None for our own names.
    """

    family: ModuleType
    names: list[str]
    state: Tensors
    config: Mapping[str, Any]
    layout: str | None
    patch_size: tuple[int, int] | None

    def __post_init__(self) -> None:
        self.spoken = self.layout or families.recognise(self.state, self.family)
        self.other: Layout | None = families.layouts_of(self.family).get(self.spoken)

    @property
    def depends_on_sizes(self) -> bool:
        """Whether it has the names of another implementation, which depend on the sizes of the model."""
        return self.other is not None and self.other.rows_for(None) is None

    @property
    def in_words(self) -> str:
        return f"{self.spoken}'s {families.title(self.family)}"

    @cached_property
    def sizes(self) -> Mapping[str, Any] | None:
        """The arguments that the tensors show; {} where nothing tells, None for no model of this family."""
        if self.other is None:
            return families.sizes_of(self.family, self.state) if self.spoken == OWN else None
        rows = self.other.rows_for(None)
        if rows is None:  # what the tensors are called depends on the model
            return {}
        tensors, _ = to_ours(self.state, self.other, rows, {}, self.patch_size)
        return families.sizes_of(self.family, tensors)

    def exact(self) -> list[Identity]:
        """The models that have all these tensors: of a registered name, else of the sizes that they show."""
        named = self.config.get("architecture") in self.names  # and its arguments are stated
        if self.sizes is None and not named:
            return []
        found = [identity for name in self.names for identity in self._of_name(name)]
        return found or [identity for identity in self.by_sizes if fits(identity.tensors, identity.model)]

    def _of_name(self, name: str) -> list[Identity]:
        """The model that the config states, or else the one of the name alone; none if neither fits."""
        sizes = self.sizes or {}
        place = {key: sizes[key] for key in ("img_size", "in_chans") if key in sizes}
        tries: list[Mapping[str, Any]] = []
        stated = self.config.get("model_args")
        if name == self.config.get("architecture") and isinstance(stated, Mapping):
            own = {key: value for key, value in stated.items() if is_own(key)}
            if _blocks(own) <= len(self.state):  # a number is written faster than so many blocks are made
                tries.append(own)
                if (
                    "img_size" in stated
                ):  # some sizes are those of one image only, and make no model at another
                    tries.append({**own, "img_size": stated["img_size"]})
        if _may_be(name, sizes, self.state if self.other is None else {}):
            tries.append({})
        made = (self._identity(name, {**place, **args}) for args in tries)
        return [found for found in made if found is not None and fits(found.tensors, found.model)][:1]

    @cached_property
    def by_sizes(self) -> list[Identity]:
        """The models of the sizes that the tensors show, whether they have all of them or not."""
        if not self.sizes:
            return []
        if hasattr(self.family, "MODEL"):
            made = [self._identity(None, self.sizes)]
        else:
            # names that differ in nothing but sizes make the same model, given the sizes
            rest: dict[str, str] = {}
            for name in self.names:
                table = families.sizes_of_name(name)
                more = {k: v for k, v in table.items() if k not in self.sizes and is_own(k)}
                rest.setdefault(repr(more), name)
            made = [self._identity(name, self.sizes) for name in rest.values()]
        return [found for found in made if found is not None]

    def _identity(self, name: str | None, args: Mapping[str, Any]) -> Identity | None:
        """The tensors as those of a model with these arguments; None if there can be no such model."""
        settings = self.other.settings if self.other is not None else {}
        args = {**args, **settings}
        try:
            model = create(self.family, name, {**args, "device": "meta"})
        except (ValueError, TypeError, RuntimeError, OverflowError):
            return None
        if self.other is None:
            return Identity(self.family, name, args, model, dict(self.state))
        rows = self.other.rows_for(model) or ()
        tensors, dropped = to_ours(self.state, self.other, rows, {}, self.patch_size)
        return Identity(self.family, name, args, model, tensors, dropped, self.spoken, settings)


def _blocks(args: Mapping[str, Any]) -> int:
    """How many blocks arguments ask for, as far as they say it in numbers."""
    told = [args[key] for key in DEPTHS if key in args]
    each = [n for value in told for n in (value if isinstance(value, list | tuple) else [value])]
    return sum(n for n in each if isinstance(n, int))


def is_own(key: object) -> bool:
    """Whether an argument makes a model another one."""
    return isinstance(key, str) and not (
        key in NOT_ITS_OWN or key.startswith("pretrained") or key.endswith("_rate")
    )


def _may_be(name: str, sizes: Mapping[str, Any], tensors: Tensors) -> bool:
    """Whether tensors may be those of a registered name, as far as that costs little to tell."""
    table = families.sizes_of_name(name)
    if not all(_agree(table.get(key, value), value) for key, value in sizes.items() if is_own(key)):
        return False
    return not tensors or _names_of_first_blocks(name) <= tensors.keys()


def _agree(one: Any, other: Any) -> bool:
    """Whether two values of an argument are the same; of a pyramid's one may stand for all stages."""
    sides = [list(side) if isinstance(side, list | tuple) else side for side in (one, other)]
    count = max(len(side) if isinstance(side, list) else 1 for side in sides)
    first, second = (side if isinstance(side, list) else [side] * count for side in sides)
    return first == second


@cache
def _names_of_first_blocks(name: str) -> set[str]:
    """The tensors of a model of this name whatever its depth, but for the head; none if nothing tells."""
    table = families.sizes_of_name(name)
    if "depth" in table:
        shallow: dict[str, Any] = {"depth": 1}
    elif "depths" in table:
        shallow = {"depths": [1 for _ in table["depths"]]}
    else:
        return set()
    model: nn.Module = timm.create_model(name, device="meta", **shallow)
    head = f"{part(model, 'classifier')}."
    return {key for key in model.state_dict() if not key.startswith(head)}
