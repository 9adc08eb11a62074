"""Large images: gMLP-S by what its W is, beside timm's ViT-S and DeiT-S, at one image.

    python benchmarks/speed/grids.py [--sizes 224 1024] [--models dense toeplitz] [--part 6] [--device cuda]

Each model at each size has a process of its own, which tells its peak memory, beyond that of the libraries.
Those of a size take turns; the seconds are medians, and so are the ratios of the single turns. A model that
does not fit into `--limit` GiB is told as such. With `--part 6` all models have a sixth of their blocks, all
equal, so that ratios of time hold. The tables are Markdown.
"""

import argparse
import json
import resource
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import timm
import torch
from clock import WARM_UP, seconds
from machine import machine
from torch.nn.functional import cross_entropy

import gmlp_vision  # noqa: F401  registers the names
from gmlp_vision.errors import UserError
from gmlp_vision.layers import SpatialGatingUnit

GMLP = "gmlp_s16"
KINDS = ("dense", "toeplitz", "7x7", "axial")  # of W
OTHERS = {"ViT-S": "vit_small_patch16_224", "DeiT-S": "deit_small_patch16_224"}
SIZES = (224, 384, 512, 768, 1024, 1536, 2048)
# forward without gradients; forward and backward; gMLP's spatial unit alone, without gradients
TASKS = ("inference", "training", "unit")
RUNS = {"cpu": 1, "cuda": 10}  # calls of one measurement
GIB = 2**30


def make(name: str, size: int, part: int, device: torch.device) -> Any:
    """A model for square images, with a part of its blocks."""
    torch.manual_seed(0)
    with device:
        if name in OTHERS:
            return timm.create_model(OTHERS[name], depth=12 // part, dynamic_img_size=True)
        return timm.create_model(GMLP, spatial=name, img_size=size, depth=30 // part)


def bytes_of_w(model: Any) -> int:
    """What the maps over tokens are made of, b left out."""
    units = [m for m in model.modules() if isinstance(m, SpatialGatingUnit)]
    names = ((name, p) for unit in units for name, p in unit.proj.named_parameters())
    return sum(p.numel() * p.element_size() for name, p in names if name != "bias")


def call_of(model: Any, task: str, size: int, bf16: bool, device: torch.device) -> Callable[[], Any]:
    x = torch.randn(1, 3, size, size, device=device)
    if task == "unit":
        gate = model.blocks[0].mlp_channels.gate
        model, x = gate, torch.randn(1, size // 16, size // 16, 2 * gate.out_dim, device=device)

    def inference() -> None:
        with torch.inference_mode(), torch.autocast(device.type, torch.bfloat16, enabled=bf16):
            model.eval()(x)

    def training() -> None:
        model.train()
        model.zero_grad(set_to_none=False)
        with torch.autocast(device.type, torch.bfloat16, enabled=bf16):
            logits = model(x)
        cross_entropy(logits.float(), torch.zeros(1, dtype=torch.long, device=device)).backward()

    return training if task == "training" else inference


def resident(key: str) -> int:
    """Bytes of this process's memory: VmRSS now, VmHWM at most so far."""
    lines = dict(line.split(":", 1) for line in Path("/proc/self/status").read_text().splitlines())
    return int(lines[key].split()[0]) * 1024


def work(args: argparse.Namespace) -> None:
    """One model: answers each line of stdin with the seconds of a call and the most bytes so far."""
    answers, sys.stdout = sys.stdout, sys.stderr
    name, size, task = args.worker
    device, before = torch.device(args.device), resident("VmRSS")
    if device.type == "cpu":  # CUDA reserves addresses without end
        resource.setrlimit(resource.RLIMIT_DATA, (int(args.limit * GIB),) * 2)
    call, w = None, 0
    for _ in sys.stdin:
        try:
            if call is None:
                model = make(name, int(size), args.part, device)
                w = bytes_of_w(model)
                call = call_of(model, task, int(size), args.bf16, device)
                for _ in range(WARM_UP[device.type]):
                    call()
            taken = seconds(call, RUNS[device.type], device)
        except (RuntimeError, MemoryError) as error:
            if "memory" not in str(error):
                raise
            print(json.dumps(None), file=answers, flush=True)
            return
        most = resident("VmHWM") - before
        if device.type == "cuda":
            most = torch.cuda.max_memory_allocated(device)
        print(json.dumps({"seconds": taken, "peak": most, "w": w}), file=answers, flush=True)


def measure(names: Sequence[str], size: int, task: str, args: argparse.Namespace) -> dict[str, Any]:
    """Of each model its answers, fewer than the rounds if they take too long, or None if it does not fit.

    Raises:
        UserError: A process failed.
    """
    shared = [f"--{key}={getattr(args, key)}" for key in ("part", "limit", "device")]
    command = [sys.executable, __file__, *shared, *(["--bf16"] if args.bf16 else [])]
    found: dict[str, Any] = {name: [] for name in names}
    with ExitStack() as stack:
        pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "text": True}
        workers = {}
        for name in names:
            worker = [*command, "--worker", name, str(size), task]
            workers[name] = stack.enter_context(subprocess.Popen(worker, **pipes))
            stack.callback(workers[name].kill)
        start = time.monotonic()
        for _ in range(args.rounds):
            for name in [name for name in names if found[name] is not None]:
                worker = workers[name]
                worker.stdin.write("\n")
                worker.stdin.flush()
                line = worker.stdout.readline()
                if not line:
                    raise UserError(f"{name} at {size} px broke off with exit code {worker.wait()}")
                answer = json.loads(line)
                found[name] = None if answer is None else [*found[name], answer]
            if time.monotonic() - start > args.seconds:
                break
    return found


def row(size: int, task: str, found: dict[str, Any], args: argparse.Namespace) -> str:
    """Milliseconds, how many times as fast as dense, peak memory, and of gMLP's what W takes."""
    return f"| {size} | {task} | {' | '.join(cell(name, found, args.limit) for name in args.models)} |"


def cell(name: str, found: dict[str, Any], limit: float) -> str:
    if name not in found:
        return "-"
    if found[name] is None:
        return f"over {limit:g} GiB"
    last, taken = found[name][-1], [answer["seconds"] for answer in found[name]]
    words = f"{1e3 * statistics.median(taken):.1f} ms"
    if name != "dense" and found.get("dense"):
        ratios = [dense["seconds"] / ours for dense, ours in zip(found["dense"], taken, strict=True)]
        words += f" (**{statistics.median(ratios):.2f}**)"
    return f"{words}, {_mib(last['peak'])}" + (f", W {_mib(last['w'])}" if name not in OTHERS else "")


def _mib(number: int) -> str:
    return f"{number / 2**20:.0f} MiB" if number >= 2**20 else f"{number / 2**20:.2f} MiB"


def arguments(argv: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--models", nargs="+", choices=[*KINDS, *OTHERS], default=[*KINDS, *OTHERS])
    parser.add_argument("--sizes", nargs="+", type=int, default=SIZES, help="in pixels (%(default)s)")
    parser.add_argument("--tasks", nargs="+", choices=TASKS, default=TASKS)
    parser.add_argument("--part", type=int, choices=(1, 2, 3, 6), default=1, help="one of how many blocks")
    parser.add_argument("--rounds", type=int, default=3, help="timed calls (%(default)s)")
    parser.add_argument("--seconds", type=float, default=120, help="for the rounds of a row (%(default)s)")
    parser.add_argument("--limit", type=float, default=14, help="GiB that a model may take (%(default)s)")
    parser.add_argument("--device", choices=("cpu", "cuda"), default="cpu")
    parser.add_argument("--bf16", action="store_true", help="under autocast")
    parser.add_argument("--worker", nargs=3, metavar=("MODEL", "SIZE", "TASK"), help=argparse.SUPPRESS)
    return parser.parse_args(argv)


def main(argv: Sequence[str] | None = None) -> int:
    args = arguments(argv)
    if args.worker:
        work(args)
        return 0
    try:
        if args.rounds < 1 or any(size < 16 or size % 16 for size in args.sizes):
            raise UserError(
                f"rounds is {args.rounds}, sizes {args.sizes}; expected 1 or more, multiples of 16"
            )
        where = machine(torch.device(args.device))
        print(f"{where['date']}, {where['cpu']}, {torch.get_num_threads()} threads, batch 1, one of", end=" ")
        print(f"{args.part} blocks, {'bf16 autocast' if args.bf16 else 'float32'}, commit {where['commit']}")
        print(where["gpu"] or "", where["versions"], where["variables"] or "")
        print(
            f"\n| px | task | {' | '.join(args.models)} |\n|---|---|{'---|' * len(args.models)}", flush=True
        )
        for size in args.sizes:
            for task in args.tasks:
                names = [n for n in args.models if not (task == "unit" and n in OTHERS)]
                if size > 1536 and "dense" in names and args.device == "cpu":
                    names.remove("dense")  # its W alone takes 32 GB
                found = measure(names, size, task, args)
                print(row(size, task, found, args), flush=True)
    except UserError as error:
        print(f"grids.py: {error}", file=sys.stderr)
        return 2
    except KeyboardInterrupt:
        print("grids.py: stopped", file=sys.stderr)
        return 130
    return 0


if __name__ == "__main__":
    sys.exit(main())
