"""Writes docs/zoo.md and the table of families in README.md, from what gmlp_vision.zoo says.

    python docs/zoo.py

Nothing in them is typed by hand.
"""

import sys
from collections.abc import Sequence
from pathlib import Path
from types import ModuleType

from gmlp_vision.atomic import write_file
from gmlp_vision.checkpoints.families import families, names_of, title
from gmlp_vision.errors import UserError
from gmlp_vision.zoo import COLUMNS, EVIDENCE, Name, Place, describe, joined

ROOT = Path(__file__).resolve().parent.parent
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
- **licence**: of the authors' code and weights, *unknown* where they state none, - where nothing of theirs is
  out. What is in this repository is under Apache-2.0.
- **weights**: [weights.md](weights.md) says how to load those that are behind a page.

What was verified of a family:

{MEANINGS}.
"""


def section(family: ModuleType) -> str:
    """A family's heading, source and table for docs/zoo.md."""
    first, *_ = (family.__doc__ or "").split("\n\n")
    paper = " ".join(first.partition(":")[2].split()).rstrip(".")
    rows = [describe(name) for name in names_of(family)]
    reasons = {reason: None for row in rows for reason in row.no_filters}
    verified = f" Verified: {', '.join(family.VERIFIED)}." if family.VERIFIED else ""
    return "\n".join(
        [
            f"## {title(family)}\n",
            f"{paper}. {family.SOURCE}{verified}\n",
            *table(COLUMNS, [cells(row) for row in rows]),
            *([f"\nWhere there are no filters: {'; '.join(reasons)}."] if reasons else []),
            "",
        ]
    )


def cells(row: Name) -> list[str]:
    """As Name.cells, with links."""
    name, *values, _ = row.cells()
    return [f"`{name}`", *values, joined(map(link, row.weights))]


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
