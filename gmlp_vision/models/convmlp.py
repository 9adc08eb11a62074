"""ConvMLP: "ConvMLP: Hierarchical Convolutional MLPs for Vision", Li et al., https://arxiv.org/abs/2109.04454

Shapes: B batch, H, W the token grid of a stage, D its width.

The first stage is of convolutions, those behind it mix the tokens by a depthwise one:

    X = X + ReLU(BN(conv1(ReLU(BN(conv3(ReLU(BN(conv1(X)))))))))              D -> r D -> r D -> D channels
    X = X + GELU(LN(X) F) G;    X = depthwise(LN(X));    X = X + GELU(LN(X) P) Q        F, P: D -> r D

conv1 and conv3 have kernels of 1 x 1 and 3 x 3, depthwise one of 3 x 3 for each channel; none of them has a
bias, nor has the depthwise one a residual branch around it. BN is batch normalisation, LN over the channels.

The stem halves the grid by its first of three convolutions and by a max pooling. Nothing belongs to a grid:
any image size. In the released code drop path begins anew in every stage (`drop_path_rule="stagewise"`) and
the convolutions of the first one have none.
"""

from collections.abc import Iterator, Mapping, Sequence
from functools import partial
from typing import Any

import torch
from timm.data import IMAGENET_DEFAULT_MEAN, IMAGENET_DEFAULT_STD
from timm.layers import DropPath, Mlp
from timm.models import generate_default_cfgs, register_model
from torch import nn

from gmlp_vision.checkpoints.names import Layout, Row
from gmlp_vision.layers.ask import Operator
from gmlp_vision.layers.embed import ConvEmbed
from gmlp_vision.layers.hidden_width import hidden_width, ratio_of
from gmlp_vision.layers.norm import BatchNorm
from gmlp_vision.layers.resample import Grid
from gmlp_vision.trunks import Pyramid, cfg, create

SOURCE = "The released model: equal logits from the authors' code with the same weights."
VERIFIED = ("count", "equation", "authors' code")

# a convolution, its batch norm and ReLU
ConvUnit = partial(ConvEmbed, norm=BatchNorm, act=nn.ReLU, bias=False)


class Bottleneck(nn.Module):
    """``X + ReLU(BN(conv1(ReLU(BN(conv3(ReLU(BN(conv1(X)))))))))``.

    Args:
        dim: D.
        grid_size: (H, W); convolutions are the same on every grid.
        mlp_ratio: r, the width between as a multiple of D.
        drop_path, norm_eps: Not used: a trunk gives them to every block.
        device, dtype: of the parameters.

    Shape: (B, H, W, D) -> (B, H, W, D).
    """

    NO_OPERATOR = "a convolution mixes tokens and channels at once: there is no map over tokens alone"

    def __init__(
        self,
        dim: int,
        grid_size: Grid,
        *,
        mlp_ratio: float = 2.0,
        drop_path: float = 0.0,
        norm_eps: float = 1e-5,
        device: torch.device | str | None = None,
        dtype: torch.dtype | None = None,
    ) -> None:
        super().__init__()
        hidden = hidden_width(dim, mlp_ratio)
        unit = partial(ConvUnit, stride=1, device=device, dtype=dtype)
        self.conv1 = unit(dim, hidden)
        self.conv2 = unit(hidden, hidden, kernel_size=3, padding=1)
        self.conv3 = unit(hidden, dim)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x + self.conv3(self.conv2(self.conv1(x)))


class DepthwiseMix(nn.Module):
    """``depthwise(X)``, a 3 x 3 kernel for each channel, zeros outside the grid.

    Args:
        dim: D.
        device, dtype: of the parameters.

    Shape: (B, H, W, D) -> (B, H, W, D).
    """

    def __init__(
        self, dim: int, device: torch.device | str | None = None, dtype: torch.dtype | None = None
    ) -> None:
        super().__init__()
        self.conv = nn.Conv2d(dim, dim, 3, padding=1, groups=dim, bias=False, device=device, dtype=dtype)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.conv(x.permute(0, 3, 1, 2)).permute(0, 2, 3, 1)

    def operators(self, grid_size: Grid | None) -> list[Operator]:
        """The kernel of each channel."""
        return [Operator("", "kernel", self.conv.weight.squeeze(1), None, init_std=1 / 3)]


class ConvMlpBlock(nn.Module):
    """``X + MLP(LN(X))``, ``depthwise(LN(X))``, ``X + MLP(LN(X))``, one behind the other.

    Args:
        dim: D.
        grid_size: (H, W); convolutions are the same on every grid.
        mlp_ratio: r, the hidden width of both MLPs as a multiple of D.
        drop_path: Probability that a sample skips an MLP, in [0, 1).
        norm_eps: eps of the LayerNorms.
        device, dtype: of the parameters.

    Shape: (B, H, W, D) -> (B, H, W, D).
    """

    def __init__(
        self,
        dim: int,
        grid_size: Grid,
        *,
        mlp_ratio: float = 2.0,
        drop_path: float = 0.0,
        norm_eps: float = 1e-5,
        device: torch.device | str | None = None,
        dtype: torch.dtype | None = None,
    ) -> None:
        super().__init__()
        dd: dict[str, Any] = {"device": device, "dtype": dtype}
        hidden = hidden_width(dim, mlp_ratio)
        self.norm1 = nn.LayerNorm(dim, eps=norm_eps, **dd)
        self.mlp1 = Mlp(dim, hidden, **dd)
        self.norm2 = nn.LayerNorm(dim, eps=norm_eps, **dd)
        self.mixer = DepthwiseMix(dim, **dd)
        self.norm3 = nn.LayerNorm(dim, eps=norm_eps, **dd)
        self.mlp2 = Mlp(dim, hidden, **dd)
        self.drop_path = DropPath(drop_path) if drop_path > 0 else nn.Identity()

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = x + self.drop_path(self.mlp1(self.norm1(x)))
        x = self.mixer(self.norm2(x))
        return x + self.drop_path(self.mlp2(self.norm3(x)))


class ConvTokenizer(nn.Module):
    """Three 3 x 3 convolutions with batch norm and ReLU, the first of stride 2, and a max pooling.

    Args:
        in_chans: Channels of the image.
        dim: D.
        stride: 4.
        device, dtype: of the parameters.

    Shape: (B, height, width, in_chans) -> (B, H, W, D).

    Raises:
        ValueError: Another stride.
    """

    def __init__(
        self,
        in_chans: int,
        dim: int,
        *,
        stride: int,
        device: torch.device | str | None = None,
        dtype: torch.dtype | None = None,
    ) -> None:
        super().__init__()
        if stride != 4:
            raise ValueError(f"the first stride is {stride}; the stem halves the grid twice, so it is 4")
        unit = partial(ConvUnit, kernel_size=3, padding=1, device=device, dtype=dtype)
        self.conv1 = unit(in_chans, dim // 2, stride=2)
        self.conv2 = unit(dim // 2, dim // 2, stride=1)
        self.conv3 = unit(dim // 2, dim, stride=1)
        self.pool = nn.MaxPool2d(3, stride=2, padding=1)

    def out_size(self, size: Grid) -> Grid:
        """The grid for an image of this size."""
        height, width = self.conv1.out_size(size)
        return (height + 1) // 2, (width + 1) // 2

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = self.conv3(self.conv2(self.conv1(x)))
        return self.pool(x.permute(0, 3, 1, 2)).permute(0, 2, 3, 1)


class ConvMlp(Pyramid):
    """ConvMLP: a stem of convolutions, a stage of convolutions, three of ConvMlpBlocks, mean pool, head.

    Args:
        kwargs: Those of Pyramid, and of the blocks `mlp_ratio`, one number a stage; those of ConvMLP-S by
            default.
    """

    first_conv = "stem.conv1.proj"

    def __init__(self, **kwargs: Any) -> None:
        args = {**SIZES["convmlp_s"], "drop_path_rule": "stagewise", **kwargs}
        later: Sequence[Any] = [ConvMlpBlock] * (len(args["depths"]) - 1)
        super().__init__(
            [Bottleneck, *later],
            stem=ConvTokenizer,
            downsample=partial(ConvEmbed, kernel_size=3, padding=1),
            **args,
        )


# Table 1 of the paper and the released code; the first stage's ratio is its bottleneck's
SIZES: dict[str, dict[str, Any]] = {
    "convmlp_s": {
        "depths": (2, 2, 4, 2),
        "embed_dims": (64, 128, 256, 512),
        "mlp_ratio": (2.0, 2.0, 2.0, 2.0),
    },
    "convmlp_m": {
        "depths": (3, 3, 6, 3),
        "embed_dims": (64, 128, 256, 512),
        "mlp_ratio": (2.0, 3.0, 3.0, 3.0),
    },
    "convmlp_l": {
        "depths": (3, 4, 8, 3),
        "embed_dims": (96, 192, 384, 768),
        "mlp_ratio": (2.0, 3.0, 3.0, 3.0),
    },
}

# README of the released code
TOP1 = {"convmlp_s": 76.8, "convmlp_m": 79.0, "convmlp_l": 80.2}


def rows() -> Iterator[Row]:
    """Their names: the stage of convolutions stands by itself, and downsamplings end a stage."""
    for ours, theirs in (("stem", "tokenizer.block"), ("stages.0.blocks.{j}", "conv_stages.conv_blocks.{j}")):
        for k in range(3):
            yield Row(f"{ours}.conv{k + 1}.proj", f"{theirs}.{3 * k}")
            yield Row(f"{ours}.conv{k + 1}.norm.norm", f"{theirs}.{3 * k + 1}")
    yield Row("stages.1.downsample.proj", "conv_stages.downsample")
    for s in range(3):
        block = f"stages.{s + 1}.blocks.{{j}}", f"stages.{s}.blocks.{{j}}"
        for ours, theirs in (
            ("norm1", "norm1"),
            ("mlp1.fc{k}", "channel_mlp1.fc{k}"),
            ("norm2", "connect_norm"),
            ("mixer.conv", "connect"),
            ("norm3", "norm2"),
            ("mlp2.fc{k}", "channel_mlp2.fc{k}"),
        ):
            yield Row(f"{block[0]}.{ours}", f"{block[1]}.{theirs}")
        yield Row(f"stages.{s + 2}.downsample.proj", f"stages.{s}.downsample_mlp.downsample")


LAYOUTS = {
    # ConvMLP of https://github.com/SHI-Labs/Convolutional-MLPs
    "shi-labs": Layout(
        rows=tuple(rows()),
        marks=("tokenizer.block.0.weight", "conv_stages.conv_blocks.0.0.weight"),
        settings={"norm_eps": 1e-5, "final_norm": True},
    ),
}


def sizes_of(state_dict: Mapping[str, torch.Tensor]) -> dict[str, Any] | None:
    """The arguments of the ConvMLP that has these tensors; None if they are not those of one."""
    depths, dims, ratios = [], [], []
    stages = {key.split(".")[1] for key in state_dict if key.startswith("stages.")}
    for s in range(len(stages)):
        name = "conv1.proj.weight" if s == 0 else "mlp1.fc1.weight"
        wide = state_dict.get(f"stages.{s}.blocks.0.{name}")
        if wide is None or wide.ndim < 2 or min(wide.shape) < 1:
            return None
        blocks = {key.split(".")[3] for key in state_dict if key.startswith(f"stages.{s}.blocks.")}
        depths.append(len(blocks))
        dims.append(wide.shape[1])
        ratios.append(ratio_of(wide.shape[0], wide.shape[1]))
    if not stages:
        return None
    sizes = {"depths": depths, "embed_dims": dims, "mlp_ratio": ratios}
    return sizes if "norm.weight" in state_dict else {**sizes, "final_norm": False}


PAPER = {
    "paper_ids": "arXiv:2109.04454",
    "paper_name": "ConvMLP: Hierarchical Convolutional MLPs for Vision",
    "origin_url": "https://github.com/SHI-Labs/Convolutional-MLPs",
    "license": "apache-2.0",
    "fixed_input_size": False,
    "crop_pct": 0.9,
    "first_conv": "stem.conv1.proj",
    "mean": IMAGENET_DEFAULT_MEAN,
    "std": IMAGENET_DEFAULT_STD,
}
RELEASE = "https://shi-labs.com/projects/convmlp/checkpoints/{}_imagenet.pth"

default_cfgs = generate_default_cfgs(
    {f"{name}.shi_labs_in1k": cfg(**PAPER, url=RELEASE.format(name)) for name in SIZES}
)


@register_model
def convmlp_s(pretrained: bool = False, **kwargs: Any) -> nn.Module:
    """ConvMLP-S: 9.02 M parameters, any image size."""
    return create("convmlp_s", ConvMlp, SIZES, pretrained, **kwargs)


@register_model
def convmlp_m(pretrained: bool = False, **kwargs: Any) -> nn.Module:
    """ConvMLP-M: 17.41 M parameters, any image size."""
    return create("convmlp_m", ConvMlp, SIZES, pretrained, **kwargs)


@register_model
def convmlp_l(pretrained: bool = False, **kwargs: Any) -> nn.Module:
    """ConvMLP-L: 42.73 M parameters, any image size."""
    return create("convmlp_l", ConvMlp, SIZES, pretrained, **kwargs)
