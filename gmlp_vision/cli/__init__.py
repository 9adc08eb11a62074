"""The `gmlp-vision` command: parse, call one function, print. Each command imports what it needs itself."""

import argparse
import os
import sys
from collections.abc import Sequence
from typing import Any

from gmlp_vision.cli.looking import add_filters
from gmlp_vision.cli.training import add_demo, add_recipe, add_run
from gmlp_vision.cli.weights import add_convert, add_export, add_info
from gmlp_vision.errors import UserError

COMMANDS: tuple[Any, ...] = (add_convert, add_demo, add_export, add_filters, add_info, add_recipe, add_run)


def main(argv: Sequence[str] | None = None) -> int:
    """Runs one command. Returns its exit status: 0, or 2 and a line on stderr where the user can mend it."""
    args = make_parser().parse_args(argv)
    try:
        args.call(args)
        sys.stdout.flush()  # a reader that has gone is noticed here, not at exit
    except BrokenPipeError:
        # `gmlp-vision recipe | head -1`: nobody reads on. Python would complain again when it closes stdout.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 141
    except KeyboardInterrupt:
        print("gmlp-vision: interrupted", file=sys.stderr)
        return 130
    except (UserError, ValueError, OSError) as error:
        print(f"gmlp-vision: {' '.join(str(error).split())}", file=sys.stderr)
        return 2
    return 0


def make_parser() -> argparse.ArgumentParser:
    from gmlp_vision import __version__

    parser = argparse.ArgumentParser(prog="gmlp-vision", description="gMLP for timm.")
    parser.add_argument("--version", action="version", version=f"%(prog)s {__version__}")
    commands = parser.add_subparsers(title="commands", required=True, metavar="COMMAND")
    for add in COMMANDS:
        add(commands)
    return parser
