"""GFNet: "Global Filter Networks for Image Classification", Rao et al., https://arxiv.org/abs/2107.00645

Shapes: B batch, H, W the token grid, D width.

    X = patches W + b + P                                   P: one vector a token
    X = X + MLP(LN(filter(LN(X))))

    filter(X) = irfft2(K * rfft2(X))        over H and W, unitary; K: H x (W // 2 + 1) complex numbers for
                                            each channel

So the filter is a circular convolution of each channel with a kernel as large as the grid. There is one
residual branch a block. The transforms and the product with K are done in float32 at least, under any
autocast and in a model of bfloat16, and what comes out has the dtype of X (theirs stays float32).

K is stored in the shape of the released files, (H, W // 2 + 1, D, 2), real and imaginary parts. To another
grid it goes as the authors take it for fine-tuning: each part by a bicubic resize with aligned corners, and P
by one without, neither antialiased. A wave then keeps about its length in tokens, not in the picture, so the
law of the other families does not hold.

GFNet-H is the pyramid: four stages of such blocks, P behind the stem alone, and a learned scale a channel on
each branch.

Linear layers start as in the other families here, not normal with std 0.02.
"""

from collections.abc import Mapping
from functools import partial
from typing import Any

import torch
from timm.data import IMAGENET_DEFAULT_MEAN, IMAGENET_DEFAULT_STD
from timm.layers import DropPath, LayerScale, Mlp
from timm.models import generate_default_cfgs, register_model
from torch import nn

from gmlp_vision.checkpoints.families import isotropic_sizes, pyramid_sizes
from gmlp_vision.checkpoints.names import Layout, Row, Target
from gmlp_vision.layers.ask import Operator
from gmlp_vision.layers.embed import ConvEmbed
from gmlp_vision.layers.fourier import filter_frequencies
from gmlp_vision.layers.grid_tied import GridTied
from gmlp_vision.layers.hidden_width import hidden_width
from gmlp_vision.layers.position import PositionTable
from gmlp_vision.layers.precision import at_least_float32
from gmlp_vision.layers.resample import Grid, check_grids
from gmlp_vision.layers.rules import Rule
from gmlp_vision.trunks import Isotropic, Pyramid, cfg, create
from gmlp_vision.trunks.checks import pixels

torch.fx.wrap("filter_frequencies")

SOURCE = "Faithful to the released code, whose names it reads and writes; no released file was at hand."
VERIFIED = ("count", "equation", "authors' code")

FILTER_STD = 0.02  # of each part of K at the start


def columns_of(width: int) -> int:
    """How many frequencies along a width of so many tokens are not the conjugate of another one."""
    return width // 2 + 1


def resize_filter(weight: torch.Tensor, old_grid: Grid, new_grid: Grid) -> torch.Tensor:
    """K (H, W // 2 + 1, D, 2) on another grid, as the authors' fine-tuning has it."""
    check_grids(old_grid, new_grid)
    size = (new_grid[0], columns_of(new_grid[1]))
    return _bicubic(weight.flatten(2), size, align_corners=True).unflatten(2, weight.shape[2:])


def resize_positions(weight: torch.Tensor, old_grid: Grid, new_grid: Grid) -> torch.Tensor:
    """P (N, D) on another grid, as the authors' fine-tuning has it."""
    check_grids(old_grid, new_grid)
    return _bicubic(weight.unflatten(0, old_grid), new_grid, align_corners=False).flatten(0, 1)


def _bicubic(maps: torch.Tensor, size: Grid, align_corners: bool) -> torch.Tensor:
    """(h, w, any) to (h', w', any), to the bit as theirs; half precision by way of float32."""
    resized = nn.functional.interpolate(
        at_least_float32(maps).permute(2, 0, 1).unsqueeze(0),
        size=size,
        mode="bicubic",
        align_corners=align_corners,
    )
    return resized[0].permute(1, 2, 0).contiguous().to(maps.dtype)


FREQUENCIES = Rule(resize_filter, lambda grid: (grid[0], columns_of(grid[1])))
POSITIONS = Rule(resize_positions, lambda grid: (grid[0] * grid[1],))


class GlobalFilter(GridTied):
    """``irfft2(K * rfft2(X))``: a circular convolution of each channel with a kernel of its own.

    Args:
        dim: D.
        grid_size: (H, W) of the token grid that K belongs to, in tokens.
        device, dtype: of the parameters.

    Shape: (B, H, W, D) -> (B, H, W, D).
    """

    RULES = {"complex_weight": FREQUENCIES}  # noqa: RUF012  a ClassVar in the base

    def __init__(
        self, dim: int, grid_size: Grid, device: Any = None, dtype: torch.dtype | None = None
    ) -> None:
        super().__init__(grid_size)
        shape = (grid_size[0], columns_of(grid_size[1]), dim, 2)
        self.complex_weight = nn.Parameter(torch.empty(shape, device=device, dtype=dtype))
        self.reset_parameters()

    def reset_parameters(self) -> None:
        """Both parts of K normal, as in the released code."""
        nn.init.normal_(self.complex_weight, std=FILTER_STD)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        weight: torch.Tensor = self.complex_weight
        if self.dynamic:
            (weight,) = self.parameters_on((x.shape[1], x.shape[2]))
        return filter_frequencies(x, weight).to(x.dtype)

    def operators(self, grid_size: Grid) -> list[Operator]:
        """The kernel of each channel, as `gmlp_vision.layers.ask.operators` tells it."""
        (height, width), weight = self.grid_size, at_least_float32(self.complex_weight.detach())
        impulse = weight.new_zeros(1, height, width, weight.shape[2])
        impulse[:, 0, 0] = 1.0
        response = filter_frequencies(impulse, weight)
        # the response is to one token at all others; a kernel has what one token takes from the others
        kernels = response[0].permute(2, 0, 1).flip(1, 2).roll((1, 1), (1, 2))
        kernels = kernels.roll((height // 2, width // 2), (1, 2))
        own = 2 - width % 2  # frequencies along the width that are their own conjugates; others count twice
        std = FILTER_STD * (height * (4 * columns_of(width) - 3 * own)) ** 0.5 / (height * width)
        return [Operator("", "kernel", kernels, None, std, "offsets wrap around the grid")]


class GFNetBlock(nn.Module):
    """``X + MLP(LN(filter(LN(X))))``, the MLP two linear layers with GELU between.

    Args:
        dim: D.
        grid_size: (H, W) of the token grid, in tokens.
        mlp_ratio: The hidden width of the MLP, as a multiple of D.
        proj_drop_rate: Dropout in the MLP, after GELU and at its end, in [0, 1].
        drop_path: Probability that a sample skips the block, in [0, 1).
        norm_eps: eps of both LayerNorms.
        device, dtype: of the parameters.

    Shape: (B, H, W, D) -> (B, H, W, D).

    Raises:
        ValueError: A value that a dropout refuses.
    """

    def __init__(
        self,
        dim: int,
        grid_size: Grid,
        mlp_ratio: float = 4.0,
        proj_drop_rate: float = 0.0,
        drop_path: float = 0.0,
        norm_eps: float = 1e-6,
        device: Any = None,
        dtype: torch.dtype | None = None,
    ) -> None:
        super().__init__()
        dd: dict[str, Any] = {"device": device, "dtype": dtype}
        self.norm1 = nn.LayerNorm(dim, eps=norm_eps, **dd)
        self.mixer = GlobalFilter(dim, grid_size, **dd)
        self.norm2 = nn.LayerNorm(dim, eps=norm_eps, **dd)
        self.mlp = Mlp(dim, hidden_width(dim, mlp_ratio), drop=proj_drop_rate, **dd)
        self.drop_path = DropPath(drop_path) if drop_path > 0 else nn.Identity()

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x + self.drop_path(self.mlp(self.norm2(self.mixer(self.norm1(x)))))


class GFNetScaledBlock(GFNetBlock):
    """``X + g * MLP(LN(filter(LN(X))))``, g one learned number a channel.

    Args:
        dim, grid_size, kwargs: As GFNetBlock.
        init_values: All of g at the start.
    """

    def __init__(self, dim: int, grid_size: Grid, init_values: float = 1e-5, **kwargs: Any) -> None:
        super().__init__(dim, grid_size, **kwargs)
        self.layer_scale = LayerScale(
            dim, init_values, device=kwargs.get("device"), dtype=kwargs.get("dtype")
        )

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x + self.drop_path(self.layer_scale(self.mlp(self.norm2(self.mixer(self.norm1(x))))))


class ReleasedPositions(PositionTable):
    """A PositionTable that goes to another grid as the authors take theirs."""

    RULES = {"weight": POSITIONS}  # noqa: RUF012  a ClassVar in the base


class GFNet(Isotropic):
    """GFNet: patches, position table, `depth` blocks, final norm, mean pool, linear head.

    Args:
        kwargs: Those of Isotropic, and of GFNetBlock `mlp_ratio` and `proj_drop_rate`; those of GFNet-S by
            default.
    """

    POSITIONS = ReleasedPositions

    def __init__(self, **kwargs: Any) -> None:
        super().__init__(GFNetBlock, **{**SIZES["gfnet_s"], "pos_embed": True, **kwargs})


class PositionedPatches(ConvEmbed):
    """Patches side by side, and what tells them apart.

    Args:
        grid_size: (H, W) of the patches.
        kwargs: Those of ConvEmbed.

    Shape: (B, height, width, C) -> (B, H, W, D).
    """

    def __init__(self, in_chans: int, dim: int, *, grid_size: Grid, **kwargs: Any) -> None:
        super().__init__(in_chans, dim, **kwargs)
        dd = {"device": kwargs.get("device"), "dtype": kwargs.get("dtype")}
        self.pos_embed = ReleasedPositions(grid_size, dim, **dd)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        # written out, since TorchScript knows no super()
        return self.pos_embed(self.proj(x.permute(0, 3, 1, 2)).permute(0, 2, 3, 1))


class GFNetH(Pyramid):
    """GFNet-H: patches, position table, four stages, final norm, mean pool, linear head.

    Args:
        kwargs: Those of Pyramid, and of GFNetScaledBlock `mlp_ratio`, `proj_drop_rate` and `init_values`;
            those of GFNet-H-Ti by default.
    """

    def __init__(self, **kwargs: Any) -> None:
        args = {**SIZES["gfnet_h_ti"], "norm_eps": 1e-6, **kwargs}
        height, width = pixels("img_size", args.get("img_size", 224))
        stride = args.get("strides", (4,))[0]
        stem = partial(PositionedPatches, grid_size=(height // stride, width // stride))
        super().__init__(GFNetScaledBlock, stem=stem, downsample=ConvEmbed, **args)


NARROW, WIDE = (64, 128, 256, 512), (96, 192, 384, 768)

# Tables 1 and 2 of the paper, and the released code for the scales
SIZES: dict[str, dict[str, Any]] = {
    "gfnet_ti": {"patch_size": 16, "depth": 12, "embed_dim": 256, "mlp_ratio": 4.0},
    "gfnet_xs": {"patch_size": 16, "depth": 12, "embed_dim": 384, "mlp_ratio": 4.0},
    "gfnet_s": {"patch_size": 16, "depth": 19, "embed_dim": 384, "mlp_ratio": 4.0},
    "gfnet_b": {"patch_size": 16, "depth": 19, "embed_dim": 512, "mlp_ratio": 4.0},
    "gfnet_h_ti": {"depths": (3, 3, 10, 3), "embed_dims": NARROW, "mlp_ratio": 4.0, "init_values": 1e-3},
    "gfnet_h_s": {"depths": (3, 3, 10, 3), "embed_dims": WIDE, "mlp_ratio": 4.0, "init_values": 1e-5},
    "gfnet_h_b": {"depths": (3, 3, 27, 3), "embed_dims": WIDE, "mlp_ratio": 4.0, "init_values": 1e-6},
}

# README of the released code
TOP1 = {
    "gfnet_ti": 74.6,
    "gfnet_xs": 78.6,
    "gfnet_s": 80.0,
    "gfnet_b": 80.7,
    "gfnet_h_ti": 80.1,
    "gfnet_h_s": 81.5,
    "gfnet_h_b": 82.9,
}


def sizes_of(state_dict: Mapping[str, torch.Tensor]) -> dict[str, Any] | None:
    """The arguments of the GFNet that has these tensors; None if they are not those of one."""
    if "stages.0.blocks.0.layer_scale.gamma" in state_dict and "stem.pos_embed.weight" in state_dict:
        return pyramid_sizes(state_dict, "mlp.fc1.weight")
    if "blocks.0.mixer.complex_weight" not in state_dict or "pos_embed.weight" not in state_dict:
        return None
    return isotropic_sizes(state_dict, "mlp.fc1.weight")


def released_cannot(model: Any) -> list[str]:
    squares = all(len(set(size)) == 1 for size in model.sizes(None, None))
    return [] if squares else ["image and patch are square there, and not here"]


def _add_axis(table: torch.Tensor) -> torch.Tensor:
    return table.unsqueeze(0)


def _drop_axis(table: torch.Tensor, target: Target) -> torch.Tensor:
    return table.squeeze(0)


LAYOUTS = {
    # GFNet of https://github.com/raoyongming/GFNet
    "raoyongming": Layout(
        rows=(
            Row("stem.proj", "patch_embed.proj"),
            Row("blocks.{i}.mixer", "blocks.{i}.filter"),
            Row("pos_embed.weight", "pos_embed", _add_axis, _drop_axis),
        ),
        marks=("patch_embed.proj.weight", "blocks.0.filter.complex_weight"),
        settings={"norm_eps": 1e-6, "final_norm": True},
        cannot=released_cannot,
    ),
    # GFNet-H of the same; a downsampling stands there among the patch embeddings
    "raoyongming-h": Layout(
        rows=(
            Row("stem.proj", "patch_embed.0.proj"),
            Row("stem.pos_embed.weight", "pos_embed", _add_axis, _drop_axis),
            Row("stages.{i}.downsample.proj", "patch_embed.{i}.proj"),
            Row("stages.{i}.blocks.{j}.layer_scale.gamma", "blocks.{i}.{j}.gamma"),
            Row("stages.{i}.blocks.{j}.mixer", "blocks.{i}.{j}.filter"),
            *(
                Row(f"stages.{{i}}.blocks.{{j}}.{part}", f"blocks.{{i}}.{{j}}.{part}")
                for part in ("norm1", "norm2", "mlp.fc1", "mlp.fc2")
            ),
        ),
        marks=("patch_embed.0.proj.weight", "blocks.0.0.filter.complex_weight"),
        settings={"norm_eps": 1e-6, "final_norm": True},
        cannot=released_cannot,
    ),
}

PAPER = {
    "paper_ids": "arXiv:2107.00645",
    "paper_name": "Global Filter Networks for Image Classification",
    "origin_url": "https://github.com/raoyongming/GFNet",
    "license": "mit",
    # their evaluation: the short side to 256 / 224 of the image, bicubic, then the middle
    "mean": IMAGENET_DEFAULT_MEAN,
    "std": IMAGENET_DEFAULT_STD,
}

# pages of Google Drive; the README at origin_url has the same files at Tsinghua Cloud
FILES = {
    "gfnet_ti": "1_xrfC7c_ccZnVicYDnrViOA_T1N-xoHI",
    "gfnet_xs": "1paf9gQWdsLXrG58R77yJ3U0FiNINg9xN",
    "gfnet_s": "18aRey_1abWNMmSL7TZQ4WxpplLRCDGEl",
    "gfnet_b": "1OncnXYAXpdjZBq4JK5Y3xacIHOIMePQo",
    "gfnet_h_ti": "1Nrq5sfHD9RklCMl6WkcVrAWI5vSVzwSm",
    "gfnet_h_s": "1w4d7o1LTBjmSkb5NKzgXBBiwdBOlwiie",
    "gfnet_h_b": "1F900_-yPH7GFYfTt60xn4tu5a926DYL0",
}

default_cfgs = generate_default_cfgs(
    {
        f"{name}.raoyongming_in1k": cfg(**PAPER, url=f"https://drive.google.com/file/d/{file}/view")
        for name, file in FILES.items()
    }
)


@register_model
def gfnet_ti(pretrained: bool = False, **kwargs: Any) -> nn.Module:
    """GFNet-Ti: 7.51 M parameters, 224 px, patch 16."""
    return create("gfnet_ti", GFNet, SIZES, pretrained, **kwargs)


@register_model
def gfnet_xs(pretrained: bool = False, **kwargs: Any) -> nn.Module:
    """GFNet-XS: 15.99 M parameters, 224 px, patch 16."""
    return create("gfnet_xs", GFNet, SIZES, pretrained, **kwargs)


@register_model
def gfnet_s(pretrained: bool = False, **kwargs: Any) -> nn.Module:
    """GFNet-S: 24.87 M parameters, 224 px, patch 16."""
    return create("gfnet_s", GFNet, SIZES, pretrained, **kwargs)


@register_model
def gfnet_b(pretrained: bool = False, **kwargs: Any) -> nn.Module:
    """GFNet-B: 43.12 M parameters, 224 px, patch 16."""
    return create("gfnet_b", GFNet, SIZES, pretrained, **kwargs)


@register_model
def gfnet_h_ti(pretrained: bool = False, **kwargs: Any) -> nn.Module:
    """GFNet-H-Ti: 15.09 M parameters, 224 px."""
    return create("gfnet_h_ti", GFNetH, SIZES, pretrained, **kwargs)


@register_model
def gfnet_h_s(pretrained: bool = False, **kwargs: Any) -> nn.Module:
    """GFNet-H-S: 32.16 M parameters, 224 px."""
    return create("gfnet_h_s", GFNetH, SIZES, pretrained, **kwargs)


@register_model
def gfnet_h_b(pretrained: bool = False, **kwargs: Any) -> nn.Module:
    """GFNet-H-B: 53.74 M parameters, 224 px."""
    return create("gfnet_h_b", GFNetH, SIZES, pretrained, **kwargs)
