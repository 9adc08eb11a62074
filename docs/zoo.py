"""Writes docs/zoo.md and the table of families in README.md, from what gmlp_vision.zoo says.

    python docs/zoo.py

Nothing in them is typed by hand.
"""

import json
import statistics
import sys
import textwrap
from collections.abc import Sequence
from pathlib import Path
from types import ModuleType
from typing import NamedTuple

from gmlp_vision.atomic import write_file
from gmlp_vision.checkpoints.families import families, family_of_name, names_of, title
from gmlp_vision.errors import UserError
from gmlp_vision.zoo import COLUMNS, EVIDENCE, Name, Place, describe, joined

ROOT = Path(__file__).resolve().parent.parent
# What benchmarks/evidence/evidence.py recorded of its rows for families
MEASURED = ROOT / "benchmarks/evidence/measured/families"
RECIPES = {"nadamuon": "NAdaMuon", "adamw": "AdamW"}  # the first is the better one
PAGE, README = ROOT / "docs/zoo.md", ROOT / "README.md"
BEGIN, END = "<!-- begin: written by docs/zoo.py -->\n", "<!-- end -->\n"

MEANINGS = ";\n".join(f"- *{what}*: {means}" for what, means in EVIDENCE.items())

HEAD = f"""<!-- written by docs/zoo.py; edit the families' files instead -->
# The zoo

Every registered name, family by family; a family's file under `gmlp_vision/models/` has the equation, the
shapes and the source of each size. `gmlp-vision zoo "gfnet_*"` prints the rows of some. They are counted and
asked by `gmlp_vision/zoo.py`; `python docs/zoo.py` writes this page, and `tests/test_zoo_docs.py` compares it
with what the code says.

- **params** are with the head, **GMACs** half of what `torch.utils.flop_counter` counts, in 10^9, for the
  image given.
- **any size**: *free*, nothing in it belongs to a token grid; *resampled*, what does is carried to the new
  grid ([resampling.md](resampling.md)); *fixed*, made for one size, that of `img_size`. Sizes go in steps of
  the patch, or of what is given; a pyramid without steps takes any.
- **filters**: which maps over tokens `gmlp-vision filters` shows ([filters.md](filters.md)).
- **top-1**: what those who released the weights give, in % of ImageNet-1k; the family's file has the source.
  Only that of `gmlp_pico4` was measured here, on CIFAR-10.
- **small**: top-1 of the 10,000 test images of CIFAR-10, in %, of such a model with about 1.24 M parameters,
  after 5 epochs of NAdaMuon on 10,000 training images, - where there is none ([all of
  them, and by AdamW](../train/README.md#every-family-on-equal-terms)). It tells how fast a family learns from
  few images, and not how far it comes.
- **licence**: of the authors' code and weights, *unknown* where they state none, - where nothing of theirs is
  out. What is in this repository is under Apache-2.0.
- **weights**: [weights.md](weights.md) says how to load those that are behind a page.

What was verified of a family:

{MEANINGS}.
"""


class Measured(NamedTuple):
    """A row of the evidence: top-1 of a small model of a family, in %, the mean over its seeds."""

    row: str
    model: str
    recipe: str
    top1: float


def measured() -> list[Measured]:
    """What there is of the rows for families; nothing where none was run."""
    file = MEASURED / "runs.jsonl"
    found: dict[tuple[str, str], list[float]] = {}
    for line in file.read_text(encoding="utf-8").splitlines() if file.exists() else ():
        told = json.loads(line)
        found.setdefault((told["row"], told["options"]["model"]), []).append(told["top1"])
    return [
        Measured(row, model, recipe, statistics.mean(values))
        for (row, model), values in found.items()
        if (recipe := row.partition("_")[0]) in RECIPES
    ]


def measured_of(family: ModuleType, runs: Sequence[Measured]) -> list[Measured]:
    """Those of a family's names, or of small ones that are called like them, as resmlp_pico4."""
    names = {name.partition("_")[0] for name in names_of(family)}
    return [
        each
        for each in runs
        if family_of_name(each.model) in (family, None) and each.model.partition("_")[0] in names
    ]


def small(name: str, runs: Sequence[Measured]) -> str:
    """The cell of a registered name in the column of that title."""
    first = next(iter(RECIPES))
    found = [each.top1 for each in runs if (each.model, each.recipe) == (name, first)]
    return ", ".join(f"{value:.1f}" for value in found) or "-"


def equations(family: ModuleType) -> list[str]:
    """The docstring's paragraphs behind the first, up to the last that is set in, as equations are."""
    paragraphs = (family.__doc__ or "").strip("\n").split("\n\n")[1:]
    set_in = [all(line.startswith("    ") for line in each.splitlines()) for each in paragraphs]
    count = max((i + 1 for i, yes in enumerate(set_in) if yes), default=0)
    return [
        f"```text\n{textwrap.dedent(each)}\n```\n" if yes else f"{each}\n"
        for each, yes in zip(paragraphs[:count], set_in, strict=False)
    ]


def learned(family: ModuleType, runs: Sequence[Measured]) -> list[str]:
    """How its small models did, and pictures of what their maps became."""
    lines = []
    rows: dict[str, list[Measured]] = {}
    for each in measured_of(family, runs):
        rows.setdefault(each.row.partition("_")[2], []).append(each)
    for row, found in rows.items():
        told = ", ".join(f"{each.top1:.1f} by {RECIPES[each.recipe]}" for each in found)
        lines.append(
            f"\nSmall, as `{row}` of [the evidence](../benchmarks/evidence/RESULTS.md#the-families): {told}."
        )
        for recipe in RECIPES:
            picture = MEASURED / "learned" / f"{recipe}_{row}.png"
            if picture.exists():
                place = f"../{picture.relative_to(ROOT)}"
                lines.append(f"\n![What the maps of `{row}` became by {RECIPES[recipe]}]({place})")
                break
    return lines


def section(family: ModuleType, runs: Sequence[Measured]) -> str:
    """A family's heading, source, equations and table for docs/zoo.md, and what it learned."""
    first, *_ = (family.__doc__ or "").split("\n\n")
    paper = " ".join(first.partition(":")[2].split()).rstrip(".")
    rows = [describe(name) for name in names_of(family)]
    reasons = {reason: None for row in rows for reason in row.no_filters}
    verified = f" Verified: {', '.join(family.VERIFIED)}." if family.VERIFIED else ""
    return "\n".join(
        [
            f"## {title(family)}\n",
            f"{paper}. {family.SOURCE}{verified}\n",
            *equations(family),
            *table((*COLUMNS[:-1], "small", COLUMNS[-1]), [cells(row, runs) for row in rows]),
            *([f"\nWhere there are no filters: {'; '.join(reasons)}."] if reasons else []),
            *learned(family, runs),
            "",
        ]
    )


def cells(row: Name, runs: Sequence[Measured]) -> list[str]:
    """As Name.cells, with links, and how a small one did."""
    name, *values, _ = row.cells()
    return [f"`{name}`", *values, small(row.name, runs), joined(map(link, row.weights))]


def link(place: Place) -> str:
    at = place.link if "://" in place.link else f"../{place.link}"
    return f"[{place.title}]({at})"


def table(head: Sequence[str], rows: Sequence[Sequence[str]]) -> list[str]:
    first, *others = (f"| {' | '.join(line)} |" for line in (head, *rows))
    return [first, f"|{'---|' * len(head)}", *others]


def summary() -> str:
    """The table of README.md: one row a family."""
    head = ("family", "names", "params, M", "GMACs", "any size", "public weights", "verified")
    return "\n".join([*table(head, [summary_of(family) for family in families()]), ""])


def summary_of(family: ModuleType) -> list[str]:
    names = names_of(family)
    rows = [describe(name) for name in names]
    anchor = title(family).lower().replace(" ", "-").replace("'", "")
    public = sum(bool(row.weights) for row in rows)
    return [
        f"[{title(family)}](docs/zoo.md#{anchor})",
        ", ".join(f"`{name}`" for name in names[:6]) + (", ..." if len(names) > 6 else ""),
        span([row.parameters / 1e6 for row in rows]),
        span([row.gmacs for row in rows]),
        joined(row.any_size.partition(",")[0] for row in rows),
        f"{public} of {len(rows)}" if public else "none",
        ", ".join(family.VERIFIED) or "-",
    ]


def span(values: Sequence[float]) -> str:
    ends = dict.fromkeys(f"{value:.1f}" for value in (min(values), max(values)))
    return " to ".join(ends)


def page() -> str:
    runs = measured()
    return "\n".join([HEAD, *(section(family, runs) for family in families())])


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
