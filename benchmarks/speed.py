"""How fast and lean gMLP is here, against timm's gMLP with the same weights and against the machine's limit.

    python benchmarks/speed.py --short                 # gMLP-S without gradients, in under a minute
    python benchmarks/speed.py --json speed.json       # everything: about two hours on 2 CPU cores
    python benchmarks/speed.py --device cuda --json speed.json

A line of the table is one kind of run of one of our variants. In it all contenders take turns in one process;
a figure is the median of the rounds. "of bound" is our images per second as a part of those that the model's
multiply-adds would allow at the rate of a product of square matrices, of side 2048 or on a GPU 8192, in the
same runtime and turns.

On a CPU every line is measured under glibc's allocator as it is and with its thresholds raised
(docs/speed.md), each in a process of its own. What was measured before a run fails or is stopped is kept.
"""

import argparse
import importlib.util
import json
import signal
import sys
from collections.abc import Sequence
from pathlib import Path

import torch
from speed_contenders import SIZES
from speed_processes import ALLOCATORS, rows_of
from speed_rates import DTYPES, inference, makers, training
from speed_runtimes import NEEDS, RUNTIMES
from speed_table import Row, import_seconds, line, machine, table
from tqdm import tqdm

from gmlp_vision.atomic import replace_file
from gmlp_vision.errors import UserError

TASKS = {"inference": inference, "training": training}
USUAL = {
    "cpu": {"batches": [1, 16], "dtypes": ["fp32", "bf16"]},
    "cuda": {"batches": [1, 16, 256], "dtypes": ["fp32", "tf32", "bf16"]},
}


def plan(args: argparse.Namespace) -> list[Row]:
    """What to measure: the cells of a row that say so."""
    runs = []
    for model in args.models:
        kinds = [kind for kind in makers(args.device) if kind[0] in args.runtimes and kind[1] in args.dtypes]
        for runtime, dtype in kinds if "inference" in args.tasks else []:
            for batch in args.batches:
                run = {"batch": batch, "dtype": dtype, "runtime": runtime, "task": "inference"}
                runs.append({"model": model, **run})
        for dtype in args.dtypes if "training" in args.tasks else []:
            run = {"batch": max(args.batches), "dtype": dtype, "runtime": "eager", "task": "training"}
            runs.append({"model": model, **run})
    return runs


def check(args: argparse.Namespace) -> None:
    """Refuses what cannot work before anything slow begins.

    Raises:
        UserError: For tf32 on a CPU, a plan without a run, and a device, a package or a folder for the JSON
            that is not there.
    """
    if args.device.type == "cuda" and not torch.cuda.is_available():
        raise UserError("torch finds no CUDA device here; leave --device out")
    if args.device.type == "cpu" and "tf32" in args.dtypes:
        raise UserError("tf32 is a dtype of CUDA devices; leave it out of --dtypes, or add --device cuda")
    runs = plan(args)
    if not runs:
        raise UserError(f"nothing to measure: --runtimes and --dtypes leave no run on {args.device.type}")
    needed = {package for run in runs for package in NEEDS.get(run["runtime"], ())}
    missing = sorted(package for package in needed if importlib.util.find_spec(package) is None)
    if missing:
        raise UserError(
            f'{", ".join(missing)} not installed: pip install -e ".[export]", or name other --runtimes'
        )
    if args.json and not args.json.parent.is_dir():
        raise UserError(f"there is no folder {args.json.parent} for --json; make it first")


def measure(args: argparse.Namespace) -> None:
    """Prints the rows of one allocator as lines of JSON, measured in this process."""
    torch.set_num_threads(args.threads)
    for run in tqdm(plan(args), desc=f"allocator {args.allocator}", file=sys.stderr):
        for row in TASKS[run["task"]]({"allocator": args.allocator, **run}, args):
            print(json.dumps(row), flush=True)
            tqdm.write(line(row), file=sys.stderr)


def measure_in_processes(args: argparse.Namespace, argv: Sequence[str]) -> None:
    """Prints the table of all allocators, and writes it; where a process fails, what there is of it."""
    where = {**machine(args.device), "threads": args.threads}
    print(
        f"{where['date']}, commit {where['commit']}, {where['gpu'] or where['cpu']}, {args.threads} threads,"
    )
    print(where["versions"])
    if not args.short:
        where["import_seconds"] = import_seconds()
        print(f"importing gmlp_vision after timm takes {where['import_seconds']:.3f} s more")
    found: list[Row] = []
    try:
        for allocator in args.allocators if args.device.type == "cpu" else ["as it is"]:
            try:
                for row in rows_of([sys.executable, __file__, *argv, "--allocator", allocator], allocator):
                    found.append(row)
                    if args.json:
                        with replace_file(args.json) as path:
                            path.write_text(json.dumps({**where, "rows": found}, indent=1) + "\n")
            except KeyboardInterrupt:
                raise KeyboardInterrupt(f"stopped at allocator {allocator!r}") from None
    finally:
        if found:
            print(f"\n{table(found)}", flush=True)


def rounds(text: str) -> int:
    number = int(text)
    if number < 7 or number % 2 == 0:
        raise argparse.ArgumentTypeError(
            f"{number} rounds; expected an odd number, at least 7, for the median"
        )
    return number


def device(text: str) -> torch.device:
    if text.partition(":")[0] not in USUAL:
        raise argparse.ArgumentTypeError(f"{text!r}; expected cpu, cuda or cuda:N")
    return torch.device(text)


def arguments(argv: Sequence[str]) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument(
        "--short", action="store_true", help="gMLP-S, batch 16, float32, eager, without gradients"
    )
    parser.add_argument("--models", nargs="+", choices=SIZES, default=list(SIZES))
    parser.add_argument("--batches", nargs="+", type=int, help="default: 1 16, and 256 on a GPU")
    parser.add_argument("--dtypes", nargs="+", choices=DTYPES, help="default: all that the device has")
    parser.add_argument(
        "--runtimes", nargs="*", choices=RUNTIMES, default=list(RUNTIMES), help="of inference (default: all)"
    )
    parser.add_argument("--tasks", nargs="+", choices=TASKS, default=list(TASKS))
    parser.add_argument(
        "--rounds",
        type=rounds,
        default=7,
        help="an odd number, at least 7 (default: %(default)s); --short may do fewer to stay short",
    )
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--device", type=device, default="cpu")
    parser.add_argument("--allocators", nargs="+", choices=ALLOCATORS, default=list(ALLOCATORS))
    parser.add_argument(
        "--json", type=Path, help="file to write: the rows, the machine, the versions, the date"
    )
    parser.add_argument(
        "--allocator", choices=ALLOCATORS, help=argparse.SUPPRESS
    )  # set for the processes of this
    args = parser.parse_args(argv)
    for name, value in USUAL[args.device.type].items():
        setattr(args, name, getattr(args, name) or value)
    if args.short:
        args.models, args.dtypes, args.runtimes, args.tasks = ["s"], ["fp32"], ["eager"], ["inference"]
        args.batches = [16]
    return args


def main(argv: Sequence[str] | None = None) -> int:
    argv = sys.argv[1:] if argv is None else argv
    args = arguments(argv)
    try:
        check(args)
        if args.allocator:
            measure(args)
        else:
            measure_in_processes(args, argv)
    except KeyboardInterrupt as stopped:
        if not args.allocator:
            print(f"speed.py: {str(stopped) or 'stopped'}", file=sys.stderr)
        return 130
    except UserError as error:
        print(f"speed.py: {error}", file=sys.stderr)
        return 2
    return 0


if __name__ == "__main__":
    signal.signal(signal.SIGTERM, signal.default_int_handler)  # as Ctrl-C, so that no process lives on
    sys.exit(main())
