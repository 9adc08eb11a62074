"""`gmlp-vision verify`."""

import argparse
from typing import Any

from gmlp_vision.cli.options import add_prefix, add_weights, name, path


def add(commands: Any) -> None:
    parser = commands.add_parser(
        "verify",
        help="a model's top-1 by timm's validate.py, beside the published one",
        epilog="example: gmlp-vision verify cycle_b1 --data-dir IMAGENET --scripts pytorch-image-models",
    )
    parser.add_argument("model", metavar="NAME", type=name, help="model name, with or without a tag")
    parser.add_argument(
        "--data-dir", required=True, type=path, metavar="DIR", help="with a folder of images a class"
    )
    parser.add_argument(
        "--split", default="validation", help="folder in DIR, if it is there (default: %(default)s, val, ...)"
    )
    parser.add_argument(
        "--scripts", type=path, metavar="DIR", help="with validate.py (default: $TIMM_SCRIPTS, or here)"
    )
    parser.add_argument(
        "--checkpoint", type=name, metavar="FILE", help="with the weights (default: those released)"
    )
    parser.add_argument(
        "--crop-pct", type=float, metavar="X", help="part of the image that is shown (default: the cfg's)"
    )
    parser.add_argument(
        "--batch-size", type=int, default=128, metavar="N", help="images at a time (default: %(default)s)"
    )
    parser.add_argument(
        "--workers", type=int, default=4, metavar="N", help="that read images (default: %(default)s)"
    )
    parser.add_argument("--device", type=name, help="of torch (default: cuda or mps if there, else cpu)")
    add_prefix(parser)
    add_weights(parser)
    parser.set_defaults(call=call)


def call(args: argparse.Namespace) -> None:
    from gmlp_vision.verify import verify

    found = verify(
        args.model,
        args.data_dir,
        scripts=args.scripts,
        checkpoint=args.checkpoint,
        split=args.split,
        crop_pct=args.crop_pct,
        batch_size=args.batch_size,
        workers=args.workers,
        device=args.device,
        weights=args.weights,
        prefix=args.prefix,
    )
    print(f"images     {found.images:,}, {found.size} px, crop_pct {found.crop_pct:g}, {found.interpolation}")
    print(f"measured   {found.top1:.2f} top-1, {found.top5:.2f} top-5")
    if found.published is None:
        print(f"published  nothing is known for {found.name}")
    else:
        print(f"published  {found.published:g} top-1, {found.name}, by {found.source}")
        print(f"difference {found.top1 - found.published:+.2f}")
