"""`gmlp-vision recipe`."""

import argparse
from typing import Any

from gmlp_vision.cli.options import name


def add(commands: Any) -> None:
    parser = commands.add_parser(
        "recipe",
        help="list the recipes for timm's train.py, or print the path of one",
        epilog='example: python train.py --config "$(gmlp-vision recipe gmlp_smoke)" --data-dir DATA',
    )
    parser.add_argument(
        "name", metavar="NAME", type=name, nargs="?", help="print its path, for train.py --config"
    )
    parser.set_defaults(call=call)


def call(args: argparse.Namespace) -> None:
    from gmlp_vision.shipped import find_recipe, recipe_title, recipes

    if args.name:
        print(find_recipe(args.name))
    else:
        for title, file in recipes().items():
            print(f"{title:<22}{recipe_title(file)}")
