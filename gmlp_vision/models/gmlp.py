"""gMLP: "Pay Attention to MLPs", Liu, Dai, So and Le, NeurIPS 2021, https://arxiv.org/abs/2105.08050

Shapes: B batch, N = H * W tokens in row-major order, D width, E hidden width.

    Z = GELU(LN(X) U)                    U: D -> E
    Y = X + (Z1 * (W LN(Z2) + b)) V      V: E/2 -> D; W: N x N; Z1, Z2 the halves of Z

Table 3 of the paper has other units in the place of Z1 * (W LN(Z2) + b), `unit=` here. With them V is E -> D:
the paper has none for images, and compares them at other depths and widths. Here they have the sizes of
Table 1, so more parameters. layers/spatial_gating.py has their formulas and how they start.

W may be of another kind, in any of the units, by `spatial=` (layers/spatial.py; docs/structure.md has them
all). With "toeplitz" it depends on the offsets of tokens alone, with "7x7" on those of near tokens, with
"circulant" on those around the borders, with "axial" a token sees its own row and column, "rank:8" is a
product through 8 numbers: readings of this project's. With "lrpe" or "gqpe" W is PosMLP's,
https://arxiv.org/abs/2207.07284, one a group of channels
(layers/posmlp.py). Its abstract puts them into a gMLP of 19.4 M parameters, which then has 18.2 M. So has
gMLP-S with gqpe, but for the unit's norm, which PosMLP leaves out and which stays here. The 16 groups are the
default of the authors' unit.

By default names, shapes and arithmetic are those of timm's gMLP, so a checkpoint moves both ways as it is.
"""

from collections.abc import Mapping
from typing import Any

import torch
from timm.layers import DropPath
from timm.models import generate_default_cfgs, register_model
from torch import nn

from gmlp_vision.checkpoints.families import isotropic_sizes
from gmlp_vision.checkpoints.names import Layout, Row, Target, unflatten_patches
from gmlp_vision.errors import CheckpointError
from gmlp_vision.layers import GatedMlp
from gmlp_vision.layers.fast_form import fast_form
from gmlp_vision.layers.hidden_width import hidden_width
from gmlp_vision.layers.resample import Grid
from gmlp_vision.layers.spatial import kind_of, spatial_of
from gmlp_vision.layers.spatial_gating import unit_of
from gmlp_vision.shipped import shipped
from gmlp_vision.trunks import Isotropic, cfg, create
from gmlp_vision.trunks.checks import check_rate, pixels

SOURCE = (
    "Equal to timm's gMLP, so its released weights load as they are; `gmlp_pico4` is this "
    "project's own size, and the other units and kinds of W are readings of the papers."
)
VERIFIED = ("count", "equation", "authors' code", "released file")


@fast_form(norm=nn.LayerNorm, mlp_channels=GatedMlp, drop_path=(DropPath, nn.Identity))
class GMlpBlock(nn.Module):
    """One residual branch holds both the channel projections and, between them, the spatial gating unit.

    Args:
        dim: D.
        grid_size: (H, W) of the token grid, in tokens.
        mlp_ratio: E / D.
        unit: What stands between U and V: 'split', the spatial gating unit, or another key of UNITS.
        spatial: What W is: 'dense', any matrix, or another key of layers/spatial.py.
        groups: Of channels, each with a W of its own, where the kind of W has them, as 'lrpe' has.
        init_std: Standard deviation of W at the start; None: the unit's own, 1e-6 but for 'linear'. An
            optimizer whose steps are relative to W needs a larger one (docs/training.md).
        proj_drop_rate: Dropout after GELU and after V, in [0, 1).
        drop_path: Probability that a sample skips the block, in [0, 1).
        norm_eps: eps of the block's LayerNorm; the gate's own stays 1e-5.
        device, dtype: of the parameters.

    Shape: (B, H, W, D) -> (B, H, W, D).

    Raises:
        ValueError: E is odd and the unit halves Z, there is no such unit or W, `groups` does not divide the
            channels of W, W cannot start so, or a rate is outside what is listed above.
    """

    def __init__(
        self,
        dim: int,
        grid_size: Grid,
        mlp_ratio: float = 6.0,
        unit: str = "split",
        spatial: str = "dense",
        groups: int = 1,
        init_std: float | None = None,
        proj_drop_rate: float = 0.0,
        drop_path: float = 0.0,
        norm_eps: float = 1e-6,
        device: torch.device | str | None = None,
        dtype: torch.dtype | None = None,
    ) -> None:
        super().__init__()
        check_rate("proj_drop_rate", proj_drop_rate)
        dd: dict[str, Any] = {"device": device, "dtype": dtype}
        self.norm = nn.LayerNorm(dim, eps=norm_eps, **dd)
        self.mlp_channels = GatedMlp(
            dim,
            hidden_width(dim, mlp_ratio),
            grid_size,
            unit_of(unit, spatial, groups, init_std),
            drop=proj_drop_rate,
            **dd,
        )
        check_groups(groups, self.mlp_channels.gate.out_dim)
        self.drop_path = DropPath(drop_path) if drop_path > 0 else nn.Identity()

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x + self.drop_path(self.mlp_channels(self.norm(x)))

    def fast_forward(self, x: torch.Tensor) -> torch.Tensor:
        """The same, of the split unit, written step over step where neither autograd nor a compiler needs
        them; `x` stays."""
        overwrite = not (torch.is_grad_enabled() or torch.compiler.is_compiling())
        tokens, grid_size = x.flatten(1, 2), (x.shape[1], x.shape[2])
        y = self.drop_path(self.mlp_channels.fast_forward(self.norm(tokens), grid_size, overwrite))
        return (y.add_(tokens) if overwrite else tokens + y).view_as(x)


def check_groups(groups: int, width: int) -> None:
    """Refuses groups that are not equally many of the channels of W."""
    if width % groups:
        raise ValueError(f"groups is {groups}; expected a divisor of the channels of W, which are {width}")


class GMlp(Isotropic):
    """gMLP for images: patches, `depth` blocks, mean pool, linear head; no position embedding or class token.

    W ties the model to one token grid, that of `img_size` and `patch_size`; `set_input_size` carries it to
    another, and with `dynamic_img_size` each call carries it to its own.

    Args:
        kwargs: Those of Isotropic, and of GMlpBlock `mlp_ratio`, `unit`, `spatial`, `groups`, `init_std`
            and `proj_drop_rate`; by default gMLP-S's.
    """

    def __init__(self, **kwargs: Any) -> None:
        super().__init__(GMlpBlock, **{**SIZES["gmlp_s16"], **kwargs})


# Table 1 of the paper, at 224 px and patch 16 (196 tokens). E = 6 D in all of them.
TINY: dict[str, Any] = {"patch_size": 16, "depth": 30, "embed_dim": 128, "mlp_ratio": 6.0}
SMALL: dict[str, Any] = {"patch_size": 16, "depth": 30, "embed_dim": 256, "mlp_ratio": 6.0}
BASE: dict[str, Any] = {"patch_size": 16, "depth": 30, "embed_dim": 512, "mlp_ratio": 6.0}

# pico4 is this project's own, for small images: 32 px, patch 4 (64 tokens).
SIZES: dict[str, dict[str, Any]] = {
    "gmlp_ti16": TINY,
    "gmlp_s16": SMALL,
    "gmlp_b16": BASE,
    "gmlp_pico4": {"patch_size": 4, "depth": 8, "embed_dim": 128, "mlp_ratio": 6.0, "num_classes": 10},
    "gmlp_ti16_linear": {**TINY, "unit": "linear"},
    "gmlp_s16_linear": {**SMALL, "unit": "linear"},
    "gmlp_b16_linear": {**BASE, "unit": "linear"},
    "gmlp_ti16_additive": {**TINY, "unit": "additive"},
    "gmlp_s16_additive": {**SMALL, "unit": "additive"},
    "gmlp_b16_additive": {**BASE, "unit": "additive"},
    "gmlp_ti16_multiplicative": {**TINY, "unit": "multiplicative"},
    "gmlp_s16_multiplicative": {**SMALL, "unit": "multiplicative"},
    "gmlp_b16_multiplicative": {**BASE, "unit": "multiplicative"},
    "gmlp_ti16_toeplitz": {**TINY, "spatial": "toeplitz"},
    "gmlp_s16_toeplitz": {**SMALL, "spatial": "toeplitz"},
    "gmlp_b16_toeplitz": {**BASE, "spatial": "toeplitz"},
    "gmlp_s16_7x7": {**SMALL, "spatial": "7x7"},
    "gmlp_s16_lrpe": {**SMALL, "spatial": "lrpe", "groups": 16},
    "gmlp_s16_gqpe": {**SMALL, "spatial": "gqpe", "groups": 16},
    "gmlp_s16_axial": {**SMALL, "spatial": "axial"},
    "gmlp_s16_circulant": {**SMALL, "spatial": "circulant", "groups": 16},
    "gmlp_s16_rank16": {**SMALL, "spatial": "rank:16"},
}

# results/results-imagenet.csv of timm; and of gmlp_pico4, on CIFAR-10, the cards beside its files
TOP1 = {"gmlp_s16": 79.65, "gmlp_pico4": 92.77, "gmlp_pico4.cifar10": 83.34}


GATE = "blocks.0.mlp_channels.gate.proj."


def sizes_of(state_dict: Mapping[str, torch.Tensor]) -> dict[str, Any] | None:
    """The arguments of the gMLP that has these tensors; None if they are not those of one.

    The tensors of the units that do not halve Z are alike, so none of them is taken without a word.
    """
    sizes = isotropic_sizes(state_dict, "mlp_channels.fc1.weight")
    projection = projection_in(state_dict)
    if sizes is None or not projection:
        return None
    sizes.update(spatial_in(projection, sizes["patch_size"]))
    wide = state_dict["blocks.0.mlp_channels.fc1.weight"]
    narrow = state_dict.get("blocks.0.mlp_channels.fc2.weight", wide.T)
    return sizes if narrow.shape[1:] == wide.shape[:1] else {**sizes, "unit": "split"}


def spatial_in(projection: Mapping[str, torch.Tensor], patch_size: Any) -> dict[str, Any]:
    """The arguments that say what W is, and an image on whose grid it can be where it cannot be on every."""
    found = spatial_of(projection)
    cls, options = kind_of(found["spatial"])
    grid = cls.grid_near((1, 1), **options)
    patch = pixels("patch_size", patch_size)
    return found if grid == (1, 1) else {**found, "img_size": (grid[0] * patch[0], grid[1] * patch[1])}


def projection_in(state_dict: Mapping[str, torch.Tensor]) -> dict[str, torch.Tensor]:
    """What W and b of the first block are made of, by the names within their layer."""
    return {n.removeprefix(GATE): t for n, t in state_dict.items() if n.startswith(GATE)}


def refuse_lucidrains(state_dict: Mapping[str, torch.Tensor]) -> None:
    refuse_heads(state_dict)
    if any(".attn." in name for name in state_dict):
        raise CheckpointError(
            "the file has attention beside the spatial gate (attn_dim): it is an aMLP, and without the "
            "attention its other tensors compute something else. Load it into one, such as amlp_s16"
        )


def refuse_heads(state_dict: Mapping[str, torch.Tensor]) -> None:
    for name, tensor in state_dict.items():
        if name.endswith(".sgu.weight") and tensor.ndim == 3 and len(tensor) > 1:
            raise CheckpointError(
                f"{name} is {tuple(tensor.shape)}: {len(tensor)} heads, each with a W of its own; only one "
                "has a counterpart here"
            )


def lucidrains_cannot(model: Any) -> list[str]:
    """Of an aMLP too."""
    return [*other_unit(model), *other_head_or_width(model)]


def jaketae_cannot(model: Any) -> list[str]:
    square = all(len(set(size)) == 1 for size in (model.stem.img_size, model.stem.patch_size))
    why = [] if square else ["image and patch are square there, and not here"]
    return [*other_unit(model), *no_head(model), *why]


def other_unit(model: Any) -> list[str]:
    unit, spatial = model.block_args.get("unit", "split"), model.block_args["spatial"]
    return [
        *([] if unit == "split" else [f"the unit is the split one there, and {unit} here"]),
        *([] if spatial == "dense" else [f"W is any matrix there, and {spatial} here"]),
    ]


def other_head_or_width(model: Any) -> list[str]:
    hidden = model.blocks[0].mlp_channels.fc1.out_features
    whole = f"the hidden width, {hidden}, would have to be a multiple of {model.embed_dim}"
    return [*no_head(model), *([whole] if hidden % model.embed_dim else [])]


def no_head(model: Any) -> list[str]:
    return [] if model.num_classes else ["there is always a head there, and none here"]


def with_first(tensor: torch.Tensor) -> torch.Tensor:
    return tensor.unsqueeze(0)


def without_first(tensor: torch.Tensor, target: Target) -> torch.Tensor:
    return tensor.squeeze(0)


LUCIDRAINS_ROWS = (
    Row(
        "stem.proj.weight",
        "to_patch_embed.1.weight",
        lambda kernel: kernel.flatten(1),
        unflatten_patches,
    ),
    Row("stem.proj.bias", "to_patch_embed.1.bias"),
    Row("blocks.{i}.norm", "layers.{i}.fn.norm"),
    Row("blocks.{i}.mlp_channels.fc1", "layers.{i}.fn.fn.proj_in.0"),
    Row("blocks.{i}.mlp_channels.gate.norm", "layers.{i}.fn.fn.sgu.norm"),
    Row("blocks.{i}.mlp_channels.gate.proj", "layers.{i}.fn.fn.sgu", with_first, without_first),
    Row("blocks.{i}.mlp_channels.fc2", "layers.{i}.fn.fn.proj_out"),
    Row("norm", "to_logits.0"),
    Row("head", "to_logits.2"),
)

LAYOUTS = {
    # gMLPVision of https://github.com/lucidrains/g-mlp-pytorch, one head, no attention (see amlp.py)
    "lucidrains": Layout(
        rows=LUCIDRAINS_ROWS,
        marks=("to_patch_embed.1.weight", "layers.0.fn.fn.sgu.weight"),
        settings={"norm_eps": 1e-5, "final_norm": True},
        refuse=refuse_lucidrains,
        cannot=lucidrains_cannot,
    ),
    # gMLPForImageClassification of https://github.com/jaketae/g-mlp; W is the kernel of a 1-d convolution
    "jaketae": Layout(
        rows=(
            Row("stem.proj", "patcher"),
            Row("blocks.{i}.norm", "model.{i}.norm"),
            Row("blocks.{i}.mlp_channels.fc1", "model.{i}.channel_proj1"),
            Row("blocks.{i}.mlp_channels.gate.norm", "model.{i}.sgu.norm"),
            Row(
                "blocks.{i}.mlp_channels.gate.proj.weight",
                "model.{i}.sgu.spatial_proj.weight",
                lambda w: w.unsqueeze(-1),
                lambda w, target: w.squeeze(-1),
            ),
            Row("blocks.{i}.mlp_channels.gate.proj.bias", "model.{i}.sgu.spatial_proj.bias"),
            Row("blocks.{i}.mlp_channels.fc2", "model.{i}.channel_proj2"),
            Row("head", "classifier"),
        ),
        marks=("patcher.weight", "model.0.sgu.spatial_proj.weight"),
        settings={"norm_eps": 1e-5, "final_norm": False},
        cannot=jaketae_cannot,
    ),
}

PAPER = {"paper_ids": "arXiv:2105.08050", "paper_name": "Pay Attention to MLPs"}
POSMLP = {
    "paper_ids": "arXiv:2207.07284",
    "paper_name": "Parameterization of Cross-Token Relations with Relative Positional Encoding for "
    "Vision MLP",
}

default_cfgs = generate_default_cfgs(
    {
        "gmlp_ti16.untrained": cfg(**PAPER),
        # timm's own training of gMLP-S, the only public ImageNet weights of a gMLP
        "gmlp_s16.ra3_in1k": cfg(
            **PAPER,
            hf_hub_id="timm/gmlp_s16_224.ra3_in1k",
            origin_url="https://github.com/huggingface/pytorch-image-models",
        ),
        "gmlp_b16.untrained": cfg(**PAPER),
        # trained by this project; the cards beside the files say how
        **{
            f"gmlp_pico4.{tag}": cfg(
                **PAPER,
                num_classes=10,
                input_size=(3, 32, 32),
                file=str(shipped("weights") / f"gmlp_pico4.{tag}" / "model.safetensors"),
            )
            for tag in ("dist_cifar10", "cifar10")
        },
        "gmlp_ti16_linear.untrained": cfg(**PAPER),
        "gmlp_s16_linear.untrained": cfg(**PAPER),
        "gmlp_b16_linear.untrained": cfg(**PAPER),
        "gmlp_ti16_additive.untrained": cfg(**PAPER),
        "gmlp_s16_additive.untrained": cfg(**PAPER),
        "gmlp_b16_additive.untrained": cfg(**PAPER),
        "gmlp_ti16_multiplicative.untrained": cfg(**PAPER),
        "gmlp_s16_multiplicative.untrained": cfg(**PAPER),
        "gmlp_b16_multiplicative.untrained": cfg(**PAPER),
        "gmlp_ti16_toeplitz.untrained": cfg(**PAPER),
        "gmlp_s16_toeplitz.untrained": cfg(**PAPER),
        "gmlp_b16_toeplitz.untrained": cfg(**PAPER),
        "gmlp_s16_7x7.untrained": cfg(**PAPER),
        "gmlp_s16_lrpe.untrained": cfg(**POSMLP),
        "gmlp_s16_gqpe.untrained": cfg(**POSMLP),
        "gmlp_s16_axial.untrained": cfg(**PAPER),
        "gmlp_s16_circulant.untrained": cfg(**PAPER),
        "gmlp_s16_rank16.untrained": cfg(**PAPER),
    }
)


@register_model
def gmlp_ti16(pretrained: bool = False, **kwargs: Any) -> nn.Module:
    """gMLP-Ti of Table 1: 5.87 M parameters, 224 px, patch 16. Any entry of its size may be overridden."""
    return create("gmlp_ti16", GMlp, SIZES, pretrained, **kwargs)


@register_model
def gmlp_s16(pretrained: bool = False, **kwargs: Any) -> nn.Module:
    """gMLP-S of Table 1: 19.42 M parameters, 224 px, patch 16. Any entry of its size may be overridden."""
    return create("gmlp_s16", GMlp, SIZES, pretrained, **kwargs)


@register_model
def gmlp_b16(pretrained: bool = False, **kwargs: Any) -> nn.Module:
    """gMLP-B of Table 1: 73.08 M parameters, 224 px, patch 16. Any entry of its size may be overridden."""
    return create("gmlp_b16", GMlp, SIZES, pretrained, **kwargs)


@register_model
def gmlp_pico4(pretrained: bool = False, **kwargs: Any) -> nn.Module:
    """A small gMLP for small images: 1.2 M parameters, 32 px, patch 4, 10 classes unless told otherwise."""
    return create("gmlp_pico4", GMlp, SIZES, pretrained, **kwargs)


@register_model
def gmlp_ti16_linear(pretrained: bool = False, **kwargs: Any) -> nn.Module:
    """gMLP-Ti with the linear unit of Table 3: 7.36 M parameters, 224 px, patch 16."""
    return create("gmlp_ti16_linear", GMlp, SIZES, pretrained, **kwargs)


@register_model
def gmlp_s16_linear(pretrained: bool = False, **kwargs: Any) -> nn.Module:
    """gMLP-S with the linear unit of Table 3: 25.37 M parameters, 224 px, patch 16."""
    return create("gmlp_s16_linear", GMlp, SIZES, pretrained, **kwargs)


@register_model
def gmlp_b16_linear(pretrained: bool = False, **kwargs: Any) -> nn.Module:
    """gMLP-B with the linear unit of Table 3: 96.76 M parameters, 224 px, patch 16."""
    return create("gmlp_b16_linear", GMlp, SIZES, pretrained, **kwargs)


@register_model
def gmlp_ti16_additive(pretrained: bool = False, **kwargs: Any) -> nn.Module:
    """gMLP-Ti with the additive unit of Table 3: 7.36 M parameters, 224 px, patch 16."""
    return create("gmlp_ti16_additive", GMlp, SIZES, pretrained, **kwargs)


@register_model
def gmlp_s16_additive(pretrained: bool = False, **kwargs: Any) -> nn.Module:
    """gMLP-S with the additive unit of Table 3: 25.37 M parameters, 224 px, patch 16."""
    return create("gmlp_s16_additive", GMlp, SIZES, pretrained, **kwargs)


@register_model
def gmlp_b16_additive(pretrained: bool = False, **kwargs: Any) -> nn.Module:
    """gMLP-B with the additive unit of Table 3: 96.76 M parameters, 224 px, patch 16."""
    return create("gmlp_b16_additive", GMlp, SIZES, pretrained, **kwargs)


@register_model
def gmlp_ti16_multiplicative(pretrained: bool = False, **kwargs: Any) -> nn.Module:
    """gMLP-Ti with the multiplicative unit of Table 3: 7.36 M parameters, 224 px, patch 16."""
    return create("gmlp_ti16_multiplicative", GMlp, SIZES, pretrained, **kwargs)


@register_model
def gmlp_s16_multiplicative(pretrained: bool = False, **kwargs: Any) -> nn.Module:
    """gMLP-S with the multiplicative unit of Table 3: 25.37 M parameters, 224 px, patch 16."""
    return create("gmlp_s16_multiplicative", GMlp, SIZES, pretrained, **kwargs)


@register_model
def gmlp_b16_multiplicative(pretrained: bool = False, **kwargs: Any) -> nn.Module:
    """gMLP-B with the multiplicative unit of Table 3: 96.76 M parameters, 224 px, patch 16."""
    return create("gmlp_b16_multiplicative", GMlp, SIZES, pretrained, **kwargs)


@register_model
def gmlp_ti16_toeplitz(pretrained: bool = False, **kwargs: Any) -> nn.Module:
    """gMLP-Ti whose W is Toeplitz: 4.74 M parameters, 224 px, patch 16."""
    return create("gmlp_ti16_toeplitz", GMlp, SIZES, pretrained, **kwargs)


@register_model
def gmlp_s16_toeplitz(pretrained: bool = False, **kwargs: Any) -> nn.Module:
    """gMLP-S whose W is Toeplitz: 18.29 M parameters, 224 px, patch 16."""
    return create("gmlp_s16_toeplitz", GMlp, SIZES, pretrained, **kwargs)


@register_model
def gmlp_b16_toeplitz(pretrained: bool = False, **kwargs: Any) -> nn.Module:
    """gMLP-B whose W is Toeplitz: 71.94 M parameters, 224 px, patch 16."""
    return create("gmlp_b16_toeplitz", GMlp, SIZES, pretrained, **kwargs)


@register_model
def gmlp_s16_7x7(pretrained: bool = False, **kwargs: Any) -> nn.Module:
    """gMLP-S whose W is a convolution with one kernel of 7 x 7: 18.27 M parameters, 224 px, patch 16."""
    return create("gmlp_s16_7x7", GMlp, SIZES, pretrained, **kwargs)


@register_model
def gmlp_s16_lrpe(pretrained: bool = False, **kwargs: Any) -> nn.Module:
    """gMLP-S, W PosMLP's learned table of offsets, 16 groups: 18.62 M parameters, 224 px, patch 16."""
    return create("gmlp_s16_lrpe", GMlp, SIZES, pretrained, **kwargs)


@register_model
def gmlp_s16_gqpe(pretrained: bool = False, **kwargs: Any) -> nn.Module:
    """gMLP-S, W PosMLP's Gaussian of the offset, 16 groups: 18.27 M parameters, 224 px, patch 16."""
    return create("gmlp_s16_gqpe", GMlp, SIZES, pretrained, **kwargs)


@register_model
def gmlp_s16_axial(pretrained: bool = False, **kwargs: Any) -> nn.Module:
    """gMLP-S whose W sees a token's row and column: 18.28 M parameters, 224 px, patch 16."""
    return create("gmlp_s16_axial", GMlp, SIZES, pretrained, **kwargs)


@register_model
def gmlp_s16_circulant(pretrained: bool = False, **kwargs: Any) -> nn.Module:
    """gMLP-S whose W is circulant, 16 groups: 18.36 M parameters, 224 px, patch 16."""
    return create("gmlp_s16_circulant", GMlp, SIZES, pretrained, **kwargs)


@register_model
def gmlp_s16_rank16(pretrained: bool = False, **kwargs: Any) -> nn.Module:
    """gMLP-S whose W is of rank 16: 18.46 M parameters, 224 px, patch 16."""
    return create("gmlp_s16_rank16", GMlp, SIZES, pretrained, **kwargs)
