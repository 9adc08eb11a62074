"""How often a classifier is right."""

from collections.abc import Iterable

import torch
from torch import nn


@torch.inference_mode()
def accuracy(model: nn.Module, batches: Iterable[tuple[torch.Tensor, torch.Tensor]]) -> float:
    """The part of the images whose largest logit is that of their label, in [0, 1].

    Args:
        model: Is put into eval mode.
        batches: (images, labels), on the model's device.
    """
    model.eval()
    right = [(model(images).argmax(1) == labels).cpu() for images, labels in batches]
    return torch.cat(right).double().mean().item()
