"""Trains one row: `python train.py split --seed 0`, about a minute and a half on one idle core.

Stopped and started again, it goes on where it was, to the same numbers: each step draws its batch and masks
from a generator of its own. So all rows of a seed see the same batches.
"""

import argparse
import json
import math
import time
from functools import partial
from pathlib import Path
from typing import Any

import torch
from corpus import SAMPLE, corpus, mask
from model import ROWS, TextModel
from results import HERE, about, check_same, save_state, shares, spatial_weights, write_weights
from timm.optim import create_optimizer_v2, muon
from torch.nn.functional import cross_entropy
from tqdm import trange

STEPS, BATCH, WARMUP, EVERY = 360, 8, 0.1, 40
LR = {"nadamuon": 8e-3, "adamw": 1e-3}  # the best of a few each, on files kept for that: README.md
# Table 8 of the paper: a rate that falls to 0 linearly, no clipping, these; Muon has timm's own settings
OPT_ARGS: dict[str, dict[str, Any]] = {"nadamuon": {}, "adamw": {"betas": (0.9, 0.999), "eps": 1e-6}}
WEIGHT_DECAY = 0.01
TEST_BATCHES, TEST_BATCH, TEST_SEED = 16, 64, 10**9

# timm's Muon computes in bfloat16, which a CPU without units for it does 20 times slower than float32
muon.zeropower_via_newtonschulz = partial(muon.zeropower_via_newtonschulz, dtype=torch.float32)


def guess(model: TextModel, text: torch.Tensor, generator: torch.Generator) -> tuple[torch.Tensor, ...]:
    """Logits (M, 256) of the M bytes that are asked for, and the bytes."""
    seen, asked = mask(text, generator)
    return model(seen, asked), text[asked]


@torch.inference_mode()
def test(model: TextModel, part: str, sample: str) -> tuple[float, float]:
    """Loss in nats and accuracy, on the same bytes and masks for every row and seed."""
    draw, g = SAMPLE[sample], torch.Generator().manual_seed(TEST_SEED)
    model.eval()
    found = [guess(model, draw(part, TEST_BATCH, g), g) for _ in range(TEST_BATCHES)]
    logits, right = (torch.cat(parts) for parts in zip(*found, strict=True))
    return cross_entropy(logits, right).item(), (logits.argmax(1) == right).double().mean().item()


def make_optimizer(model: TextModel, opt: str, lr: float) -> torch.optim.Optimizer:
    """By timm. Its Muon takes what is a matrix, W too; a table of vectors is none."""
    kwargs = {"weight_decay": WEIGHT_DECAY, "fallback_list": ("embedding.*",), **OPT_ARGS[opt]}
    return create_optimizer_v2(model, opt=opt, lr=lr, **kwargs)


def rate(step: int, steps: int) -> float:
    """Of the highest: up over the first tenth of the steps, then down to 0."""
    return min((step + 1) / (WARMUP * steps), (steps - step) / ((1 - WARMUP) * steps))


def train(args: argparse.Namespace, run: dict[str, Any]) -> dict[str, Any]:
    """What came out of a run."""
    block, frozen = ROWS[args.row]
    torch.manual_seed(args.seed)
    model = TextModel(block, frozen)
    sample = "lines" if args.row == "lines" else "windows"
    optimizer = make_optimizer(model, args.opt, args.lr)
    start = shares(spatial_weights(model))
    state: dict[str, Any] = {"losses": [], "seconds": 0.0}
    state_file = args.out / f"{args.name}.state"
    if state_file.exists():
        state = torch.load(state_file)
        check_same(run, state["run"], state_file)
        model.load_state_dict(state["model"])
        optimizer.load_state_dict(state["optimizer"])
    losses, done, clock = state["losses"], len(state["losses"]), time.process_time() - state["seconds"]
    bar = trange(done, args.steps, initial=done, total=args.steps, desc=args.name, disable=None)
    for step in bar:
        for group in optimizer.param_groups:
            group["lr"] = args.lr * rate(step, args.steps)
        generator = torch.Generator().manual_seed(args.seed * 1_000_000 + step)
        text = SAMPLE[sample]("train", args.batch, generator)
        loss = cross_entropy(*guess(model, text, generator))
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
        bar.set_postfix(loss=f"{losses[-1]:.3f}", refresh=False)
        if len(losses) % EVERY == 0:
            state = {"model": model.state_dict(), "optimizer": optimizer.state_dict(), "run": run}
            save_state(state_file, {**state, "losses": losses, "seconds": time.process_time() - clock})
    seconds = time.process_time() - clock
    save_state(args.out / f"{args.name}.pt", model.state_dict())
    if (weights := spatial_weights(model)) is not None:
        write_weights(args.out / f"{args.name}.npz", weights)
    loss_of_test, accuracy = test(model, args.part, sample)
    chunks = [losses[i : i + EVERY] for i in range(0, len(losses), EVERY)]
    return {
        **run,
        "parameters": sum(p.numel() for p in model.parameters()),
        "loss": loss_of_test,
        "accuracy": accuracy,
        "cpu_seconds": round(seconds, 1),
        "toeplitz_share": {"start": start, "end": shares(weights)},
        "train_loss": [round(sum(chunk) / len(chunk), 4) for chunk in chunks],
        **about(),
    }


def main(argv: list[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("row", choices=ROWS)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--opt", choices=LR, default="nadamuon", help="an optimizer of timm")
    parser.add_argument("--lr", type=float, help="its highest rate; by default the best that was found")
    parser.add_argument("--steps", type=int, default=STEPS)
    parser.add_argument("--batch", type=int, default=BATCH, help="sequences a step")
    parser.add_argument("--part", choices=("test", "tune"), default="test", help="files to be measured on")
    parser.add_argument("--name", help="of the run; by default ROW.SEED, and with AdamW ROW.SEED.adamw")
    parser.add_argument("--out", type=Path, default=HERE / "runs", help="the folder for what it writes")
    args = parser.parse_args(argv)
    for name in ("steps", "batch"):
        if getattr(args, name) < 1:
            parser.error(f"--{name} is {getattr(args, name)}; expected at least 1")
    args.lr = LR[args.opt] if args.lr is None else args.lr
    if not 0 < args.lr < math.inf:
        parser.error(f"--lr is {args.lr}; expected a number above 0")
    args.name = args.name or f"{args.row}.{args.seed}" + (".adamw" if args.opt == "adamw" else "")
    try:
        args.out.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        parser.error(f"--out is {args.out}: {error.strerror}; expected a folder, or the name of a new one")
    torch.set_num_threads(1)
    print("corpus:", json.dumps(corpus().about))
    run = {key: getattr(args, key) for key in ("row", "seed", "opt", "lr", "steps", "batch", "part")}
    file = args.out / f"{args.name}.json"
    if not file.exists():
        file.write_text(json.dumps(train(args, run), indent=1) + "\n")
        (args.out / f"{args.name}.state").unlink(missing_ok=True)
    result = json.loads(file.read_text())
    check_same(run, result, file)
    told = f"loss {result['loss']:.4f}, accuracy {result['accuracy']:.4f}, {result['cpu_seconds']:.0f} s"
    print(f"{file}: {told}")


if __name__ == "__main__":
    main()
