"""What is measured of one kind of run: a row for each of our variants, all contenders taking turns."""

import argparse
import math
from collections.abc import Iterator
from copy import deepcopy
from functools import partial
from typing import Any

import torch
from clock import take_turns
from memory import activation_bytes
from models import TOLERANCES, Run, check_same, make_baselines, make_pair
from rows import Row, rows
from runtimes import CPU, CUDA, Maker, eager
from torch import nn
from torch.nn.functional import cross_entropy, pad
from torch.utils.flop_counter import FlopCounterMode

DTYPES = {"fp32": torch.float32, "tf32": torch.float32, "bf16": torch.bfloat16}
SIDES = {"cpu": 2048, "cuda": 8192}  # of the matrices whose product sets the bound
SHORT = 15.0  # seconds for all rounds of one run of the short mode; there are two, each with its start


class Product(nn.Module):
    """A plain product of square matrices; its rate in a runtime bounds what any model can reach there."""

    def __init__(self, side: int) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.randn(side, side), requires_grad=False)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x @ self.weight


def product(make: Maker, device: torch.device, dtype: torch.dtype) -> Run:
    matrices = Product(SIDES[device.type]).to(device, dtype)
    return make(matrices, torch.randn_like(matrices.weight))


def makers(device: torch.device) -> dict[tuple[str, str], Maker]:
    """The makers of a run, by runtime and dtype, that this kind of device has."""
    return CUDA if device.type == "cuda" else CPU


def set_precision(dtype: str) -> None:
    """Products and convolutions of float32 are in tf32 if that is asked for, and else are not."""
    torch.set_float32_matmul_precision("high" if dtype == "tf32" else "highest")
    torch.backends.cudnn.allow_tf32 = dtype == "tf32"


def inference(run: Row, args: argparse.Namespace) -> Iterator[Row]:
    """Images per second without gradients."""
    torch.compiler.reset()  # what was compiled for earlier runs neither serves nor counts in this one
    set_precision(run["dtype"])
    make = makers(args.device)[run["runtime"], run["dtype"]]
    # a runtime other than torch takes a float32 model, and turns it to bf16 itself
    dtype = torch.float32 if run["runtime"] in ("onnxruntime", "openvino") else DTYPES[run["dtype"]]
    ours, theirs = (model.to(args.device, dtype) for model in make_pair(run["model"]))
    x = images(run["batch"]).to(args.device, dtype)
    calls = {"timm": make(theirs, x), "ours": make(ours, x)}
    if run["runtime"] == "eager" and run["batch"] > 4 and args.device.type == "cpu" and not args.short:
        pieces = x.split(4)
        calls["ours, in pieces of 4"] = torch.inference_mode()(lambda: torch.cat([*map(ours, pieces)]))
    if run["runtime"] == "eager" and args.device.type == "cuda":
        calls |= {name: make(variant, x) for name, variant in gpu_variants(ours)}
    check_same(calls, TOLERANCES[run["dtype"]])
    if not args.short:
        baselines = make_baselines(run["model"]).items()
        calls |= {name: make(model.to(args.device, dtype), x) for name, model in baselines}
    calls["product"] = product(make, args.device, dtype)
    rounds = args.rounds * (5 if run["batch"] == 1 else 1)  # short ones vary more
    taken = take_turns(calls, rounds, args.device, SHORT if args.short else math.inf)
    yield from rows(run, taken, macs(ours, x), SIDES[args.device.type] ** 3)


def training(run: Row, args: argparse.Namespace) -> Iterator[Row]:
    """Images per second of forward, loss and backward, and the bytes kept between them; bf16 by autocast."""
    set_precision(run["dtype"])
    ours, theirs = (model.train().to(args.device) for model in make_pair(run["model"]))
    x = images(run["batch"]).to(args.device)
    bf16 = run["dtype"] == "bf16"
    models: dict[str, tuple[Any, ...]] = {
        "timm": (theirs,),
        "ours": (ours, {"enable": False}),
        "ours, checkpointing": (ours, {}),
        "ours, checkpointing blocks": (ours, {"mode": "block"}),
        **{name: (model.train().to(args.device),) for name, model in make_baselines(run["model"]).items()},
    }
    calls: dict[str, Run] = {name: partial(step, x, bf16, *model) for name, model in models.items()}
    check_same(calls, TOLERANCES[run["dtype"]])
    calls["product"] = product(eager, args.device, DTYPES[run["dtype"]])
    taken = take_turns(calls, args.rounds, args.device)
    mib = {}
    for name, model in models.items():
        kept = activation_bytes(lambda model=model: loss(forward(x, bf16, *model)), args.device)
        mib[name] = [b / run["batch"] / 2**20 for b in kept]
    for row in rows(run, taken, 3 * macs(ours, x), SIDES[args.device.type] ** 3):
        yield {**row, "activations": {name: mib[name] for name in row["images_per_second"]}}


def step(x: torch.Tensor, bf16: bool, model: Any, checkpointing: Row | None = None) -> torch.Tensor:
    """Forward, loss and backward; returns the logits.

    Args:
        checkpointing: What is handed to `set_grad_checkpointing` before; None where it is not called.
    """
    model.zero_grad(set_to_none=False)
    logits = forward(x, bf16, model, checkpointing)
    loss(logits).backward()
    return logits.detach()


def forward(x: torch.Tensor, bf16: bool, model: Any, checkpointing: Row | None = None) -> torch.Tensor:
    if checkpointing is not None:
        model.set_grad_checkpointing(**checkpointing)
    with torch.autocast(x.device.type, torch.bfloat16, enabled=bf16):
        return model(x)


def loss(logits: torch.Tensor) -> torch.Tensor:
    return cross_entropy(logits.float(), torch.zeros(len(logits), dtype=torch.long, device=logits.device))


def images(batch: int) -> torch.Tensor:
    return torch.randn(batch, 3, 224, 224, generator=torch.Generator().manual_seed(1))


def macs(model: nn.Module, x: torch.Tensor) -> int:
    """Multiply-adds of one image."""
    counter = FlopCounterMode(display=False)
    with counter, torch.no_grad():
        model(x[:1])
    return counter.get_total_flops() // 2


def gpu_variants(ours: Any) -> Iterator[tuple[str, nn.Module]]:
    """What might pay on a GPU: rows of W at a stride that is a multiple of 8; the gate as Triton kernels."""
    padded = deepcopy(ours)
    for block in padded.blocks:
        weight = block.mlp_channels.gate.proj.weight
        n = weight.shape[0]
        weight.data = pad(weight.data, (0, -n % 8))[:, :n]
    yield "ours, W padded", padded
    fused = deepcopy(ours)
    for block in fused.blocks:  # inductor writes norm, bias and product with Z1 as Triton kernels
        block.mlp_channels.gate.compile(fullgraph=True, dynamic=False)
    yield "ours, gate compiled", fused
