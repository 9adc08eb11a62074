"""Each class of blocks on two gloo ranks with DistributedDataParallel, against one process with both batches.

tests/test_data_parallel.py has gMLP at more steps, with checkpointing and in two dtypes.
"""

from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist
from ranks import run_on_two_ranks
from timm.loss import LabelSmoothingCrossEntropy
from timm.optim import create_optimizer_v2
from tiny import images, same_weights, tiny
from torch import nn
from torch.nn.parallel import DistributedDataParallel
from zoo import ROWS, tiny_kwargs

from gmlp_vision.layers.experts import Mixture

NAMES = [str(row) for row in ROWS]
STEPS, BATCH = 3, 8
HALVES = (slice(0, BATCH // 2), slice(BATCH // 2, BATCH))
TOLERANCE = 1e-10  # in float64; of a weight, and of a gradient as a part of the largest of all


def make(name: str) -> nn.Module:
    """In training, but for mixtures of experts: they draw noise, and their loss is of one device."""
    model = tiny(name).double().train()
    for module in model.modules():
        if isinstance(module, Mixture):
            module.eval()
    return model


def looks_across_the_batch(model: nn.Module) -> bool:
    return any(isinstance(module, nn.BatchNorm1d | nn.BatchNorm2d) for module in model.modules())


def train(name: str, rank: int, calls: list[slice]) -> dict[str, Any]:
    """What some images of each step make of a model: each slice is a call, the loss the mean over them."""
    torch.manual_seed(rank)  # the ranks begin apart: it is for DDP to give both the weights of rank 0
    model = make(name)
    start = {key: p.detach().clone() for key, p in model.named_parameters()}
    optimizer = create_optimizer_v2(model, opt="adamw", lr=1e-3, weight_decay=0.05)
    loss = LabelSmoothingCrossEntropy(0.1)
    run = DistributedDataParallel(model) if dist.is_initialized() else model
    for step in range(STEPS):
        x = images(BATCH, 3, *size_of(name), seed=step).double()
        classes = (torch.arange(BATCH) + step) % tiny_kwargs(name)["num_classes"]
        optimizer.zero_grad()
        sum(loss(run(x[part]), classes[part]) / len(calls) for part in calls).backward()
        optimizer.step()
    learned = {key: p for key, p in model.named_parameters() if p.requires_grad}
    return {
        "start": start,
        "end": {key: p.detach() for key, p in learned.items()},
        "grads": {key: p.grad for key, p in learned.items()},
    }


def size_of(name: str) -> tuple[int, int]:
    size = tiny_kwargs(name)["img_size"]
    return (size, size) if isinstance(size, int) else size


def one_rank(rank: int, folder: str) -> None:
    for name in NAMES:
        torch.save(train(name, rank, [HALVES[rank]]), f"{folder}/{name}-{rank}.pth")


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """What both ranks have written of each model: one launch for all of them."""
    folder = tmp_path_factory.mktemp("ranks")
    run_on_two_ranks(one_rank, folder)
    return folder


@pytest.mark.long
@pytest.mark.parametrize("name", NAMES)
def test_two_ranks_are_one_process(name: str, folder: Path) -> None:
    """With the batch of both; where batch norms look across it, with each half normalised alone."""
    first, second = (torch.load(folder / f"{name}-{rank}.pth", weights_only=True) for rank in range(2))
    calls = list(HALVES) if looks_across_the_batch(make(name)) else [slice(BATCH)]
    single = train(name, 0, calls)
    assert not same_weights(first["start"], second["start"])
    assert same_weights(first["start"], single["start"])
    assert same_weights(first["end"], second["end"])  # to the last bit
    # of some biases, which a softmax or a norm makes vanish, there is nothing but rounding
    scale = max(grad.abs().max().item() for grad in single["grads"].values())
    assert scale > 1e-3
    for key, weight in single["end"].items():
        grad = single["grads"][key]
        # AdamW alone would not tell a mean over the ranks from a sum
        torch.testing.assert_close(first["grads"][key], grad, atol=TOLERANCE * scale, rtol=0, msg=key)
        torch.testing.assert_close(first["end"][key], weight, atol=TOLERANCE, rtol=0, msg=key)


@pytest.mark.long
def test_a_batch_norm_over_both_halves_is_another_training() -> None:
    """So the tolerance tells which of the two a model with batch norms is compared with."""
    halves, whole = (train("smlp_t", 0, calls) for calls in (list(HALVES), [slice(BATCH)]))
    apart = [(halves["end"][key] - weight).abs().max() for key, weight in whole["end"].items()]
    assert max(apart) > 1e-4
