"""The `gmlp-vision` command: parse, call one function, print.

A module a command: its `add` says what it takes, and its `call` imports what it needs.
"""

from collections.abc import Sequence

from gmlp_vision import __version__
from gmlp_vision.cli import convert, demo, export, filters, info, recipe, run, structure, verify, zoo
from gmlp_vision.cli.options import Parser
from gmlp_vision.cli.streams import say, whole_output
from gmlp_vision.errors import UserError

COMMANDS = (
    convert.add,
    demo.add,
    export.add,
    filters.add,
    info.add,
    recipe.add,
    run.add,
    structure.add,
    verify.add,
    zoo.add,
)


def main(argv: Sequence[str] | None = None) -> int:
    """Runs one command. Returns its exit status: 0, or 2 and a line on stderr where the user can mend it."""
    try:
        with whole_output():
            args = make_parser().parse_args(argv)
            args.call(args)
    except BrokenPipeError:  # `gmlp-vision recipe | head -1`: nobody reads on
        return 141
    except KeyboardInterrupt:
        say("interrupted")
        return 130
    except (UserError, ValueError, OSError) as error:
        say(str(error))
        return 2
    except (MemoryError, RuntimeError) as error:
        if isinstance(error, RuntimeError) and "DefaultCPUAllocator" not in str(error):  # torch's MemoryError
            raise
        say(f"there is not enough memory: {error}")
        return 2
    return 0


def make_parser() -> Parser:
    parser = Parser(prog="gmlp-vision", description="gMLP and other token mixers for timm.")
    parser.add_argument("--version", action="version", version=f"%(prog)s {__version__}")
    parser.set_defaults(call=lambda args: parser.print_help())  # nothing asked is nothing wrong: status 0
    commands = parser.add_subparsers(title="commands", metavar="COMMAND")
    for add in COMMANDS:
        add(commands)
    return parser
