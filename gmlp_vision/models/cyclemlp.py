"""CycleMLP: "CycleMLP: A MLP-like Architecture for Dense Prediction", Chen et al., https://arxiv.org/abs/2107.10224

Shapes: B batch, H, W the token grid of a stage, D its width.

    X = X + proj(fuse(sfc_h(X), sfc_w(X), X C)) of LN(X);    X = X + GELU(LN(X) F) G        C: D -> D

    sfc(X) = X' A + a, where channel c of X' is what channel c of X has d(c) tokens further along one axis,
    zeros outside the grid; d(c) = (c + 1) mod 3 - 1: 0, 1, -1, 0, ...

fuse is layers/reweight.py. In the released code, whose names these are, `sfc_h` moves along the width and
`sfc_w` along the height. There d is a buffer for a deformable convolution; here the channels are moved by
whole tokens, which is the same map.

Nothing belongs to a grid: any image size. The final norm, the pooling and the downsampling are as in the
released code.
"""

from collections.abc import Iterator, Mapping
from functools import partial
from typing import Any

import torch
from timm.data import IMAGENET_DEFAULT_MEAN, IMAGENET_DEFAULT_STD
from timm.models import generate_default_cfgs, register_model
from torch import nn

from gmlp_vision.checkpoints.families import pyramid_sizes
from gmlp_vision.checkpoints.names import (
    LEFT_BY_A_TOOL,
    Layout,
    Row,
    as_kernel,
    as_matrix,
    dense_norms,
    network_rows,
)
from gmlp_vision.layers.embed import ConvEmbed
from gmlp_vision.layers.mix_mlp_block import MixMlpBlock
from gmlp_vision.layers.resample import Grid
from gmlp_vision.layers.reweight import Reweight
from gmlp_vision.layers.shift import neighbours
from gmlp_vision.trunks import Pyramid, cfg, create

SOURCE = "The released model: equal logits from the authors' code with the same weights."
VERIFIED = ("count", "equation", "authors' code")


def cycle_shift(x: torch.Tensor, dim: int) -> torch.Tensor:
    """Each channel of (B, H, W, D) from one of three neighbours along an axis, 1 for H or 2 for W."""
    before, here, behind = neighbours(x, dim, 1)
    turn = torch.arange(x.shape[-1], device=x.device) % 3
    return torch.where(turn == 0, here, torch.where(turn == 1, behind, before))


class CycleMix(nn.Module):
    """``proj(fuse(sfc_h(X), sfc_w(X), X C))``, the Cycle fully connected layers of Section 3.2.

    Args:
        dim: D.
        grid_size: (H, W); the shifts are the same on every grid.
        device, dtype: of the parameters.

    Shape: (B, H, W, D) -> (B, H, W, D).
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
        dd: dict[str, Any] = {"device": device, "dtype": dtype}
        self.sfc_h = nn.Linear(dim, dim, **dd)
        self.sfc_w = nn.Linear(dim, dim, **dd)
        self.mlp_c = nn.Linear(dim, dim, bias=False, **dd)
        self.reweight = Reweight(dim, **dd)
        self.proj = nn.Linear(dim, dim, **dd)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        h, w = self.sfc_h(cycle_shift(x, 2)), self.sfc_w(cycle_shift(x, 1))
        return self.proj(self.reweight(h, w, self.mlp_c(x)))


class CycleMlp(Pyramid):
    """CycleMLP: an overlapping stem, four stages, final norm, mean pool, linear head.

    Args:
        kwargs: Those of Pyramid, and of MixMlpBlock `mlp_ratio` and `proj_drop_rate`; those of CycleMLP-B1 by
            default.
    """

    def __init__(self, **kwargs: Any) -> None:
        super().__init__(
            partial(MixMlpBlock, mixer=CycleMix),
            stem=partial(ConvEmbed, kernel_size=7, padding=2),
            downsample=partial(ConvEmbed, kernel_size=3, padding=1),
            **{**SIZES["cycle_b1"], **kwargs},
        )


# Table 1 of the paper and the released code
SIZES: dict[str, dict[str, Any]] = {
    name: {"depths": depths, "embed_dims": dims, "mlp_ratio": ratios}
    for name, depths, dims, ratios in (
        ("cycle_b1", (2, 2, 4, 2), (64, 128, 320, 512), (4.0, 4.0, 4.0, 4.0)),
        ("cycle_b2", (2, 3, 10, 3), (64, 128, 320, 512), (4.0, 4.0, 4.0, 4.0)),
        ("cycle_b3", (3, 4, 18, 3), (64, 128, 320, 512), (8.0, 8.0, 4.0, 4.0)),
        ("cycle_b4", (3, 8, 27, 3), (64, 128, 320, 512), (8.0, 8.0, 4.0, 4.0)),
        ("cycle_b5", (3, 4, 24, 3), (96, 192, 384, 768), (4.0, 4.0, 4.0, 4.0)),
    )
}

# README of the released code
TOP1 = {"cycle_b1": 78.9, "cycle_b2": 81.6, "cycle_b3": 82.4, "cycle_b4": 83.0, "cycle_b5": 83.2}


# in a block; the layers over shifted channels are convolutions there
PARTS = [
    *(Row(part, part) for part in ("norm1", "norm2", "mlp.fc1", "mlp.fc2")),
    *(Row(f"mixer.{part}", f"attn.{part}", as_kernel, as_matrix) for part in ("sfc_h", "sfc_w")),
    *(Row(f"mixer.{part}", f"attn.{part}") for part in ("mlp_c", "proj")),
    Row("mixer.reweight.mlp.fc{k}", "attn.reweight.fc{k}"),
]


def rows(model: Any) -> Iterator[Row]:
    """Their names: stages and downsamplings stand in one list."""
    yield Row("stem.proj", "patch_embed.proj")
    yield from network_rows(model, lambda stage: PARTS)
    yield Row("norm", "norm")
    yield Row("norm", "norm6")  # of a backbone for dense heads


LAYOUTS = {
    # CycleMLP of https://github.com/ShoufaChen/CycleMLP
    "shoufachen": Layout(
        rows=rows,
        marks=("patch_embed.proj.weight", "network.0.0.attn.sfc_h.weight"),
        drop={"*.offset": LEFT_BY_A_TOOL, **dense_norms()},
        settings={"norm_eps": 1e-5, "final_norm": True},
    ),
}


def sizes_of(state_dict: Mapping[str, torch.Tensor]) -> dict[str, Any] | None:
    """The arguments of the CycleMLP that has these tensors; None if they are not those of one."""
    if "stages.0.blocks.0.mixer.sfc_h.weight" not in state_dict:
        return None
    return pyramid_sizes(state_dict, "mlp.fc1.weight")


PAPER = {
    "paper_ids": "arXiv:2107.10224",
    "paper_name": "CycleMLP: A MLP-like Architecture for Dense Prediction",
    "origin_url": "https://github.com/ShoufaChen/CycleMLP",
    "license": "mit",
    "fixed_input_size": False,
    "mean": IMAGENET_DEFAULT_MEAN,
    "std": IMAGENET_DEFAULT_STD,
}

default_cfgs = generate_default_cfgs(
    {
        f"cycle_b{i}.shoufachen_in1k": cfg(
            **PAPER,
            crop_pct=0.9 if i < 4 else 0.875,
            url=f"https://github.com/ShoufaChen/CycleMLP/releases/download/v0.1/CycleMLP_B{i}.pth",
        )
        for i in range(1, 6)
    }
)


@register_model
def cycle_b1(pretrained: bool = False, **kwargs: Any) -> nn.Module:
    """CycleMLP-B1: 15.16 M parameters, any image size."""
    return create("cycle_b1", CycleMlp, SIZES, pretrained, **kwargs)


@register_model
def cycle_b2(pretrained: bool = False, **kwargs: Any) -> nn.Module:
    """CycleMLP-B2: 26.80 M parameters, any image size."""
    return create("cycle_b2", CycleMlp, SIZES, pretrained, **kwargs)


@register_model
def cycle_b3(pretrained: bool = False, **kwargs: Any) -> nn.Module:
    """CycleMLP-B3: 38.39 M parameters, any image size."""
    return create("cycle_b3", CycleMlp, SIZES, pretrained, **kwargs)


@register_model
def cycle_b4(pretrained: bool = False, **kwargs: Any) -> nn.Module:
    """CycleMLP-B4: 51.80 M parameters, any image size."""
    return create("cycle_b4", CycleMlp, SIZES, pretrained, **kwargs)


@register_model
def cycle_b5(pretrained: bool = False, **kwargs: Any) -> nn.Module:
    """CycleMLP-B5: 75.75 M parameters, any image size."""
    return create("cycle_b5", CycleMlp, SIZES, pretrained, **kwargs)
