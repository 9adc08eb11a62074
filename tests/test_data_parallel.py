"""Two gloo ranks with torch's DistributedDataParallel, timm's optimizer and timm's loss, against one process.

train.py itself runs in parallel on GPUs alone, so this is its training step without the script.
"""

from itertools import product
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist
from ranks import run_on_two_ranks
from timm.loss import LabelSmoothingCrossEntropy
from timm.optim import create_optimizer_v2
from tiny import TINY, images, same_weights, tiny
from torch.nn.parallel import DistributedDataParallel

STEPS, BATCH = 15, 8
MODES = ["without", "selective", "block"]  # of activation checkpointing
# Of a weight, and of a gradient as a part of its largest entry. On a CPU the two dtypes take other steps in a
# block; two processes sum a batch in another order than one.
TOLERANCES = {torch.float32: 1e-5, torch.float64: 1e-12}


def train(mode: str, dtype: torch.dtype, rank: int = 0, batch: slice = slice(BATCH)) -> dict[str, Any]:
    """What the share `batch` of each step's images makes of the model."""
    torch.manual_seed(rank)  # the ranks begin apart: it is for DDP to give both the weights of rank 0
    model = tiny().to(dtype).train()
    model.set_grad_checkpointing(mode != "without", mode="block" if mode == "block" else "selective")
    start = {name: p.detach().clone() for name, p in model.named_parameters()}
    optimizer = create_optimizer_v2(model, opt="adamw", lr=1e-3, weight_decay=0.05)
    loss = LabelSmoothingCrossEntropy(0.1)
    call = DistributedDataParallel(model) if dist.is_initialized() else model
    seen = []
    for step in range(STEPS):
        x = images(BATCH, 3, 32, 32, seed=step).to(dtype)[batch]
        classes = (torch.arange(BATCH)[batch] + step) % TINY["num_classes"]
        optimizer.zero_grad()
        loss(call(x), classes).backward()
        optimizer.step()
        seen.append(x.sum(dim=(1, 2, 3)))
    grads = {name: p.grad for name, p in model.named_parameters()}
    return {"start": start, "end": model.state_dict(), "grads": grads, "seen": torch.cat(seen)}


def one_rank(rank: int, folder: str) -> None:
    half = BATCH // 2
    for mode, dtype in product(MODES, TOLERANCES):
        done = train(mode, dtype, rank, slice(rank * half, (rank + 1) * half))
        torch.save(done, f"{folder}/{mode}-{dtype}-{rank}.pth")


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """What both ranks have written, of each mode and dtype."""
    folder = tmp_path_factory.mktemp("ranks")
    run_on_two_ranks(one_rank, folder)
    return folder


@pytest.fixture(scope="module")
def singles() -> dict[torch.dtype, dict[str, Any]]:
    """Of each dtype, one process with the batch of both, which recomputes nothing."""
    return {dtype: train("without", dtype) for dtype in TOLERANCES}


@pytest.mark.slow
@pytest.mark.parametrize("dtype", TOLERANCES)
@pytest.mark.parametrize("mode", MODES)
def test_two_ranks_are_one_process_with_the_doubled_batch(
    mode: str, dtype: torch.dtype, folder: Path, singles: dict[torch.dtype, dict[str, Any]]
) -> None:
    first, second = (
        torch.load(folder / f"{mode}-{dtype}-{rank}.pth", weights_only=True) for rank in range(2)
    )
    single, tolerance = singles[dtype], TOLERANCES[dtype]
    assert not same_weights(first["start"], second["start"])
    assert not set(first["seen"].tolist()) & set(second["seen"].tolist())
    assert same_weights(first["start"], single["start"])
    assert same_weights(first["end"], second["end"])  # to the last bit
    for name, weight in single["end"].items():
        grad = single["grads"][name]
        scale = grad.abs().max().item()
        assert scale > 0, name
        # AdamW alone would not tell a mean over the ranks from a sum
        torch.testing.assert_close(first["grads"][name], grad, atol=tolerance * scale, rtol=0, msg=name)
        assert (weight - single["start"][name]).abs().max() > 1e-3, name
        torch.testing.assert_close(first["end"][name], weight, atol=tolerance, rtol=0, msg=name)


@pytest.mark.slow
@pytest.mark.parametrize("dtype", TOLERANCES)
def test_half_the_batch_is_another_training(
    dtype: torch.dtype, singles: dict[torch.dtype, dict[str, Any]]
) -> None:
    """The tolerances above tell one rank's images from both's."""
    alone = train("without", dtype, batch=slice(BATCH // 2))
    apart = {
        name: (alone["end"][name] - weight).abs().max() for name, weight in singles[dtype]["end"].items()
    }
    assert min(apart.values()) > 1e-3
