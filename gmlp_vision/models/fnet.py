"""FNet: "FNet: Mixing Tokens with Fourier Transforms", Lee-Thorp et al., https://arxiv.org/abs/2105.03824

Shapes: B batch, H, W the token grid, N = H * W tokens in row-major order, D width.

    X = patches W + b + P                                   P: one vector a token
    X = X + Re(F_N LN(X) F_D)                               F_n: the n x n matrix of the Fourier transform
    X = X + MLP(LN(X))

Mixing has no parameters; the transform is done in float32 at least, under any autocast and in a model of
bfloat16.

The paper has texts only. The trunk is DeiT's: patch 16, MLP ratio 4, the mean over tokens. Read where that
leaves a choice:

- The tokens are one sequence, as in the paper: a transform over N and one over D (Section 3.2), as its code
  has it. A transform along each axis of the grid would be another map.
- The transforms are unitary, with a factor of 1 / sqrt(N D). The paper has no factor, and its LayerNorms come
  after the sums; here they come first, as in DeiT, where a sum sqrt(N D) times as large as X would drown it.
- The position table of the paper stays, and goes to another grid as a token map; the transform itself takes
  any number of tokens. The paper's embeddings of types have no counterpart, nor has its class token.
"""

from collections.abc import Mapping
from functools import partial
from typing import Any

import torch
from timm.data import IMAGENET_DEFAULT_MEAN, IMAGENET_DEFAULT_STD
from timm.models import generate_default_cfgs, register_model
from torch import nn

from gmlp_vision.checkpoints.families import isotropic_sizes
from gmlp_vision.layers.fourier import real_part_of_dft
from gmlp_vision.layers.mix_mlp_block import MixMlpBlock
from gmlp_vision.layers.resample import Grid
from gmlp_vision.trunks import Isotropic, cfg, create

torch.fx.wrap("real_part_of_dft")

SOURCE = "A reading of the paper, which is about texts; no weights and no code for images were published."
VERIFIED = ("equation",)


class FourierMixing(nn.Module):
    """``Re(F_N X F_D)``, in the dtype of X.

    Args:
        dim: D; not used.
        grid_size: (H, W); not used, since every number of tokens has its transform.
        device, dtype: Not used: there are no parameters.

    Shape: (B, H, W, D) -> (B, H, W, D).
    """

    NO_OPERATOR = "its tokens mix by a Fourier transform, which is fixed: there is no learned map to show"

    def __init__(
        self, dim: int, grid_size: Grid, device: Any = None, dtype: torch.dtype | None = None
    ) -> None:
        super().__init__()

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return real_part_of_dft(x).to(x.dtype)


class FNet(Isotropic):
    """FNet for images: patches, position table, `depth` blocks, final norm, mean pool, linear head.

    Args:
        kwargs: Those of Isotropic, and of MixMlpBlock `mlp_ratio` and `proj_drop_rate`; the small model's by
            default.
    """

    def __init__(self, **kwargs: Any) -> None:
        block = partial(MixMlpBlock, mixer=FourierMixing)
        super().__init__(block, **{**SIZES["fnet_s16"], "pos_embed": True, **kwargs})


# DeiT-Ti, DeiT-S and DeiT-B
SIZES: dict[str, dict[str, Any]] = {
    "fnet_ti16": {"patch_size": 16, "depth": 12, "embed_dim": 192, "mlp_ratio": 4.0},
    "fnet_s16": {"patch_size": 16, "depth": 12, "embed_dim": 384, "mlp_ratio": 4.0},
    "fnet_b16": {"patch_size": 16, "depth": 12, "embed_dim": 768, "mlp_ratio": 4.0},
}

PARTS_OF_BLOCK = {"norm1", "norm2", "mlp"}


def sizes_of(state_dict: Mapping[str, torch.Tensor]) -> dict[str, Any] | None:
    """The arguments of the FNet that has these tensors; None if they are not those of one."""
    parts = {name.split(".")[2] for name in state_dict if name.startswith("blocks.0.")}
    if parts != PARTS_OF_BLOCK or "pos_embed.weight" not in state_dict:
        return None
    return isotropic_sizes(state_dict, "mlp.fc1.weight")


default_cfgs = generate_default_cfgs(
    {
        f"{name}.untrained": cfg(
            paper_ids="arXiv:2105.03824",
            paper_name="FNet: Mixing Tokens with Fourier Transforms",
            mean=IMAGENET_DEFAULT_MEAN,  # DeiT's preprocessing, as it is DeiT's trunk
            std=IMAGENET_DEFAULT_STD,
        )
        for name in SIZES
    }
)


@register_model
def fnet_ti16(pretrained: bool = False, **kwargs: Any) -> nn.Module:
    """FNet at DeiT-Ti's size: 3.94 M parameters, 224 px, patch 16."""
    return create("fnet_ti16", FNet, SIZES, pretrained, **kwargs)


@register_model
def fnet_s16(pretrained: bool = False, **kwargs: Any) -> nn.Module:
    """FNet at DeiT-S's size: 14.95 M parameters, 224 px, patch 16."""
    return create("fnet_s16", FNet, SIZES, pretrained, **kwargs)


@register_model
def fnet_b16(pretrained: bool = False, **kwargs: Any) -> nn.Module:
    """FNet at DeiT-B's size: 58.22 M parameters, 224 px, patch 16."""
    return create("fnet_b16", FNet, SIZES, pretrained, **kwargs)
