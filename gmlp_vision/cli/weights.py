"""The commands that move weights: convert, info, export."""

import argparse
from pathlib import Path
from typing import Any

DTYPES = ("fp32", "fp16", "bf16")


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
    )
    print(report)
    print(f"wrote {args.out}")


def add_info(commands: Any) -> None:
    parser = commands.add_parser(
        "info", help="what a checkpoint or a model name is: sizes, grid, sha256, ..."
    )
    parser.add_argument("source", metavar="FILE|NAME", help="file, folder, hf-hub:OWNER/NAME or model name")
    parser.add_argument("--model", metavar="NAME", help="the model in it, where its tensors leave that open")
    parser.set_defaults(call=_info)


def _info(args: argparse.Namespace) -> None:
    from gmlp_vision.checkpoints import describe

    for title, value in describe(args.source, model=args.model).items():
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
        args.source, args.out, args.format, img_size=size, dynamic_batch=args.dynamic_batch, dtype=args.dtype
    )
    print(
        f"wrote {args.out}: its logits are within {parity.difference:.1g} of the model's, and "
        f"{parity.tolerance:g} is allowed (1 is the spread of the logits between images)"
    )
