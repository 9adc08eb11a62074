"""sMLPNet: "Sparse MLP for Image Recognition: Is Self-Attention Really Necessary?", Tang et al., https://arxiv.org/abs/2109.05422

Shapes: B batch, H, W the token grid of a stage, D its width.

    Y = GELU(BN(depthwise(GELU(BN(X)))))                            a 3 x 3 kernel for each channel
    X = X + [Y, Y C, R Y] A                                         A: 3 D -> D
    X = X + GELU(LN(X) F) G                                         F: D -> 3 D; G: 3 D -> D

R Y = one H x H matrix, and a bias for each row, over the rows of every column and channel; Y C = one W x W
matrix over the columns. In the released code, which this is, `proj_h` is the map over the columns, along the
width, and `proh_w` that over the rows. BN is batch normalisation, LN over the channels. Depthwise
convolution, A and the embeddings have no bias.

On another grid the two matrices go by the rule of docs/resampling.md along their axis; the released model has
one size. Any size in steps of 32 px: the embeddings cut tokens two by two.
"""

from collections.abc import Iterator, Mapping
from functools import partial
from typing import Any, ClassVar

import torch
from timm.data import IMAGENET_DEFAULT_MEAN, IMAGENET_DEFAULT_STD
from timm.layers import DropPath, Mlp
from timm.models import generate_default_cfgs, register_model
from torch import nn

from gmlp_vision.checkpoints.families import pyramid_sizes
from gmlp_vision.checkpoints.names import Layout, Row, as_kernel, as_matrix
from gmlp_vision.layers.ask import Operator
from gmlp_vision.layers.embed import ConvEmbed
from gmlp_vision.layers.grid_tied import GridTied
from gmlp_vision.layers.hidden_width import hidden_width
from gmlp_vision.layers.norm import BatchNorm
from gmlp_vision.layers.resample import Grid
from gmlp_vision.layers.rules import of_axis
from gmlp_vision.trunks import Pyramid, cfg, create

SOURCE = "The released model: equal logits from the authors' code with the same weights."
VERIFIED = ("count", "equation", "authors' code")


class AxisMap(GridTied):
    """A linear map over the rows, or the columns, of the grid, shared by all channels and places across.

    Args:
        grid_size: (H, W).
        device, dtype: of the parameters.

    Shape: (B, H, W, D) -> (B, H, W, D).
    """

    AXIS: ClassVar[int]

    def __init__(
        self,
        grid_size: Grid,
        device: torch.device | str | None = None,
        dtype: torch.dtype | None = None,
    ) -> None:
        super().__init__(grid_size)
        n = grid_size[self.AXIS]
        self.weight = nn.Parameter(torch.empty(n, n, device=device, dtype=dtype))
        self.bias = nn.Parameter(torch.empty(n, device=device, dtype=dtype))
        self.reset_parameters()

    def reset_parameters(self) -> None:
        """As a linear layer, the bias zero."""
        nn.init.xavier_uniform_(self.weight)
        nn.init.zeros_(self.bias)

    def operators(self, grid_size: Grid | None) -> list[Operator]:
        """The map over all tokens: zero between tokens that differ across."""
        across = torch.eye(self.grid_size[1 - self.AXIS]).to(self.weight)
        pair = (self.weight, across) if self.AXIS == 0 else (across, self.weight)
        ones = torch.ones(self.grid_size).to(self.bias)
        bias = ones * (self.bias[:, None] if self.AXIS == 0 else self.bias)
        std = (1 / len(self.weight)) ** 0.5
        return [Operator("", "token", torch.kron(*pair), bias.flatten(), init_std=std)]


class HeightMap(AxisMap):
    """Over the rows."""

    AXIS = 0
    RULES = {"weight": of_axis(0, operator=True), "bias": of_axis(0, operator=False)}  # noqa: RUF012

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        weight: torch.Tensor = self.weight
        bias: torch.Tensor = self.bias
        if self.dynamic:
            weight, bias = self.parameters_on((x.shape[1], x.shape[2]))
        y = weight @ x.flatten(2) + bias[:, None]
        return y.unflatten(2, (x.shape[2], x.shape[3]))


class WidthMap(AxisMap):
    """Over the columns."""

    AXIS = 1
    RULES = {"weight": of_axis(1, operator=True), "bias": of_axis(1, operator=False)}  # noqa: RUF012

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        weight: torch.Tensor = self.weight
        bias: torch.Tensor = self.bias
        if self.dynamic:
            weight, bias = self.parameters_on((x.shape[1], x.shape[2]))
        return weight @ x + bias[:, None]


class SparseMix(nn.Module):
    """``[Y, Y C, R Y] A`` with ``Y = GELU(BN(depthwise(GELU(BN(X)))))``.

    Args:
        dim: D.
        grid_size: (H, W).
        device, dtype: of the parameters.

    Shape: (B, H, W, D) -> (B, H, W, D).
    """

    def __init__(
        self,
        dim: int,
        grid_size: Grid,
        device: torch.device | str | None = None,
        dtype: torch.dtype | None = None,
    ) -> None:
        super().__init__()
        dd: dict[str, Any] = {"device": device, "dtype": dtype}
        self.norm1 = nn.BatchNorm2d(dim, **dd)
        self.act = nn.GELU()
        self.conv = nn.Conv2d(dim, dim, 3, padding=1, groups=dim, bias=False, **dd)
        self.norm2 = nn.BatchNorm2d(dim, **dd)
        self.over_rows = HeightMap(grid_size, **dd)
        self.over_columns = WidthMap(grid_size, **dd)
        self.fuse = nn.Linear(3 * dim, dim, bias=False, **dd)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y = self.conv(self.act(self.norm1(x.permute(0, 3, 1, 2))))
        # contiguous as it is, but for torch.compile, which expects of a batch norm another layout than it has
        y = self.act(self.norm2(y)).permute(0, 2, 3, 1).contiguous()
        return self.fuse(torch.cat([y, self.over_columns(y), self.over_rows(y)], dim=-1))


class SparseBlock(nn.Module):
    """``X = X + mix(X)``, then ``X = X + GELU(LN(X) F) G``.

    Args:
        dim: D.
        grid_size: (H, W).
        mlp_ratio: The hidden width of the MLP, as a multiple of D.
        proj_drop_rate: Dropout in the MLP, in [0, 1].
        drop_path: Probability that a sample skips a branch, in [0, 1).
        norm_eps: eps of the LayerNorm; the batch norms have torch's.
        device, dtype: of the parameters.

    Shape: (B, H, W, D) -> (B, H, W, D).
    """

    def __init__(
        self,
        dim: int,
        grid_size: Grid,
        *,
        mlp_ratio: float = 3.0,
        proj_drop_rate: float = 0.0,
        drop_path: float = 0.0,
        norm_eps: float = 1e-5,
        device: torch.device | str | None = None,
        dtype: torch.dtype | None = None,
    ) -> None:
        super().__init__()
        dd: dict[str, Any] = {"device": device, "dtype": dtype}
        self.mixer = SparseMix(dim, grid_size, **dd)
        self.norm = nn.LayerNorm(dim, eps=norm_eps, **dd)
        self.mlp = Mlp(dim, hidden_width(dim, mlp_ratio), drop=proj_drop_rate, **dd)
        self.drop_path = DropPath(drop_path) if drop_path > 0 else nn.Identity()

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = x + self.drop_path(self.mixer(x))
        return x + self.drop_path(self.mlp(self.norm(x)))


class SMlpNet(Pyramid):
    """sMLPNet: a stem of patches, four stages, final batch norm, mean pool, linear head.

    Args:
        kwargs: Those of Pyramid, and of SparseBlock `mlp_ratio` and `proj_drop_rate`; those of sMLPNet-T by
            default.
    """

    def __init__(self, **kwargs: Any) -> None:
        embed = partial(ConvEmbed, bias=False)
        super().__init__(
            SparseBlock, stem=embed, downsample=embed, norm=BatchNorm, **{**SIZES["smlp_t"], **kwargs}
        )


# README and code of the release
SIZES: dict[str, dict[str, Any]] = {
    "smlp_t": {"depths": (2, 8, 14, 2), "embed_dims": (80, 160, 320, 640), "mlp_ratio": 3.0},
    "smlp_s": {"depths": (2, 10, 24, 2), "embed_dims": (96, 192, 384, 768), "mlp_ratio": 3.0},
    "smlp_b": {"depths": (2, 10, 24, 2), "embed_dims": (112, 224, 448, 896), "mlp_ratio": 3.0},
}

# README of the release; of sMLPNet-T there is no file
TOP1 = {"smlp_s": 83.1, "smlp_b": 83.4}

KERNEL = (as_kernel, as_matrix)


def rows(model: Any) -> Iterator[Row]:
    """Their names: blocks are numbered over the whole net, in one list of token mixers and one of MLPs."""
    number = 0
    for s, depth in enumerate(model.depths):
        yield Row("stem.proj" if s == 0 else f"stages.{s}.downsample.proj", f"to_patch_embedding.{s}.0")
        for j in range(depth):
            ours = f"stages.{s}.blocks.{j}"
            first, second = f"token_mix.{number}.0.conv_merge", f"token_mix.{number}.1"
            channels = f"channel_mix.{number}"
            yield Row(f"{ours}.mixer.norm1", f"{first}.BN")
            yield Row(f"{ours}.mixer.conv", f"{first}.Conv")
            yield Row(f"{ours}.mixer.norm2", f"{second}.BN")
            yield Row(f"{ours}.mixer.over_columns", f"{second}.proj_h", *KERNEL)
            yield Row(f"{ours}.mixer.over_rows", f"{second}.proh_w", *KERNEL)  # as they spell it
            yield Row(f"{ours}.mixer.fuse", f"{second}.fuse", *KERNEL)
            yield Row(f"{ours}.norm", f"{channels}.1")
            yield Row(f"{ours}.mlp.fc1", f"{channels}.2.net.0")
            yield Row(f"{ours}.mlp.fc2", f"{channels}.2.net.3")
            number += 1
    yield Row("norm.norm", "batch_norm")
    yield Row("head", "mlp_head.0")


LAYOUTS = {
    # sMLPNet of https://github.com/microsoft/SPACH
    "spach": Layout(
        rows=rows,
        marks=("to_patch_embedding.0.0.weight", "token_mix.0.1.proh_w.weight"),
        settings={"norm_eps": 1e-5, "final_norm": True},
    ),
}


def sizes_of(state_dict: Mapping[str, torch.Tensor]) -> dict[str, Any] | None:
    """The arguments of the sMLPNet that has these tensors; None if they are not those of one."""
    if "stages.0.blocks.0.mixer.over_rows.weight" not in state_dict:
        return None
    return pyramid_sizes(state_dict, "mlp.fc1.weight")


PAPER = {
    "paper_ids": "arXiv:2109.05422",
    "paper_name": "Sparse MLP for Image Recognition: Is Self-Attention Really Necessary?",
    "origin_url": "https://github.com/microsoft/SPACH",
    "license": "mit",
    "mean": IMAGENET_DEFAULT_MEAN,
    "std": IMAGENET_DEFAULT_STD,
}
RELEASE = "https://github.com/microsoft/SPACH/releases/download/v1.0/{}.pth"

default_cfgs = generate_default_cfgs(
    {
        "smlp_t.untrained": cfg(**PAPER),
        "smlp_s.spach_in1k": cfg(**PAPER, url=RELEASE.format("smlp_s")),
        "smlp_b.spach_in1k": cfg(**PAPER, url=RELEASE.format("smlp_b")),
    }
)


@register_model
def smlp_t(pretrained: bool = False, **kwargs: Any) -> nn.Module:
    """sMLPNet-T: 24.12 M parameters, 224 px."""
    return create("smlp_t", SMlpNet, SIZES, pretrained, **kwargs)


@register_model
def smlp_s(pretrained: bool = False, **kwargs: Any) -> nn.Module:
    """sMLPNet-S: 48.56 M parameters, 224 px."""
    return create("smlp_s", SMlpNet, SIZES, pretrained, **kwargs)


@register_model
def smlp_b(pretrained: bool = False, **kwargs: Any) -> nn.Module:
    """sMLPNet-B: 65.88 M parameters, 224 px."""
    return create("smlp_b", SMlpNet, SIZES, pretrained, **kwargs)
