"""`gmlp-vision info`."""

import argparse
from typing import Any

from gmlp_vision.cli.options import add_model, add_prefix, add_source


def add(commands: Any) -> None:
    parser = commands.add_parser(
        "info",
        help="what a checkpoint or a model name is: sizes, grid, sha256, ...",
        epilog="example: gmlp-vision info model_best.pth.tar",
    )
    add_source(parser, "FILE|NAME")
    add_model(parser)
    add_prefix(parser)
    parser.set_defaults(call=call)


def call(args: argparse.Namespace) -> None:
    from gmlp_vision.checkpoints import describe

    for title, value in describe(args.source, model=args.model, prefix=args.prefix).items():
        print(f"{title:<14}{value}")
