"""What there is to say about every registered name and family, from their modules and layers.

`gmlp-vision zoo` prints it, docs/zoo.py writes it to pages.
"""

from collections.abc import Iterable
from difflib import get_close_matches
from fnmatch import filter as matching
from functools import cache
from typing import Any, NamedTuple
from urllib.parse import urlparse

import timm
import torch
from torch import nn
from torch.utils.flop_counter import FlopCounterMode

from gmlp_vision.checkpoints.families import families, names_of, top1_of
from gmlp_vision.checkpoints.hub import WEIGHTS
from gmlp_vision.errors import UserError
from gmlp_vision.filters.extract import find
from gmlp_vision.layers.grid_tied import any_size

# What a family's `VERIFIED` may say, and what that means.
EVIDENCE = {
    "count": "the parameters are those of the paper or of other people's code, for the sizes that have any",
    "equation": "a block is its formula, written out slowly in float64",
    "authors' code": "logits equal those of the released code (of gMLP, timm's) with the same weights",
    "released file": "a file with figures of its own was loaded and gives them (`gmlp_pico4`, trained here)",
}

COLUMNS = ("name", "params", "GMACs", "image", "any size", "filters", "top-1", "licence", "weights")


class Place(NamedTuple):
    """Where weights are: what it is called, and an address or a path in this repository."""

    title: str
    link: str


class Name(NamedTuple):
    """What there is to say about a registered name.

    Attributes:
        parameters: With the head.
        gmacs: 10^9 multiply-adds for one image.
        image: (height, width) in pixels.
        any_size: 'free', 'resampled' or 'fixed', and the steps that sizes go in, where the model tells them.
        filters: The kinds of maps over tokens that its layers hold.
        no_filters: What those layers say that hold none.
        top1: The published top-1 of its released weights, in %; None where there is none.
        licence: Of the authors' code and weights; '' where there is nothing of theirs.
        weights: The places of public weights.
    """

    name: str
    parameters: int
    gmacs: float
    image: tuple[int, int]
    any_size: str
    filters: tuple[str, ...]
    no_filters: tuple[str, ...]
    top1: float | None
    licence: str
    weights: tuple[Place, ...]

    def cells(self) -> tuple[str, ...]:
        """The row of a table with COLUMNS."""
        return (
            self.name,
            f"{self.parameters:,}",
            f"{self.gmacs:.2f}",
            f"{self.image[0]} x {self.image[1]}",
            self.any_size,
            joined(self.filters),
            "-" if self.top1 is None else str(self.top1),
            self.licence or "-",
            joined(place.title for place in self.weights),
        )


def find_names(pattern: str | None = None) -> list[str]:
    """The names of all families, family by family, or those that match a pattern such as 'gmlp_*'.

    Raises:
        UserError: None does.
    """
    names = [name for family in families() for name in names_of(family)]
    found = names if pattern is None else matching(names, pattern)
    if not found:
        known = [*names, *dict.fromkeys(f"{name.partition('_')[0]}_*" for name in names)]
        close = get_close_matches(str(pattern), known)
        hint = f"did you mean {' or '.join(close)}?" if close else "without a pattern it lists all"
        raise UserError(f"no name of the zoo matches {pattern!r}; {hint}")
    return found


@cache
def describe(name: str) -> Name:
    """Builds the model on the meta device and asks it, its cfg and its family."""
    model: Any = timm.create_model(name, device="meta")
    _, height, width = timm.models.get_model_input_config(model)["input_size"]
    kinds = dict.fromkeys(found.operator.kind for found in find(model, name, None))
    reasons = dict.fromkeys(getattr(type(module), "NO_OPERATOR", "") for module in model.modules())
    return Name(
        name=name,
        parameters=sum(p.numel() for p in model.parameters()),
        any_size=size_rule(model),
        gmacs=count_macs(model, (height, width)) / 1e9,  # the last to need the model, which it takes apart
        image=(height, width),
        filters=tuple(kinds),
        no_filters=tuple(filter(None, reasons)),
        top1=top1_of(name),
        licence=licence(name),
        weights=tuple(places(name)),
    )


def size_rule(model: Any) -> str:
    """'free', 'resampled' or 'fixed', and in which steps."""
    rule, _ = any_size(model)
    step = max(getattr(model, "size_step", (1, 1)))
    return f"{rule}, in steps of {step} px" if step > 1 and rule != "fixed" else rule


def places(name: str) -> Iterable[Place]:
    """Every place that a name's cfgs have weights at."""
    for tag in timm.list_models(f"{name}.*", pretrained=True, exclude_filters="") or []:
        cfg: Any = timm.get_pretrained_cfg(tag)
        if cfg.hf_hub_id:
            yield Place(cfg.hf_hub_id, f"https://huggingface.co/{cfg.hf_hub_id}")
        elif cfg.file:
            yield Place(f"{tag}, in this package", f"weights/{tag}/README.md")
        elif cfg.url:
            file, host = cfg.url.rpartition("/")[2], urlparse(cfg.url).hostname
            yield Place(file if file.endswith(WEIGHTS) else f"a page of {host}", cfg.url)


def licence(name: str) -> str:
    """What the authors of its code or weights say; '' where there is neither of theirs."""
    cfg: Any = timm.get_pretrained_cfg(name)
    theirs = cfg.origin_url or cfg.hf_hub_id or cfg.url or cfg.file
    return (cfg.license or "unknown") if theirs else ""


def joined(words: Iterable[str]) -> str:
    """Each once, in their order; 'none' for none."""
    return ", ".join(dict.fromkeys(words)) or "none"


# -- multiply-adds -------------------------------------------------------------------------------------------


def count_macs(model: nn.Module, image: tuple[int, int]) -> int:
    """Half of what torch.utils.flop_counter counts for one image; of blocks that are alike, one is run.

    Args:
        model: On the meta device; it is taken apart.
        image: (height, width) in pixels.
    """
    more: list[int] = []
    model.requires_grad_(False)  # else the counter asks for the gradients of parameters that are an input
    with torch.no_grad(), FlopCounterMode(display=False) as counter:
        for name, blocks in list(model.named_modules()):
            if name.rpartition(".")[2] == "blocks" and isinstance(blocks, nn.Sequential):
                run_once(blocks, counter, more)
        model(torch.empty(1, 3, *image, device="meta"))
    return (counter.get_total_flops() + sum(more)) // 2


def run_once(blocks: nn.Sequential, counter: FlopCounterMode, more: list[int]) -> None:
    """Leaves one of the blocks that are alike; it puts what the others would count into `more`."""
    kinds = [kind_of(block) for block in blocks]
    for i, (block, kind) in enumerate(zip(list(blocks), kinds, strict=True)):
        times = kinds.count(kind)
        blocks[i] = Repeated(block, times, counter, more) if kinds.index(kind) == i else nn.Identity()


def kind_of(block: nn.Module) -> str:
    """What tells what a block computes: its classes, the shapes and the plain attributes."""
    told = []
    for name, module in block.named_modules():
        plain = {k: v for k, v in vars(module).items() if isinstance(v, bool | int | float | str | tuple)}
        shapes = [tuple(tensor.shape) for tensor in module.parameters(recurse=False)]
        told.append((name, type(module), plain, shapes))
    return str(told)


class Repeated(nn.Module):
    """A block in the place of several; all map tokens to tokens of the same shape."""

    def __init__(self, block: nn.Module, times: int, counter: FlopCounterMode, more: list[int]) -> None:
        super().__init__()
        self.block = block
        self.times = times
        self.counter = counter
        self.more = more

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        before = self.counter.get_total_flops()
        x = self.block(x)
        self.more.append((self.times - 1) * (self.counter.get_total_flops() - before))
        return x
