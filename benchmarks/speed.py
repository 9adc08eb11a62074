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
from typing import Any

import torch
from clock import take_turns
from contenders import SIZES, check_same, in_pieces, make_instead, make_pair
from memory import activation_bytes
from runtimes import CPU, CUDA, eager
from table import Row, import_seconds, line, machine, table
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


class Product(nn.Module):
    """A plain matrix product; its rate in a runtime bounds what any model can reach there."""

    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.randn(BOUND, BOUND), requires_grad=False)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x @ self.weight


def inference(run: Row, args: argparse.Namespace) -> Iterator[Row]:
    """Images per second without gradients."""
    make = makers(args.device)[run["runtime"], run["dtype"]]
    torch.set_float32_matmul_precision("high" if run["dtype"] == "tf32" else "highest")
    # a runtime other than torch takes a float32 model, and turns it to bf16 itself
    dtype = torch.float32 if run["runtime"] in ("onnxruntime", "openvino") else DTYPES[run["dtype"]]
    ours, theirs = (model.to(args.device, dtype) for model in make_pair(run["model"]))
    x = images(run["batch"], args.device, dtype)
    with torch.inference_mode():
        check_same(ours, theirs, x, TOLERANCES[run["dtype"]])
    calls = {"timm": make(theirs, x), "ours": make(ours, x)}
    if run["runtime"] == "eager" and run["batch"] > 4 and args.device.type == "cpu" and not args.short:
        calls["ours, in pieces of 4"] = torch.inference_mode()(lambda: in_pieces(ours, 4)(x))
    if run["runtime"] == "eager" and args.device.type == "cuda":
        calls |= {name: make(variant, x) for name, variant in gpu_variants(ours)}
    if not args.short:
        instead = make_instead(run["model"]).items()
        calls |= {name: make(model.to(args.device, dtype), x) for name, model in instead}
    calls["product"] = make(
        Product().to(args.device, dtype), torch.randn(BOUND, BOUND).to(args.device, dtype)
    )
    rounds = args.rounds * (5 if run["batch"] == 1 else 1)  # short ones vary more
    yield from rows(run, take_turns(calls, rounds, args.device), macs(ours, x))


def training(run: Row, args: argparse.Namespace) -> Iterator[Row]:
    """Images per second of forward, loss and backward, and the bytes kept between them; bf16 by autocast."""
    ours, theirs = (model.train().to(args.device) for model in make_pair(run["model"]))
    x = images(run["batch"], args.device, torch.float32)
    labels = torch.zeros(run["batch"], dtype=torch.long, device=args.device)

    def loss(model: nn.Module, checkpointing: Row | None = None) -> torch.Tensor:
        if checkpointing is not None:
            model.set_grad_checkpointing(**checkpointing)
        with torch.autocast(args.device.type, torch.bfloat16, enabled=run["dtype"] == "bf16"):
            return cross_entropy(model(x), labels)

    models = {
        "timm": (theirs,),
        "ours": (ours, {"enable": False}),
        "ours, checkpointing": (ours, {}),
        "ours, checkpointing blocks": (ours, {"mode": "block"}),
        **{name: (model.train().to(args.device),) for name, model in make_instead(run["model"]).items()},
    }

    def step(model: nn.Module, *checkpointing: Row) -> None:
        model.zero_grad(set_to_none=False)
        loss(model, *checkpointing).backward()

    calls = {name: partial(step, *model) for name, model in models.items()}
    product = Product().to(args.device, DTYPES[run["dtype"]])
    calls["product"] = eager(product, torch.randn_like(product.weight))
    taken = take_turns(calls, args.rounds, args.device)
    kept = {name: activation_bytes(partial(loss, *model), args.device) for name, model in models.items()}
    mib = {name: [b / run["batch"] / 2**20 for b in alive_and_peak] for name, alive_and_peak in kept.items()}
    for row in rows(run, taken, 3 * macs(ours, x)):
        yield {**row, "activations": {name: mib[name] for name in row["images_per_second"]}}


def rows(run: Row, seconds: dict[str, float], model_macs: int) -> Iterator[Row]:
    """One row for each of our variants."""
    bound = BOUND**3 / seconds.pop("product") / model_macs
    speeds = {name: run["batch"] / s for name, s in seconds.items()}
    instead = {k: v for k, v in speeds.items() if k != "timm" and not k.startswith("ours")}
    for name in (name for name in speeds if name.startswith("ours")):
        shown = {"timm": speeds["timm"], name: speeds[name], **(instead if name == "ours" else {})}
        yield {
            **run,
            "variant": name,
            "images_per_second": shown,
            "ratio": speeds[name] / speeds["timm"],
            "of_bound": speeds[name] / bound,
        }


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


def makers(device: torch.device) -> dict[tuple[str, str], Any]:
    return CUDA if device.type == "cuda" else CPU


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
    parser.add_argument("--short", action="store_true", help="gMLP-S, float32, eager, without gradients")
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
