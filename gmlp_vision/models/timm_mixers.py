"""Mixer of timm: MLP-Mixer, gMixer and ResMLP. timm registers them; here they are carried, read and shown.

Shapes: N = H * W tokens in row-major order, D width, K hidden units over tokens, E hidden width.

To another grid, with R and S of layers/resample.py:

    ResMLP   linear_tokens: W' = R W S, b' = R b                            W (N, N), b (N,)
    Mixer    fc1' = fc1 S and its bias as it is; fc2' = R fc2, b2' = R b2   fc1 (K, N), fc2 (N, K), b2 (N,)
    gMixer   the same: the halves of its fc1, value and gate, are rows      fc1 (2K, N)

timm's gMLP is among them by its layers only, since a file of it holds the tensors of ours.
"""

import math
from collections.abc import Mapping
from typing import Any

import torch
from timm.layers import GluMlp, Mlp
from timm.models.mlp_mixer import (
    Affine,
    MixerBlock,
    MlpMixer,
    ResBlock,
    SpatialGatingBlock,
    SpatialGatingUnit,
)
from torch import nn

from gmlp_vision.checkpoints.names import Layout, Row, Target
from gmlp_vision.layers.ask import Operator, operators
from gmlp_vision.layers.hidden_width import ratio_of
from gmlp_vision.layers.resample import Grid
from gmlp_vision.layers.rules import OPERATOR, TOKEN_MAP, TOKEN_READER_ROWS, Rule
from gmlp_vision.layers.sized import Size, sized
from gmlp_vision.layers.tied_linear import TiedLinear, linears_on_grid
from gmlp_vision.trunks.checks import check_divides
from gmlp_vision.trunks.input_size import resize

# Patch, blocks and width, from timm's own entrypoints.
SIZES: dict[str, dict[str, Any]] = {
    name: {"patch_size": patch, "num_blocks": depth, "embed_dim": dim}
    for name, patch, depth, dim in (
        ("mixer_s32_224", 32, 8, 512),
        ("mixer_s16_224", 16, 8, 512),
        ("mixer_b32_224", 32, 12, 768),
        ("mixer_b16_224", 16, 12, 768),
        ("mixer_l32_224", 32, 24, 1024),
        ("mixer_l16_224", 16, 24, 1024),
        ("gmixer_12_224", 16, 12, 384),
        ("gmixer_24_224", 16, 24, 384),
        ("resmlp_12_224", 16, 12, 384),
        ("resmlp_24_224", 16, 24, 384),
        ("resmlp_36_224", 16, 36, 384),
        ("resmlp_big_24_224", 8, 24, 768),
    )
}
SOURCE = "timm's own models, not registered here; their files are read, converted and shown."
VERIFIED = ()

# results/results-imagenet.csv of timm
TOP1 = {
    "mixer_b16_224": 76.62,
    "mixer_b16_224.miil_in21k_ft_in1k": 82.31,
    "mixer_l16_224": 72.08,
    "gmixer_24_224": 78.05,
    "resmlp_12_224": 76.66,
    "resmlp_12_224.fb_distilled_in1k": 77.95,
    "resmlp_24_224": 79.38,
    "resmlp_24_224.fb_distilled_in1k": 80.77,
    "resmlp_36_224": 79.77,
    "resmlp_36_224.fb_distilled_in1k": 81.15,
    "resmlp_big_24_224": 81.03,
    "resmlp_big_24_224.fb_distilled_in1k": 83.59,
    "resmlp_big_24_224.fb_in22k_ft_in1k": 84.41,
}

NAMES = tuple(SIZES)
MODEL = MlpMixer


def sizes_of(state_dict: Mapping[str, torch.Tensor]) -> dict[str, Any] | None:
    """The arguments of the MlpMixer that has these tensors; None if they are not those of one.

    The image is one of a single token: on which grid the tokens lie, no tensor shows.
    """
    stem = state_dict.get("stem.proj.weight")
    if stem is None or stem.ndim != 4 or min(stem.shape) < 1:
        return None
    dim, _, height, width = stem.shape
    square, reads, writes, hidden = (
        _rows_and_columns(state_dict.get(f"blocks.0.{name}.weight"))
        for name in ("linear_tokens", "mlp_tokens.fc1", "mlp_tokens.fc2", "mlp_channels.fc1")
    )
    if hidden is None:
        return None
    channels = ratio_of(hidden[0], dim)
    own: dict[str, Any]
    if square is not None:  # (N, N)
        own = {"mlp_ratio": channels, "block_layer": ResBlock, "norm_layer": Affine}
    elif reads is not None and writes is not None:  # (K, N) and (N, K), or (K, N) and (N, K / 2)
        own = {"mlp_ratio": (ratio_of(reads[0], dim), channels)}
        if writes[1] < reads[0]:
            own |= {"mlp_layer": GluMlp, "act_layer": nn.SiLU}
    else:
        return None
    patch = height if height == width else (height, width)
    depth = len({name.split(".")[1] for name in state_dict if name.startswith("blocks.")})
    sizes = {"patch_size": patch, "img_size": (height, width), "embed_dim": dim}
    return {**sizes, "num_blocks": depth, **own}


def _rows_and_columns(weight: torch.Tensor | None) -> tuple[int, int] | None:
    return None if weight is None or weight.ndim < 2 else (weight.shape[0], weight.shape[1])


def _flat(tensor: torch.Tensor) -> torch.Tensor:
    return tensor.flatten()


def _unflat(tensor: torch.Tensor, target: Target) -> torch.Tensor:
    return tensor.reshape(1, 1, -1)


LAYOUTS = {
    # ResMLP of https://github.com/facebookresearch/deit
    "deit": Layout(
        rows=(
            Row("stem.proj", "patch_embed.proj"),
            *(
                Row(f"{norm}.{name}", f"{norm}.{name}", _flat, _unflat)
                for norm in ("blocks.{i}.norm{j}", "norm")
                for name in ("alpha", "beta")
            ),
            Row("blocks.{i}.linear_tokens", "blocks.{i}.attn"),
            Row("blocks.{i}.mlp_channels.fc{j}", "blocks.{i}.mlp.fc{j}"),
            Row("blocks.{i}.ls{j}", "blocks.{i}.gamma_{j}"),
        ),
        marks=("patch_embed.proj.weight", "blocks.0.attn.weight", "blocks.0.gamma_1"),
    ),
}


# -- another grid --------------------------------------------------------------------------------------------

MAPS: dict[str, Rule] = {"weight": OPERATOR, "bias": TOKEN_MAP}
READS: dict[str, Rule] = {"weight": TOKEN_READER_ROWS}
WRITES: dict[str, Rule] = {"weight": TOKEN_MAP, "bias": TOKEN_MAP}

# The linear layers over tokens of each class of blocks
OVER_TOKENS = {
    ResBlock: {"linear_tokens": MAPS},
    MixerBlock: {"mlp_tokens.fc1": READS, "mlp_tokens.fc2": WRITES},
    SpatialGatingBlock: {"mlp_channels.gate.proj": MAPS},
}


def over_tokens(block: nn.Module) -> dict[str, dict[str, Rule]]:
    """The rules of a block's layers over tokens, by the names of these; none of a block that is not known."""
    found = next((rules for kind, rules in OVER_TOKENS.items() if isinstance(block, kind)), {})
    known = not isinstance(block, MixerBlock) or isinstance(block.mlp_tokens, Mlp | GluMlp)
    return found if known else {}


@linears_on_grid.register
def _of_mixer(model: MlpMixer) -> dict[str, TiedLinear]:
    found: dict[str, TiedLinear] = {}
    for i, block in enumerate(model.blocks):
        for name, rules in over_tokens(block).items():
            linear = block.get_submodule(name)
            if all(other.linear is not linear for other in found.values()):  # a shared one is carried once
                found[f"blocks.{i}.{name}"] = TiedLinear(linear, rules, model.stem.grid_size)
    return found


class SizedMixer:
    """What tells the image size of one of timm's mixers, and changes it; see layers/sized.py.

    Attributes:
        family: The module that knows its tensors.
    """

    first_conv, classifier = "stem.proj", "head"

    def __init__(self, model: Any) -> None:
        self.model = model
        self.is_gmlp = all(isinstance(block, SpatialGatingBlock) for block in model.blocks)
        self.family = f"{__package__}.gmlp" if self.is_gmlp else __name__

    def sizes(self, img_size: Size | None, patch_size: Size | None) -> tuple[Grid, Grid]:
        stem = self.model.stem
        return check_divides(
            stem.img_size if img_size is None else img_size,
            stem.patch_size if patch_size is None else patch_size,
        )

    def grids(self, img_size: Grid, patch_size: Grid | None = None) -> dict[str, Grid]:
        (height, width), (p, q) = self.sizes(img_size, patch_size)
        return dict.fromkeys(_of_mixer(self.model), (height // p, width // q))

    def resize_stem(self, img_size: Grid, patch_size: Grid) -> None:
        self.model.stem.set_input_size(img_size, patch_size)
        for info in self.model.feature_info:
            info["reduction"] = max(patch_size)

    def set_input_size(self, img_size: Size | None = None, patch_size: Size | None = None) -> None:
        resize(self.model, self, img_size, patch_size)

    def settings(self) -> dict[str, Any]:
        if not self.is_gmlp:
            return {}
        norm = self.model.norm
        eps = {"norm_eps": norm.eps} if isinstance(norm, nn.LayerNorm) else {}
        block = {"unit": "split", "spatial": "dense", "groups": 1}
        return {**eps, "final_norm": isinstance(norm, nn.LayerNorm), **block}


@sized.register
def _sized(model: MlpMixer) -> SizedMixer | None:
    return SizedMixer(model) if all(over_tokens(block) for block in model.blocks) else None


# -- what is shown -------------------------------------------------------------------------------------------


@operators.register
def _of_spatial_gating_unit(unit: SpatialGatingUnit, grid_size: Grid | None) -> list[Operator]:
    return [Operator("proj", "token", unit.proj.weight, unit.proj.bias, init_std=1e-6)]


@operators.register
def _of_res_block(block: ResBlock, grid_size: Grid | None) -> list[Operator]:
    weight = block.linear_tokens.weight
    return [Operator("linear_tokens", "token", weight, block.linear_tokens.bias, _xavier_std(weight))]


@operators.register
def _of_mixer_block(block: MixerBlock, grid_size: Grid | None) -> list[Operator]:
    """Two layers over tokens, a non-linearity between: fc1 (K, N), or (2K, N) in a GluMlp, and fc2 (N, K)."""
    mlp = block.mlp_tokens
    if not isinstance(mlp, Mlp | GluMlp):
        return []
    reads, reads_bias, reads_std = mlp.fc1.weight, mlp.fc1.bias, _xavier_std(mlp.fc1.weight)
    writes, writes_bias, writes_std = mlp.fc2.weight, mlp.fc2.bias, _xavier_std(mlp.fc2.weight)
    k = writes.shape[1]
    if isinstance(mlp, GluMlp):
        # One half is the value; the other goes through the activation and gates it. timm starts the second
        # near zero, whichever it is.
        halves = [
            (reads[rows], None if reads_bias is None else reads_bias[rows], std)
            for rows, std in ((slice(k), reads_std), (slice(k, None), 1e-6))
        ]
        value, gate = halves if mlp.gate_last else halves[::-1]
        reads, reads_bias, reads_std = value
        hidden = [
            Operator("mlp_tokens.fc1.value", "hidden", *value, note="value half"),
            Operator("mlp_tokens.fc1.gate", "hidden", *gate, note="gate half"),
        ]
    else:
        hidden = [Operator("mlp_tokens.fc1", "hidden", reads, reads_bias, reads_std)]
    note = "transposed: where a hidden unit writes"
    hidden.append(Operator("mlp_tokens.fc2", "hidden", writes.T, writes_bias, writes_std, note))
    bias = None
    if reads_bias is not None and writes_bias is not None:
        bias = writes.double() @ reads_bias.double() + writes_bias.double()
    product = Operator(
        "mlp_tokens.product",
        "token",
        writes.double() @ reads.double(),
        bias,
        init_std=math.sqrt(k) * reads_std * writes_std,
        note="ignores the non-linearity",
    )
    return [*hidden, product]


def _xavier_std(weight: torch.Tensor) -> float:
    """Of nn.init.xavier_uniform_, with which timm starts these (Glorot and Bengio 2010, equation 16)."""
    return math.sqrt(2 / (weight.shape[0] + weight.shape[1]))
