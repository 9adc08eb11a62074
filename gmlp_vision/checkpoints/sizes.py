"""What a gMLP's tensors show of its size, and which registered model that is."""

import math
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from typing import Any

import timm
import torch

from gmlp_vision.checkpoints.report import first_five
from gmlp_vision.errors import CheckpointError

# What models/gmlp.py registers is looked up in timm's registry, under that file's name. Were the table of
# sizes handed down instead, every caller of convert_file and describe would have to bring it, users included.
MODULE = "gmlp"
UNNAMED = "gmlp_ti16"  # what a model of no registered size is written as, with its sizes as arguments


@dataclass(frozen=True)
class Sizes:
    """The sizes of one gMLP.

    Attributes:
        shape: The arguments of GMlp in which one named model differs from another.
        in_chans: C, of the image.
        num_classes: K; 0 for no head.
        tokens: N, the side of W.
    """

    shape: dict[str, Any]
    in_chans: int
    num_classes: int
    tokens: int


def read_sizes(state_dict: Mapping[str, torch.Tensor], source: str) -> Sizes:
    """The sizes that a state dict in our names shows.

    Raises:
        CheckpointError: It is not that of a gMLP.
    """
    try:
        dim, in_chans, height, width = state_dict["stem.proj.weight"].shape
        hidden, _ = state_dict["blocks.0.mlp_channels.fc1.weight"].shape
        tokens, _ = state_dict["blocks.0.mlp_channels.gate.proj.weight"].shape
        num_classes = len(state_dict["head.weight"]) if "head.weight" in state_dict else 0
        mlp_ratio = hidden / dim
    except (KeyError, ValueError, TypeError, ZeroDivisionError) as error:
        raise CheckpointError(
            f"{source} does not hold the weights of a gMLP of timm, lucidrains or jaketae; its tensors are "
            f"{first_five(list(state_dict))}"
        ) from error
    if int(dim * mlp_ratio) < hidden:  # as GMlpBlock computes it
        mlp_ratio = math.nextafter(mlp_ratio, math.inf)
    depth = len({name.split(".")[1] for name in state_dict if name.startswith("blocks.")})
    shape = {"patch_size": (height, width), "depth": depth, "embed_dim": dim, "mlp_ratio": mlp_ratio}
    return Sizes(shape, in_chans, num_classes, tokens)


def find_model(sizes: Sizes) -> tuple[str | None, dict[str, Any]]:
    """The registered gMLP of this shape, whatever its image, channels and classes, and its pretrained cfg."""
    for name in timm.list_models(module=MODULE):
        shape, cfg = _registered(name)
        if shape == sizes.shape:
            return name, cfg
    return None, {}


@cache
def _registered(name: str) -> tuple[dict[str, Any], dict[str, Any]]:
    model: Any = timm.create_model(name, device="meta")
    return read_sizes(model.state_dict(), name).shape, dict(model.pretrained_cfg)
