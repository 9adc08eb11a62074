"""What a file held to the network in it: in which of its dicts, under which prefix, without what wraps it."""

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import torch

from gmlp_vision.checkpoints import families
from gmlp_vision.checkpoints.names import State
from gmlp_vision.checkpoints.report import first_five
from gmlp_vision.errors import CheckpointError

# The names under which training scripts file their weights, where timm looks and in timm's order.
EMA_KEYS = ("state_dict_ema", "model_ema")
RAW_KEYS = ("state_dict", "model")
KEYS = (*EMA_KEYS, *RAW_KEYS)
# Modules that may wrap any part of a network and belong to none: those of torch.compile, FSDP and activation
# checkpointing.
WRAPPERS = {"_orig_mod", "_fsdp_wrapped_module", "_checkpoint_wrapped_module"}
COUNTER = "n_averaged"  # of torch's AveragedModel, beside the network that it holds
SAY_WHICH = "say which: `load_checkpoint(model, FILE, prefix=...)`, on the command line `--prefix`"


@dataclass(frozen=True)
class Network:
    """What a file holds of one network.

    Attributes:
        tensors: Under its own names.
        weights: 'ema' or 'raw'; None where nothing in the file is called so.
        outside: The other entries of the dict that it was found in, and why they are none of its tensors.
        notes: Where it was found, if that is not where timm puts it.
    """

    tensors: State
    weights: str | None
    outside: Mapping[str, str]
    notes: tuple[str, ...]


@dataclass(frozen=True)
class _Place:
    """Where a network may be: in the dict `entries`, which the file has under `path`, below `inner`."""

    path: str
    inner: str
    entries: Mapping[Any, Any]
    names: Mapping[str, str]  # from those in the dict to those in the network
    depth: int = 0  # of the dict, where nothing else tells which is meant

    @property
    def whole(self) -> str:
        return self.path + self.inner

    @property
    def prefix(self) -> str:
        """As messages have it: without the key that timm knows."""
        first, _, rest = self.whole.partition(".")
        return rest if first in KEYS and self.path else self.whole

    @property
    def unusual(self) -> str:
        """The same without what every tool of timm looks through."""
        return ".".join(part for part in self.prefix.split(".") if part not in ("", "module"))

    @property
    def rank(self) -> tuple[int, int]:
        first = self.path.partition(".")[0]
        return KEYS.index(first) if first in KEYS else len(KEYS), self.depth

    @property
    def is_ema(self) -> bool:
        return "ema" in re.split(r"[._]", self.whole)


def unwrap(loaded: Any, weights: str, source: str, prefix: str | None = None) -> Network:
    """The network in what a file held, wherever in it.

    A network of a family that is known here is told by its first layer. Dicts in dicts and the names of
    modules are the same here: both are parts of a prefix. Where no network is known, it is the dict of
    tensors that timm would take, else the outermost.

    Args:
        loaded: What the file held: a dict of tensors, or dicts with one in them.
        weights: 'ema', 'raw', or 'auto' for EMA where there is one.
        source: What was read, for messages.
        prefix: Whole parts of the prefix of the network that is meant, such as 'model.' or
            'teacher.backbone'; '' for the one without. None where there is only one.

    Raises:
        CheckpointError: There is no such network, there is more than one, or its tensors cannot be used.
    """
    if not isinstance(loaded, Mapping):
        raise CheckpointError(
            f"{source} holds a {type(loaded).__name__}; expected a state dict, or a dict with one under "
            f"{', '.join(KEYS)} or another name"
        )
    places = list(_dicts(loaded))
    if not places:
        raise CheckpointError(
            f"{source} holds no named tensors; expected a state dict, or a dict with one in it"
        )
    anchors = [f".{anchor}" for anchor in families.anchors()]
    networks = [network for place in places for network in _networks(place, anchors)]
    found = networks or [_unknown(place) for place in places]
    if prefix is not None:
        found = _under(prefix, networks, source)
    taken = _the_one(found, weights, source)
    return _take(taken, source, networks)


def _dicts(loaded: Mapping[Any, Any]) -> Iterator[_Place]:
    """Every dict in a file that holds a tensor under a name."""
    seen = set()  # a pickle may have a dict in itself
    waiting = [("", loaded)]
    while waiting:
        path, entries = waiting.pop(0)
        if id(entries) in seen:
            continue
        seen.add(id(entries))
        named = {key: value for key, value in entries.items() if isinstance(key, str)}
        waiting += [(f"{path}{key}.", value) for key, value in named.items() if isinstance(value, Mapping)]
        if any(isinstance(value, torch.Tensor) for value in named.values()):
            names = {key: ".".join(p for p in key.split(".") if p not in WRAPPERS) for key in named}
            yield _Place(path, "", entries, names)


def _networks(place: _Place, anchors: list[str]) -> Iterator[_Place]:
    """The networks in one dict, by the tensors that each network of a known family has once."""
    found = {
        name.removesuffix(anchor[1:])
        for key, name in place.names.items()
        for anchor in anchors
        if f".{name}".endswith(anchor) and isinstance(place.entries[key], torch.Tensor)
    }
    for inner in sorted(found):
        within = tuple(other for other in found if other != inner and other.startswith(inner))
        names = {
            key: name.removeprefix(inner)
            for key, name in place.names.items()
            if name.startswith(inner) and not name.startswith(within)
        }
        yield _Place(place.path, inner, place.entries, names)


def _unknown(place: _Place) -> _Place:
    """A dict of tensors as a network of no known family."""
    names = {key: re.sub(r"^(module\.)+", "", name) for key, name in place.names.items()}
    return _Place(place.path, "", place.entries, names, place.path.count("."))


def _under(prefix: str, networks: list[_Place], source: str) -> list[_Place]:
    asked = ".".join(part for part in prefix.split(".") if part and part not in WRAPPERS)
    asked = f"{asked}." if asked else ""
    exact = [place for place in networks if asked in (place.prefix, place.whole)]
    found = exact or [place for place in networks if asked and f".{asked}" in f".{place.whole}"]
    if not found:
        known = f"networks are under {_listed(networks)}" if networks else "no network in it is known here"
        raise CheckpointError(f"{source} has no network under the prefix {prefix!r}; {known}")
    return found


def _the_one(found: list[_Place], weights: str, source: str) -> _Place:
    ema = [place for place in found if place.is_ema]
    raw = [place for place in found if not place.is_ema]
    if weights == "ema" and not ema:
        raise CheckpointError(
            f"{source} holds no EMA weights ({', '.join(EMA_KEYS)} or another name with 'ema' in it); ask "
            "for 'raw' or 'auto'"
        )
    if weights == "raw" and not raw:
        raise CheckpointError(f"{source} holds EMA weights alone; ask for 'ema' or 'auto'")
    found = ema if ema and weights != "raw" else raw
    found = [place for place in found if place.rank == min(p.rank for p in found)]
    if not all(_equal(place, found[0]) for place in found[1:]):
        raise CheckpointError(f"{source} holds more than one network, under {_listed(found)}: {SAY_WHICH}")
    return found[0]


def _equal(a: _Place, b: _Place) -> bool:
    """Whether two networks are one, such as a model and its compiled form beside it."""
    here, there = ({name: x.entries[key] for key, name in x.names.items()} for x in (a, b))
    return here.keys() == there.keys() and all(
        _is_plain(here[name]) and _is_plain(there[name]) and torch.equal(here[name], there[name])
        for name in here
    )


def _listed(places: list[_Place]) -> str:
    return first_five([prefix or "'' (none)" for prefix in dict.fromkeys(p.prefix for p in places)])


def _take(place: _Place, source: str, networks: list[_Place]) -> Network:
    tensors: State = {}
    outside: dict[str, str] = {}
    misshapen = []
    for key, value in place.entries.items():
        name = place.names.get(key)
        if name is None:
            outside[str(key)] = f"outside {place.prefix}" if place.prefix else "of no name in the network"
        elif not isinstance(value, torch.Tensor):
            outside[name] = "no tensor"
        elif name == COUNTER:
            outside[name] = "the count of an average of weights"
        elif not _is_plain(value):
            misshapen.append(key)
        elif name in tensors:
            raise CheckpointError(f"{source} has the same tensor twice, with and without a wrapper's prefix")
        else:
            tensors[name] = value.detach()
    where = f"{source}[{place.path[:-1]}]" if place.path else source
    if misshapen:
        raise CheckpointError(
            f"{where} is no state dict: of its {len(place.entries)} entries these are no plain tensors: "
            f"{first_five(misshapen)}"
        )
    others = [other for other in networks if other.unusual != place.unusual]
    rest = f", not from under {_listed(others)}" if others else ""
    notes = [f"the network is taken from under {place.whole}{rest}"] if place.unusual or others else []
    told = "ema" if place.is_ema else "raw" if place.path else None
    return Network(tensors, told, outside, tuple(notes))


def _is_plain(value: Any) -> bool:
    return (
        isinstance(value, torch.Tensor)
        and value.layout == torch.strided
        and not (value.is_meta or value.is_quantized or value.is_nested)
        # a few bytes, expanded, may claim to be more than the memory holds
        and value.numel() * value.element_size() <= value.untyped_storage().nbytes()
    )
