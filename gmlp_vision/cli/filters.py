"""`gmlp-vision filters`."""

import argparse
from itertools import chain
from typing import Any

from gmlp_vision.cli.options import PAIR, add_model, add_prefix, add_source, add_weights, pair, path
from gmlp_vision.errors import UserError


def add(commands: Any) -> None:
    parser = commands.add_parser(
        "filters",
        help="what a network learned about space: statistics, a figure, a page to explore",
        epilog="example: gmlp-vision filters gmlp_pico4 -o filters.png --html explorer.html",
    )
    add_source(parser, "WHAT")
    parser.add_argument("-o", "--out", type=path, help="figure to write: .png, .pdf or .svg")
    parser.add_argument(
        "--draw",
        choices=("filters", "kernels", "stats", "units"),
        help="of the figure: filters (the default, where there are any), kernels (filters give their mean "
        "kernel), statistics over depth, hidden units",
    )
    parser.add_argument("--layers", help="of the figure and the page, counted from 0: 1,5,10-20")
    parser.add_argument("--tokens", help="of the figure: center,corners or grid:4 or ROW,COLUMN;...")
    parser.add_argument("--scale", help="what in the figure shares one: figure, layer or picture")
    parser.add_argument("--stats", type=path, help="statistics to write: .csv or .json")
    parser.add_argument("--html", type=path, help="page to write: one file, no network needed to open it")
    parser.add_argument("--image", type=path, help="picture to lay under the grid of the page")
    parser.add_argument("--grid", **PAIR, help="of the tokens, if not known")
    add_model(parser)
    add_prefix(parser)
    add_weights(parser)
    parser.set_defaults(call=call)


def call(args: argparse.Namespace) -> None:
    from gmlp_vision.checkpoints.outputs import check_files
    from gmlp_vision.filters import extract, format_stats, plot, save_figure, write_explorer, write_stats
    from gmlp_vision.filters.draw import check_options
    from gmlp_vision.filters.explorer import PAGE_FILES, layers_shown, photo
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
    for out, endings, what in (
        (args.out, FIGURE_FILES, "a figure is"),
        (args.stats, STATS_FILES, "statistics are"),
        (args.html, PAGE_FILES, "the page is"),
    ):
        if out:
            check_ending(out, endings, what)
    results = [out for out in (args.out, args.stats, args.html) if out]
    check_files(results, args.source, *([args.image] if args.image else []))
    if args.image:
        photo(args.image)
    bank = extract(args.source, pair(args.grid), args.weights, args.model, args.prefix)
    chosen = bank.select(chain.from_iterable(parse_layers(args.layers))) if args.layers else bank
    page = layers_shown(chosen) if args.html else None
    stats = bank.stats()
    figure = plot(bank, args.draw, args.layers, args.tokens, args.scale) if args.out else None
    print(bank)
    print(format_stats(stats))
    if notice := untrained_notice(stats):
        print(notice)
    if figure:
        save_figure(figure, args.out)
        print(f"wrote {args.out}")
    if args.stats:
        write_stats(stats, args.stats)
        print(f"wrote {args.stats}")
    if page:
        error = write_explorer(page, args.html, args.image)
        print(f"wrote {args.html}: {args.html.stat().st_size / 1e6:.1f} MB, weights within {error:.1g}")
