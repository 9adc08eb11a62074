"""AS-MLP: "AS-MLP: An Axial Shifted MLP Architecture for Vision", Lian et al., https://arxiv.org/abs/2107.08391

Shapes: B batch, H, W the token grid of a stage, D its width, k places of a shift.

    Z = GELU(GN(GN(X) A))                                                    A: D -> D, with biases throughout
    X = X + GN(GELU(shift_w(Z) B) + GELU(shift_h(Z) C)) E                    B, C, E: D -> D
    X = X + GELU(GN(X) F) G                                                  F: D -> 4 D; G: 4 D -> D

GN is group normalisation with one group, over all channels and tokens of an image. A shift cuts the channels
into k = 5 groups of ceil(D / k), the last one smaller, and takes group g from (k - 1) / 2 - g tokens further
along the axis, zeros outside the grid. In the released code that is a CUDA operator; here it is a padding and
slices.

Nothing belongs to a grid: any image size in steps of 32 px, since tokens are merged two by two.
"""

from collections.abc import Iterator, Mapping
from functools import partial
from typing import Any

import torch
from timm.data import IMAGENET_DEFAULT_MEAN, IMAGENET_DEFAULT_STD
from timm.models import generate_default_cfgs, register_model
from torch import nn

from gmlp_vision.checkpoints.families import pyramid_sizes
from gmlp_vision.checkpoints.names import Layout, Row, as_kernel, as_matrix
from gmlp_vision.layers.embed import ConvEmbed, PatchMerging
from gmlp_vision.layers.mix_mlp_block import MixMlpBlock
from gmlp_vision.layers.norm import GroupNorm
from gmlp_vision.layers.resample import Grid
from gmlp_vision.layers.shift import neighbours
from gmlp_vision.trunks import Pyramid, cfg, create

SOURCE = (
    "The released model: equal logits from the authors' code with the same weights, its CUDA shift apart."
)
VERIFIED = ("count", "equation", "authors' code")


def axial_shift(x: torch.Tensor, dim: int, places: int) -> torch.Tensor:
    """Groups of channels of (B, H, W, D), each from another token along an axis, 1 for H or 2 for W."""
    from_first = neighbours(x, dim, places // 2)[::-1]
    size = (x.shape[-1] + places - 1) // places
    groups = [moved[..., g * size : (g + 1) * size] for g, moved in enumerate(from_first)]
    return torch.cat(groups, dim=-1)


class AxialShift(nn.Module):
    """``GN(GELU(shift_w(Z) B) + GELU(shift_h(Z) C)) E``.

    Args:
        dim: D.
        grid_size: (H, W); the shifts are the same on every grid.
        shift_size: k, in tokens; odd.
        device, dtype: of the parameters.

    Shape: (B, H, W, D) -> (B, H, W, D).

    Raises:
        ValueError: An even `shift_size`.
    """

    NO_OPERATOR = "its tokens mix by fixed shifts: there is no learned map over tokens to show"

    def __init__(
        self,
        dim: int,
        grid_size: Grid,
        shift_size: int,
        device: torch.device | str | None = None,
        dtype: torch.dtype | None = None,
    ) -> None:
        super().__init__()
        dd: dict[str, Any] = {"device": device, "dtype": dtype}
        if shift_size < 1 or shift_size % 2 == 0:
            raise ValueError(f"shift_size is {shift_size}; expected an odd number of tokens, such as 5")
        self.shift_size = shift_size
        self.fc1 = nn.Linear(dim, dim, **dd)
        self.norm1 = GroupNorm(dim, **dd)
        self.act = nn.GELU()
        self.fc_w = nn.Linear(dim, dim, **dd)
        self.fc_h = nn.Linear(dim, dim, **dd)
        self.norm2 = GroupNorm(dim, **dd)
        self.fc2 = nn.Linear(dim, dim, **dd)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        z = self.act(self.norm1(self.fc1(x)))
        w = self.act(self.fc_w(axial_shift(z, 2, self.shift_size)))
        h = self.act(self.fc_h(axial_shift(z, 1, self.shift_size)))
        return self.fc2(self.norm2(w + h))


class AsMlp(Pyramid):
    """AS-MLP: a stem of patches with a norm, four stages, final norm, mean pool, linear head.

    Args:
        kwargs: Those of Pyramid, of MixMlpBlock `mlp_ratio` and `proj_drop_rate`, and `shift_size`; those of
            AS-MLP-T by default.
    """

    def __init__(self, **kwargs: Any) -> None:
        super().__init__(
            partial(MixMlpBlock, mixer=AxialShift, norm=GroupNorm),
            stem=partial(ConvEmbed, norm=GroupNorm),
            downsample=partial(PatchMerging, norm=GroupNorm),
            norm=GroupNorm,
            **{**SIZES["as_mlp_t"], **kwargs},
        )


# Section 3.4 of the paper and the released configurations
SIZES: dict[str, dict[str, Any]] = {
    "as_mlp_t": {"depths": (2, 2, 6, 2), "embed_dims": (96, 192, 384, 768)},
    "as_mlp_s": {"depths": (2, 2, 18, 2), "embed_dims": (96, 192, 384, 768)},
    "as_mlp_b": {"depths": (2, 2, 18, 2), "embed_dims": (128, 256, 512, 1024)},
}
for size in SIZES.values():
    size |= {"mlp_ratio": 4.0, "shift_size": 5}

# README of the released code
TOP1 = {"as_mlp_t": 81.3, "as_mlp_s": 83.1, "as_mlp_b": 83.3}

KERNEL = (as_kernel, as_matrix)
# in a block; every layer is a convolution there
PARTS = [
    *(Row(f"norm{k}.norm", f"norm{k}") for k in (1, 2)),
    *(Row(f"mixer.norm{k}.norm", f"axial_shift.norm{k}") for k in (1, 2)),
    *(Row(part, part, *KERNEL) for part in ("mlp.fc1", "mlp.fc2")),
    *(
        Row(f"mixer.{ours}", f"axial_shift.{theirs}", *KERNEL)
        for ours, theirs in (("fc1", "conv1"), ("fc_w", "conv2_1"), ("fc_h", "conv2_2"), ("fc2", "conv3"))
    ),
]


def rows(model: Any) -> Iterator[Row]:
    """Their names: tokens are merged at the end of a stage, here at the start of the next."""
    yield Row("stem.proj", "patch_embed.proj")
    yield Row("stem.norm.norm", "patch_embed.norm")
    yield Row("norm.norm", "norm")
    for s in range(len(model.stages)):
        for ours, theirs, there, back in PARTS:
            yield Row(f"stages.{s}.blocks.{{j}}.{ours}", f"layers.{s}.blocks.{{j}}.{theirs}", there, back)
        yield Row(f"stages.{s + 1}.downsample.norm.norm", f"layers.{s}.downsample.norm")
        yield Row(f"stages.{s + 1}.downsample.reduction", f"layers.{s}.downsample.reduction", *KERNEL)


LAYOUTS = {
    # AS-MLP of https://github.com/svip-lab/AS-MLP
    "svip-lab": Layout(
        rows=rows,
        marks=("patch_embed.proj.weight", "layers.0.blocks.0.axial_shift.conv2_1.weight"),
        settings={"norm_eps": 1e-5, "final_norm": True, "shift_size": 5},
    ),
}


def sizes_of(state_dict: Mapping[str, torch.Tensor]) -> dict[str, Any] | None:
    """The arguments of the AS-MLP that has these tensors; None if they are not those of one."""
    if "stages.0.blocks.0.mixer.fc_w.weight" not in state_dict:
        return None
    return pyramid_sizes(state_dict, "mlp.fc1.weight")


PAPER = {
    "paper_ids": "arXiv:2107.08391",
    "paper_name": "AS-MLP: An Axial Shifted MLP Architecture for Vision",
    "origin_url": "https://github.com/svip-lab/AS-MLP",
    "license": "mit",
    "fixed_input_size": False,
    "mean": IMAGENET_DEFAULT_MEAN,
    "std": IMAGENET_DEFAULT_STD,
}
PAGE = "https://shanghaitecheducn-my.sharepoint.com/:u:/g/personal/liandz_shanghaitech_edu_cn/{}"

default_cfgs = generate_default_cfgs(
    {
        "as_mlp_t.svip_lab_in1k": cfg(
            **PAPER, url=PAGE.format("Eb2lPJI2BshEjJxf9CmRkCUBnB63Wj25-FVVc6zJvgRg6w?e=dEQd5q")
        ),
        "as_mlp_s.svip_lab_in1k": cfg(
            **PAPER, url=PAGE.format("EVIbw8xHKk1Aq9MBQL-cRbIBVJA_hJE-HEVNf_GVgkw2iQ?e=QIIp2e")
        ),
        "as_mlp_b.svip_lab_in1k": cfg(
            **PAPER, url=PAGE.format("EZVBFW_LKctLqgrnnINy88wBRtGFava9wp_65emsvVW2KQ?e=clNjuw")
        ),
    }
)


@register_model
def as_mlp_t(pretrained: bool = False, **kwargs: Any) -> nn.Module:
    """AS-MLP-T: 28.28 M parameters, any image size in steps of 32 px."""
    return create("as_mlp_t", AsMlp, SIZES, pretrained, **kwargs)


@register_model
def as_mlp_s(pretrained: bool = False, **kwargs: Any) -> nn.Module:
    """AS-MLP-S: 49.59 M parameters, any image size in steps of 32 px."""
    return create("as_mlp_s", AsMlp, SIZES, pretrained, **kwargs)


@register_model
def as_mlp_b(pretrained: bool = False, **kwargs: Any) -> nn.Module:
    """AS-MLP-B: 87.75 M parameters, any image size in steps of 32 px."""
    return create("as_mlp_b", AsMlp, SIZES, pretrained, **kwargs)
