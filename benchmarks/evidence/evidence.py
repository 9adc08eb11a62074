"""How gMLP and its relatives learn from 10,000 images in 5 epochs, each family as a row.

    python benchmarks/evidence/evidence.py ROW --data-dir /data/cifar10 --scripts pytorch-image-models
    python benchmarks/evidence/evidence.py table
    python benchmarks/evidence/evidence.py optimizers
    python benchmarks/evidence/evidence.py kernels
    python benchmarks/evidence/evidence.py rates --held-out
    python benchmarks/evidence/evidence.py levers --held-out
    python benchmarks/evidence/evidence.py speeds
    python benchmarks/evidence/evidence.py families
    python benchmarks/evidence/evidence.py tries
    python benchmarks/evidence/evidence.py figures
    python benchmarks/evidence/evidence.py learned
    python benchmarks/evidence/evidence.py record
    python benchmarks/evidence/evidence.py images --data-dir /data/cifar10

ROW is one of gmlp, frozen, constant, resmlp, mixer, vit; or {adamw, lamb, lars}_{1e-6, 1e-4, 1e-3}, an
optimizer and the standard deviation of W at its start; or {adamw, nadamuon}_{dense, dense+toeplitz,
dense+3x3, dense+7x7}, an optimizer and what W is, or nadamuon_dense+toeplitz_FORM, the kernel in another
form; or {adamw, muon, nadamuon}_lrRATE, an optimizer and its learning rate; or a lever of levers.py; or
{adamw, nadamuon}_FAMILY, an optimizer and a family of families.py; or {lr2e-3, lr4e-3, lr16e-3}_FAMILY,
small_resmlp or small_mixer, a family at settings of its own.

`table` sums up the first, `optimizers`, `kernels`, `rates`, `levers`, `families` and `tries` the others.
`figures` draws what `families` tells; `speeds` measures how fast its models are, by turns, and nothing else
should run then. `learned` draws and measures what their operators look like after training. `record` writes
what the tables read of the finished runs into one small file, runs.jsonl; such files are in
benchmarks/evidence/measured, which --output takes.

Each is trained by timm's own train.py, out of the folder --scripts, with one recipe, once a seed. Options
that are not known here go to train.py as they are. `images` makes the folder of the 10,000 images alone,
which else the first row makes. With --held-out top-1 is that on 5,000 other training images: for choices, so
that the test images are looked at once. `images --held-out --whole` makes the folder for a long run, with all
other 45,000 to train on.

A finished run is kept, so a row that was stopped goes on with the same command. A run that was stopped starts
anew: resumed, it would draw the images in another order. Rows may run at the same time, once the images are
there.
"""

import argparse
import json
import os
import signal
import subprocess
import sys
import sysconfig
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
import yaml
from evidence_models import KERNELS, OPTIMIZERS, RATES, ROWS, Contender
from families import FAMILIES, MODELS, OTHER_RATES, SMALL, TRIES
from family_figures import figures
from family_report import families, tries
from learned import learned
from levers import LEVERS
from report import kernels, levers, optimizers, rates, report
from runs import folder_of, last_top1, machine, read_options, record
from speeds import speeds
from subset import HELD_OUT, make_subset
from tqdm import tqdm

from gmlp_vision.atomic import new_folder, write_file
from gmlp_vision.errors import UserError
from gmlp_vision.run import find_script
from gmlp_vision.shipped import find_recipe

ALL = {**ROWS, **OPTIMIZERS, **KERNELS, **RATES, **LEVERS, **FAMILIES, **TRIES}
# each from (output, seeds, recipe) to what is printed
TABLES = {
    "table": report,
    "optimizers": optimizers,
    "kernels": kernels,
    "rates": rates,
    "levers": levers,
    "families": families,
    "tries": tries,
    "figures": figures,
    "learned": learned,
    "speeds": speeds,
    "record": record,
}
# What a row sets itself: train.py takes the last word, and the table would tell of the first.
FIXED = ("-c", "--config", "--model", "--model-kwargs", "--device-modules", "--seed", "--experiment")


def run(args: argparse.Namespace) -> None:
    """Trains what is missing of a row, prints the table, or makes the folder of images alone."""
    recipe = yaml.safe_load(find_recipe(args.recipe).read_text())
    if args.row in TABLES:
        print(TABLES[args.row](runs_of(args), args.seeds, recipe))
        return
    script = find_script(str(args.scripts / "train.py")) if args.row in ALL else None
    images = args.output / f"cifar10_{'45k' if args.whole else '10k'}{'_held_out' if args.held_out else ''}"
    make_subset(args.data_dir, images, held_out=HELD_OUT if args.held_out else 0, whole=args.whole)
    if script is None:
        print(images)
        return
    for seed in tqdm(args.seeds, desc=args.row, unit="run"):
        folder = folder_of(runs_of(args), args.row, seed)
        if not folder.exists():
            options = ["--config", str(find_recipe(args.recipe)), *options_of(ALL[args.row], recipe)]
            train(script, images, folder, options, seed, args.further)


def runs_of(args: argparse.Namespace) -> Path:
    """The folder of all runs that look at the same images."""
    return args.output / "held_out" if args.held_out else args.output


def options_of(row: Contender, recipe: Mapping[str, Any]) -> list[str]:
    """What a row says to train.py. Its --model-kwargs would replace the recipe's, so those are said again."""
    words = [word for name, value in row.options.items() for word in (f"--{name}", *value.split())]
    if row.model_kwargs:
        model_kwargs = {**recipe.get("model_kwargs", {}), **row.model_kwargs}
        words += ["--model-kwargs", *(f"{key}={value}" for key, value in model_kwargs.items())]
    return [*words, "--model", row.model, "--device-modules", "gmlp_vision", "evidence_models", "levers"]


def train(
    script: Path, images: Path, folder: Path, options: Sequence[str], seed: int, further: Sequence[str]
) -> None:
    """One run of train.py into a new folder, which appears when the run is finished; its log lies beside it.

    Raises:
        UserError: train.py failed or was stopped.
        KeyboardInterrupt: with the name of the log.
    """
    log = folder.with_suffix(".log")  # written while it runs, and kept where it fails
    start = time.monotonic()
    with new_folder(folder, parents=True) as new, log.open("w") as output:
        launcher = Path(sysconfig.get_path("scripts"), "gmlp-vision")
        command = [str(launcher), "run", str(script), *options, *further, "--seed", str(seed)]
        command += ["--data-dir", str(images)]
        command += ["--output", str(new.parent), "--experiment", new.name]
        try:
            ended = subprocess.run(command, stdout=output, stderr=subprocess.STDOUT, env=environment())
        except KeyboardInterrupt:
            raise KeyboardInterrupt(f"stopped; the log is {log}, the same command goes on") from None
        if ended.returncode != 0:
            raise UserError(f"train.py ended with {ended.returncode}; the log is {log}")
        used = read_options(new)
        try:
            last_top1(new, used["epochs"])  # stopped by a signal, train.py ends with 0 all the same
        except UserError as error:
            raise UserError(f"{error}; the log is {log}") from None
        where = machine(torch.device(used["device"]))
        told = {"further": list(further), "seconds": time.monotonic() - start, "machine": where}
        write_file(new / "run.json", json.dumps(told, indent=1) + "\n")


def environment() -> dict[str, str]:
    """This one's, with the folder of evidence_models where train.py imports from."""
    places = [str(Path(__file__).resolve().parent), os.environ.get("PYTHONPATH", "")]
    return {**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, places))}


def check(args: argparse.Namespace) -> None:
    """Refuses what cannot work before anything slow begins.

    Raises:
        UserError: A folder is not named, or options that are not for train.py or not for the caller to set.
    """
    needed = {**dict.fromkeys(TABLES, ()), "images": ("data_dir",)}.get(args.row, ("data_dir", "scripts"))
    missing = [f"--{name.replace('_', '-')}" for name in needed if getattr(args, name) is None]
    if missing:
        raise UserError(f"{args.row} needs {' and '.join(missing)}")
    if args.further and args.row not in ALL:
        raise UserError(f"{args.row} takes no {' '.join(args.further)}")
    if args.whole and (args.row != "images" or not args.held_out):
        raise UserError("--whole is for `images --held-out`")
    fixed = [word for word in args.further if word.partition("=")[0] in FIXED]
    if fixed:
        raise UserError(
            f"a row sets {', '.join(fixed)} itself; leave it out, and name the seeds with --seeds"
        )


def arguments(argv: Sequence[str] | None) -> argparse.Namespace:
    of_families = {**FAMILIES, **TRIES}
    rows = "; ".join(f"{name}: {row.title}" for name, row in ALL.items() if name not in of_families)
    rows += f"; adamw_ or nadamuon_ and one of {', '.join(MODELS)}: the family with this optimizer"
    rows += f"; lr and one of {', '.join(OTHER_RATES)}, _ and one of them: NAdaMuon at this rate"
    rows += f"; small_ and one of {', '.join(SMALL)}: a map over tokens starts near 0"
    # no abbreviations: what is not known here goes to train.py
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter, allow_abbrev=False
    )
    parser.add_argument(
        "row",
        choices=[*ALL, "images", *TABLES],
        metavar="ROW",
        help=f"{rows}; or images, or {', or '.join(TABLES)}",
    )
    parser.add_argument(
        "--output", type=Path, default=Path("runs/evidence"), help="folder of the runs (%(default)s)"
    )
    parser.add_argument("--recipe", default="gmlp_pico4_10k", help="of train/ (%(default)s)")
    parser.add_argument("--seeds", type=int, nargs="+", default=[0, 1, 2], help="(%(default)s)")
    parser.add_argument(
        "--data-dir", type=Path, help="CIFAR-10, as train/ and test/; for a row and for images"
    )
    parser.add_argument(
        "--held-out", action="store_true", help="measure on 5,000 other training images, for choices"
    )
    parser.add_argument(
        "--whole", action="store_true", help="images --held-out: with all other training images"
    )
    parser.add_argument("--scripts", type=Path, help="folder with timm's train.py; for a row")
    args, args.further = parser.parse_known_args(argv)
    return args


def main(argv: Sequence[str] | None = None) -> int:
    args = arguments(argv)
    try:
        check(args)
        run(args)
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
