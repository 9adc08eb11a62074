"""How fast and lean gMLP is here, against timm's gMLP with the same weights and against the machine's limit.

    python benchmarks/speed.py --short                 # gMLP-S without gradients, in under a minute
    python benchmarks/speed.py --json speed.json       # everything: hours on 2 CPU cores
    python benchmarks/speed.py --device cuda --json speed.json

A line of the table is one kind of run of one of our variants. In it all contenders take turns in one process;
a figure is the median of the rounds. "of bound" is our images per second as a part of those that the model's
multiply-adds would allow at the rate of a product of 2048 x 2048 matrices in the same runtime and turns.

On a CPU every line is measured under glibc's allocator as it is and with its thresholds raised
(docs/speed.md), each in a process of its own.
"""

import argparse
import json
import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path

import torch
from contenders import SIZES
from rates import DTYPES, inference, makers, training
from table import Row, import_seconds, line, machine, table
from tqdm import tqdm

ALLOCATORS = {
    "as it is": {},
    "thresholds raised": {"MALLOC_MMAP_THRESHOLD_": "1000000000", "MALLOC_TRIM_THRESHOLD_": "10000000000"},
}


def plan(args: argparse.Namespace) -> list[Callable[[], Iterator[Row]]]:
    runs = []
    for model in args.models:
        common = {"allocator": args.allocator, "model": model}
        for runtime, dtype in makers(args.device):
            if "inference" in args.tasks and runtime in args.runtimes and dtype in args.dtypes:
                for batch in args.batches:
                    run = {**common, "batch": batch, "dtype": dtype, "runtime": runtime, "task": "inference"}
                    runs.append(partial(inference, run, args))
        for dtype in args.dtypes if "training" in args.tasks else []:
            run = {
                **common,
                "batch": max(args.batches),
                "dtype": dtype,
                "runtime": "eager",
                "task": "training",
            }
            runs.append(partial(training, run, args))
    return runs


def measure(args: argparse.Namespace) -> list[Row]:
    """All rows of one allocator, in this process."""
    torch.set_num_threads(args.threads)
    found: list[Row] = []
    for run in tqdm(plan(args), desc=f"allocator {args.allocator}", file=sys.stderr):
        for row in run():
            found.append(row)
            tqdm.write(line(row), file=sys.stderr)
    return found


def measure_in_processes(args: argparse.Namespace) -> list[Row]:
    """All rows: for each allocator in a process of its own, since glibc reads its thresholds at the start."""
    found = []
    for name in args.allocators if args.device.type == "cpu" else ["as it is"]:
        command = [sys.executable, __file__, *sys.argv[1:], "--allocator", name]
        environment = {**os.environ, **ALLOCATORS[name]}
        output = subprocess.run(command, env=environment, check=True, stdout=subprocess.PIPE).stdout
        found += json.loads(output)
    return found


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument(
        "--short", action="store_true", help="gMLP-S, batch 16, float32, eager, without gradients"
    )
    parser.add_argument("--models", nargs="+", choices=SIZES, default=list(SIZES))
    parser.add_argument("--batches", nargs="+", type=int, default=[1, 16])
    parser.add_argument("--dtypes", nargs="+", choices=DTYPES, default=["fp32", "bf16"])
    parser.add_argument(
        "--runtimes", nargs="*", default=["eager", "compile", "cuda graphs", "onnxruntime", "openvino"]
    )
    parser.add_argument(
        "--tasks", nargs="+", choices=("inference", "training"), default=["inference", "training"]
    )
    parser.add_argument(
        "--rounds", type=int, default=7, help="an odd number, at least 7 (default: %(default)s)"
    )
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--device", type=torch.device, default=torch.device("cpu"))
    parser.add_argument("--allocators", nargs="+", choices=ALLOCATORS, default=list(ALLOCATORS))
    parser.add_argument(
        "--json", type=Path, help="file to write: the rows, the machine, the versions, the date"
    )
    parser.add_argument(
        "--allocator", choices=ALLOCATORS, help=argparse.SUPPRESS
    )  # set for the processes of this
    args = parser.parse_args()
    if args.short:
        args.models, args.dtypes, args.runtimes, args.tasks = ["s"], ["fp32"], ["eager"], ["inference"]
        args.batches = [16]
    return args


def main() -> None:
    args = arguments()
    if args.allocator:
        json.dump(measure(args), sys.stdout)
        return
    found, where = measure_in_processes(args), {**machine(args.device), "threads": args.threads}
    print(f"{where['date']}, {where['gpu'] or where['cpu']}, {args.threads} threads, {where['versions']}")
    if not args.short:
        where["import_seconds"] = import_seconds()
        print(f"importing gmlp_vision after timm takes {where['import_seconds']:.3f} s more")
    print()
    print(table(found))
    if args.json:
        args.json.write_text(json.dumps({**where, "rows": found}, indent=1) + "\n")


if __name__ == "__main__":
    main()
