"""Other people's names for gMLP's tensors to ours, which are timm's, and back.

In every layout a tensor is the same numbers under another name and in another shape. What else differs, such
as LayerNorm's eps, are the layout's settings.

Shapes: N tokens, D width, C image channels, P x P' pixels of a patch.
"""

import math
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

import torch

from gmlp_vision.errors import CheckpointError


@dataclass(frozen=True)
class Layout:
    """How an implementation names and shapes the tensors.

    Attributes:
        modules: Our module names and theirs; {i} is the number of the block.
        settings: The arguments with which our GMlp computes what theirs does.
        w_shape: 'nn' for W as (N, N); '1nn' with a leading 1, which b then has too; 'nn1' with a trailing 1.
        flat_stem: Whether the patch embedding is a matrix, (D, C * P * P').
    """

    modules: dict[str, str]
    settings: dict[str, Any] = field(default_factory=dict)
    w_shape: str = "nn"
    flat_stem: bool = False


STEM, W = "stem.proj", "blocks.{i}.mlp_channels.gate.proj"

LAYOUTS = {
    # timm's own gMLP, and this project
    "timm": Layout(
        {
            STEM: STEM,
            "blocks.{i}.norm": "blocks.{i}.norm",
            "blocks.{i}.mlp_channels.fc1": "blocks.{i}.mlp_channels.fc1",
            "blocks.{i}.mlp_channels.gate.norm": "blocks.{i}.mlp_channels.gate.norm",
            W: W,
            "blocks.{i}.mlp_channels.fc2": "blocks.{i}.mlp_channels.fc2",
            "norm": "norm",
            "head": "head",
        },
        settings={"norm_eps": 1e-6, "final_norm": True},
    ),
    # gMLPVision of https://github.com/lucidrains/g-mlp-pytorch, with one head and no attention
    "lucidrains": Layout(
        {
            STEM: "to_patch_embed.1",
            "blocks.{i}.norm": "layers.{i}.fn.norm",
            "blocks.{i}.mlp_channels.fc1": "layers.{i}.fn.fn.proj_in.0",
            "blocks.{i}.mlp_channels.gate.norm": "layers.{i}.fn.fn.sgu.norm",
            W: "layers.{i}.fn.fn.sgu",
            "blocks.{i}.mlp_channels.fc2": "layers.{i}.fn.fn.proj_out",
            "norm": "to_logits.0",
            "head": "to_logits.2",
        },
        settings={"norm_eps": 1e-5, "final_norm": True},
        w_shape="1nn",
        flat_stem=True,
    ),
    # gMLPForImageClassification of https://github.com/jaketae/g-mlp
    "jaketae": Layout(
        {
            STEM: "patcher",
            "blocks.{i}.norm": "model.{i}.norm",
            "blocks.{i}.mlp_channels.fc1": "model.{i}.channel_proj1",
            "blocks.{i}.mlp_channels.gate.norm": "model.{i}.sgu.norm",
            W: "model.{i}.sgu.spatial_proj",
            "blocks.{i}.mlp_channels.fc2": "model.{i}.channel_proj2",
            "head": "classifier",
        },
        settings={"norm_eps": 1e-5, "final_norm": False},
        w_shape="nn1",
    ),
}


def layout_named(name: str) -> Layout:
    """An entry of LAYOUTS.

    Raises:
        ValueError: There is none of this name.
    """
    if name not in LAYOUTS:
        raise ValueError(f"the layout is {name!r}; expected one of {', '.join(LAYOUTS)}")
    return LAYOUTS[name]


def recognise(names: Iterable[str]) -> str:
    """The layout of a state dict by its names: the one whose stem and first W are there, else 'timm'.

    Raises:
        CheckpointError: Two layouts at once.
    """
    names = set(names)
    found = [
        name
        for name, layout in LAYOUTS.items()
        if {f"{layout.modules[key].replace('{i}', '0')}.weight" for key in (STEM, W)} <= names
    ]
    if len(found) > 1:
        raise CheckpointError(f"the tensors are those of {' and of '.join(found)}; say which are meant")
    return found[0] if found else "timm"


def to_ours(
    state_dict: Mapping[str, torch.Tensor],
    layout: str,
    patch_size: tuple[int, int] | None = None,
    in_chans: int | None = None,
) -> dict[str, torch.Tensor]:
    """A state dict in our names and shapes. A tensor that the layout does not know keeps its name.

    Args:
        state_dict: In the names of `layout`.
        layout: A key of LAYOUTS.
        patch_size, in_chans: (P, P') and C of a patch embedding that is stored flat. Without C it follows
            from the patch; without both, or where they do not fit, it is 3 channels and a square patch.

    Raises:
        ValueError: An unknown layout.
        CheckpointError: What the file holds has no counterpart here: attention, several heads, or a flat stem
            that may be read in more than one way.
    """
    their = layout_named(layout)
    pairs = {theirs: ours for ours, theirs in their.modules.items()}
    if any(".attn." in name for name in state_dict) and layout == "lucidrains":
        raise CheckpointError(
            "the file has attention beside the spatial gate (attn_dim): it is an aMLP. No such model is here "
            "yet, and without the attention its other tensors compute something else"
        )
    ours: dict[str, torch.Tensor] = {}
    for name, tensor in state_dict.items():
        new = _rename(name, pairs)
        if new in ours:
            raise CheckpointError(f"two tensors of the file are both {new}")
        if new == f"{STEM}.weight" and their.flat_stem and tensor.ndim == 2:
            tensor = tensor.reshape(len(tensor), *_stem_shape(tensor.shape[1], patch_size, in_chans))
        elif ".gate.proj." in new:
            tensor = _squeeze(new, tensor)
        ours[new] = tensor
    return ours


def from_ours(state_dict: Mapping[str, torch.Tensor], layout: str) -> dict[str, torch.Tensor]:
    """The reverse of `to_ours`: our state dict in the names and shapes of `layout`.

    Raises:
        ValueError: An unknown layout.
    """
    their = layout_named(layout)
    theirs = {}
    for name, tensor in state_dict.items():
        if name == f"{STEM}.weight" and their.flat_stem:
            tensor = tensor.flatten(1)
        elif ".gate.proj." in name and their.w_shape == "1nn":
            tensor = tensor.unsqueeze(0)
        elif name.endswith(".gate.proj.weight") and their.w_shape == "nn1":
            tensor = tensor.unsqueeze(-1)
        theirs[_rename(name, their.modules)] = tensor
    return theirs


def _rename(name: str, pairs: Mapping[str, str]) -> str:
    module, _, leaf = name.rpartition(".")
    for old, new in pairs.items():
        match = re.fullmatch(re.escape(old).replace(r"\{i\}", r"(\d+)"), module)
        if match:
            return f"{new.replace('{i}', ''.join(match.groups()))}.{leaf}"
    return name


def _squeeze(name: str, tensor: torch.Tensor) -> torch.Tensor:
    """(1, N, N) or (N, N, 1) as (N, N), and (1, N) as (N,); anything else as it is."""
    if name.endswith(".bias"):
        return tensor[0] if tensor.ndim == 2 and len(tensor) == 1 else tensor
    if tensor.ndim != 3:
        return tensor
    if tensor.shape[-1] == 1 and tensor.shape[0] == tensor.shape[1]:
        return tensor[..., 0]
    if len(tensor) == 1:
        return tensor[0]
    raise CheckpointError(
        f"{name} is {tuple(tensor.shape)}: {len(tensor)} heads, each with a W of its own; only one head "
        "has a counterpart here"
    )


def _stem_shape(size: int, patch_size: tuple[int, int] | None, in_chans: int | None) -> tuple[int, int, int]:
    if patch_size is not None:
        channels, rest = divmod(size, math.prod(patch_size))
        if not rest and channels == (in_chans or channels):
            return channels, *patch_size
    side = math.isqrt(size // 3)
    if 3 * side * side == size and (patch_size is None or in_chans is not None):
        return 3, side, side
    raise CheckpointError(
        f"the patch embedding takes {size} numbers a patch, which are not those of "
        + (f"a patch of {patch_size[0]} x {patch_size[1]}" if patch_size else "a square patch of 3 channels")
        + ": convert the file and say the patch, `gmlp-vision convert IN OUT --patch-size H W`"
    )
