"""What is left of a gMLP as its W's are replaced: block by block, and after an epoch of learning."""

import hashlib
import math
from collections.abc import Iterable
from typing import Any

import torch
from timm.optim import create_optimizer_v2
from timm.scheduler import CosineLRScheduler
from torch import nn
from torch.utils.data import Subset

from gmlp_vision.layers.grid_tied import tied_layers
from gmlp_vision.layers.structured import Structured

# Of the fine-tuning, the same for every kind.
LEARNING: dict[str, Any] = {"opt": "adamw", "lr": 5e-4, "weight_decay": 0.05}
SMOOTHING, CLIP, WARM_UP = 0.1, 1.0, 0.1  # the last a part of the epoch


class Some(Subset[Any]):
    """So many images of a data set, evenly spread over it and so over its classes. timm sets `transform`."""

    def __init__(self, dataset: Any, count: int) -> None:
        whole = len(dataset)
        super().__init__(dataset, [k * whole // min(count, whole) for k in range(min(count, whole))])

    @property
    def transform(self) -> Any:
        return self.dataset.transform  # type: ignore[attr-defined]

    @transform.setter
    def transform(self, transform: Any) -> None:
        self.dataset.transform = transform  # type: ignore[attr-defined]


def maps_of(model: nn.Module) -> list[Structured]:
    """The maps over tokens of a model that a kind of W is of, by depth."""
    return [layer for layer in tied_layers(model).values() if isinstance(layer, Structured)]


def sha256_of(model: nn.Module) -> str:
    """Of all numbers of a model, in hex."""
    digest = hashlib.sha256()
    for name, tensor in model.state_dict().items():
        digest.update(name.encode())
        digest.update(tensor.cpu().contiguous().numpy())
    return digest.hexdigest()


def numbers_of(layer: Structured) -> int:
    """Of which W is made."""
    return sum(p.numel() for name, p in layer.named_parameters() if name != "bias")


@torch.inference_mode()
def one_by_one(dense: Any, model: Any, batches: Iterable[tuple[torch.Tensor, torch.Tensor]]) -> list[float]:
    """Accuracy of `dense`, in %, with each of its blocks in turn replaced by that of `model`.

    The blocks before the replaced one are computed once a batch.
    """
    dense.eval()
    model.eval()
    right, seen = [0] * len(dense.blocks), 0
    for images, labels in batches:
        tokens = dense.embed(images)
        for i, block in enumerate(model.blocks):
            x = model.run_step(block, tokens)
            for rest in dense.blocks[i + 1 :]:
                x = dense.run_step(rest, x)
            right[i] += (dense.forward_head(dense.finish(x)).argmax(1) == labels).sum().item()
            tokens = dense.run_step(dense.blocks[i], tokens)
        seen += len(labels)
    return [100 * each / seen for each in right]


def fine_tune(model: nn.Module, batches: Iterable[tuple[torch.Tensor, torch.Tensor]], updates: int) -> None:
    """One epoch, in place. What W is made of is trained, so its kind stays."""
    optimizer = create_optimizer_v2(model, **LEARNING)
    warm_up = math.ceil(WARM_UP * updates)
    # one step more than there are, since the last of them has a rate of 0
    scheduler = CosineLRScheduler(optimizer, t_initial=updates + 1, warmup_t=warm_up, t_in_epochs=False)
    loss_fn = nn.CrossEntropyLoss(label_smoothing=SMOOTHING)
    model.train()
    for update, (images, labels) in enumerate(batches, start=1):
        scheduler.step_update(update)
        optimizer.zero_grad()
        loss_fn(model(images), labels).backward()
        nn.utils.clip_grad_norm_(model.parameters(), CLIP)
        optimizer.step()
