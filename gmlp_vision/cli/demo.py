"""`gmlp-vision demo`."""

import argparse
from pathlib import Path
from typing import Any

from gmlp_vision.cli.options import path


def add(commands: Any) -> None:
    parser = commands.add_parser(
        "demo",
        help="train a small gMLP on scikit-learn's digits, in about a minute",
        epilog="example: gmlp-vision demo --output runs/second --seed 1",
    )
    parser.add_argument(
        "--output", type=path, help="folder to make (default: runs/demo; or runs/demo-pretrained)"
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
    parser.set_defaults(call=call)


def call(args: argparse.Namespace) -> None:
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
