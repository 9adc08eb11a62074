"""`gmlp-vision zoo`."""

import argparse
from collections.abc import Sequence
from typing import Any

from gmlp_vision.cli.options import name


def add(commands: Any) -> None:
    parser = commands.add_parser(
        "zoo",
        help="the names of all models: parameters, multiply-adds, image sizes, weights, ...",
        epilog="example: gmlp-vision zoo gfnet_*",
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
    """Each column as wide as its widest cell; numbers end together."""
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    numbers = [
        all(cell[-1:].isdigit() or cell == "-" for cell in column[1:]) for column in zip(*rows, strict=True)
    ]
    numbers[0] = False  # many names end in one
    return [
        "  ".join(
            cell.rjust(width) if number else cell.ljust(width)
            for cell, width, number in zip(row, widths, numbers, strict=True)
        ).rstrip()
        for row in rows
    ]
