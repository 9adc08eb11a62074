"""How fast and lean gMLP is here, against timm's gMLP with the same weights and against the machine's limit.

    python benchmarks/speed/speed.py --short                 # gMLP-S without gradients, in about a minute
    python benchmarks/speed/speed.py --json speed.json       # everything: about two hours on 2 CPU cores
    python benchmarks/speed/speed.py --device cuda --json speed.json

A line of the table is one kind of run of one of our variants. In it all contenders take turns in one process;
a figure is the median of the rounds. "of bound" is our images per second as a part of those that the model's
multiply-adds would allow at the rate of a product of square matrices, of side 2048 or on a GPU 8192, in the
same runtime and turns.

On a CPU every line is measured under glibc's allocator as it is and with its thresholds raised
(docs/speed.md), each in a process of its own. What was measured before a run fails or is stopped is kept.
MKL_ENABLE_INSTRUCTIONS=AVX2 and ONEDNN_MAX_CPU_ISA=AVX2 imitate a CPU without AVX-512.
"""

import argparse
import importlib.util
import json
import signal
import sys
from collections.abc import Sequence
from pathlib import Path

import torch
from machine import import_seconds, machine, product_rates
from models import SIZES
from processes import ALLOCATORS, rows_of
from rates import DTYPES, inference, makers, training
from rows import Row, line, table
from runtimes import NEEDS, RUNTIMES
from tqdm import tqdm

from gmlp_vision.atomic import write_file
from gmlp_vision.errors import UserError

TASKS = {"inference": inference, "training": training}
USUAL = {
    "cpu": {"batches": [1, 16], "dtypes": ["fp32", "bf16"]},
    "cuda": {"batches": [1, 16, 256], "dtypes": ["fp32", "tf32", "bf16"]},
}


def plan(args: argparse.Namespace) -> list[Row]:
    """What to measure: the cells of a row that say so."""
    kinds = [kind for kind in makers(args.device) if kind[0] in args.runtimes and kind[1] in args.dtypes]
    runs = []
    for model in args.models:
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
        UserError: For tf32 on a CPU, a number below 1, a plan without a run, and a device, a package or a
            folder for the JSON that is not there.
    """
    if args.device.type == "cuda" and not torch.cuda.is_available():
        raise UserError("torch finds no CUDA device here; leave --device out")
    if args.device.type == "cpu" and "tf32" in args.dtypes:
        raise UserError("tf32 is a dtype of CUDA devices; leave it out of --dtypes, or add --device cuda")
    if min(args.rounds, args.threads, *args.batches) < 1:
        raise UserError(
            f"--rounds {args.rounds} --threads {args.threads} --batches {args.batches}; expected 1 or more"
        )
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
    print(f"{where['date']}, commit {where['commit']}, {where['cpu']}, {args.threads} threads")
    if args.device.type == "cpu":
        torch.set_num_threads(args.threads)
        where["gflops"] = product_rates()
        rates = ", ".join(f"{name} {rate:.0f}" for name, rate in where["gflops"].items())
        print(f"(3136, 256) by (256, 1536) in float32, GFLOP/s: {rates}")
    else:
        print(where["gpu"])
    print(where["versions"], where["variables"] or "")
    if not args.short:
        where["import_seconds"] = import_seconds()
        print(f"importing gmlp_vision after timm takes {where['import_seconds']:.3f} s more")
    sys.stdout.flush()
    found: list[Row] = []
    try:
        for allocator in args.allocators if args.device.type == "cpu" else ["as it is"]:
            for row in rows_of([sys.executable, __file__, *argv, "--allocator", allocator], allocator):
                found.append(row)
                if args.json:
                    write_file(args.json, json.dumps({**where, "rows": found}, indent=1) + "\n")
    finally:
        if found:
            print(f"\n{table(found)}", flush=True)


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
        "--rounds", type=int, default=7, help="(%(default)s); --short may do fewer to stay short"
    )
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--device", choices=USUAL, default="cpu")
    parser.add_argument("--allocators", nargs="+", choices=ALLOCATORS, default=list(ALLOCATORS))
    parser.add_argument(
        "--json", type=Path, help="file to write: the rows, the machine, the versions, the date"
    )
    # set for the processes of this
    parser.add_argument("--allocator", choices=ALLOCATORS, help=argparse.SUPPRESS)
    args = parser.parse_args(argv)
    args.batches = args.batches or USUAL[args.device]["batches"]
    args.dtypes = args.dtypes or USUAL[args.device]["dtypes"]
    args.device = torch.device(args.device)
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
    except KeyboardInterrupt:
        if not args.allocator:
            print("speed.py: stopped", file=sys.stderr)
        return 130
    except (UserError, OSError) as error:
        print(f"speed.py: {error}", file=sys.stderr)
        return 2
    return 0


if __name__ == "__main__":
    signal.signal(signal.SIGTERM, signal.default_int_handler)  # as Ctrl-C, so that no process lives on
    sys.exit(main())
