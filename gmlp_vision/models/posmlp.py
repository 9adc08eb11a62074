"""PosMLP: "Parameterization of Cross-Token Relations with Relative Positional Encoding for Vision MLP",
Wang et al., https://arxiv.org/abs/2207.07284

Shapes: B batch, H, W the token grid of a stage, D its width, E hidden width, w the side of a window.

    [U, V] = GELU(LN(X) F)                                                   F: D -> E
    X = X + (pos(U) * V) G                                                   G: E / 2 -> D

pos is a linear map over the tokens of a window, a Gaussian of the offset for each group of channels, and a
bias a token: `GqpeProjection` of layers/posmlp.py, the paper's quadratic encoding. So a block is gMLP's, but
the map acts on the first half, without a norm of its own, and in windows. gMLP takes the same maps as
`spatial="gqpe"`.

Windows of 14, 14, 14 and 7 tokens belong to no grid: any size whose every stage holds whole windows, in steps
of 224 px. The released code makes its windows as they lie (`shift: false`).
"""

from collections.abc import Iterator, Mapping
from functools import partial
from typing import Any

import torch
from timm.data import IMAGENET_DEFAULT_MEAN, IMAGENET_DEFAULT_STD
from timm.layers import DropPath
from timm.models import generate_default_cfgs, register_model
from torch import nn

from gmlp_vision.checkpoints.families import pyramid_sizes
from gmlp_vision.checkpoints.names import LEFT_BY_A_TOOL, Layout, Row, Target
from gmlp_vision.layers.embed import ConvEmbed
from gmlp_vision.layers.hidden_width import hidden_width
from gmlp_vision.layers.norm import BatchNorm
from gmlp_vision.layers.posmlp import GqpeProjection
from gmlp_vision.layers.resample import Grid
from gmlp_vision.layers.windows import Windows
from gmlp_vision.trunks import Pyramid, cfg, create

SOURCE = "The released model: equal logits from the authors' code with the same weights."
VERIFIED = ("count", "equation", "authors' code")


class PosBlock(nn.Module):
    """``X + (pos(U) * V) G`` with ``[U, V] = GELU(LN(X) F)``.

    Args:
        dim: D.
        grid_size: (H, W); windows are the same on every grid.
        window: w, in tokens.
        groups: Of channels, each with a Gaussian of its own.
        mlp_ratio: E, as a multiple of D.
        proj_drop_rate: Dropout behind G, in [0, 1].
        drop_path: Probability that a sample skips the block, in [0, 1).
        norm_eps: eps of the LayerNorm.
        device, dtype: of the parameters.

    Shape: (B, H, W, D) -> (B, H, W, D), H and W multiples of w.

    Raises:
        ValueError: E / 2 is no multiple of `groups`.
    """

    def __init__(
        self,
        dim: int,
        grid_size: Grid,
        window: int,
        groups: int,
        *,
        mlp_ratio: float = 4.0,
        proj_drop_rate: float = 0.0,
        drop_path: float = 0.0,
        norm_eps: float = 1e-6,
        device: torch.device | str | None = None,
        dtype: torch.dtype | None = None,
    ) -> None:
        super().__init__()
        dd: dict[str, Any] = {"device": device, "dtype": dtype}
        hidden = hidden_width(dim, mlp_ratio)
        if hidden % 2 or hidden // 2 % groups:
            raise ValueError(
                f"groups is {groups}, which does not divide {hidden / 2:g}, half the hidden width"
            )
        self.norm = nn.LayerNorm(dim, eps=norm_eps, **dd)
        self.fc1 = nn.Linear(dim, hidden, **dd)
        self.act = nn.GELU()
        pos = GqpeProjection((window, window), init_bias=0.0, groups=groups, **dd)
        self.pos = Windows(pos, window)
        self.fc2 = nn.Linear(hidden // 2, dim, **dd)
        self.proj_drop = nn.Dropout(proj_drop_rate)
        self.drop_path = DropPath(drop_path) if drop_path > 0 else nn.Identity()

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        u, v = self.act(self.fc1(self.norm(x))).chunk(2, dim=-1)
        return x + self.drop_path(self.proj_drop(self.fc2(self.pos(u) * v)))


class ConvStem(nn.Module):
    """Two 3 x 3 convolutions that halve the grid, one of 1 x 1, each with a batch norm; GELU between them.

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
        norm = partial(BatchNorm, eps=1e-6)
        embed = partial(ConvEmbed, norm=norm, device=device, dtype=dtype)
        self.conv1 = embed(in_chans, dim // 2, kernel_size=3, stride=2, padding=1, act=nn.GELU)
        self.conv2 = embed(dim // 2, dim, kernel_size=3, stride=2, padding=1, act=nn.GELU)
        self.conv3 = embed(dim, dim, stride=1)

    def out_size(self, size: Grid) -> Grid:
        """The grid for an image of this size."""
        return self.conv2.out_size(self.conv1.out_size(size))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.conv3(self.conv2(self.conv1(x)))


class PosMlp(Pyramid):
    """PosMLP: a stem of convolutions, four stages, final norm, mean pool, linear head.

    Args:
        kwargs: Those of Pyramid, and of PosBlock `window`, `groups`, `mlp_ratio` and `proj_drop_rate`; those
            of PosMLP-T by default.
    """

    first_conv = "stem.conv1.proj"

    def __init__(self, **kwargs: Any) -> None:
        norm = partial(nn.LayerNorm, eps=1e-6)
        super().__init__(
            PosBlock,
            stem=ConvStem,
            downsample=partial(ConvEmbed, kernel_size=3, padding=1, depthwise=True, norm=norm),
            **{**SIZES["posmlp_t"], "norm_eps": 1e-6, **kwargs},
        )


COMMON: dict[str, Any] = {
    "depths": (2, 2, 18, 2),
    "mlp_ratio": (4.0, 4.0, 4.0, 2.0),
    "window": (14, 14, 14, 7),
    "groups": (8, 16, 32, 64),
}

# the released configurations
SIZES: dict[str, dict[str, Any]] = {
    "posmlp_t": {**COMMON, "embed_dims": (96, 192, 384, 768)},
    "posmlp_s": {**COMMON, "embed_dims": (128, 256, 512, 1024)},
}

# README of the released code; of PosMLP-S there is no file
TOP1 = {"posmlp_t": 82.1}

# Their offsets are (columns right, rows up), ours (rows down, columns right): ours = TURN theirs
TURN = ((0.0, -1.0), (1.0, 0.0))


def turned(tensor: torch.Tensor) -> torch.Tensor:
    """Centers (G, 2) or spreads (G, 2, 2) of theirs in our offsets; anything else as it is."""
    if tensor.ndim < 2 or tensor.shape[1] != 2:
        return tensor
    return torch.einsum("ij,gj...->gi...", tensor.new_tensor(TURN), tensor)


def turned_back(tensor: torch.Tensor) -> torch.Tensor:
    return torch.einsum("ji,gj...->gi...", tensor.new_tensor(TURN), tensor)


def rows(model: Any) -> Iterator[Row]:
    """Their names: three convolutions and three norms in two lists, and downsamplings called pool."""
    for k in (1, 2, 3):
        yield Row(f"stem.conv{k}.proj", f"patch_embed.projs.{k - 1}")
        yield Row(f"stem.conv{k}.norm.norm", f"patch_embed.norms.{k - 1}")
    yield Row("stages.{i}.downsample.proj", "levels.{i}.pool.conv")
    yield Row("stages.{i}.downsample.norm", "levels.{i}.pool.norm")
    block = "stages.{i}.blocks.{j}", "levels.{i}.encoder.{j}"
    for ours, theirs in (("norm", "norm"), ("fc1", "proj_c_e"), ("fc2", "proj_c_s")):
        yield Row(f"{block[0]}.{ours}", f"{block[1]}.{theirs}")
    for ours, theirs in (("centers", "attention_centers"), ("spreads", "attention_spreads")):
        pair = f"{block[0]}.pos.mixer.{ours}", f"{block[1]}.gate_unit.pos.{theirs}"
        yield Row(*pair, turned_back, _turned)
    pair = f"{block[0]}.pos.mixer.bias", f"{block[1]}.gate_unit.pos.token_proj_n_bias"
    yield Row(*pair, lambda bias: bias[None, :, None], lambda bias, target: bias.flatten())


def _turned(tensor: torch.Tensor, target: Target) -> torch.Tensor:
    return turned(tensor)


LAYOUTS = {
    # PosMLP of https://github.com/Zhicaiwww/PosMLP
    "zhicaiwww": Layout(
        rows=tuple(rows(None)),
        marks=("patch_embed.projs.0.weight", "levels.0.encoder.0.gate_unit.pos.attention_centers"),
        drop={"*.rel_indices": LEFT_BY_A_TOOL},
        settings={"norm_eps": 1e-6, "final_norm": True},
    ),
}


def sizes_of(state_dict: Mapping[str, torch.Tensor]) -> dict[str, Any] | None:
    """The arguments of the PosMLP that has these tensors; None if they are not those of one."""
    sizes = pyramid_sizes(state_dict, "fc1.weight")
    if sizes is None:
        return None
    windows, groups = [], []
    for s in range(len(sizes["depths"])):
        centers = state_dict.get(f"stages.{s}.blocks.0.pos.mixer.centers")
        bias = state_dict.get(f"stages.{s}.blocks.0.pos.mixer.bias")
        if centers is None or bias is None:
            return None
        windows.append(round(len(bias) ** 0.5))
        groups.append(len(centers))
    return {**sizes, "window": windows, "groups": groups}


PAPER = {
    "paper_ids": "arXiv:2207.07284",
    "paper_name": "Parameterization of Cross-Token Relations with Relative Positional Encoding "
    "for Vision MLP",
    "origin_url": "https://github.com/Zhicaiwww/PosMLP",
    "license": "mit",
    "fixed_input_size": False,
    "crop_pct": 0.9,
    "first_conv": "stem.conv1.proj",
    "mean": IMAGENET_DEFAULT_MEAN,
    "std": IMAGENET_DEFAULT_STD,
}
PAGE = "https://drive.google.com/file/d/1wl0JzFqmdbhRAp2WEgl0dVFW5jnoS6bM/view"

default_cfgs = generate_default_cfgs(
    {
        "posmlp_t.zhicaiwww_in1k": cfg(**PAPER, url=PAGE),
        "posmlp_s.untrained": cfg(**PAPER),
    }
)


@register_model
def posmlp_t(pretrained: bool = False, **kwargs: Any) -> nn.Module:
    """PosMLP-T: 20.93 M parameters, any image size in steps of 224 px."""
    return create("posmlp_t", PosMlp, SIZES, pretrained, **kwargs)


@register_model
def posmlp_s(pretrained: bool = False, **kwargs: Any) -> nn.Module:
    """PosMLP-S: 36.82 M parameters, any image size in steps of 224 px."""
    return create("posmlp_s", PosMlp, SIZES, pretrained, **kwargs)
