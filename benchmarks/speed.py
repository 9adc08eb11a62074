"""How fast and lean gMLP is here, against timm's gMLP with the same weights and against the machine's limit.

    python benchmarks/speed.py --short                 # gMLP-S without gradients, in under a minute
    python benchmarks/speed.py --json speed.json       # everything: hours on 2 CPU cores
    python benchmarks/speed.py --device cuda --json speed.json

A line of the table is one kind of run of one of our variants. In it all contenders take turns in one process;
a figure is the median of the rounds. "of bound" is our images per second as a part of those that the model's
multiply-adds would allow at the rate of a product of 2048 x 2048 matrices in the same dtype and turns.

On a CPU every line is measured under glibc's allocator as it is and with its thresholds raised
(docs/speed.md), each in a process of its own.
"""

import argparse
import json
import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import torch
from clock import take_turns
from contenders import SIZES, check_same, in_pieces, make_instead, make_pair
from memory import activation_bytes
from runtimes import CPU, CUDA
from table import Row, line, machine, table
from torch import nn
from torch.nn.functional import cross_entropy, pad
from torch.utils.flop_counter import FlopCounterMode
from tqdm import tqdm

DTYPES = {"fp32": torch.float32, "tf32": torch.float32, "bf16": torch.bfloat16}
TOLERANCES = {"fp32": 1e-3, "tf32": 0.1, "bf16": 0.2}
ALLOCATORS = {
    "as it is": {},
    "thresholds raised": {"MALLOC_MMAP_THRESHOLD_": "1000000000", "MALLOC_TRIM_THRESHOLD_": "10000000000"},
}
BOUND = 2048  # the side of the matrices whose product sets the bound


# -- what is measured ----------------------------------------------------------------------------------------


def inference(size: str, batch: int, runtime: str, dtype: str, args: argparse.Namespace) -> Iterator[Row]:
    """Images per second without gradients."""
    makers = CUDA if args.device.type == "cuda" else CPU
    make = makers[runtime, dtype]
    # a runtime other than torch takes a float32 model, and turns it to bf16 itself
    kind = torch.float32 if runtime in ("onnxruntime", "openvino") else DTYPES[dtype]
    ours, theirs = (model.to(args.device, kind) for model in make_pair(size))
    x = images(batch, args.device, kind)
    with torch.inference_mode():
        check_same(ours, theirs, x, TOLERANCES[dtype])
    calls = {"timm": make(theirs, x), "ours": make(ours, x)}
    if runtime == "eager" and batch > 4 and args.device.type == "cpu":
        calls["ours, in pieces of 4"] = torch.inference_mode()(lambda: in_pieces(ours, 4)(x))
    if args.device.type == "cuda" and runtime == "eager":
        calls |= {name: make(variant, x) for name, variant in gpu_variants(ours)}
    if not args.short:
        calls |= {name: make(model.to(args.device, kind), x) for name, model in make_instead(size).items()}
    yield from rows("inference", size, batch, runtime, dtype, calls, macs(ours, x), args)


def training(size: str, batch: int, dtype: str, args: argparse.Namespace) -> Iterator[Row]:
    """Images per second of forward, loss and backward, and the bytes kept between them; bf16 by autocast."""
    ours, theirs = (model.train().to(args.device) for model in make_pair(size))
    x = images(batch, args.device, torch.float32)
    labels = torch.zeros(batch, dtype=torch.long, device=args.device)
    steps: dict[str, tuple[Callable[[], torch.Tensor], nn.Module]] = {}

    def add(name: str, model: nn.Module, **checkpointing: Any) -> None:
        def forward() -> torch.Tensor:
            if hasattr(model, "set_grad_checkpointing") and name.startswith("ours"):
                model.set_grad_checkpointing(**checkpointing)
            with torch.autocast(args.device.type, torch.bfloat16, enabled=dtype == "bf16"):
                return cross_entropy(model(x), labels)

        steps[name] = forward, model

    add("timm", theirs)
    add("ours", ours, enable=False)
    add("ours, checkpointing", ours)
    add("ours, checkpointing blocks", ours, mode="block")
    for name, model in make_instead(size).items():
        add(name, model.to(args.device).train())

    def step(forward: Callable[[], torch.Tensor], model: nn.Module) -> None:
        model.zero_grad(set_to_none=False)
        forward().backward()

    calls = {name: lambda pair=pair: step(*pair) for name, pair in steps.items()}
    found = list(rows("training", size, batch, "eager", dtype, calls, 3 * macs(ours, x), args))
    alive = {name: activation_bytes(forward, args.device) for name, (forward, _) in steps.items()}
    for row in found:
        row["activations"] = {k: [b / batch / 2**20 for b in v] for k, v in alive.items() if k in shown(row)}
        yield row


def rows(
    task: str, size: str, batch: int, runtime: str, dtype: str, calls: Any, model_macs: int, args: Any
) -> Iterator[Row]:
    """One row for each of our variants among `calls`; they and the product that sets the bound take turns."""
    torch.set_float32_matmul_precision("high" if dtype == "tf32" else "highest")
    square = torch.randn(BOUND, BOUND, device=args.device).to(DTYPES[dtype])
    product = torch.inference_mode()(lambda: square @ square)
    rounds = args.rounds * (5 if batch == 1 and task == "inference" else 1)  # short ones vary more
    taken = take_turns({**calls, "product": product}, rounds, args.device)
    bound = BOUND**3 / taken.pop("product") / model_macs
    speeds = {name: batch / seconds for name, seconds in taken.items()}
    instead = {name: v for name, v in speeds.items() if name != "timm" and not name.startswith("ours")}
    for name, speed in speeds.items():
        if name.startswith("ours"):
            yield {
                "allocator": args.allocator,
                "model": size,
                "batch": batch,
                "dtype": dtype,
                "runtime": runtime,
                "task": task,
                "variant": name,
                "images_per_second": {
                    "timm": speeds["timm"],
                    name: speed,
                    **(instead if name == "ours" else {}),
                },
                "ratio": speed / speeds["timm"],
                "of_bound": speed / bound,
            }


def shown(row: Row) -> list[str]:
    return list(row["images_per_second"])


def images(batch: int, device: torch.device, dtype: torch.dtype) -> torch.Tensor:
    x = torch.randn(batch, 3, 224, 224, generator=torch.Generator().manual_seed(1))
    return x.to(device, dtype)


def macs(model: nn.Module, x: torch.Tensor) -> int:
    """Multiply-adds of one image."""
    counter = FlopCounterMode(display=False)
    with counter, torch.no_grad():
        model(x[:1])
    return counter.get_total_flops() // 2


def gpu_variants(ours: nn.Module) -> Iterator[tuple[str, nn.Module]]:
    """What might pay on a GPU: rows of W at a stride that is a multiple of 8; the gate as Triton kernels."""
    from copy import deepcopy

    padded = deepcopy(ours)
    for block in padded.blocks:
        weight = block.mlp_channels.gate.proj.weight
        n = weight.shape[0]
        weight.data = pad(weight.data, (0, -n % 8))[:, :n]
    yield "ours, W padded", padded
    fused = deepcopy(ours)
    for block in fused.blocks:
        block.mlp_channels.gate.compile()  # inductor writes norm, bias and product with Z1 as Triton kernels
    yield "ours, gate compiled", fused


# -- the run ------------------------------------------------------------------------------------------------


def plan(args: argparse.Namespace) -> list[Callable[[], Iterator[Row]]]:
    makers = CUDA if args.device.type == "cuda" else CPU
    runs: list[Callable[[], Iterator[Row]]] = []
    for size in args.models:
        for runtime, dtype in makers:
            if runtime in args.runtimes and dtype in args.dtypes:
                runs += [
                    lambda a=(size, batch, runtime, dtype): inference(*a, args) for batch in args.batches
                ]
        if "training" in args.tasks:
            largest = max(args.batches)
            runs += [
                lambda a=(size, largest, dtype): training(*a, args)
                for dtype in args.dtypes
                if dtype != "tf32"
            ]
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
    parser.add_argument("--short", action="store_true", help="gMLP-S, eager, without gradients")
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
        args.models, args.runtimes, args.tasks = ["s"], ["eager"], ["inference"]
    if "inference" not in args.tasks:
        args.runtimes = []
    return args


def main() -> None:
    args = arguments()
    if args.allocator:
        json.dump(measure(args), sys.stdout)
        return
    found, where = measure_in_processes(args), {**machine(args.device), "threads": args.threads}
    print(f"{where['date']}, {where['gpu'] or where['cpu']}, {args.threads} threads, {where['versions']}")
    print(f"importing gmlp_vision after timm takes {where['import_seconds']:.3f} s more\n")
    print(table(found))
    if args.json:
        args.json.write_text(json.dumps({**where, "rows": found}, indent=1) + "\n")


if __name__ == "__main__":
    main()
