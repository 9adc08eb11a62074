"""RaftMLP: "RaftMLP: How Much Can Be Done Without Attention and with Less Spatial Locality?", Tatsunami and
Taki, https://arxiv.org/abs/2108.04384

Shapes: B batch, H, W the token grid of a stage, D its width, r the raft size.

    X = X + columns(LN(X));    X = X + rows(LN(X));    X = X + GELU(LN(X) F) G        F: D -> 4 D; G: 4 D -> D

    columns: for each column, and each of D / r groups of channels, the r H numbers of the group (one channel
             of each raft, at each place of the column) go through  GELU(. P) Q,  P: r H -> 2 r H and back
    rows: the same along the width

A raft is one of r equal parts of the channels, and group i has channel i of every raft. Stem and
downsamplings take patches of several sizes around each place, side by side, through one linear layer.

The hidden layers over a column have 2 r H units, so a model has one image size. In the released code, which
this is, drop path is constant (`drop_path_rule="constant"`), and other images are met by resizing the tokens
around each mixer, which is not done here.
"""

from collections.abc import Iterator, Mapping
from functools import partial
from typing import Any

import torch
from timm.data import IMAGENET_DEFAULT_MEAN, IMAGENET_DEFAULT_STD
from timm.layers import DropPath, Mlp
from timm.models import generate_default_cfgs, register_model
from torch import nn

from gmlp_vision.checkpoints.families import pyramid_sizes
from gmlp_vision.checkpoints.names import Layout, Row, Target
from gmlp_vision.layers.grid_tied import GridTied
from gmlp_vision.layers.hidden_width import hidden_width
from gmlp_vision.layers.resample import Grid
from gmlp_vision.layers.rules import fixed
from gmlp_vision.trunks import Pyramid, cfg, create

SOURCE = "Faithful to the released code, with equal logits for the same weights; no weights were published."
VERIFIED = ("count", "equation", "authors' code")

REFUSAL = fixed(
    "the hidden layers of a RaftMLP over rows and columns have twice as many units as these have tokens and "
    "rafts: create the model with img_size",
    lambda grid: (),
)


class RaftMixer(GridTied):
    """``GELU(. P + p) Q + q`` over the places of a column, or of a row, and the rafts.

    Args:
        grid_size: (H, W).
        axis: 1 for columns, along the height, 2 for rows, along the width.
        rafts: r.
        device, dtype: of the parameters.

    Shape: (B, H, W, D) -> (B, H, W, D), D a multiple of r.
    """

    RULES = dict.fromkeys(("weight1", "bias1", "weight2", "bias2"), REFUSAL)

    def __init__(
        self,
        grid_size: Grid,
        axis: int,
        rafts: int,
        device: torch.device | str | None = None,
        dtype: torch.dtype | None = None,
    ) -> None:
        super().__init__(grid_size)
        dd: dict[str, Any] = {"device": device, "dtype": dtype}
        n = rafts * grid_size[axis - 1]
        self.axis, self.rafts = axis, rafts
        self.weight1 = nn.Parameter(torch.empty(2 * n, n, **dd))
        self.bias1 = nn.Parameter(torch.empty(2 * n, **dd))
        self.act = nn.GELU()
        self.weight2 = nn.Parameter(torch.empty(n, 2 * n, **dd))
        self.bias2 = nn.Parameter(torch.empty(n, **dd))
        self.reset_parameters()

    def reset_parameters(self) -> None:
        """As two linear layers."""
        for weight, bias in ((self.weight1, self.bias1), (self.weight2, self.bias2)):
            nn.init.xavier_uniform_(weight)
            nn.init.zeros_(bias)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        # the rafts and the places of a column, or of a row, last: (B, D / r, W, r, H), or (B, H, D / r, r, W)
        x = x.unflatten(3, (self.rafts, -1)).transpose(self.axis, 4)
        y = self.act(nn.functional.linear(x.flatten(3), self.weight1, self.bias1))
        y = nn.functional.linear(y, self.weight2, self.bias2)
        return y.unflatten(3, (self.rafts, -1)).transpose(self.axis, 4).flatten(3)


class RaftBlock(nn.Module):
    """Three residual branches: over columns, over rows, over channels.

    Args:
        dim: D.
        grid_size: (H, W).
        rafts: r, which divides D.
        mlp_ratio: The hidden width over the channels as a multiple of D.
        proj_drop_rate: Dropout in the MLP over the channels, in [0, 1].
        drop_path: Probability that a sample skips a branch, in [0, 1).
        norm_eps: eps of the LayerNorms.
        device, dtype: of the parameters.

    Shape: (B, H, W, D) -> (B, H, W, D).

    Raises:
        ValueError: r does not divide D.
    """

    NO_OPERATOR = (
        "the places of a row are mixed with its rafts of channels: there is no map over tokens alone"
    )

    def __init__(
        self,
        dim: int,
        grid_size: Grid,
        rafts: int,
        *,
        mlp_ratio: float = 4.0,
        proj_drop_rate: float = 0.0,
        drop_path: float = 0.0,
        norm_eps: float = 1e-5,
        device: torch.device | str | None = None,
        dtype: torch.dtype | None = None,
    ) -> None:
        super().__init__()
        dd: dict[str, Any] = {"device": device, "dtype": dtype}
        if dim % rafts:
            raise ValueError(f"rafts is {rafts}, which does not divide the width {dim}")
        norm = partial(nn.LayerNorm, dim, eps=norm_eps, **dd)
        self.norm1, self.column_mixer = norm(), RaftMixer(grid_size, 1, rafts, **dd)
        self.norm2, self.row_mixer = norm(), RaftMixer(grid_size, 2, rafts, **dd)
        self.norm3, self.mlp = norm(), Mlp(dim, hidden_width(dim, mlp_ratio), drop=proj_drop_rate, **dd)
        self.drop_path = DropPath(drop_path) if drop_path > 0 else nn.Identity()

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = x + self.drop_path(self.column_mixer(self.norm1(x)))
        x = x + self.drop_path(self.row_mixer(self.norm2(x)))
        return x + self.drop_path(self.mlp(self.norm3(x)))


class MultiScaleEmbed(nn.Module):
    """Patches of several sizes around each place, zeros outside, through one linear layer.

    Args:
        in_chans: C.
        dim: D.
        stride: Of the places, and the smallest patch.
        kernels: Sides of the patches, multiples of the stride; each such multiple apart.
        device, dtype: of the parameters.

    Shape: (B, H, W, C) -> (B, H / stride, W / stride, D).

    Raises:
        ValueError: A patch that is no multiple of the stride, or none as large as it.
    """

    def __init__(
        self,
        in_chans: int,
        dim: int,
        *,
        stride: int,
        kernels: tuple[int, ...],
        device: torch.device | str | None = None,
        dtype: torch.dtype | None = None,
    ) -> None:
        super().__init__()
        if min(kernels) != stride or any(k % stride for k in kernels):
            raise ValueError(f"the patches are {list(kernels)}; expected multiples of the stride {stride}")
        self.step = self.stride = stride
        self.kernels = list(kernels)
        self.fc = nn.Linear(in_chans * sum(k * k for k in kernels), dim, device=device, dtype=dtype)

    def out_size(self, size: Grid) -> Grid:
        """The grid for an image or a grid of this size."""
        return size[0] // self.stride, size[1] // self.stride

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        rows = x.shape[1] // self.stride
        x = x.permute(0, 3, 1, 2)
        patches = [
            nn.functional.unfold(x, k, stride=self.stride, padding=(k - self.stride) // 2)
            for k in self.kernels
        ]
        return self.fc(torch.cat(patches, dim=1).transpose(1, 2)).unflatten(1, (rows, -1))


class RaftMlp(Pyramid):
    """RaftMLP: a stem of patches of two sizes, four stages, final norm, mean pool, linear head.

    Args:
        kernels: The sides of the patches of the stem and of each downsampling, in places.
        kwargs: Those of Pyramid, and of RaftBlock `rafts`, `mlp_ratio` and `proj_drop_rate`; those of
            RaftMLP-S by default.
    """

    first_conv = None  # the stem is a linear layer over patches of several sizes

    def __init__(self, *, kernels: Any = ((4, 8), (2, 4), (2, 4), (2,)), **kwargs: Any) -> None:
        embeds = [partial(MultiScaleEmbed, kernels=tuple(sizes)) for sizes in kernels]
        args = {**SIZES["raft_s"], "drop_path_rule": "constant", **kwargs}
        count = len(args["depths"])
        super().__init__(RaftBlock, stem=embeds[0], downsample=embeds[:count], **args)


# the released configurations
SIZES: dict[str, dict[str, Any]] = {
    "raft_s": {"embed_dims": (64, 128, 256, 512)},
    "raft_m": {"embed_dims": (96, 192, 384, 768)},
    "raft_l": {"embed_dims": (128, 192, 512, 1024)},  # 192, not 256
}
for size in SIZES.values():
    size |= {"depths": (2, 2, 6, 2), "mlp_ratio": 4.0, "rafts": 2}


def norm_rows(ours: str, theirs: str, rafts: int) -> Row:
    """A LayerNorm before a mixer: theirs has the rafts of a channel side by side, ours the channels of a
    raft."""

    def there(tensor: torch.Tensor) -> torch.Tensor:
        return tensor.unflatten(0, (rafts, -1)).T.flatten()

    def back(tensor: torch.Tensor, target: Target) -> torch.Tensor:
        if tensor.ndim != 1 or len(tensor) % rafts:
            return tensor  # of other rafts: it will fit no model
        return tensor.unflatten(0, (-1, rafts)).T.flatten()

    return Row(ours, theirs, there, back)


def rows(model: Any) -> Iterator[Row]:
    """Their names: an embedding, nothing, then the blocks of a level in one list."""
    yield Row("stem.fc", "levels.0.fn.0.fc")
    for s, depth in enumerate(model.depths):
        yield Row(f"stages.{s}.downsample.fc", f"levels.{s}.fn.0.fc")
        for j in range(depth):
            ours, theirs = f"stages.{s}.blocks.{j}", f"levels.{s}.fn.{2 + j}"
            for norm, mixer, place in (("norm1", "column_mixer", 1), ("norm2", "row_mixer", 3)):
                rafts = model.stages[s].blocks[j].column_mixer.rafts
                yield norm_rows(f"{ours}.{norm}", f"{theirs}.{place}.norm.1", rafts)
                for k, layer in ((1, 0), (2, 3)):
                    for kind in ("weight", "bias"):
                        yield Row(f"{ours}.{mixer}.{kind}{k}", f"{theirs}.{place}.fn.{layer}.{kind}")
            yield Row(f"{ours}.norm3", f"{theirs}.5.norm")
            yield Row(f"{ours}.mlp.fc1", f"{theirs}.5.fn.0")
            yield Row(f"{ours}.mlp.fc2", f"{theirs}.5.fn.3")
    yield Row("norm", "heads.0.1")
    yield Row("head", "classifier")


LAYOUTS = {
    # RaftMLP of https://github.com/okojoalg/raft-mlp
    "okojoalg": Layout(
        rows=rows,
        marks=("levels.0.fn.0.fc.weight", "levels.0.fn.2.1.fn.0.weight"),
        settings={"norm_eps": 1e-5, "final_norm": True},
    ),
}


def sizes_of(state_dict: Mapping[str, torch.Tensor]) -> dict[str, Any] | None:
    """The arguments of the RaftMLP that has these tensors; None if they are not those of one."""
    axes = [state_dict.get(f"stages.0.blocks.0.{axis}_mixer.weight1") for axis in ("column", "row")]
    sizes = pyramid_sizes(state_dict, "mlp.fc1.weight")
    if sizes is None or any(weight is None or weight.ndim != 2 for weight in axes):
        return None
    # places times rafts, with the rafts and the stride of the released models
    return {**sizes, "img_size": tuple(weight.shape[1] // 2 * 4 for weight in axes if weight is not None)}


PAPER = cfg(
    paper_ids="arXiv:2108.04384",
    paper_name="RaftMLP: How Much Can Be Done Without Attention and with Less Spatial Locality?",
    origin_url="https://github.com/okojoalg/raft-mlp",
    first_conv=None,
    mean=IMAGENET_DEFAULT_MEAN,
    std=IMAGENET_DEFAULT_STD,
)

default_cfgs = generate_default_cfgs({f"{name}.untrained": PAPER for name in SIZES})


@register_model
def raft_s(pretrained: bool = False, **kwargs: Any) -> nn.Module:
    """RaftMLP-S: 9.87 M parameters, 224 px."""
    return create("raft_s", RaftMlp, SIZES, pretrained, **kwargs)


@register_model
def raft_m(pretrained: bool = False, **kwargs: Any) -> nn.Module:
    """RaftMLP-M: 21.41 M parameters, 224 px."""
    return create("raft_m", RaftMlp, SIZES, pretrained, **kwargs)


@register_model
def raft_l(pretrained: bool = False, **kwargs: Any) -> nn.Module:
    """RaftMLP-L: 36.18 M parameters, 224 px."""
    return create("raft_l", RaftMlp, SIZES, pretrained, **kwargs)
