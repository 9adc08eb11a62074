"""FF-only: "Do You Even Need Attention?", Melas-Kyriazi, 2021, https://arxiv.org/abs/2105.02723

Shapes: B batch, H, W the token grid, D width, n = 1 + H * W tokens: the class token, then those of the image
in row-major order.

    X = [class token; patches W + b] + P
    X = X + MLP(LN(X))                        over the channels, D -> 4 D -> D, each token by itself
    X = X + MLP(LN(X^T))^T                    over the tokens, n -> 4 n -> n, each channel by itself

and the head reads the class token. This is the authors' released model
(https://github.com/lukemelas/do-you-even-need-attention), number by number:

- The MLP over channels comes first.
- The second LayerNorm is over the n tokens too, with a weight and a bias a token, not over the channels.
- The class token is one of the n tokens, and has a position of its own beside the table of the image's.
- The table has 14 x 14 places in every model. FF-L32, whose grid is 7 x 7, resizes it in each call,
  bilinearly.

What mixes the tokens is made for n of them: its hidden width is 4 n, and its LayerNorm is over n. So there is
no other image size. Their dropout after the positions (0.1, as that in the MLPs, in their training of the
tiny model) is left out; `proj_drop_rate` is that in the MLPs. A new model starts as all of this package's do,
not from their normal numbers of std 0.02.
"""

import math
from collections.abc import Mapping
from typing import Any

import torch
from timm.data import IMAGENET_DEFAULT_MEAN, IMAGENET_DEFAULT_STD
from timm.layers import DropPath, Mlp
from timm.models import generate_default_cfgs, register_model
from torch import nn
from torch.nn import functional

from gmlp_vision.checkpoints.families import isotropic_sizes
from gmlp_vision.checkpoints.names import Layout, Row
from gmlp_vision.layers.ask import Operator
from gmlp_vision.layers.grid_tied import GridTied
from gmlp_vision.layers.hidden_width import hidden_width
from gmlp_vision.layers.resample import Grid
from gmlp_vision.layers.rules import fixed
from gmlp_vision.trunks import Isotropic, cfg, create
from gmlp_vision.trunks.checks import check_fixed, check_rate

SOURCE = (
    "Faithful to the released code, whose names it reads and writes, with equal logits for the same weights; "
    "no released file was at hand."
)
VERIFIED = ("count", "equation", "authors' code")

ONE_SIZE = (
    "FF-only is made for one count of tokens: its LayerNorm goes over them, and the hidden width of its "
    "token MLP is a multiple of it, so no rule takes it to another image size; resize the image instead"
)


def one_number_a_token(grid_size: Grid) -> tuple[int, ...]:
    """The shape of what has a number for each token, the class token first."""
    return (1 + grid_size[0] * grid_size[1],)


class TokenNorm(GridTied):
    """LayerNorm over the tokens of each channel, and the transpose with it.

    Args:
        grid_size: (H, W) of the token grid, in tokens.
        norm_eps: eps.
        device, dtype: of the parameters.

    Shape: (B, n, D) -> (B, D, n).
    """

    RULES = {  # noqa: RUF012  a ClassVar in the base
        "weight": fixed(ONE_SIZE, one_number_a_token),
        "bias": fixed(ONE_SIZE, one_number_a_token),
    }

    def __init__(
        self, grid_size: Grid, norm_eps: float, device: Any = None, dtype: torch.dtype | None = None
    ) -> None:
        super().__init__(grid_size)
        self.norm_eps = norm_eps
        shape = one_number_a_token(grid_size)
        self.weight = nn.Parameter(torch.empty(shape, device=device, dtype=dtype))
        self.bias = nn.Parameter(torch.empty(shape, device=device, dtype=dtype))
        self.reset_parameters()

    def reset_parameters(self) -> None:
        nn.init.ones_(self.weight)
        nn.init.zeros_(self.bias)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return functional.layer_norm(
            x.transpose(1, 2), self.weight.shape, self.weight, self.bias, self.norm_eps
        )


class FfBlock(nn.Module):
    """An MLP over the channels, then one over the tokens, a residual branch each.

    Args:
        dim: D.
        grid_size: (H, W) of the token grid, in tokens.
        mlp_ratio: The hidden width of both MLPs, as a multiple of D and of n.
        proj_drop_rate: Dropout in both MLPs, after GELU and at their ends, in [0, 1).
        drop_path: Probability that a sample skips a branch, in [0, 1).
        norm_eps: eps of both LayerNorms.
        device, dtype: of the parameters.

    Shape: (B, n, D) -> (B, n, D).

    Raises:
        ValueError: A rate outside what is listed above.
    """

    CLASS_TOKEN = True  # it takes the tokens as a row, one for the class first

    def __init__(
        self,
        dim: int,
        grid_size: Grid,
        mlp_ratio: float = 4.0,
        proj_drop_rate: float = 0.0,
        drop_path: float = 0.0,
        norm_eps: float = 1e-6,
        device: torch.device | str | None = None,
        dtype: torch.dtype | None = None,
    ) -> None:
        super().__init__()
        check_rate("proj_drop_rate", proj_drop_rate)
        dd: dict[str, Any] = {"device": device, "dtype": dtype}
        (tokens,) = one_number_a_token(grid_size)
        self.norm1 = nn.LayerNorm(dim, eps=norm_eps, **dd)
        self.mlp1 = Mlp(dim, hidden_width(dim, mlp_ratio), drop=proj_drop_rate, **dd)
        self.norm2 = TokenNorm(grid_size, norm_eps, **dd)
        self.mlp2 = Mlp(tokens, hidden_width(tokens, mlp_ratio), drop=proj_drop_rate, **dd)
        self.drop_path = DropPath(drop_path) if drop_path > 0 else nn.Identity()  # each call draws anew

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = x + self.drop_path(self.mlp1(self.norm1(x)))
        return x + self.drop_path(self.mlp2(self.norm2(x))).transpose(1, 2)

    def operators(self, grid_size: Grid) -> list[Operator]:
        """Both layers over tokens, and their product; of the image's tokens, so without the class token."""
        reads: Any = self.mlp2.fc1  # both have a bias
        writes: Any = self.mlp2.fc2
        std = math.sqrt(2 / sum(reads.weight.shape))  # Xavier-uniform, of both
        product = writes.weight.double() @ reads.weight.double()
        bias = writes.weight.double() @ reads.bias.double() + writes.bias.double()
        to = "transposed: where a hidden unit writes, but for the class token"
        through = "ignores the non-linearity and the class token"
        spread = math.sqrt(len(reads.weight)) * std**2
        return [
            Operator("mlp2.fc1", "hidden", reads.weight[:, 1:], reads.bias, std, "but for the class token"),
            Operator("mlp2.fc2", "hidden", writes.weight[1:].T, writes.bias[1:], std, to),
            Operator("mlp2.product", "token", product[1:, 1:], bias[1:], spread, through),
        ]


class BilinearPositions(nn.Module):
    """``X + P``, P a table that has a grid of its own, and is resized bilinearly in each call to the tokens'.

    Args:
        dim: D.
        device, dtype: of the parameters.

    Shape: (B, H, W, D) -> (B, H, W, D).
    """

    SIDE = 14  # of the authors' table, in all their models

    def __init__(self, dim: int, device: Any = None, dtype: torch.dtype | None = None) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.empty(dim, self.SIDE, self.SIDE, device=device, dtype=dtype))
        self.reset_parameters()

    def reset_parameters(self) -> None:
        nn.init.trunc_normal_(self.weight, std=0.02)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        size = [x.shape[1], x.shape[2]]
        # of a size equal to its own it gives the table back, to the bit
        table = functional.interpolate(
            self.weight.unsqueeze(0), size=size, mode="bilinear", align_corners=False
        )
        return x + table.permute(0, 2, 3, 1)


class PlacedClassToken(nn.Module):
    """Puts a class token before those of the grid, with a position of its own added to it.

    Args:
        dim: D.
        device, dtype: of the parameters.

    Shape: (B, H, W, D) -> (B, n, D).
    """

    def __init__(self, dim: int, device: Any = None, dtype: torch.dtype | None = None) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.empty(dim, device=device, dtype=dtype))
        self.cls_pos = nn.Parameter(torch.empty(dim, device=device, dtype=dtype))
        self.reset_parameters()

    def reset_parameters(self) -> None:
        """Normal with std 0.02, as theirs."""
        nn.init.trunc_normal_(self.weight, std=0.02)
        nn.init.trunc_normal_(self.cls_pos, std=0.02)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        first = (self.weight + self.cls_pos).expand(x.shape[0], 1, -1)
        return torch.cat([first, x.flatten(1, 2)], dim=1)


class FfOnly(Isotropic):
    """FF-only: patches, positions, a class token, `depth` blocks, final norm, linear head on that token.

    Args:
        kwargs: Those of Isotropic but for `pos_embed` and `class_token`, and of FfBlock `mlp_ratio` and
            `proj_drop_rate`; those of the base model by default.
    """

    def __init__(self, **kwargs: Any) -> None:
        check_fixed(kwargs, "pos_embed", "class_token")
        args = {**SIZES["ff_b16"], "global_pool": "token", **kwargs}
        super().__init__(FfBlock, pos_embed=True, class_token=True, **args)
        dd = {"device": args.get("device"), "dtype": args.get("dtype")}
        # the trunk's own have the token grid, and no position of the class token
        table: Any = BilinearPositions(self.embed_dim, **dd)
        token: Any = PlacedClassToken(self.embed_dim, **dd)
        self.pos_embed, self.cls_token = table, token


# The authors' linear_tiny, linear_base and linear_large
SIZES: dict[str, dict[str, Any]] = {
    "ff_ti16": {"patch_size": 16, "depth": 12, "embed_dim": 192, "mlp_ratio": 4.0},
    "ff_b16": {"patch_size": 16, "depth": 12, "embed_dim": 768, "mlp_ratio": 4.0},
    "ff_l32": {"patch_size": 32, "depth": 24, "embed_dim": 1024, "mlp_ratio": 4.0},
}


def sizes_of(state_dict: Mapping[str, torch.Tensor]) -> dict[str, Any] | None:
    """The arguments of the FF-only that has these tensors; None if they are not those of one.

    The image is a square one if its tokens make a square, else a single column of as many: on which grid they
    lie, no tensor shows.
    """
    sizes = isotropic_sizes(state_dict, "mlp1.fc1.weight")
    per_token = state_dict.get("blocks.0.norm2.weight")
    if sizes is None or per_token is None or per_token.ndim != 1 or len(per_token) < 2:
        return None
    tokens = len(per_token) - 1
    side = math.isqrt(tokens)
    rows, columns = (side, side) if side**2 == tokens else (tokens, 1)
    height, width = state_dict["stem.proj.weight"].shape[2:]
    return {**sizes, "img_size": (rows * height, columns * width)}


def authors_cannot(model: Any) -> list[str]:
    (height, width), (p, q) = model.stem.img_size, model.stem.patch_size
    if p != q:
        return ["patches are square there, and not here"]
    side = 224 // p
    here = (height // p) * (width // q)
    return (
        [] if here == side**2 else [f"an image has {side**2} tokens there, those of 224 px, and {here} here"]
    )


LAYOUTS = {
    # LinearVisionTransformer of https://github.com/lukemelas/do-you-even-need-attention; the names in a block
    # are ours
    "lukemelas": Layout(
        rows=(
            Row("stem.proj", "patch_embed.proj"),
            Row(
                "cls_token.weight",
                "cls_token",
                lambda token: token[None, None],
                lambda token, target: token.flatten(),
            ),
            Row(
                "cls_token.cls_pos",
                "pos_encoding.cls_pos_embed",
                lambda token: token[None, None],
                lambda token, target: token.flatten(),
            ),
            Row(
                "pos_embed.weight",
                "pos_encoding.pos_embed",
                lambda table: table.unsqueeze(0),
                lambda table, target: table.squeeze(0),
            ),
        ),
        marks=("patch_embed.proj.weight", "pos_encoding.cls_pos_embed", "blocks.0.mlp2.fc1.weight"),
        settings={"norm_eps": 1e-6, "final_norm": True},
        cannot=authors_cannot,
    ),
}

# README of the released code; of the large model (71.4) there is no file
TOP1 = {"ff_ti16": 61.4, "ff_b16": 74.9}

RELEASES = "https://github.com/lukemelas/do-you-even-need-attention/releases/download/v0.0.1/"

# Trained and evaluated by DeiT's code, and so with its preprocessing. The repository has no licence.
PAPER = {
    "paper_ids": "arXiv:2105.02723",
    "paper_name": "Do You Even Need Attention? "
    "A Stack of Feed-Forward Layers Does Surprisingly Well on ImageNet",
    "origin_url": "https://github.com/lukemelas/do-you-even-need-attention",
    "license": "unknown",
    "mean": IMAGENET_DEFAULT_MEAN,
    "std": IMAGENET_DEFAULT_STD,
}

default_cfgs = generate_default_cfgs(
    {
        "ff_ti16.lukemelas_in1k": cfg(**PAPER, url=f"{RELEASES}linear-tiny-checkpoint.pth"),
        "ff_b16.lukemelas_in1k": cfg(**PAPER, url=f"{RELEASES}linear-base-checkpoint.pth"),
        "ff_l32.untrained": cfg(**PAPER),
    }
)


@register_model
def ff_ti16(pretrained: bool = False, **kwargs: Any) -> nn.Module:
    """FF-only, tiny (the authors' linear_tiny): 7.68 M parameters, 224 px, patch 16."""
    return create("ff_ti16", FfOnly, SIZES, pretrained, **kwargs)


@register_model
def ff_b16(pretrained: bool = False, **kwargs: Any) -> nn.Module:
    """FF-only, base (the authors' linear_base): 61.94 M parameters, 224 px, patch 16."""
    return create("ff_b16", FfOnly, SIZES, pretrained, **kwargs)


@register_model
def ff_l32(pretrained: bool = False, **kwargs: Any) -> nn.Module:
    """FF-only, large (the authors' linear_large): 206.36 M parameters, 224 px, patch 32."""
    return create("ff_l32", FfOnly, SIZES, pretrained, **kwargs)
