"""What is measured of one kind of run: a row for each of our variants, all contenders taking turns."""

import argparse
import math
from collections.abc import Iterator
from copy import deepcopy
from functools import partial

import torch
from clock import take_turns
from contenders import check_same, in_pieces, make_instead, make_pair
from memory import activation_bytes
from runtimes import CPU, CUDA, Maker, eager
from table import Row
from torch import nn
from torch.nn.functional import cross_entropy, pad
from torch.utils.flop_counter import FlopCounterMode

DTYPES = {"fp32": torch.float32, "tf32": torch.float32, "bf16": torch.bfloat16}
TOLERANCES = {"fp32": 1e-3, "tf32": 0.1, "bf16": 0.2}
BOUND = 2048  # the side of the matrices whose product sets the bound
SHORT = 18.0  # seconds for all rounds of one run of the short mode; there are two, each with its start


class Product(nn.Module):
    """A plain matrix product; its rate in a runtime bounds what any model can reach there."""

    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.randn(BOUND, BOUND), requires_grad=False)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x @ self.weight


def makers(device: torch.device) -> dict[tuple[str, str], Maker]:
    """The makers of a run, by runtime and dtype, that this kind of device has."""
    return CUDA if device.type == "cuda" else CPU


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
    limit = SHORT if args.short else math.inf
    yield from rows(run, take_turns(calls, rounds, args.device, limit), macs(ours, x))


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
