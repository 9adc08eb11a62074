"""SwinMLP: "Swin Transformer: Hierarchical Vision Transformer using Shifted Windows", Liu et al., https://arxiv.org/abs/2103.14030

The attention of its blocks is replaced by a linear map over the tokens of a window; the paper has no word of
it, only the released code and its README.

Shapes: B batch, H, W the token grid of a stage, D its width, w the side of a window, h heads.

    X = X + windows(LN(X));    X = X + GELU(LN(X) F) G                       F: D -> 4 D; G: 4 D -> D

    in a window:  y[i, c] = sum_j W_g[i, j] x[j, c] + b_g[i]        g = c div (D / h): a matrix (w^2, w^2) and
                                                                    a bias (w^2) for each head

Every second block of a stage shifts its windows by half a window: zeros are put around the grid, so that each
row and column of windows begins half a window earlier, and cut off again. Where the grid is one window high
or wide there is no shift.

Windows belong to no grid: any size whose every stage holds whole windows, in steps of 256 px (T) or 224 (B).
"""

from collections.abc import Iterator, Mapping
from functools import partial
from typing import Any

import torch
from timm.data import IMAGENET_DEFAULT_MEAN, IMAGENET_DEFAULT_STD
from timm.models import generate_default_cfgs, register_model
from torch import nn

from gmlp_vision.checkpoints.families import pyramid_sizes
from gmlp_vision.checkpoints.names import Layout, Row, Target
from gmlp_vision.layers.ask import Operator
from gmlp_vision.layers.embed import ConvEmbed, PatchMerging
from gmlp_vision.layers.mix_mlp_block import MixMlpBlock
from gmlp_vision.layers.resample import Grid
from gmlp_vision.layers.windows import Windows
from gmlp_vision.trunks import Pyramid, cfg, create

# Under torch.fx the question is one call in the graph: traced, its `if` would be on a symbolic shape.
torch.fx.wrap("shift_of")

SOURCE = "The released model: equal logits from the authors' code with the same weights."
VERIFIED = ("count", "equation", "authors' code")


def shift_of(x: torch.Tensor, window: int) -> int:
    """By how many tokens windows are shifted on the grid of (B, H, W, D)."""
    return 0 if min(x.shape[1], x.shape[2]) <= window else window // 2


class HeadsMap(nn.Module):
    """``y[i, c] = sum_j W_g[i, j] x[j, c] + b_g[i]`` over the tokens of a window.

    Args:
        window: w, in tokens.
        heads: h.
        device, dtype: of the parameters.

    Shape: (B, w, w, D) -> (B, w, w, D), D a multiple of h.
    """

    def __init__(
        self,
        window: int,
        heads: int,
        device: torch.device | str | None = None,
        dtype: torch.dtype | None = None,
    ) -> None:
        super().__init__()
        n = window * window
        self.grid_size = (window, window)
        self.heads = heads
        self.weight = nn.Parameter(torch.empty(heads, n, n, device=device, dtype=dtype))
        self.bias = nn.Parameter(torch.empty(heads, n, device=device, dtype=dtype))
        self.reset_parameters()

    def reset_parameters(self) -> None:
        """Each head as a linear layer, the bias zero."""
        for weight in self.weight:
            nn.init.xavier_uniform_(weight)
        nn.init.zeros_(self.bias)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        heads = x.flatten(1, 2).unflatten(2, (self.heads, -1)).transpose(1, 2)  # B, h, w^2, D / h
        y = self.weight @ heads + self.bias.unsqueeze(-1)
        return y.transpose(1, 2).flatten(2).view_as(x)

    def operators(self, grid_size: Grid | None) -> list[Operator]:
        """W and b of each head, over the tokens of a window."""
        std = (1 / self.weight.shape[1]) ** 0.5
        pairs = zip(self.weight, self.bias, strict=True)
        return [Operator(f"head {g}", "token", w, b, std, "in a window") for g, (w, b) in enumerate(pairs)]


class WindowMix(nn.Module):
    """A HeadsMap in windows, which may be shifted.

    Args:
        dim: D.
        grid_size: (H, W); windows are the same on every grid.
        window: w, in tokens.
        heads: h.
        shifted: Whether the windows are shifted.
        device, dtype: of the parameters.

    Shape: (B, H, W, D) -> (B, H, W, D), H and W multiples of w.

    Raises:
        ValueError: D is no multiple of h.
    """

    def __init__(
        self,
        dim: int,
        grid_size: Grid,
        window: int,
        heads: int,
        shifted: bool,
        device: torch.device | str | None = None,
        dtype: torch.dtype | None = None,
    ) -> None:
        super().__init__()
        if dim % heads:
            raise ValueError(f"heads is {heads}, which does not divide the width {dim}")
        self.window = window
        self.shifted = shifted
        self.windows = Windows(HeadsMap(window, heads, device=device, dtype=dtype), window)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        if not self.shifted:
            return self.windows(x)
        shift = shift_of(x, self.window)
        before = (self.window - shift) % self.window
        y = self.windows(nn.functional.pad(x, [0, 0, before, shift, before, shift]))
        return y.narrow(1, before, x.shape[1]).narrow(2, before, x.shape[2])


class SwinMlp(Pyramid):
    """SwinMLP: a stem of patches with a norm, four stages, final norm, mean pool, linear head.

    Args:
        kwargs: Those of Pyramid, of MixMlpBlock `mlp_ratio` and `proj_drop_rate`, and `window`, `heads` and
            `shifted`, one value a stage or one a block; those of SwinMLP-T/C24 by default.
    """

    def __init__(self, **kwargs: Any) -> None:
        super().__init__(
            partial(MixMlpBlock, mixer=WindowMix),
            stem=partial(ConvEmbed, norm=nn.LayerNorm),
            downsample=PatchMerging,
            **{**SIZES["swin_mlp_t_c24"], **kwargs},
        )


TURNS = ((False, True),) * 4
TINY: dict[str, Any] = {"depths": (2, 2, 6, 2), "embed_dims": (96, 192, 384, 768), "mlp_ratio": 4.0}

# the released configurations; C24 has heads of 24 channels
SIZES: dict[str, dict[str, Any]] = {
    "swin_mlp_t_c24": {**TINY, "window": 8, "heads": (4, 8, 16, 32), "shifted": TURNS, "img_size": 256},
    "swin_mlp_t_c12": {**TINY, "window": 8, "heads": (8, 16, 32, 64), "shifted": TURNS, "img_size": 256},
    "swin_mlp_t_c6": {**TINY, "window": 8, "heads": (16, 32, 64, 128), "shifted": TURNS, "img_size": 256},
    "swin_mlp_b": {
        "depths": (2, 2, 18, 2),
        "embed_dims": (128, 256, 512, 1024),
        "mlp_ratio": 4.0,
        "window": 7,
        "heads": (4, 8, 16, 32),
        "shifted": TURNS,
    },
}

# README of the released code
TOP1 = {"swin_mlp_t_c24": 79.4, "swin_mlp_t_c12": 79.6, "swin_mlp_t_c6": 79.7, "swin_mlp_b": 81.3}


def heads_there(tensor: torch.Tensor) -> torch.Tensor:
    """A matrix or a bias a head as a grouped convolution's."""
    return tensor.flatten(0, 1) if tensor.ndim == 2 else tensor.flatten(0, 1).unsqueeze(-1)


def heads_back(window: int) -> Any:
    """The reverse of `heads_there`, for windows of this side; a tensor of other windows stays as it is."""

    def back(tensor: torch.Tensor, target: Target) -> torch.Tensor:
        if not tensor.ndim or len(tensor) % window**2:
            return tensor
        return (tensor.squeeze(-1) if tensor.ndim == 3 else tensor).unflatten(0, (-1, window**2))

    return back


def rows(model: Any) -> Iterator[Row]:
    """Their names: tokens are merged at the end of a stage, here at the start of the next."""
    yield Row("stem.proj", "patch_embed.proj")
    yield Row("stem.norm", "patch_embed.norm")
    for s, stage in enumerate(model.stages):
        block = f"stages.{s}.blocks.{{j}}", f"layers.{s}.blocks.{{j}}"
        for part in ("norm1", "norm2", "mlp.fc1", "mlp.fc2"):
            yield Row(f"{block[0]}.{part}", f"{block[1]}.{part}")
        back = heads_back(stage.blocks[0].mixer.window)
        yield Row(f"{block[0]}.mixer.windows.mixer", f"{block[1]}.spatial_mlp", heads_there, back)
        yield Row(f"stages.{s + 1}.downsample.norm", f"layers.{s}.downsample.norm")
        yield Row(f"stages.{s + 1}.downsample.reduction", f"layers.{s}.downsample.reduction")


LAYOUTS = {
    # SwinMLP of https://github.com/microsoft/Swin-Transformer
    "microsoft": Layout(
        rows=rows,
        marks=("patch_embed.proj.weight", "layers.0.blocks.0.spatial_mlp.weight"),
        settings={"norm_eps": 1e-5, "final_norm": True},
    ),
}


def sizes_of(state_dict: Mapping[str, torch.Tensor]) -> dict[str, Any] | None:
    """The arguments of the SwinMLP that has these tensors; None if they are not those of one."""
    weights = [state_dict.get(f"stages.{s}.blocks.0.mixer.windows.mixer.weight") for s in range(len(TURNS))]
    sizes = pyramid_sizes(state_dict, "mlp.fc1.weight")
    found = [weight for weight in weights if weight is not None and weight.ndim == 3]
    if sizes is None or len(found) != len(sizes["depths"]):
        return None
    windows = [round(weight.shape[1] ** 0.5) for weight in found]
    window = windows if len(set(windows)) > 1 else windows[0]
    return {**sizes, "window": window, "heads": [len(weight) for weight in found]}


PAPER = {
    "paper_ids": "arXiv:2103.14030",
    "paper_name": "Swin Transformer: Hierarchical Vision Transformer using Shifted Windows",
    "origin_url": "https://github.com/microsoft/Swin-Transformer",
    "license": "mit",
    "fixed_input_size": False,
    "crop_pct": 0.9,
    "mean": IMAGENET_DEFAULT_MEAN,
    "std": IMAGENET_DEFAULT_STD,
}
RELEASE = "https://github.com/SwinTransformer/storage/releases/download/v1.0.5/swin_mlp_{}.pth"

default_cfgs = generate_default_cfgs(
    {
        **{
            f"swin_mlp_t_c{c}.ms_in1k": cfg(
                **PAPER, input_size=(3, 256, 256), url=RELEASE.format(f"tiny_c{c}_patch4_window8_256")
            )
            for c in (24, 12, 6)
        },
        "swin_mlp_b.ms_in1k": cfg(**PAPER, url=RELEASE.format("base_patch4_window7_224")),
    }
)


@register_model
def swin_mlp_t_c24(pretrained: bool = False, **kwargs: Any) -> nn.Module:
    """SwinMLP-T with 24 channels a head: 20.39 M parameters, any image size in steps of 256 px."""
    return create("swin_mlp_t_c24", SwinMlp, SIZES, pretrained, **kwargs)


@register_model
def swin_mlp_t_c12(pretrained: bool = False, **kwargs: Any) -> nn.Module:
    """SwinMLP-T with 12 channels a head: 21.15 M parameters, any image size in steps of 256 px."""
    return create("swin_mlp_t_c12", SwinMlp, SIZES, pretrained, **kwargs)


@register_model
def swin_mlp_t_c6(pretrained: bool = False, **kwargs: Any) -> nn.Module:
    """SwinMLP-T with 6 channels a head: 22.68 M parameters, any image size in steps of 256 px."""
    return create("swin_mlp_t_c6", SwinMlp, SIZES, pretrained, **kwargs)


@register_model
def swin_mlp_b(pretrained: bool = False, **kwargs: Any) -> nn.Module:
    """SwinMLP-B: 60.66 M parameters, any image size in steps of 224 px."""
    return create("swin_mlp_b", SwinMlp, SIZES, pretrained, **kwargs)
