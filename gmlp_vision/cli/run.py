"""`gmlp-vision run`."""

import argparse
from typing import Any

from gmlp_vision.errors import UserError


def add(commands: Any) -> None:
    parser = commands.add_parser(
        "run",
        help="run a script of timm (validate.py, inference.py, ...) with these models",
        usage="gmlp-vision run [-h] SCRIPT [ARGS ...]",
        epilog="example: gmlp-vision run validate.py --model gmlp_pico4 --pretrained --data-dir DATA",
    )
    # one argument for all: argparse takes a `--` that comes after another for its own
    parser.add_argument(
        "script",
        metavar="SCRIPT",
        nargs=argparse.REMAINDER,
        help="path, or name in $TIMM_SCRIPTS or here; what follows is the script's",
    )
    parser.set_defaults(call=call)


def call(args: argparse.Namespace) -> None:
    from gmlp_vision.run import find_script, run_to_end

    if not args.script:
        raise UserError("no script is given; `gmlp-vision run --help` has an example")
    run_to_end(find_script(args.script[0]), args.script[1:])
