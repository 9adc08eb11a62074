"""EAMLP: "Beyond Self-attention", Guo et al., TPAMI 2022, https://arxiv.org/abs/2105.02358

Shapes: B batch, H, W the token grid, N = H * W tokens in row-major order, D width.

    X = [class token; T2T(image)] + P          P: fixed sinusoids of 0 (the class token's place) to N
    X = X + EA(LN(X))                          multi-head external attention, as in external_attention.py:
    X = X + MLP(LN(X))                         the class token is one of the tokens of its softmax

and the head reads the class token. T2T is the tokens-to-token stem of T2T-ViT
(https://arxiv.org/abs/2101.11986) with external attention in it, of one head, 64 channels, 128 slots:

    T = split(image, 7 x 7, stride 4)          each token a window's pixels, channel after channel
    then twice:
        Q = LN(T) Wq                           to 64 numbers
        Y = Q + (A Mv) O                       A as in the blocks, from Q Mk; Mk has no bias here
        Y = Y + MLP(LN(Y))                     64 -> 64 -> 64
        T = split(Y, 3 x 3, stride 2)          576 numbers
    X = T W + b

This is the authors' released code (https://github.com/MenghaoGuo/EANet, folder EAMLP: T2t_vit_7, _14 and _19,
the form that it calls 'performer'), number by number. All its LayerNorms have an eps of 1e-5.

- P is not learned, but it is in the state dict and counted among the parameters, one without a gradient. On
  another grid it is computed anew, as by the authors' code. So any size goes, and no number of the weights
  changes. If somebody did train it, what differs from the sinusoids is resized as a token map.
- `patch_size` is 4 times the stride of the first split, 16 in all their models; the windows stay 7 x 7, so no
  tensor shows it. It must divide the image. Theirs also takes a row or two more of pixels, and only square
  images.
- Their dropout in the stem (0.1 in training, on A and on what O gives) is `stem_drop_rate`, 0 unless told
  otherwise.
- A new model starts as all of this package's do. Theirs starts from normal numbers of std 0.02, and with the
  stem's Mv the transpose of its Mk: one memory for both, until the model is moved to another device.
"""

from collections.abc import Mapping
from functools import partial
from typing import Any

import torch
from timm.data import IMAGENET_DEFAULT_MEAN, IMAGENET_DEFAULT_STD
from timm.layers import Mlp, to_2tuple
from timm.models import generate_default_cfgs, register_model
from torch import nn
from torch.nn import functional

from gmlp_vision.checkpoints.families import block_sizes
from gmlp_vision.checkpoints.names import Layout, Row
from gmlp_vision.layers.grid_tied import GridTied
from gmlp_vision.layers.mix_mlp_block import MixMlpBlock
from gmlp_vision.layers.precision import at_least_float32
from gmlp_vision.layers.resample import Grid, resample_map
from gmlp_vision.layers.rules import Rule
from gmlp_vision.models.external_attention import ExternalAttention, mixer_sizes, normalise_twice
from gmlp_vision.trunks import Isotropic, cfg, create
from gmlp_vision.trunks.checks import check_fixed, check_rate

torch.fx.wrap("at_least_float32")

SOURCE = "Faithful to the released code, whose names it reads and writes; no released file was at hand."
VERIFIED = ("count", "equation", "authors' code")


# -- the stem -----------------------------------------------------------------------------------------------


class SplitBlock(nn.Module):
    """``Y = Q + (A Mv) O``, then ``Y + MLP(LN(Y))``: external attention that narrows the tokens.

    Args:
        dim: Of the tokens that it takes.
        norm_layer: Makes its LayerNorms.
        drop_rate: Dropout on A, and on what O gives.
        device, dtype: of the parameters.

    Shape: (B, n, dim) -> (B, n, WIDTH).
    """

    WIDTH = 64
    SLOTS = 128
    NO_OPERATOR = ExternalAttention.NO_OPERATOR

    def __init__(
        self,
        dim: int,
        norm_layer: Any,
        drop_rate: float,
        device: Any = None,
        dtype: torch.dtype | None = None,
    ) -> None:
        super().__init__()
        dd: dict[str, Any] = {"device": device, "dtype": dtype}
        self.norm1 = norm_layer(dim, **dd)
        self.q = nn.Linear(dim, self.WIDTH, **dd)
        self.m_k = nn.Linear(self.WIDTH, self.SLOTS, bias=False, **dd)
        self.m_v = nn.Linear(self.SLOTS, self.WIDTH, **dd)
        self.proj = nn.Linear(self.WIDTH, self.WIDTH, **dd)  # O
        self.dropout = nn.Dropout(drop_rate)
        self.norm2 = norm_layer(self.WIDTH, **dd)
        self.mlp = Mlp(self.WIDTH, self.WIDTH, **dd)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        q = self.q(self.norm1(x))
        a = normalise_twice(at_least_float32(self.m_k(q))).to(q.dtype)
        y = q + self.dropout(self.proj(self.m_v(self.dropout(a))))
        return y + self.mlp(self.norm2(y))


class SoftSplits(nn.Module):
    """T2T: three soft splits with a SplitBlock between, and a linear map to the width of the blocks.

    Args:
        img_size: (height, width) of the image, in pixels.
        patch_size: Pixels of the image a token, (height, width): multiples of 4 up to 28.
        in_chans: Channels of the image.
        embed_dim: D.
        norm_layer: Makes the LayerNorms.
        drop_rate: Of the SplitBlocks.
        device, dtype: of the parameters.

    Shape: (B, in_chans, height, width) -> (B, H, W, D).

    Raises:
        ValueError: Another patch, or a rate outside [0, 1).
    """

    KERNEL = 7
    STRIDES = 4  # of the second and the third split together
    __constants__ = ["KERNEL"]  # noqa: RUF012  else TorchScript does not see it

    def __init__(
        self,
        img_size: tuple[int, int],
        patch_size: tuple[int, int],
        in_chans: int,
        embed_dim: int,
        norm_layer: Any,
        drop_rate: float = 0.0,
        device: Any = None,
        dtype: torch.dtype | None = None,
    ) -> None:
        super().__init__()
        check_rate("stem_drop_rate", drop_rate)
        largest = self.KERNEL * self.STRIDES  # beyond it pixels would lie between the windows
        if any(patch % self.STRIDES or patch > largest for patch in patch_size):
            raise ValueError(
                f"patch_size is {patch_size}; expected multiples of {self.STRIDES} up to {largest}, since it "
                f"is {self.STRIDES} times the stride of windows of {self.KERNEL} x {self.KERNEL} pixels"
            )
        dd: dict[str, Any] = {"device": device, "dtype": dtype}
        self.patch_size = patch_size
        self.stride = (patch_size[0] // self.STRIDES, patch_size[1] // self.STRIDES)
        # the least with which there is a window for every `stride` pixels
        self.padding = ((self.KERNEL + 1 - self.stride[0]) // 2, (self.KERNEL + 1 - self.stride[1]) // 2)
        self.strict_img_size = True
        self.block1 = SplitBlock(in_chans * self.KERNEL**2, norm_layer, drop_rate, **dd)
        self.block2 = SplitBlock(9 * SplitBlock.WIDTH, norm_layer, drop_rate, **dd)
        self.proj = nn.Linear(9 * SplitBlock.WIDTH, embed_dim, **dd)
        self.set_input_size(img_size)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        height, width = x.shape[2] // self.stride[0], x.shape[3] // self.stride[1]
        x = functional.unfold(x, self.KERNEL, padding=self.padding, stride=self.stride).transpose(1, 2)
        x = split_again(self.block1(x), height, width)
        x = split_again(self.block2(x), height // 2, width // 2)
        return self.proj(x).unflatten(1, [height // 4, width // 4])

    @torch.jit.ignore
    def dynamic_feat_size(self, img_size: tuple[int, int]) -> Grid:
        """The token grid of an image of (height, width) pixels."""
        return img_size[0] // self.patch_size[0], img_size[1] // self.patch_size[1]

    @torch.jit.ignore
    def set_input_size(self, img_size: tuple[int, int], patch_size: tuple[int, int] | None = None) -> None:
        """Takes images of another size, (height, width) in pixels. No parameter depends on it.

        Raises:
            ValueError: Another patch size.
        """
        if patch_size not in (None, self.patch_size):
            raise ValueError(
                f"patch_size is to be {patch_size} and is {self.patch_size}: the windows of soft splits have "
                "no rule for another; change img_size alone, or make a new model"
            )
        self.img_size = img_size
        self.grid_size = self.dynamic_feat_size(img_size)


def split_again(x: torch.Tensor, height: int, width: int) -> torch.Tensor:
    """(B, height * width, C) tokens to (B, height * width / 4, 9 C): windows of 3 x 3, two tokens apart."""
    maps = x.transpose(1, 2).unflatten(2, [height, width])
    return functional.unfold(maps, 3, padding=1, stride=2).transpose(1, 2)


# -- positions ----------------------------------------------------------------------------------------------


def sinusoids(grid_size: Grid, dim: int) -> torch.Tensor:
    """(1 + N, D) in float64: of place p, sin and cos by turns of p / 10000^(2 i / D), i the pair."""
    places = torch.arange(1 + grid_size[0] * grid_size[1], dtype=torch.float64, device="cpu")
    channels = torch.arange(dim, dtype=torch.float64, device="cpu")
    angles = places[:, None] / 10000 ** (2 * (channels // 2) / dim)
    return torch.where(channels % 2 == 0, angles.sin(), angles.cos())


def carry_sinusoids(table: torch.Tensor, old_grid: Grid, new_grid: Grid) -> torch.Tensor:
    """The sinusoids of another grid; what a table (1 + N, D) has beside its own goes along as a token map."""
    old, new = (sinusoids(grid, table.shape[1]).to(table) for grid in (old_grid, new_grid))
    rest = table - old  # 0 where nobody trained it
    return new + torch.cat([rest[:1], resample_map(rest[1:], old_grid, new_grid)])


SINUSOIDS = Rule(carry_sinusoids, lambda grid: (1 + grid[0] * grid[1],))


class FixedSinusoids(GridTied):
    """``X + P``, P sinusoids that no gradient changes, the first the class token's.

    Args:
        grid_size: (H, W) of the token grid that the table belongs to.
        dim: D.
        device, dtype: of the parameters.

    Shape: (B, 1 + N, D) and the grid of the N tokens -> (B, 1 + N, D).
    """

    RULES = {"weight": SINUSOIDS}  # noqa: RUF012  a ClassVar in the base

    def __init__(
        self, grid_size: Grid, dim: int, device: Any = None, dtype: torch.dtype | None = None
    ) -> None:
        super().__init__(grid_size)
        table = torch.empty(1 + grid_size[0] * grid_size[1], dim, device=device, dtype=dtype)
        self.weight = nn.Parameter(table, requires_grad=False)
        self.reset_parameters()

    @torch.no_grad()
    def reset_parameters(self) -> None:
        self.weight.copy_(sinusoids(self.grid_size, self.weight.shape[1]))

    def forward(self, x: torch.Tensor, grid_size: Grid) -> torch.Tensor:
        weight: torch.Tensor = self.weight
        if self.dynamic:
            (weight,) = self.parameters_on(grid_size)
        return x + weight


# -- the model ----------------------------------------------------------------------------------------------


class EamlpBlock(MixMlpBlock):
    """A MixMlpBlock whose mixer takes the tokens as a row, one for the class first."""

    CLASS_TOKEN = True


class Eamlp(Isotropic):
    """EAMLP: T2T, class token, sinusoids, `depth` blocks, final norm, linear head on the class token.

    Args:
        stem_drop_rate: Dropout in the stem's external attention, in [0, 1); theirs trains with 0.1.
        kwargs: Those of Isotropic but for `stem`, `stem_norm`, `pos_embed` and `class_token`; of MixMlpBlock
            `mlp_ratio` and `proj_drop_rate`; of ExternalAttention `heads`, `widening` and `slots`. Those of
            EAMLP-7 by default.
    """

    POSITIONS = FixedSinusoids
    first_conv = None

    def __init__(self, *, stem_drop_rate: float = 0.0, **kwargs: Any) -> None:
        check_fixed(kwargs, "stem_norm", "pos_embed", "class_token")
        super().__init__(
            partial(EamlpBlock, mixer=ExternalAttention),
            stem=partial(SoftSplits, drop_rate=stem_drop_rate),
            stem_norm=True,
            pos_embed=True,
            class_token=True,
            **{**SIZES["eamlp_7"], "norm_eps": 1e-5, "global_pool": "token", **kwargs},
        )

    def place(self, x: torch.Tensor) -> torch.Tensor:
        """The class token has a position too."""
        return self.pos_embed(self.cls_token(x), (x.shape[1], x.shape[2]))

    @torch.jit.ignore
    def settings(self) -> dict[str, Any]:
        """As those of other models; the stem's kernels do not show its patch size."""
        height, width = self.stem.patch_size
        return {**super().settings(), "patch_size": height if height == width else [height, width]}


# The authors' T2t_vit_7, _14 and _19; heads 4 times as many as a transformer's there
SIZES: dict[str, dict[str, Any]] = {
    "eamlp_7": {"patch_size": 16, "depth": 7, "embed_dim": 256, "mlp_ratio": 2.0, "heads": 16},
    "eamlp_14": {"patch_size": 16, "depth": 14, "embed_dim": 384, "mlp_ratio": 3.0, "heads": 24},
    "eamlp_19": {"patch_size": 16, "depth": 19, "embed_dim": 448, "mlp_ratio": 3.0, "heads": 28},
}


def sizes_of(state_dict: Mapping[str, torch.Tensor]) -> dict[str, Any] | None:
    """The arguments of the EAMLP that has these tensors, but for the patch size; None if they are of none."""
    stem, proj = (state_dict.get(f"stem.{name}.weight") for name in ("block1.q", "proj"))
    own = mixer_sizes(state_dict)
    if stem is None or proj is None or own is None or not stem.ndim == proj.ndim == 2 or len(proj) < 1:
        return None
    sizes = block_sizes(state_dict, "mlp.fc1.weight", len(proj))
    return None if sizes is None else {"in_chans": stem.shape[1] // SoftSplits.KERNEL**2, **sizes, **own}


def released_cannot(model: Any) -> list[str]:
    mixer = model.blocks[0].mixer
    own = {"widening": mixer.q.out_features // model.embed_dim, "slots": mixer.m_k.out_features}
    wrong = [
        f"{key} is {there} there and {own[key]} here" for key, there in RELEASED.items() if own[key] != there
    ]
    return [
        *wrong,
        *([] if len(set(to_2tuple(model.img_size))) == 1 else ["images are square there, and not here"]),
    ]


RELEASED = {"widening": 4, "slots": 64}  # of all blocks in the authors' code

BLOCK = ("norm1", "norm2", "mlp.fc1", "mlp.fc2")  # are called so by both

LAYOUTS = {
    # T2T_ViT of https://github.com/MenghaoGuo/EANet, folder EAMLP, with tokens_type='performer'
    "menghaoguo": Layout(
        rows=(
            Row("stem.proj", "tokens_to_token.project"),
            *(Row(f"stem.block{{i}}.{part}", f"tokens_to_token.attention{{i}}.{part}") for part in BLOCK),
            Row("stem.block{i}.q", "tokens_to_token.attention{i}.attn.q_linear"),
            Row("stem.block{i}.m_k", "tokens_to_token.attention{i}.attn.linear_0"),
            Row("stem.block{i}.m_v", "tokens_to_token.attention{i}.attn.linear_1"),
            Row("stem.block{i}.proj", "tokens_to_token.attention{i}.attn.proj"),
            Row("blocks.{i}.mixer.q", "blocks.{i}.attn.trans_dims"),
            Row("blocks.{i}.mixer.m_k", "blocks.{i}.attn.linear_0"),
            Row("blocks.{i}.mixer.m_v", "blocks.{i}.attn.linear_1"),
            Row("blocks.{i}.mixer.proj", "blocks.{i}.attn.proj"),
            Row(
                "cls_token.weight",
                "cls_token",
                lambda token: token[None, None],
                lambda token, target: token.flatten(),
            ),
            Row(
                "pos_embed.weight",
                "pos_embed",
                lambda table: table.unsqueeze(0),
                lambda table, target: table.squeeze(0),
            ),
        ),
        marks=("tokens_to_token.attention1.attn.q_linear.weight", "blocks.0.attn.trans_dims.weight"),
        settings={"norm_eps": 1e-5, "final_norm": True, "global_pool": "token", "patch_size": 16},
        cannot=released_cannot,
    ),
}

# The file as it stands at the repository's last commit
FILE = (
    "https://github.com/MenghaoGuo/EANet/raw/59c03cb0a286d3a29a797f8ea07fb89d7af56b60/"
    "EAMLP/EAMLP_7_384/model_best.pth.tar"
)

# README of the released code, and the log beside the file: at 384 px, with the EMA weights
TOP1 = {"eamlp_7": 71.7}

PAPER = {
    "paper_ids": "arXiv:2105.02358",
    "paper_name": "Beyond Self-attention: External Attention using Two Linear Layers for Visual Tasks",
    "origin_url": "https://github.com/MenghaoGuo/EANet",
    "license": "bsd-3-clause-clear",  # of the folder EAMLP; the repository has none
    "first_conv": None,
    "crop_pct": 0.9,
    "mean": IMAGENET_DEFAULT_MEAN,
    "std": IMAGENET_DEFAULT_STD,
}

default_cfgs = generate_default_cfgs(
    {
        "eamlp_7.menghaoguo_in1k": cfg(**PAPER, url=FILE, input_size=(3, 384, 384)),
        # never published; 78.9 and 79.4 top-1 by the README of Vision Permutator
        "eamlp_14.untrained": cfg(**PAPER),
        "eamlp_19.untrained": cfg(**PAPER),
    }
)


@register_model
def eamlp_7(pretrained: bool = False, **kwargs: Any) -> nn.Module:
    """EAMLP-7: 6.24 M parameters at 384 px, the size of the released weights; 6.15 M at 224 px."""
    return create("eamlp_7", Eamlp, SIZES, pretrained, **kwargs)


@register_model
def eamlp_14(pretrained: bool = False, **kwargs: Any) -> nn.Module:
    """EAMLP-14: 29.88 M parameters, 224 px."""
    return create("eamlp_14", Eamlp, SIZES, pretrained, **kwargs)


@register_model
def eamlp_19(pretrained: bool = False, **kwargs: Any) -> nn.Module:
    """EAMLP-19: 54.56 M parameters, 224 px."""
    return create("eamlp_19", Eamlp, SIZES, pretrained, **kwargs)
