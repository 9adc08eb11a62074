"""Writes docs/zoo.md and the table of families in README.md, from what the families and their layers say.

    python docs/zoo.py

Nothing in them is typed by hand: parameters and multiply-adds are counted on the meta device.
"""

import sys
from collections.abc import Iterable
from functools import cache
from pathlib import Path
from types import ModuleType
from typing import Any, NamedTuple

import timm
import torch
from torch import nn
from torch.utils.flop_counter import FlopCounterMode

import gmlp_vision  # noqa: F401  registers the names
from gmlp_vision.atomic import write_file
from gmlp_vision.checkpoints.families import families, names_of, title
from gmlp_vision.errors import UserError
from gmlp_vision.layers.ask import operators
from gmlp_vision.layers.grid_tied import any_size
from gmlp_vision.trunks import Trunk

ROOT = Path(__file__).resolve().parent.parent
PAGE, README = ROOT / "docs/zoo.md", ROOT / "README.md"
BEGIN, END = "<!-- begin: written by docs/zoo.py -->\n", "<!-- end -->\n"

HEAD = """<!-- written by docs/zoo.py; edit the families' files instead -->
# The zoo

Every registered name, family by family; a family's file under `gmlp_vision/models/` has the equation, the
shapes and the source of each size. Parameters are with the head, multiply-adds (GMACs) half of what
`torch.utils.flop_counter` counts at the image size given. Both are counted by `python docs/zoo.py`, which
writes this page; `tests/test_zoo_docs.py` compares it with what the code says.

"Any size": *free*, nothing in it belongs to a token grid; *resampled*, what does is carried to the new grid
([resampling.md](resampling.md)); *fixed*, made for one size.
"Filters": which maps over tokens `gmlp-vision filters` shows ([filters.md](filters.md)).
"""


class Name(NamedTuple):
    """What there is to say about a registered name."""

    name: str
    parameters: int
    gmacs: float
    image: tuple[int, int]
    any_size: str
    filters: tuple[str, ...]
    no_filters: tuple[str, ...]
    weights: str


@cache
def describe(name: str) -> Name:
    model: Any = timm.create_model(name, device="meta")
    _, height, width = timm.models.get_model_input_config(model)["input_size"]
    with FlopCounterMode(display=False) as counter:
        model(torch.empty(1, model.in_chans, height, width, device="meta"))
    return Name(
        name,
        sum(p.numel() for p in model.parameters()),
        counter.get_total_flops() / 2e9,
        (height, width),
        size_rule(model),
        *filters(model),
        weights(name),
    )


def size_rule(model: Any) -> str:
    """'free', 'resampled' or 'fixed'; a class of timm's says only whether it is fixed."""
    if isinstance(model, Trunk):
        return any_size(model)[0]
    return "fixed" if timm.models.get_model_input_config(model)["fixed_input_size"] else "free"


def filters(model: nn.Module) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """The kinds of maps over tokens that its layers hold; and what those say that hold none."""
    stem: Any = model.stem if hasattr(model, "stem") else model
    kinds, reasons = {}, {}
    for module in model.modules():
        for operator in operators(module, stem.grid_size):
            kinds[operator.kind] = None
        if reason := getattr(type(module), "NO_OPERATOR", ""):
            reasons[reason] = None
    return tuple(kinds), tuple(reasons)


def weights(name: str) -> str:
    """Every place that a name's cfgs have weights at."""
    places = []
    for tag in timm.list_models(f"{name}.*", pretrained=True, exclude_filters="") or []:
        cfg = timm.get_pretrained_cfg(tag)
        if cfg.hf_hub_id:
            places.append(f"[{cfg.hf_hub_id}](https://huggingface.co/{cfg.hf_hub_id})")
        elif cfg.file:
            places.append(f"[in this package](../weights/{tag}/README.md)")
        elif cfg.url:
            places.append(f"[{cfg.url.rpartition('/')[2]}]({cfg.url})")
    return ", ".join(places) or "none public"


def section(family: ModuleType) -> str:
    """A family's heading, source and table for docs/zoo.md."""
    first, *_ = (family.__doc__ or "").split("\n\n")
    paper = " ".join(first.partition(":")[2].split()).rstrip(".")
    lines = [f"## {title(family)}", "", f"{paper}. {family.SOURCE}", ""]
    lines += [
        "| name | parameters | GMACs | image | any size | filters | weights |",
        "|---|---|---|---|---|---|---|",
    ]
    rows = [describe(name) for name in names_of(family)]
    for row in rows:
        lines.append(
            f"| `{row.name}` | {row.parameters:,} | {row.gmacs:.2f} | {row.image[0]} x {row.image[1]} | "
            f"{row.any_size} | {joined(row.filters)} | {row.weights} |"
        )
    reasons = {reason: None for row in rows for reason in row.no_filters}
    lines += [f"\nWhere there are no filters: {'; '.join(reasons)}."] if reasons else []
    return "\n".join(lines) + "\n"


def joined(words: Iterable[str]) -> str:
    """Each once, in their order; 'none' for none."""
    return ", ".join(dict.fromkeys(words)) or "none"


def summary() -> str:
    """The table of README.md: one row a family."""
    lines = ["| family | names | any size | filters | source |", "|---|---|---|---|---|"]
    for family in families():
        names = names_of(family)
        rows = [describe(name) for name in names]
        sizes = joined(row.any_size for row in rows)
        shown = joined(kind for row in rows for kind in row.filters)
        listed = ", ".join(f"`{name}`" for name in names[:6]) + (", ..." if len(names) > 6 else "")
        anchor = title(family).lower().replace(" ", "-").replace("'", "")
        lines.append(
            f"| [{title(family)}](docs/zoo.md#{anchor}) | {listed} | {sizes} | {shown} | {family.SOURCE} |"
        )
    return "\n".join(lines) + "\n"


def page() -> str:
    return "\n".join([HEAD, *map(section, families())])


def readme(text: str) -> str:
    """README.md with its table written anew."""
    before, begin, rest = text.partition(BEGIN)
    _, end, after = rest.partition(END)
    if not (begin and end):
        raise UserError(
            f"README.md has lost the lines {BEGIN.strip()} and {END.strip()}, between which the table is"
        )
    return f"{before}{BEGIN}\n{summary()}\n{END}{after}"


def main() -> int:
    try:
        text = readme(README.read_text(encoding="utf-8"))
        zoo = page()
        write_file(README, text)
        write_file(PAGE, zoo)
    except (UserError, OSError) as error:
        print(f"zoo.py: {error}", file=sys.stderr)
        return 2
    return 0


if __name__ == "__main__":
    sys.exit(main())
