"""A middle size of each family beside timm's DeiT-S and ResMLP-24: eager float32, inference and a step.

    python benchmarks/speed/families.py [NAME ...] [--batch 8] [--rounds 5]

Every family takes turns with DeiT-S in one process, and its ratio is that of their medians, above 1 where it
is faster. The table is Markdown.
"""

import argparse
import statistics
import sys
from collections.abc import Callable, Iterator, Sequence
from typing import Any, NamedTuple

import timm
import torch
from clock import take_turns
from machine import machine
from torch.nn.functional import cross_entropy
from torch.utils.flop_counter import FlopCounterMode
from tqdm import tqdm

import gmlp_vision  # noqa: F401  registers the names
from gmlp_vision.errors import UserError

REFERENCE = "deit_small_patch16_224"
NAMES = (
    "resmlp_24_224",
    *("gmlp_s16", "gmlp_s16_toeplitz", "amlp_s16", "aft_full_s16", "aft_conv_s16", "synthesizer_random_s16"),
    *("ea_s16", "eamlp_14", "fnet_s16", "gfnet_s", "ff_b16", "s2mlp_deep", "ccs_s16", "lightconv_s16"),
    *("dynamicconv_s16", "sparse_mlp_s", "vip_s7", "cycle_b2", "s2mlpv2_s7", "hire_s", "wave_s", "as_mlp_t"),
    *("smlp_t", "raft_m", "convmlp_m", "posmlp_t", "swin_mlp_t_c24", "gfnet_h_s"),
)


class Row(NamedTuple):
    """What was measured of a model.

    Attributes:
        gmacs: Multiply-adds of an image, in 1e9, without those of FFTs.
        images: Per second, without gradients, and of training steps.
        ratios: The same, over that of the reference in the same turns.
    """

    name: str
    gmacs: float
    images: tuple[float, float]
    ratios: tuple[float, float]


def calls_of(name: str, batch: int) -> tuple[Callable[[], Any], Callable[[], Any]]:
    """A forward pass without gradients, and a training step of forward, loss and backward pass."""
    torch.manual_seed(0)
    model: Any = timm.create_model(name)
    size = timm.data.resolve_input_data_config(model)["input_size"]
    x, classes = torch.randn(batch, *size), torch.randint(model.num_classes, (batch,))

    def inference() -> None:
        with torch.inference_mode():
            model.eval()(x)

    def step() -> None:
        model.train()
        model.zero_grad()
        cross_entropy(model(x), classes).backward()

    return inference, step


def gmacs(name: str) -> float:
    """Counted on the meta device, at the size that the name has."""
    model: Any = timm.create_model(name, device="meta").eval()
    size = timm.data.resolve_input_data_config(model)["input_size"]
    with FlopCounterMode(display=False) as counter:
        model(torch.empty(1, *size, device="meta"))
    return counter.get_total_flops() / 2e9


def measure(names: Sequence[str], batch: int, rounds: int) -> Iterator[Row]:
    """A row for each name."""
    reference = calls_of(REFERENCE, batch)
    for name in tqdm(names, unit="model"):
        images, ratios = [], []
        for theirs, ours in zip(reference, calls_of(name, batch), strict=True):
            taken = take_turns({"reference": theirs, "model": ours}, rounds, torch.device("cpu"))
            there, here = (statistics.median(taken[key]) for key in ("reference", "model"))
            images.append(batch / here)
            ratios.append(there / here)
        yield Row(name, gmacs(name), (images[0], images[1]), (ratios[0], ratios[1]))


def table(rows: Sequence[Row]) -> str:
    lines = [
        "| model | GMACs | img/s | over DeiT-S | training img/s | over DeiT-S |",
        "|---|---|---|---|---|---|",
    ]
    for row in rows:
        lines.append(
            f"| {row.name} | {row.gmacs:.2f} | {row.images[0]:.1f} | **{row.ratios[0]:.2f}** | "
            f"{row.images[1]:.1f} | **{row.ratios[1]:.2f}** |"
        )
    return "\n".join(lines)


def arguments(argv: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("names", nargs="*", metavar="NAME", help="(default: one of each family)")
    parser.add_argument("--batch", type=int, default=8, help="images a call (%(default)s)")
    parser.add_argument("--rounds", type=int, default=5, help="timed calls (%(default)s)")
    return parser.parse_args(argv)


def main(argv: Sequence[str] | None = None) -> int:
    args = arguments(argv)
    rows: list[Row] = []
    try:
        if args.batch < 1 or args.rounds < 1:
            raise UserError(f"batch is {args.batch} and rounds {args.rounds}; expected at least 1 of each")
        unknown = [name for name in args.names if not timm.is_model(name)]
        if unknown:
            raise UserError(f"timm knows no model {', '.join(unknown)}")
        where = machine(torch.device("cpu"))
        print(f"{where['date']}, {where['cpu']}, {torch.get_num_threads()} threads, batch {args.batch}")
        print(where["versions"], where["variables"] or "", flush=True)
        for row in measure(args.names or NAMES, args.batch, args.rounds):
            rows.append(row)
    except UserError as error:
        print(f"families.py: {error}", file=sys.stderr)
        return 2
    except KeyboardInterrupt:
        print("families.py: stopped", file=sys.stderr)
        return 130
    finally:
        if rows:
            print(f"\n{table(rows)}", flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
