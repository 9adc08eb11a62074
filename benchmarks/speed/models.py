"""What is compared: this package's gMLP, timm's with the same weights, and models of about the same cost."""

from collections.abc import Callable, Mapping

import numpy as np
import timm
import torch
from torch import nn

import gmlp_vision  # noqa: F401  registers the names
from gmlp_vision.errors import UserError

# size: (this package's name, timm's name)
SIZES = {
    "ti": ("gmlp_ti16", "gmlp_ti16_224"),
    "s": ("gmlp_s16", "gmlp_s16_224"),
    "b": ("gmlp_b16", "gmlp_b16_224"),
}
BASELINES = {"s": {"DeiT-S": "deit_small_patch16_224", "ResMLP-24": "resmlp_24_224"}}

# The largest difference of a logit that passes, as a part of the spread of timm's.
TOLERANCES = {"fp32": 1e-3, "tf32": 0.1, "bf16": 0.2}

Run = Callable[[], torch.Tensor | np.ndarray]


def make_pair(size: str) -> tuple[nn.Module, nn.Module]:
    """(ours, timm's), in eval mode, with the same weights in every process, none of them at its init."""
    torch.manual_seed(0)
    theirs = perturb(timm.create_model(SIZES[size][1]))
    ours = timm.create_model(SIZES[size][0])
    ours.load_state_dict(theirs.state_dict())
    return ours.eval(), theirs.eval()


def make_baselines(size: str) -> dict[str, nn.Module]:
    """The models of about this cost that a user would otherwise take, in eval mode."""
    return {label: perturb(timm.create_model(name)).eval() for label, name in BASELINES.get(size, {}).items()}


def perturb(model: nn.Module) -> nn.Module:
    """Adds noise to every parameter: at its init a gMLP's head is 0 and its gate 1."""
    generator = torch.Generator().manual_seed(0)
    with torch.no_grad():
        for p in model.parameters():
            p.add_(0.02 * torch.randn(p.shape, generator=generator))
    return model


def check_same(calls: Mapping[str, Run], tolerance: float) -> None:
    """Refuses to time calls of ours that compute something else than timm's.

    Raises:
        UserError: One differs by more than `tolerance` of the spread of timm's logits.
    """
    expected = logits(calls["timm"])
    for name in (name for name in calls if name.startswith("ours")):
        difference = ((logits(calls[name]) - expected).abs().max() / expected.std()).item()
        if not difference <= tolerance:  # nor if it is nan
            raise UserError(
                f"{name}: the logits differ from timm's by {difference:.2g} of their spread, and "
                f"{tolerance:g} is allowed; nothing to compare"
            )


def logits(call: Run) -> torch.Tensor:
    """On the CPU at once: the next run of a CUDA graph writes over them."""
    return torch.as_tensor(call()).float().cpu()
