"""ViP: "Vision Permutator: A Permutable MLP-Like Architecture for Visual Recognition", Hou et al., https://arxiv.org/abs/2106.12368

Shapes: B batch, H, W the token grid of a stage, D its width, S segments of D / S channels each.

    X = X + proj(fuse(X_h, X_w, X_c)) of LN(X);    X = X + GELU(LN(X) F) G        F: D -> 3 D; G: 3 D -> D

    X_h = X over (rows, channels of a segment) times a D x D matrix: token (i, j) of segment s gets from
          (i', j), for all i', the channels of segment s
    X_w = the same over (columns, channels of a segment)
    X_c = X times a D x D matrix

fuse is layers/reweight.py. A D x D matrix over the rows takes H D / S = D numbers: a stage has as many rows
as segments, and as many columns. So a model has one image size; another one is another model, made with
`img_size` and `segments`.

The final norm, the pooling and the stem are as in the released code; `patch_size` is the stride of the stem.
"""

from collections.abc import Iterator, Mapping
from functools import partial
from typing import Any

import torch
from timm.data import IMAGENET_DEFAULT_MEAN, IMAGENET_DEFAULT_STD
from timm.models import generate_default_cfgs, register_model
from torch import nn

from gmlp_vision.checkpoints.families import pyramid_sizes
from gmlp_vision.checkpoints.names import Layout, Row, network_rows
from gmlp_vision.layers.embed import ConvEmbed
from gmlp_vision.layers.grid_tied import GridTied
from gmlp_vision.layers.mix_mlp_block import MixMlpBlock
from gmlp_vision.layers.resample import Grid
from gmlp_vision.layers.reweight import Reweight
from gmlp_vision.layers.rules import fixed
from gmlp_vision.trunks import Pyramid, cfg, create

SOURCE = "The released model: equal logits from the authors' code with the same weights."
VERIFIED = ("count", "equation", "authors' code")


class PermuteLinear(GridTied):
    """A D x D matrix over the tokens of a column, or of a row, and the channels of a segment.

    Args:
        dim: D.
        grid_size: (H, W).
        segments: S; H and W are equal to it.
        axis: 1 to mix along the height, 2 along the width.
        device, dtype: of the parameters.

    Shape: (B, H, W, D) -> (B, H, W, D).

    Raises:
        ValueError: The grid does not have S rows and S columns, or D is no multiple of S.
    """

    RULES = {  # noqa: RUF012  a ClassVar in the base
        "weight": fixed(
            "a ViP mixes the rows of a column, and the channels of a segment, by one matrix as wide as the "
            "model, which fits one number of rows: create the model with img_size and segments",
            lambda grid: (),
        )
    }

    def __init__(
        self,
        dim: int,
        grid_size: Grid,
        segments: int,
        axis: int,
        device: torch.device | str | None = None,
        dtype: torch.dtype | None = None,
    ) -> None:
        super().__init__(grid_size)
        if grid_size != (segments, segments) or dim % segments:
            raise ValueError(
                f"a stage has a grid of {grid_size[0]} x {grid_size[1]} tokens of width {dim}, and "
                f"{segments} segments; expected as many rows and columns as segments, and a width that they "
                "divide: give img_size and segments together"
            )
        self.segments = segments
        self.axis = axis
        self.weight = nn.Parameter(torch.empty(dim, dim, device=device, dtype=dtype))
        self.reset_parameters()

    def reset_parameters(self) -> None:
        """As a linear layer."""
        nn.init.xavier_uniform_(self.weight)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = x.unflatten(-1, (self.segments, -1)).transpose(self.axis, 3)
        y = nn.functional.linear(x.flatten(-2), self.weight)
        return y.unflatten(-1, (self.segments, -1)).transpose(self.axis, 3).flatten(-2)


class PermuteMlp(nn.Module):
    """``proj(fuse(X_h, X_w, X_c))``, the weighted Permute-MLP of Section 3.2.

    Args:
        dim: D.
        grid_size: (H, W).
        segments: S.
        device, dtype: of the parameters.

    Shape: (B, H, W, D) -> (B, H, W, D).
    """

    NO_OPERATOR = (
        "its maps along rows and columns mix channels too: there is no map over tokens alone to show"
    )

    def __init__(
        self,
        dim: int,
        grid_size: Grid,
        segments: int,
        device: torch.device | str | None = None,
        dtype: torch.dtype | None = None,
    ) -> None:
        super().__init__()
        dd: dict[str, Any] = {"device": device, "dtype": dtype}
        self.mlp_h = PermuteLinear(dim, grid_size, segments, axis=1, **dd)
        self.mlp_w = PermuteLinear(dim, grid_size, segments, axis=2, **dd)
        self.mlp_c = nn.Linear(dim, dim, bias=False, **dd)
        self.reweight = Reweight(dim, **dd)
        self.proj = nn.Linear(dim, dim, **dd)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.proj(self.reweight(self.mlp_h(x), self.mlp_w(x), self.mlp_c(x)))


class ViP(Pyramid):
    """ViP: a stem of patches, four stages, final norm, mean pool, linear head.

    Args:
        kwargs: Those of Pyramid, of MixMlpBlock `mlp_ratio` and `proj_drop_rate`, and `segments`, one number
            a stage; those of ViP-Small/7 by default.
    """

    def __init__(self, **kwargs: Any) -> None:
        block = partial(MixMlpBlock, mixer=PermuteMlp)
        super().__init__(block, stem=ConvEmbed, downsample=ConvEmbed, **{**SIZES["vip_s7"], **kwargs})


# Table 2 of the paper; strides and segments from the released code, which downsamples once or not at all
SIZES: dict[str, dict[str, Any]] = {
    "vip_s14": {
        "strides": (14, 1, 1, 1),
        "depths": (4, 3, 8, 3),
        "embed_dims": (384, 384, 384, 384),
        "segments": (16, 16, 16, 16),
        "mlp_ratio": 3.0,
    },
    "vip_s7": {
        "strides": (7, 2, 1, 1),
        "depths": (4, 3, 8, 3),
        "embed_dims": (192, 384, 384, 384),
        "segments": (32, 16, 16, 16),
        "mlp_ratio": 3.0,
    },
    "vip_m7": {
        "strides": (7, 1, 2, 1),
        "depths": (4, 3, 14, 3),
        "embed_dims": (256, 256, 512, 512),
        "segments": (32, 32, 16, 16),
        "mlp_ratio": 3.0,
    },
    "vip_l7": {
        "strides": (7, 2, 1, 1),
        "depths": (8, 8, 16, 4),
        "embed_dims": (256, 512, 512, 512),
        "segments": (32, 16, 16, 16),
        "mlp_ratio": 3.0,
    },
}

# README of the released code
TOP1 = {"vip_s7": 81.5, "vip_m7": 82.7, "vip_l7": 83.2}


# in a block
PARTS = [
    *(Row(part, part) for part in ("norm1", "norm2", "mlp.fc1", "mlp.fc2")),
    *(Row(f"mixer.{part}", f"attn.{part}") for part in ("mlp_h", "mlp_w", "mlp_c", "proj")),
    Row("mixer.reweight.mlp.fc{k}", "attn.reweight.fc{k}"),
]


def rows(model: Any) -> Iterator[Row]:
    """Their names: stages and downsamplings stand in one list."""
    yield Row("stem.proj", "patch_embed.proj")
    yield from network_rows(model, lambda stage: PARTS)


LAYOUTS = {
    # ViP of https://github.com/houqb/VisionPermutator
    "houqb": Layout(
        rows=rows,
        marks=("patch_embed.proj.weight", "network.0.0.attn.mlp_h.weight"),
        settings={"norm_eps": 1e-5, "final_norm": True},
    ),
}


def sizes_of(state_dict: Mapping[str, torch.Tensor]) -> dict[str, Any] | None:
    """The arguments of the ViP that has these tensors; None if they are not those of one."""
    if "stages.0.blocks.0.mixer.mlp_h.weight" not in state_dict:
        return None
    return pyramid_sizes(state_dict, "mlp.fc1.weight")


PAPER = {
    "paper_ids": "arXiv:2106.12368",
    "paper_name": "Vision Permutator: A Permutable MLP-Like Architecture for Visual Recognition",
    "origin_url": "https://github.com/houqb/VisionPermutator",
    "license": "mit, and by its README for non-commercial use only",
    "mean": IMAGENET_DEFAULT_MEAN,
    "std": IMAGENET_DEFAULT_STD,
}
PAGE = "https://drive.google.com/file/d/{}/view"

default_cfgs = generate_default_cfgs(
    {
        "vip_s14.untrained": cfg(**PAPER, crop_pct=0.9),
        "vip_s7.houqb_in1k": cfg(**PAPER, crop_pct=0.9, url=PAGE.format("1cX6eauDrsGsLSZnqsX7cl0oiKX8Dzv5z")),
        "vip_m7.houqb_in1k": cfg(**PAPER, crop_pct=0.9, url=PAGE.format("15y5WMypthpbBFdc01E3mJCZit7q0Yn8m")),
        "vip_l7.houqb_in1k": cfg(**PAPER, url=PAGE.format("14F5IXGXmB_3jrwK33Efae-WEb5D_G85c")),
    }
)


@register_model
def vip_s14(pretrained: bool = False, **kwargs: Any) -> nn.Module:
    """ViP-Small/14: 29.89 M parameters, 224 px, one grid of 16 x 16 tokens."""
    return create("vip_s14", ViP, SIZES, pretrained, **kwargs)


@register_model
def vip_s7(pretrained: bool = False, **kwargs: Any) -> nn.Module:
    """ViP-Small/7: 25.11 M parameters, 224 px."""
    return create("vip_s7", ViP, SIZES, pretrained, **kwargs)


@register_model
def vip_m7(pretrained: bool = False, **kwargs: Any) -> nn.Module:
    """ViP-Medium/7: 55.27 M parameters, 224 px."""
    return create("vip_m7", ViP, SIZES, pretrained, **kwargs)


@register_model
def vip_l7(pretrained: bool = False, **kwargs: Any) -> nn.Module:
    """ViP-Large/7: 87.78 M parameters, 224 px."""
    return create("vip_l7", ViP, SIZES, pretrained, **kwargs)
