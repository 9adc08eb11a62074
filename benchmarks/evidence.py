"""How gMLP learns from 10,000 images in 5 epochs, with and without mixing of tokens, beside three others.

    python benchmarks/evidence.py ROW --data-dir /data/cifar10 --scripts /path/to/pytorch-image-models
    python benchmarks/evidence.py table
    python benchmarks/evidence.py images --data-dir /data/cifar10

ROW is one of gmlp, frozen, constant, resmlp, mixer, vit. Each is trained by timm's own train.py with the
recipe gmlp_pico4_10k, once a seed. Options that are not known here go to train.py as they are. `images` makes
the folder of the 10,000 images alone, which else the first row makes.

A finished run is kept, so a row that was stopped goes on with the same command. A run that was stopped starts
anew: resumed, it would draw the images in another order. Rows may run at the same time.
"""

import argparse
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path

import torch
import yaml
from evidence_images import make_subset
from evidence_models import ROWS, Contender
from evidence_table import folder_of, last_top1, read_options, report
from speed_table import machine
from tqdm import tqdm

from gmlp_vision.atomic import new_folder
from gmlp_vision.errors import UserError
from gmlp_vision.run import find_script
from gmlp_vision.shipped import find_recipe

RECIPE = "gmlp_pico4_10k"
SUBSET = "cifar10_10k"
# What a row sets itself: train.py takes the last word, and the table would tell of the first.
FIXED = ("-c", "--config", "--model", "--model-kwargs", "--device-modules", "--seed", "--experiment")


def make_images(args: argparse.Namespace) -> None:
    """Makes the folder of images alone, and prints its name."""
    args.output.mkdir(parents=True, exist_ok=True)
    make_subset(args.data_dir, args.output / SUBSET)
    print(args.output / SUBSET)


def train_row(args: argparse.Namespace) -> None:
    """Trains what is missing of a row."""
    script = find_script(str(args.scripts / "train.py"))
    (args.output / args.row).mkdir(parents=True, exist_ok=True)
    make_subset(args.data_dir, args.output / SUBSET)
    for seed in tqdm(args.seeds, desc=args.row, unit="run"):
        folder = folder_of(args.output, args.row, seed)
        if not folder.exists():
            train(script, folder, ROWS[args.row], seed, args.further)


def train(script: Path, folder: Path, row: Contender, seed: int, further: Sequence[str]) -> None:
    """One run of train.py into a new folder, which appears when the run is finished; its log lies beside it.

    Raises:
        UserError: train.py failed or was stopped.
        KeyboardInterrupt: with the name of the log.
    """
    log = folder.with_suffix(".log")
    start = time.monotonic()
    with new_folder(folder) as new, log.open("w") as output:
        command = [sys.executable, "-m", "gmlp_vision.run", str(script), "--config", str(find_recipe(RECIPE))]
        command += [*further, "--data-dir", str(folder.parent.parent / SUBSET), "--model", row.model]
        if row.model_kwargs:
            command += ["--model-kwargs", *(f"{key}={value}" for key, value in row.model_kwargs.items())]
        command += ["--device-modules", "gmlp_vision", "evidence_models", "--seed", str(seed)]
        command += ["--output", str(new.parent), "--experiment", new.name]
        try:
            ended = subprocess.run(command, stdout=output, stderr=subprocess.STDOUT, env=environment())
        except KeyboardInterrupt:
            raise KeyboardInterrupt(f"stopped; the log is {log}, the same command goes on") from None
        if ended.returncode != 0:
            raise UserError(f"train.py ended with {ended.returncode}; the log is {log}")
        options = read_options(new)
        try:
            last_top1(new, options["epochs"])  # stopped by a signal, train.py ends with 0 all the same
        except UserError as error:
            raise UserError(f"{error}; the log is {log}") from None
        where = {**machine(torch.device(options["device"])), "threads": torch.get_num_threads()}
        told = {"further": list(further), "seconds": time.monotonic() - start, "machine": where}
        (new / "run.json").write_text(json.dumps(told, indent=1) + "\n")


def environment() -> dict[str, str]:
    """This one's, with the folder of evidence_models where train.py imports from."""
    places = [str(Path(__file__).resolve().parent), os.environ.get("PYTHONPATH", "")]
    return {**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, places))}


def check_further(args: argparse.Namespace) -> None:
    """Only a row has options for train.py, and not those that it sets itself.

    Raises:
        UserError: There are others.
    """
    if args.further and args.call is not train_row:
        raise UserError(f"{args.row} takes no {' '.join(args.further)}")
    fixed = [word for word in args.further if word.partition("=")[0] in FIXED]
    if fixed:
        raise UserError(
            f"a row sets {', '.join(fixed)} itself; leave it out, and name the seeds with --seeds"
        )


def print_table(args: argparse.Namespace) -> None:
    print(report(args.output, args.seeds, yaml.safe_load(find_recipe(RECIPE).read_text())))


def make_parser() -> argparse.ArgumentParser:
    output, seeds, data = (argparse.ArgumentParser(add_help=False) for _ in range(3))
    output.add_argument(
        "--output", type=Path, default=Path("runs/evidence"), help="folder of the runs (%(default)s)"
    )
    seeds.add_argument("--seeds", type=int, nargs="+", default=[0, 1, 2], help="(%(default)s)")
    data.add_argument("--data-dir", type=Path, required=True, help="CIFAR-10, as train/ and test/")
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    commands = parser.add_subparsers(dest="row", required=True, metavar="ROW")
    for name, row in ROWS.items():
        # no abbreviations: what is not known here goes to train.py
        train = commands.add_parser(name, parents=[output, seeds, data], help=row.title, allow_abbrev=False)
        train.add_argument("--scripts", type=Path, required=True, help="folder with timm's train.py")
        train.set_defaults(call=train_row)
    table = commands.add_parser("table", parents=[output, seeds], help="print the table of what is finished")
    table.set_defaults(call=print_table)
    images = commands.add_parser("images", parents=[output, data], help="make the folder of images alone")
    images.set_defaults(call=make_images)
    return parser


def main(argv: Sequence[str] | None = None) -> int:
    args, further = make_parser().parse_known_args(argv)
    args.further = further
    try:
        check_further(args)
        args.call(args)
    except KeyboardInterrupt as stopped:
        print(f"evidence.py: {str(stopped) or 'stopped'}", file=sys.stderr)
        return 130
    except (UserError, OSError) as error:
        print(f"evidence.py: {error}", file=sys.stderr)
        return 2
    return 0


if __name__ == "__main__":
    signal.signal(signal.SIGTERM, signal.default_int_handler)  # as Ctrl-C, so that train.py does not live on
    sys.exit(main())
