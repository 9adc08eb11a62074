"""`gmlp-vision zoo`."""

import argparse
from collections.abc import Sequence
from typing import Any

from gmlp_vision.cli.options import name


def add(commands: Any) -> None:
    parser = commands.add_parser(
        "zoo",
        help="the names of all models: parameters, multiply-adds, image sizes, weights, ...",
        epilog='example: gmlp-vision zoo "gfnet_*"',
    )
    parser.add_argument(
        "pattern", metavar="PATTERN", type=name, nargs="?", help="which, such as 'gmlp_*' (default: all)"
    )
    parser.set_defaults(call=call)


def call(args: argparse.Namespace) -> None:
    from tqdm import tqdm

    from gmlp_vision.zoo import COLUMNS, describe, find_names

    names = find_names(args.pattern)
    rows = [describe(name).cells() for name in tqdm(names, "counting", delay=2, leave=False, disable=None)]
    for line in aligned([COLUMNS, *rows]):
        print(line)


def aligned(rows: Sequence[Sequence[str]]) -> list[str]:
    """The lines of a table, the first row its head: each column as wide as its widest cell."""
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    right = [title in ("params", "GMACs", "image", "top-1") for title in rows[0]]
    return [
        "  ".join(
            cell.rjust(width) if numbers else cell.ljust(width)
            for cell, width, numbers in zip(row, widths, right, strict=True)
        ).rstrip()
        for row in rows
    ]
