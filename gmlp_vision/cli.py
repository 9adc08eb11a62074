"""The `gmlp-vision` command: parse, call one function, print. Each command imports what it needs itself."""

import argparse
import os
import sys
import traceback
from collections.abc import Sequence
from itertools import chain
from pathlib import Path
from typing import Any

from gmlp_vision import __version__
from gmlp_vision.checkpoints import DTYPES
from gmlp_vision.errors import UserError


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
    parser = argparse.ArgumentParser(prog="gmlp-vision", description="gMLP and other token mixers for timm.")
    parser.add_argument("--version", action="version", version=f"%(prog)s {__version__}")
    commands = parser.add_subparsers(title="commands", required=True, metavar="COMMAND")
    for add in COMMANDS:
        add(commands)
    return parser


def add_prefix(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--prefix", metavar="P", help="of the names of the network that is meant, where there are more"
    )


# -- weights -----------------------------------------------------------------------------------------------


def add_convert(commands: Any) -> None:
    parser = commands.add_parser("convert", help="weights to other names, another image size or class count")
    parser.add_argument("source", metavar="IN", help="file, folder, hf-hub:OWNER/NAME or model name")
    parser.add_argument(
        "out", metavar="OUT", help="file (.safetensors, .pth) or new folder (with config.json)"
    )
    pair: dict[str, Any] = {"nargs": 2, "type": int, "metavar": ("H", "W")}
    parser.add_argument(
        "--from", dest="layout", metavar="WHOSE", help="names IN has (docs/weights.md; default: told by them)"
    )
    parser.add_argument("--to", metavar="WHOSE", help="names OUT gets (default: this package's)")
    parser.add_argument("--model", metavar="NAME", help="the model in IN, where its tensors leave that open")
    add_prefix(parser)
    parser.add_argument("--img-size", **pair, help="of the image, in pixels (default: as in IN)")
    parser.add_argument("--grid", **pair, help="of the tokens in IN, where it does not state its image size")
    parser.add_argument(
        "--patch-size", **pair, help="of a patch in IN, in pixels, where its shape leaves it open"
    )
    parser.add_argument(
        "--num-classes", type=int, metavar="N", help="another count than in IN gives a new head"
    )
    parser.add_argument(
        "--weights", choices=("raw", "ema"), default="auto", help="(default: ema where there is)"
    )
    parser.add_argument("--dtype", choices=DTYPES, help="of the numbers in OUT (default: as in IN)")
    parser.set_defaults(call=_convert)


def _convert(args: argparse.Namespace) -> None:
    from gmlp_vision.checkpoints import convert_file

    def pair(values: list[int] | None) -> tuple[int, int] | None:
        return (values[0], values[1]) if values else None

    report = convert_file(
        args.source,
        args.out,
        layout=args.layout,
        to=args.to,
        img_size=pair(args.img_size),
        grid=pair(args.grid),
        patch_size=pair(args.patch_size),
        num_classes=args.num_classes,
        weights=args.weights,
        dtype=args.dtype,
        model=args.model,
        prefix=args.prefix,
    )
    print(report)
    print(f"wrote {args.out}")


def add_info(commands: Any) -> None:
    parser = commands.add_parser(
        "info", help="what a checkpoint or a model name is: sizes, grid, sha256, ..."
    )
    parser.add_argument("source", metavar="FILE|NAME", help="file, folder, hf-hub:OWNER/NAME or model name")
    parser.add_argument("--model", metavar="NAME", help="the model in it, where its tensors leave that open")
    add_prefix(parser)
    parser.set_defaults(call=_info)


def _info(args: argparse.Namespace) -> None:
    from gmlp_vision.checkpoints import describe

    for title, value in describe(args.source, model=args.model, prefix=args.prefix).items():
        print(f"{title:<14}{value}")


def add_export(commands: Any) -> None:
    parser = commands.add_parser(
        "export", help="a model for other runtimes, compared with the original before it is written"
    )
    parser.add_argument(
        "source", metavar="MODEL", help="file, folder, hf-hub:OWNER/NAME or model name with weights"
    )
    parser.add_argument(
        "out", metavar="OUT", type=Path, help="file to write; OpenVINO's, an .xml, gets a .bin"
    )
    formats = ("onnx", "openvino", "torchscript", "exported-program")
    parser.add_argument("--format", required=True, choices=formats)
    parser.add_argument(
        "--img-size", nargs=2, type=int, metavar=("H", "W"), help="in pixels (default: as in MODEL)"
    )
    add_prefix(parser)
    parser.add_argument("--dynamic-batch", action="store_true", help="any number of images (default: one)")
    parser.add_argument(
        "--dtype",
        choices=DTYPES,
        default="fp32",
        help="of weights and arithmetic; images and logits stay fp32 (default: %(default)s)",
    )
    parser.set_defaults(call=_export)


def _export(args: argparse.Namespace) -> None:
    from gmlp_vision.export import export_checkpoint

    size = tuple(args.img_size) if args.img_size else None
    parity = export_checkpoint(
        args.source,
        args.out,
        args.format,
        img_size=size,
        dynamic_batch=args.dynamic_batch,
        dtype=args.dtype,
        prefix=args.prefix,
    )
    print(
        f"wrote {args.out}: its logits are within {parity.difference:.1g} of the model's, and "
        f"{parity.tolerance:g} is allowed (1 is the spread of the logits between images)"
    )
    for note in parity.notes:
        print(f"note: {note}")


# -- training ----------------------------------------------------------------------------------------------


def add_demo(commands: Any) -> None:
    parser = commands.add_parser(
        "demo", help="train a small gMLP on scikit-learn's digits, in about a minute"
    )
    parser.add_argument(
        "--output", type=Path, help="folder to make (default: runs/demo; or runs/demo-pretrained)"
    )
    parser.add_argument(
        "--pretrained",
        action="store_true",
        help="start from the CIFAR-10 weights, and train the same model from scratch beside it",
    )
    parser.add_argument(
        "--epochs", type=int, help="passes over the images (default: 40; with --pretrained 5)"
    )
    parser.add_argument(
        "--seed", type=int, default=0, help="of weights and augmentation (default: %(default)s)"
    )
    parser.set_defaults(call=_demo)


def _demo(args: argparse.Namespace) -> None:
    from gmlp_vision.demo import run_demo

    output = args.output or Path("runs/demo-pretrained" if args.pretrained else "runs/demo")
    result = run_demo(output, args.epochs, args.seed, args.pretrained)
    print(f"accuracy on {result.test_images} test images, a stratified quarter that was not trained on:")
    name = "from CIFAR-10" if args.pretrained else "gMLP"
    print(f"  {name:<19}  {result.accuracy:.4f}   ({result.epochs} epochs, {result.seconds:.0f} s)")
    if result.from_scratch is not None:
        print(f"  from scratch         {result.from_scratch:.4f}   (the same model on the same budget)")
    print(f"  logistic regression  {result.logistic_regression:.4f}   (on the 8 x 8 pixels)")
    if not args.pretrained:
        moved = ", ".join(f"{ratio:,.0f}" for ratio in result.moved)
        print(f"W has grown from its init (root mean square 1e-6), block by block: {moved} times")
    print(f"{output}/filters.png shows W: each row as a kernel over the 8 x 8 tokens")
    print(
        f'the model again: import gmlp_vision, timm; timm.create_model("local-dir:{output}", pretrained=True)'
    )


def add_recipe(commands: Any) -> None:
    parser = commands.add_parser(
        "recipe", help="list the recipes for timm's train.py, or print the path of one"
    )
    parser.add_argument("name", metavar="NAME", nargs="?", help="print its path, for train.py --config")
    parser.set_defaults(call=_recipe)


def _recipe(args: argparse.Namespace) -> None:
    from gmlp_vision.shipped import find_recipe, recipe_title, recipes

    if args.name:
        print(find_recipe(args.name))
    else:
        for name, path in recipes().items():
            print(f"{name:<22}{recipe_title(path)}")


def add_run(commands: Any) -> None:
    parser = commands.add_parser(
        "run", help="run a script of timm (validate.py, inference.py, ...) with these models"
    )
    parser.add_argument("script", metavar="SCRIPT", help="path, or name in $TIMM_SCRIPTS or here")
    parser.add_argument("args", metavar="ARGS", nargs=argparse.REMAINDER, help="of the script")
    parser.set_defaults(call=_run)


def _run(args: argparse.Namespace) -> None:
    from gmlp_vision.run import find_script, run_script

    script = find_script(args.script)
    try:
        run_script(script, args.args)
    except Exception:  # the script's, not this command's: its traceback is wanted whole
        traceback.print_exc()
        raise SystemExit(1) from None


# -- filters -----------------------------------------------------------------------------------------------


def add_filters(commands: Any) -> None:
    parser = commands.add_parser(
        "filters", help="what a network learned about space: statistics, a figure, a page to explore"
    )
    parser.add_argument("what", metavar="WHAT", help="file, folder, hf-hub:OWNER/NAME or model name")
    parser.add_argument("-o", "--out", type=Path, help="figure to write: .png, .pdf or .svg")
    parser.add_argument(
        "--draw",
        choices=("filters", "kernels", "stats", "units"),
        help="of the figure: filters (the default, where there are any), kernels (filters give their mean "
        "kernel), statistics over depth, hidden units",
    )
    parser.add_argument("--layers", help="of the figure and the page, counted from 0: 1,5,10-20")
    parser.add_argument("--tokens", help="of the figure: center,corners or grid:4 or ROW,COLUMN;...")
    parser.add_argument("--scale", help="what in the figure shares one: figure, layer or picture")
    parser.add_argument("--stats", type=Path, help="statistics to write: .csv or .json")
    parser.add_argument("--html", type=Path, help="page to write: one file, no network needed to open it")
    parser.add_argument("--image", type=Path, help="picture to lay under the grid of the page")
    parser.add_argument("--grid", type=int, nargs=2, metavar=("H", "W"), help="of the tokens, if not known")
    parser.add_argument("--model", metavar="NAME", help="the model in it, where its tensors leave that open")
    add_prefix(parser)
    parser.add_argument(
        "--weights", choices=("raw", "ema"), default="auto", help="(default: ema where there is)"
    )
    parser.set_defaults(call=_filters)


def _filters(args: argparse.Namespace) -> None:
    from gmlp_vision.filters import extract, format_stats, plot, save_figure, write_explorer, write_stats
    from gmlp_vision.filters.draw import check_options
    from gmlp_vision.filters.explorer import PAGE_FILES, layers_shown
    from gmlp_vision.filters.options import check_ending, parse_layers
    from gmlp_vision.filters.sheet import FIGURE_FILES
    from gmlp_vision.filters.table import STATS_FILES, untrained_notice

    if not args.out and (args.draw or args.tokens or args.scale):
        raise UserError("--draw, --tokens and --scale are of the figure: name it with -o FILE.png")
    if args.layers and not (args.out or args.html):
        raise UserError(
            "--layers are of the figure and the page: name one with -o FILE.png or --html FILE.html"
        )
    if args.image and not args.html:
        raise UserError("--image lies under the grid of the page: name it with --html FILE.html")
    check_options(args.draw, args.layers, args.tokens, args.scale)
    for path, endings, what in (
        (args.out, FIGURE_FILES, "a figure is"),
        (args.stats, STATS_FILES, "statistics are"),
        (args.html, PAGE_FILES, "the page is"),
    ):
        if path:
            check_ending(path, endings, what)
            if not path.parent.is_dir():
                raise UserError(f"{path} cannot be written: there is no folder {path.parent}")
    if args.image and not args.image.is_file():
        raise UserError(f"--image: there is no file {args.image}")
    bank = extract(args.what, tuple(args.grid) if args.grid else None, args.weights, args.model, args.prefix)
    chosen = bank.select(chain.from_iterable(parse_layers(args.layers))) if args.layers else bank
    page = layers_shown(chosen) if args.html else None
    stats = bank.stats()
    print(bank)
    print(format_stats(stats))
    if notice := untrained_notice(stats):
        print(notice)
    if args.out:
        save_figure(plot(bank, args.draw, args.layers, args.tokens, args.scale), args.out)
        print(f"wrote {args.out}")
    if args.stats:
        write_stats(stats, args.stats)
        print(f"wrote {args.stats}")
    if page:
        error = write_explorer(page, args.html, args.image)
        print(f"wrote {args.html}: {args.html.stat().st_size / 1e6:.1f} MB, weights within {error:.1g}")


COMMANDS: tuple[Any, ...] = (add_convert, add_demo, add_export, add_filters, add_info, add_recipe, add_run)

if __name__ == "__main__":
    sys.exit(main())
