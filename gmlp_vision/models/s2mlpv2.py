"""S2-MLPv2: "S2-MLPv2: Improved Spatial-Shift MLP Architecture for Vision", Yu et al., https://arxiv.org/abs/2108.01072

Shapes: B batch, H, W the token grid of a stage, D its width.

    [X_1, X_2, X_3] = LN(X) A                                                A: D -> 3 D
    X = X + split(shift(X_1), shift'(X_2), X_3) B                            B: D -> D
    X = X + GELU(LN(X) F) G                                                  F: D -> 3 D; G: 3 D -> D

shift moves four equal groups of channels by one token, right, left, down and up, and shift' down, up, right
and left; a token at a border keeps its own value (S2-MLP). split weights the three for each channel, by the
softmax over them of  GELU(s P) Q,  s the sum of all tokens of all three (eq. 6 to 8).

A reading of the paper; there is no code of the authors. P: D -> D / 4 and Q: D / 4 -> 3 D have no bias, A
has one: 25,113,448 and 55,269,864 parameters. The other reading, with bias in P and Q and none in A, gives
25,114,984 and 55,272,488; both are the paper's 25 and 55 M. There is no GELU behind A (Algorithm 1). Stem,
downsampling, final norm and pooling are those of ViP, whose pyramid the paper takes.

Nothing belongs to a grid: any image size that the patches divide.
"""

from collections.abc import Mapping
from functools import partial
from typing import Any

import torch
from timm.data import IMAGENET_DEFAULT_MEAN, IMAGENET_DEFAULT_STD
from timm.models import generate_default_cfgs, register_model
from torch import nn

from gmlp_vision.checkpoints.families import pyramid_sizes
from gmlp_vision.layers.embed import ConvEmbed
from gmlp_vision.layers.mix_mlp_block import MixMlpBlock
from gmlp_vision.layers.resample import Grid
from gmlp_vision.layers.reweight import Reweight
from gmlp_vision.layers.shift import shift_four_ways
from gmlp_vision.trunks import Pyramid, cfg, create

SOURCE = "A reading of the paper; no weights and no code were published."
VERIFIED = ("count", "equation")


class SplitAttention(Reweight):
    """As Reweight, but of the sum of the tokens, without bias, and the three parts of the MLP's output one
    behind the other.

    Args:
        dim: D.
        device, dtype: of the parameters.

    Shape: three times (B, H, W, D) -> (B, H, W, D).
    """

    def __init__(
        self, dim: int, device: torch.device | str | None = None, dtype: torch.dtype | None = None
    ) -> None:
        super().__init__(dim, bias=False, device=device, dtype=dtype)

    def forward(self, x: torch.Tensor, y: torch.Tensor, z: torch.Tensor) -> torch.Tensor:
        a = self.mlp((x + y + z).sum(dim=(1, 2), keepdim=True))
        a, b, c = a.unflatten(-1, (3, -1)).softmax(dim=-2).unbind(dim=-2)
        return a * x + b * y + c * z


class SplitShift(nn.Module):
    """``split(shift(X_1), shift'(X_2), X_3) B``.

    Args:
        dim: D, a multiple of 4.
        grid_size: (H, W); the shifts are the same on every grid.
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
            raise ValueError(f"a width is {dim}; expected a multiple of 4, for four equal groups to shift")
        self.fc1 = nn.Linear(dim, 3 * dim, device=device, dtype=dtype)
        self.split_attention = SplitAttention(dim, device=device, dtype=dtype)
        self.fc2 = nn.Linear(dim, dim, device=device, dtype=dtype)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x, y, z = self.fc1(x).chunk(3, dim=-1)
        return self.fc2(self.split_attention(shift_four_ways(x), shift_four_ways(y, first=1, second=2), z))


class S2MlpV2(Pyramid):
    """S2-MLPv2: a stem of patches, two stages, final norm, mean pool, linear head.

    Args:
        kwargs: Those of Pyramid, and of MixMlpBlock `mlp_ratio` and `proj_drop_rate`; those of Small/7 by
            default.
    """

    def __init__(self, **kwargs: Any) -> None:
        block = partial(MixMlpBlock, mixer=SplitShift)
        super().__init__(block, stem=ConvEmbed, downsample=ConvEmbed, **{**SIZES["s2mlpv2_s7"], **kwargs})


# Section 4 of the paper
SIZES: dict[str, dict[str, Any]] = {
    "s2mlpv2_s7": {"strides": (7, 2), "depths": (4, 14), "embed_dims": (192, 384), "mlp_ratio": 3.0},
    "s2mlpv2_m7": {"strides": (7, 2), "depths": (7, 17), "embed_dims": (256, 512), "mlp_ratio": 3.0},
}


def sizes_of(state_dict: Mapping[str, torch.Tensor]) -> dict[str, Any] | None:
    """The arguments of the S2-MLPv2 that has these tensors; None if they are not those of one."""
    stem = state_dict.get("stem.proj.weight")
    if (
        "stages.0.blocks.0.mixer.split_attention.mlp.fc1.weight" not in state_dict
        or stem is None
        or stem.ndim != 4
    ):
        return None
    sizes = pyramid_sizes(state_dict, "mlp.fc1.weight")
    return (
        None if sizes is None else {**sizes, "strides": [stem.shape[-1], *[2] * (len(sizes["depths"]) - 1)]}
    )


PAPER = cfg(
    paper_ids="arXiv:2108.01072",
    paper_name="S2-MLPv2: Improved Spatial-Shift MLP Architecture for Vision",
    fixed_input_size=False,
    mean=IMAGENET_DEFAULT_MEAN,
    std=IMAGENET_DEFAULT_STD,
)

default_cfgs = generate_default_cfgs({f"{name}.untrained": PAPER for name in SIZES})


@register_model
def s2mlpv2_s7(pretrained: bool = False, **kwargs: Any) -> nn.Module:
    """S2-MLPv2-Small/7: 25.11 M parameters, any image size in steps of 14 px."""
    return create("s2mlpv2_s7", S2MlpV2, SIZES, pretrained, **kwargs)


@register_model
def s2mlpv2_m7(pretrained: bool = False, **kwargs: Any) -> nn.Module:
    """S2-MLPv2-Medium/7: 55.27 M parameters, any image size in steps of 14 px."""
    return create("s2mlpv2_m7", S2MlpV2, SIZES, pretrained, **kwargs)
