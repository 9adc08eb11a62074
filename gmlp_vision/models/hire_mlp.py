"""Hire-MLP: "Hire-MLP: Vision MLP via Hierarchical Rearrangement", Guo et al., https://arxiv.org/abs/2108.13341

Shapes: B batch, H, W the token grid of a stage, D its width, p tokens of a region.

    X = X + proj(fuse(rows(X), columns(X), X C + c)) of BN(X);    X = X + GELU(BN(X) F) G

    columns(X): every p tokens of a row are one region, in a row moved on by s tokens round its end; the p D
    numbers of a region go through  ReLU(BN(. A)) B + b,  A: p D -> D / 2,  B: D / 2 -> p D,  back to these
    rows(X): the same along the height

The inner-region rearrangement of the paper is the region, the cross-region one the move by s. A row that p
does not divide goes on with its own first tokens. fuse is layers/reweight.py, BN batch normalisation.

This is the released code, whose models are better than those of the first version of the paper. Regions have
4, 3, 3 and 2 tokens in the four stages; the blocks of a stage move on by 0, 2 (in turn), 0, 2; 0, 1, 2; 0, 1.
Nothing belongs to a grid: any image size.
"""

from collections.abc import Iterator, Mapping
from functools import partial
from typing import Any

import torch
from timm.data import IMAGENET_DEFAULT_MEAN, IMAGENET_DEFAULT_STD
from timm.models import generate_default_cfgs, register_model
from torch import nn

from gmlp_vision.checkpoints.families import pyramid_sizes
from gmlp_vision.checkpoints.names import Layout, Row, as_kernel, as_matrix, dense_norms, network_rows
from gmlp_vision.layers.embed import ConvEmbed
from gmlp_vision.layers.mix_mlp_block import MixMlpBlock
from gmlp_vision.layers.norm import BatchNorm
from gmlp_vision.layers.resample import Grid
from gmlp_vision.layers.reweight import Reweight
from gmlp_vision.trunks import Pyramid, cfg, create

SOURCE = "The released model: equal logits from the authors' code with the same weights."
VERIFIED = ("count", "equation", "authors' code")


class RegionMlp(nn.Module):
    """``ReLU(BN(X A)) B + b`` on the numbers of every p tokens along one axis.

    Args:
        dim: D.
        axis: 1 for the height, 2 for the width.
        region: p, in tokens.
        step: s, by how many tokens the regions are moved.
        device, dtype: of the parameters.

    Shape: (B, H, W, D) -> (B, H, W, D).
    """

    def __init__(
        self,
        dim: int,
        axis: int,
        region: int,
        step: int,
        device: torch.device | str | None = None,
        dtype: torch.dtype | None = None,
    ) -> None:
        super().__init__()
        dd: dict[str, Any] = {"device": device, "dtype": dtype}
        self.axis, self.region, self.step = axis, region, step
        self.fc1 = nn.Linear(region * dim, dim // 2, bias=False, **dd)
        self.norm = BatchNorm(dim // 2, **dd)
        self.act = nn.ReLU()
        self.fc2 = nn.Linear(dim // 2, region * dim, **dd)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        n, p, axis = x.shape[self.axis], self.region, self.axis
        places = torch.arange((n + p - 1) // p * p, device=x.device)  # of whole regions
        x = x.index_select(axis, (places % n - self.step) % n)
        # a region's tokens beside one another, the tokens of the other axis in front
        x = x.unflatten(axis, (-1, p)).transpose(axis + 1, 3)
        y = self.fc2(self.act(self.norm(self.fc1(x.flatten(3)))))
        y = y.unflatten(3, (p, -1)).transpose(axis + 1, 3).flatten(axis, axis + 1)
        return y.index_select(axis, (places[:n] + self.step) % n)


class HireMix(nn.Module):
    """``proj(fuse(rows(X), columns(X), X C + c))``.

    Args:
        dim: D.
        grid_size: (H, W); regions are the same on every grid.
        region: p, in tokens.
        step: s, by how many tokens the regions are moved.
        device, dtype: of the parameters.

    Shape: (B, H, W, D) -> (B, H, W, D).
    """

    NO_OPERATOR = (
        "the tokens of a region are mixed with all their channels: there is no map over tokens alone"
    )

    def __init__(
        self,
        dim: int,
        grid_size: Grid,
        region: int,
        step: int,
        device: torch.device | str | None = None,
        dtype: torch.dtype | None = None,
    ) -> None:
        super().__init__()
        dd: dict[str, Any] = {"device": device, "dtype": dtype}
        self.mlp_h = RegionMlp(dim, 1, region, step, **dd)
        self.mlp_w = RegionMlp(dim, 2, region, step, **dd)
        self.mlp_c = nn.Linear(dim, dim, **dd)
        self.reweight = Reweight(dim, **dd)
        self.proj = nn.Linear(dim, dim, **dd)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.proj(self.reweight(self.mlp_h(x), self.mlp_w(x), self.mlp_c(x)))


class HireMlp(Pyramid):
    """Hire-MLP: an overlapping stem, four stages, final norm, mean pool, linear head.

    Args:
        kwargs: Those of Pyramid, of MixMlpBlock `mlp_ratio` and `proj_drop_rate`, and `region` and `step`,
            one number a stage, or one a block; those of Hire-MLP-Tiny by default.
    """

    def __init__(self, **kwargs: Any) -> None:
        embed = partial(ConvEmbed, norm=BatchNorm, act=nn.ReLU)
        super().__init__(
            partial(MixMlpBlock, mixer=HireMix, norm=BatchNorm),
            stem=partial(embed, kernel_size=7, padding=2),
            downsample=partial(embed, kernel_size=3, padding=1),
            norm=BatchNorm,
            **{**SIZES["hire_t"], **kwargs},
        )


# README and code of the release
SIZES: dict[str, dict[str, Any]] = {
    name: {
        "depths": depths,
        "embed_dims": dims,
        "mlp_ratio": 4.0,
        "region": (4, 3, 3, 2),
        "step": ((0, 2), (0, 2), (0, 1, 2), (0, 1)),
    }
    for name, depths, dims in (
        ("hire_t", (2, 2, 4, 2), (64, 128, 320, 512)),
        ("hire_s", (3, 4, 10, 3), (64, 128, 320, 512)),
        ("hire_b", (4, 6, 24, 3), (64, 128, 320, 512)),
        ("hire_l", (4, 6, 24, 3), (96, 192, 384, 768)),
    )
}

# README of the release; of Hire-MLP-Large there is no file
TOP1 = {"hire_t": 79.7, "hire_s": 82.1, "hire_b": 83.2}


# in a block; every layer is a convolution there
PARTS = [
    *(Row(f"norm{k}.norm", f"norm{k}") for k in (1, 2)),
    *(Row(f"mixer.mlp_{axis}.norm.norm", f"attn.mlp_{axis}1_norm") for axis in "hw"),
    *(Row(part, part, as_kernel, as_matrix) for part in ("mlp.fc1", "mlp.fc2")),
    *(Row(f"mixer.{part}", f"attn.{part}", as_kernel, as_matrix) for part in ("mlp_c", "proj")),
    Row("mixer.reweight.mlp.fc{k}", "attn.reweight.fc{k}", as_kernel, as_matrix),
]


def region_rows(p: int) -> Iterator[Row]:
    """The layers over a region of p tokens: theirs has a channel's tokens side by side, ours a token's
    channels."""

    def swapped(tensor: torch.Tensor, axis: int, sizes: tuple[int, int]) -> torch.Tensor:
        if tensor.ndim <= axis or tensor.shape[axis] % p:
            return tensor  # of another region: it will fit no model
        return tensor.unflatten(axis, sizes).transpose(axis, axis + 1).flatten(axis, axis + 1)

    for axis in "hw":
        yield Row(
            f"mixer.mlp_{axis}.fc1",
            f"attn.mlp_{axis}1",
            lambda tensor: as_kernel(swapped(tensor, 1, (p, -1))),
            lambda tensor, target: swapped(as_matrix(tensor, target), 1, (-1, p)),
        )
        yield Row(
            f"mixer.mlp_{axis}.fc2",
            f"attn.mlp_{axis}2",
            lambda tensor: as_kernel(swapped(tensor, 0, (p, -1))),
            lambda tensor, target: swapped(as_matrix(tensor, target), 0, (-1, p)),
        )


def rows(model: Any) -> Iterator[Row]:
    """Their names: stages and downsamplings stand in one list."""
    yield Row("stem.proj", "patch_embed.proj")
    yield Row("stem.norm.norm", "patch_embed.norm")
    yield from network_rows(model, lambda stage: [*PARTS, *region_rows(model.block_args["region"][stage])])
    yield Row("norm.norm", "norm")
    yield Row("norm.norm", "norm6")  # of a backbone for dense heads


LAYOUTS = {
    # Hire-MLP of https://github.com/ggjy/Hire-Wave-MLP.pytorch
    "ggjy": Layout(
        rows=rows,
        marks=("patch_embed.proj.weight", "network.0.0.attn.mlp_h1.weight"),
        drop=dense_norms(),
        settings={"norm_eps": 1e-5, "final_norm": True},
    ),
}


def sizes_of(state_dict: Mapping[str, torch.Tensor]) -> dict[str, Any] | None:
    """The arguments of the Hire-MLP that has these tensors; None if they are not those of one."""
    if "stages.0.blocks.0.mixer.mlp_h.fc1.weight" not in state_dict:
        return None
    return pyramid_sizes(state_dict, "mlp.fc1.weight")


PAPER = {
    "paper_ids": "arXiv:2108.13341",
    "paper_name": "Hire-MLP: Vision MLP via Hierarchical Rearrangement",
    "origin_url": "https://github.com/ggjy/Hire-Wave-MLP.pytorch",
    "license": "mit",  # by the badge of its README; there is no licence file
    "fixed_input_size": False,
    "crop_pct": 0.9,
    "mean": IMAGENET_DEFAULT_MEAN,
    "std": IMAGENET_DEFAULT_STD,
}
RELEASE = "https://github.com/ggjy/Hire-Wave-MLP.pytorch/releases/download/log/hire_mlp_{}.pth"

default_cfgs = generate_default_cfgs(
    {
        "hire_t.ggjy_in1k": cfg(**PAPER, url=RELEASE.format("tiny")),
        "hire_s.ggjy_in1k": cfg(**PAPER, url=RELEASE.format("small")),
        "hire_b.ggjy_in1k": cfg(**PAPER, url=RELEASE.format("base")),
        "hire_l.untrained": cfg(**PAPER),
    }
)


@register_model
def hire_t(pretrained: bool = False, **kwargs: Any) -> nn.Module:
    """Hire-MLP-Tiny: 18.04 M parameters, any image size."""
    return create("hire_t", HireMlp, SIZES, pretrained, **kwargs)


@register_model
def hire_s(pretrained: bool = False, **kwargs: Any) -> nn.Module:
    """Hire-MLP-Small: 33.11 M parameters, any image size."""
    return create("hire_s", HireMlp, SIZES, pretrained, **kwargs)


@register_model
def hire_b(pretrained: bool = False, **kwargs: Any) -> nn.Module:
    """Hire-MLP-Base: 58.23 M parameters, any image size."""
    return create("hire_b", HireMlp, SIZES, pretrained, **kwargs)


@register_model
def hire_l(pretrained: bool = False, **kwargs: Any) -> nn.Module:
    """Hire-MLP-Large: 95.72 M parameters, any image size."""
    return create("hire_l", HireMlp, SIZES, pretrained, **kwargs)
