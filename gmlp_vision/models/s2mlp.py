"""S2-MLP: "S2-MLP: Spatial-Shift MLP Architecture for Vision", Yu et al., https://arxiv.org/abs/2106.07477

Shapes: B batch, H, W the token grid, D width.

    X = LN(patches W + b)
    X = X + shift(GELU(LN(X) A)) B             A, B: D -> D
    X = X + GELU(LN(X) F) G                    F: D -> 4 D; G: 4 D -> D

The shift moves four equal groups of channels by one token: right, left, down and up (Algorithm 1, whose first
axis is the width). A token at a border, which has no neighbour to take from, keeps its own value (eq. 3).
Nothing belongs to a grid: any image size that the patch divides.

Read where the paper leaves a choice: LayerNorm before each branch, as its successor S2-MLPv2 writes it, and
one after the last block. For the deep model the paper puts ResMLP's affine map, of as many parameters, in the
place of LayerNorm (Section 4.1); here it keeps LayerNorm.

Parameters: the wide model has 72.24 M, or 71.47 M without the head, which Table 2 leaves out: 71 M. The deep
one has 53.92 M, or 53.53 M without; Table 2 says 51 M, which does not follow from its layout, while its FLOPs
do.
"""

from collections.abc import Mapping
from functools import partial
from typing import Any

import torch
from timm.data import IMAGENET_DEFAULT_MEAN, IMAGENET_DEFAULT_STD
from timm.models import generate_default_cfgs, register_model
from torch import nn

from gmlp_vision.checkpoints.families import isotropic_sizes
from gmlp_vision.layers.mix_mlp_block import MixMlpBlock
from gmlp_vision.layers.resample import Grid
from gmlp_vision.layers.shift import shift_four_ways
from gmlp_vision.trunks import Isotropic, cfg, create
from gmlp_vision.trunks.checks import check_fixed

SOURCE = "A reading of the paper; no weights and no code were published."
VERIFIED = ("equation",)


class SpatialShift(nn.Module):
    """``shift(GELU(X A)) B``.

    Args:
        dim: D, a multiple of 4.
        grid_size: (H, W); the shift is the same on every grid.
        device, dtype: of the parameters.

    Shape: (B, H, W, D) -> (B, H, W, D).

    Raises:
        ValueError: D is no multiple of 4, so its channels do not make four equal groups.
    """

    NO_OPERATOR = "its tokens mix by fixed shifts of one place: there is no learned map over tokens to show"

    def __init__(
        self,
        dim: int,
        grid_size: Grid,
        device: torch.device | str | None = None,
        dtype: torch.dtype | None = None,
    ) -> None:
        super().__init__()
        if dim % 4:
            raise ValueError(
                f"embed_dim is {dim}; the spatial shift moves four equal groups of channels, so it must be a "
                f"multiple of 4: choose {dim - dim % 4} or {dim - dim % 4 + 4}"
            )
        self.fc1 = nn.Linear(dim, dim, device=device, dtype=dtype)
        self.act = nn.GELU()
        self.fc2 = nn.Linear(dim, dim, device=device, dtype=dtype)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.fc2(shift_four_ways(self.act(self.fc1(x))))


class S2Mlp(Isotropic):
    """S2-MLP for images: patches with a LayerNorm, `depth` blocks, final norm, mean pool, linear head.

    Args:
        kwargs: Those of Isotropic, and of MixMlpBlock `mlp_ratio` and `proj_drop_rate`; the wide model's by
            default.
    """

    def __init__(self, **kwargs: Any) -> None:
        check_fixed(kwargs, "stem_norm")
        block = partial(MixMlpBlock, mixer=SpatialShift)
        super().__init__(block, stem_norm=True, **{**SIZES["s2mlp_wide"], **kwargs})


# Table 2 of the paper
SIZES: dict[str, dict[str, Any]] = {
    "s2mlp_wide": {"patch_size": 16, "depth": 12, "embed_dim": 768, "mlp_ratio": 4.0},
    "s2mlp_deep": {"patch_size": 16, "depth": 36, "embed_dim": 384, "mlp_ratio": 4.0},
}

# DeiT's training (Section 4), and so its preprocessing
PAPER = cfg(
    paper_ids="arXiv:2106.07477",
    paper_name="S2-MLP: Spatial-Shift MLP Architecture for Vision",
    fixed_input_size=False,
    mean=IMAGENET_DEFAULT_MEAN,
    std=IMAGENET_DEFAULT_STD,
)


def sizes_of(state_dict: Mapping[str, torch.Tensor]) -> dict[str, Any] | None:
    """The arguments of the S2-MLP that has these tensors; None if they are not those of one."""
    if not {"stem.norm.weight", "blocks.0.mixer.fc2.weight"} <= state_dict.keys():
        return None
    return isotropic_sizes(state_dict, "mlp.fc1.weight")


default_cfgs = generate_default_cfgs({f"{name}.untrained": PAPER for name in SIZES})


@register_model
def s2mlp_wide(pretrained: bool = False, **kwargs: Any) -> nn.Module:
    """S2-MLP-wide of Table 2: 72.24 M parameters, patch 16, any image size."""
    return create("s2mlp_wide", S2Mlp, SIZES, pretrained, **kwargs)


@register_model
def s2mlp_deep(pretrained: bool = False, **kwargs: Any) -> nn.Module:
    """S2-MLP-deep of Table 2: 53.92 M parameters, patch 16, any image size."""
    return create("s2mlp_deep", S2Mlp, SIZES, pretrained, **kwargs)
