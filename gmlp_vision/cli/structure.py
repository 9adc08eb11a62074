"""`gmlp-vision structure`."""

import argparse
from pathlib import Path
from typing import Any

from gmlp_vision.cli.options import add_model, add_prefix, add_source, add_weights, path


def add(commands: Any) -> None:
    parser = commands.add_parser(
        "structure",
        help="accuracy as W is replaced by Toeplitz, axial, low-rank, ... ones: a table and a figure",
        epilog="example: gmlp-vision structure gmlp_pico4 --data-dir CIFAR10",
    )
    add_source(parser, "NAME|FILE")
    parser.add_argument(
        "--data-dir",
        required=True,
        type=path,
        metavar="DIR",
        help="with a folder for training and one for test",
    )
    parser.add_argument(
        "--output", type=path, metavar="DIR", help="to go on in or to make (default: runs/structure-NAME)"
    )
    parser.add_argument(
        "--kinds", nargs="+", metavar="KIND", help="such as toeplitz 5x5 rank:4 (default: eight)"
    )
    parser.add_argument(
        "--split", metavar="S", help="folder of the test images (default: validation, val or test)"
    )
    for what, count in (("layer", 2000), ("test", 10_000), ("train", 10_000)):
        where = "to test each layer alone" if what == "layer" else f"to {what} all layers"
        parser.add_argument(
            f"--{what}-images", type=int, default=count, metavar="N", help=f"{where} (default: %(default)s)"
        )
    parser.add_argument(
        "--batch-size", type=int, default=128, metavar="N", help="images at a time (default: %(default)s)"
    )
    parser.add_argument(
        "--workers", type=int, default=1, metavar="N", help="that read images (default: %(default)s)"
    )
    parser.add_argument("--device", help="of torch (default: cuda or mps if there, else cpu)")
    add_model(parser)
    add_prefix(parser)
    add_weights(parser)
    parser.set_defaults(call=call)


def call(args: argparse.Namespace) -> None:
    from gmlp_vision.filters.structures import format_structures
    from gmlp_vision.structure import FILES, study

    output = args.output or Path("runs") / f"structure-{Path(args.source).stem}"
    rows = study(
        args.source,
        args.data_dir,
        output,
        args.kinds,
        split=args.split,
        layer_images=args.layer_images,
        test_images=args.test_images,
        train_images=args.train_images,
        batch_size=args.batch_size,
        workers=args.workers,
        device=args.device,
        weights=args.weights,
        model=args.model,
        prefix=args.prefix,
    )
    print(format_structures(rows), end="")
    print(f"wrote {output}: {', '.join(FILES)}")
