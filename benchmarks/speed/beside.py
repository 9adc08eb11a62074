"""A family beside its authors' own code, with the same weights: logits compared, then speed in turns.

    python benchmarks/speed/beside.py NAME --theirs FILE.py:FUNCTION [--runtimes eager training bf16 openvino]

FILE.py is yours: FUNCTION() in it gives the authors' model, a torch module, whose state dict is in the names
of a layout of the family (docs/weights.md). Ratios are of the medians, above 1 where ours is faster.
"""

import argparse
import importlib.util
import statistics
import sys
import tempfile
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import timm
import torch
from clock import take_turns
from machine import machine
from runtimes import open_in_openvino
from torch import nn
from torch.nn.functional import cross_entropy
from tqdm import tqdm

from gmlp_vision import load_checkpoint
from gmlp_vision.errors import UserError

RUNTIMES = ("eager", "training", "bf16", "openvino")
DEVICE = torch.device("cpu")
TOLERANCE = 1e-4  # of the largest logit, in float32


def their_model(where: str) -> nn.Module:
    """What FUNCTION of FILE.py gives.

    Raises:
        UserError: There is no such file or function, or it gives no module.
    """
    file, _, function = where.rpartition(":")
    spec = importlib.util.spec_from_file_location("theirs", file) if Path(file).is_file() else None
    if spec is None or spec.loader is None:
        raise UserError(f"--theirs is {where}; expected FILE.py:FUNCTION, and FILE.py to be there")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    model = getattr(module, function, lambda: None)()
    if not isinstance(model, nn.Module):
        raise UserError(f"{function} of {file} gives a {type(model).__name__}; expected a torch module")
    return model


def pair(name: str, where: str) -> tuple[nn.Module, nn.Module]:
    """Theirs, perturbed so that logits vary, and ours with its weights."""
    torch.manual_seed(0)
    theirs = their_model(where)
    with torch.no_grad():
        for p in theirs.parameters():
            p.add_(torch.randn_like(p) * 0.02)
    ours = timm.create_model(name)
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / "theirs.pth"
        torch.save(theirs.state_dict(), file)
        load_checkpoint(ours, file)
    return theirs, ours


def logits(model: nn.Module, x: torch.Tensor) -> torch.Tensor:
    y = model(x)
    return y[0] if isinstance(y, tuple | list) else y


def call_of(runtime: str, model: nn.Module, x: torch.Tensor) -> Callable[[], Any]:
    """One call of a model in a runtime."""
    if runtime == "training":
        classes = torch.zeros(len(x), dtype=torch.long)

        def step() -> None:
            model.train()
            model.zero_grad()
            cross_entropy(logits(model, x), classes).backward()

        return step
    if runtime == "openvino":
        with tempfile.TemporaryDirectory() as folder:
            path = Path(folder) / "model.onnx"
            torch.onnx.export(model.eval(), (x,), path, input_names=["image"], dynamo=True, verbose=False)
            return open_in_openvino(path, x)

    def inference() -> torch.Tensor:
        with torch.inference_mode(), torch.autocast("cpu", torch.bfloat16, enabled=runtime == "bf16"):
            return logits(model.eval(), x)

    return inference


def compare(args: argparse.Namespace) -> None:
    """Prints a row for each runtime.

    Raises:
        UserError: The two compute different things.
    """
    theirs, ours = pair(args.name, args.theirs)
    size = timm.data.resolve_input_data_config(ours)["input_size"]
    x = torch.randn(args.batch, *size)
    with torch.no_grad():
        expected, found = logits(theirs.eval(), x), ours.eval()(x)
    difference = ((expected - found).abs().max() / expected.abs().max()).item()
    if not difference <= TOLERANCE:
        raise UserError(f"{args.name}: the logits differ by {difference:.2g} of the largest; nothing to time")
    where = machine(DEVICE)
    print(f"{where['date']}, {where['cpu']}, {torch.get_num_threads()} threads, batch {args.batch}")
    print(where["versions"], where["variables"] or "")
    print(f"{args.name}: logits within {difference:.1g} of the largest")
    for runtime in tqdm(args.runtimes, unit="runtime"):
        here = call_of(runtime, ours, x)
        try:
            there = call_of(runtime, theirs, x)
        except Exception as error:  # code of others may not be exported
            rate = args.batch / statistics.median(take_turns({"ours": here}, args.rounds, DEVICE)["ours"])
            why = f"{type(error).__name__}: {str(error).strip().splitlines()[-1]}"
            print(f"| {args.name} | {runtime} | not exported | {rate:.1f} | - | - | ({why})", flush=True)
            continue
        taken = take_turns({"theirs": there, "ours": here}, args.rounds, DEVICE)
        each = [t / o for t, o in zip(taken["theirs"], taken["ours"], strict=True)]
        rates = [f"{args.batch / statistics.median(taken[who]):.1f}" for who in ("theirs", "ours")]
        print(
            f"| {args.name} | {runtime} | {rates[0]} | {rates[1]} | **{statistics.median(each):.2f}** | "
            f"{min(each):.2f} to {max(each):.2f} |",
            flush=True,
        )


def arguments(argv: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("name", metavar="NAME")
    parser.add_argument("--theirs", required=True, metavar="FILE.py:FUNCTION")
    parser.add_argument("--runtimes", nargs="+", choices=RUNTIMES, default=RUNTIMES)
    parser.add_argument("--batch", type=int, default=8, help="images a call (%(default)s)")
    parser.add_argument("--rounds", type=int, default=5, help="timed calls (%(default)s)")
    return parser.parse_args(argv)


def main(argv: Sequence[str] | None = None) -> int:
    args = arguments(argv)
    try:
        if not timm.is_model(args.name):
            raise UserError(f"timm knows no model {args.name}")
        if args.batch < 1 or args.rounds < 1:
            raise UserError(f"batch is {args.batch} and rounds {args.rounds}; expected at least 1 of each")
        compare(args)
    except UserError as error:
        print(f"beside.py: {error}", file=sys.stderr)
        return 2
    except KeyboardInterrupt:
        print("beside.py: stopped", file=sys.stderr)
        return 130
    return 0


if __name__ == "__main__":
    sys.exit(main())
