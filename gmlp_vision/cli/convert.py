"""`gmlp-vision convert`."""

import argparse
from pathlib import Path
from typing import Any

from gmlp_vision.checkpoints import DTYPES
from gmlp_vision.cli.options import PAIR, add_model, add_prefix, add_source, add_weights, name, pair


def add(commands: Any) -> None:
    parser = commands.add_parser(
        "convert",
        help="weights to other names, another image size or class count",
        epilog="example: gmlp-vision convert gmlp_pico4 pico48.safetensors --img-size 48 48",
    )
    add_source(parser, "IN")
    parser.add_argument(
        "out", metavar="OUT", type=name, help="file (.safetensors, .pth) or new folder (with config.json)"
    )
    parser.add_argument(
        "--from", dest="layout", metavar="WHOSE", help="names IN has (docs/weights.md; default: told by them)"
    )
    parser.add_argument("--to", metavar="WHOSE", help="names OUT gets (default: this package's)")
    add_model(parser)
    add_prefix(parser)
    parser.add_argument("--img-size", **PAIR, help="of the image, in pixels (default: as in IN)")
    parser.add_argument("--grid", **PAIR, help="of the tokens in IN, where it does not state its image size")
    parser.add_argument(
        "--patch-size", **PAIR, help="of a patch in IN, in pixels, where its shape leaves it open"
    )
    parser.add_argument(
        "--num-classes", type=int, metavar="N", help="another count than in IN gives a new head"
    )
    parser.add_argument(
        "--to-structure",
        metavar="KIND",
        help="the kind that W becomes the nearest of: toeplitz, axial, rank:8, ... (docs/structure.md)",
    )
    add_weights(parser)
    parser.add_argument("--dtype", choices=DTYPES, help="of the numbers in OUT (default: as in IN)")
    parser.set_defaults(call=call)


def call(args: argparse.Namespace) -> None:
    from gmlp_vision.checkpoints import convert_file
    from gmlp_vision.checkpoints.outputs import check_files
    from gmlp_vision.checkpoints.save import is_file_name

    out = Path(args.out)
    if is_file_name(out):
        check_files([out], args.source)  # who calls convert_file may mean it
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
        spatial=args.to_structure,
    )
    print(report)
    if report.explained:
        width = max(map(len, report.explained))
        print(f"  {'layer':<{width}}  share of W")
        for layer, share in report.explained.items():
            print(f"  {layer:<{width}}  {100 * share:8.2f} %")
    print(f"wrote {args.out}")
