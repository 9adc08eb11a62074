"""The commands that train, or run what trains: demo, recipe, run."""

import argparse
import traceback
from pathlib import Path
from typing import Any


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
