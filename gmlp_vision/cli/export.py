"""`gmlp-vision export`."""

import argparse
from typing import Any

from gmlp_vision.checkpoints import DTYPES
from gmlp_vision.cli.options import PAIR, add_model, add_prefix, add_source, pair, path


def add(commands: Any) -> None:
    parser = commands.add_parser(
        "export",
        help="a model for other runtimes, compared with the original before it is written",
        epilog="example: gmlp-vision export gmlp_pico4 pico.onnx --format onnx --dynamic-batch",
    )
    add_source(parser, "MODEL")
    parser.add_argument(
        "out", metavar="OUT", type=path, help="file to write; OpenVINO's, an .xml, gets a .bin"
    )
    formats = ("onnx", "openvino", "torchscript", "exported-program")
    parser.add_argument("--format", required=True, choices=formats, help="of the file")
    parser.add_argument("--img-size", **PAIR, help="of the image, in pixels (default: as in MODEL)")
    add_model(parser)
    add_prefix(parser)
    parser.add_argument("--dynamic-batch", action="store_true", help="any number of images (default: one)")
    parser.add_argument(
        "--dtype",
        choices=DTYPES,
        default="fp32",
        help="of weights and arithmetic; images and logits stay fp32 (default: %(default)s)",
    )
    parser.set_defaults(call=call)


def call(args: argparse.Namespace) -> None:
    from gmlp_vision.export import export_checkpoint

    parity = export_checkpoint(
        args.source,
        args.out,
        args.format,
        img_size=pair(args.img_size),
        dynamic_batch=args.dynamic_batch,
        dtype=args.dtype,
        model=args.model,
        prefix=args.prefix,
    )
    print(
        f"wrote {args.out}: its logits are within {parity.difference:.1g} of the model's, and "
        f"{parity.tolerance:g} is allowed (1 is the spread of the logits between images)"
    )
    for note in parity.notes:
        print(f"note: {note}")
