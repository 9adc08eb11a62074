"""The command that looks inside: filters."""

import argparse
from itertools import chain
from pathlib import Path
from typing import Any

from gmlp_vision.errors import UserError


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
    bank = extract(args.what, tuple(args.grid) if args.grid else None, args.weights, args.model)
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
