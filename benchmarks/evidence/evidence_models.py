"""The models that evidence.py trains. train.py gets those that are registered here by --device-modules.

All see 32 px images of 10 classes in patches of 4 px, so 64 tokens, through 8 blocks and a mean over the
tokens. The widths of timm's three are those at which their parameters come close to gmlp_pico4's 1,236,106.
Two things of theirs are as timm has them: the blocks of MlpMixer all have the full drop path rate, and blocks
other than gMLP's have two residual branches, each of which may be skipped.
"""

from typing import Any, NamedTuple

import timm
from timm.models import (
    MixerBlock,
    MlpMixer,
    VisionTransformer,
    build_model_with_cfg,
    generate_default_cfgs,
    get_pretrained_cfg_value,
    register_model,
)
from timm.models.mlp_mixer import Affine, ResBlock
from torch import nn

import gmlp_vision  # noqa: F401  registers the names
from gmlp_vision.layers import SpatialProjection

# A gMLP's images, so that the loader treats all models alike
IMAGES = {
    key: get_pretrained_cfg_value("gmlp_pico4", key)
    for key in ("num_classes", "input_size", "fixed_input_size", "crop_pct", "interpolation", "mean", "std")
}
SHAPE: dict[str, Any] = {"img_size": 32, "patch_size": 4, "num_classes": 10}

default_cfgs = generate_default_cfgs(
    {
        "resmlp_pico4": {**IMAGES, "first_conv": "stem.proj", "classifier": "head"},
        "mixer_pico4": {**IMAGES, "first_conv": "stem.proj", "classifier": "head"},
        "vit_pico4": {**IMAGES, "first_conv": "patch_embed.proj", "classifier": "head"},
    }
)


class Contender(NamedTuple):
    """What one row of the table trains: its title there, the model, train.py's --model-kwargs for it."""

    title: str
    model: str
    model_kwargs: dict[str, str] = {}  # noqa: RUF012  nothing writes to it


ROWS = {
    "gmlp": Contender("gMLP", "gmlp_pico4"),
    "frozen": Contender("gMLP, W frozen at its init: tokens do not mix", "gmlp_pico4_frozen"),
    "constant": Contender(
        "gMLP, drop path constant over depth", "gmlp_pico4", {"drop_path_rule": "constant"}
    ),
    "resmlp": Contender("timm's ResMLP block, width 136", "resmlp_pico4"),
    "mixer": Contender("timm's Mixer block, width 134", "mixer_pico4"),
    "vit": Contender("timm's ViT, width 112, 4 heads", "vit_pico4"),
}


def parameters(contender: Contender) -> int:
    """The number of its parameters, frozen ones too."""
    model = timm.create_model(contender.model, num_classes=10, device="meta", **contender.model_kwargs)
    return sum(p.numel() for p in model.parameters())


@register_model
def gmlp_pico4_frozen(pretrained: bool = False, **kwargs: Any) -> nn.Module:
    """gmlp_pico4 whose W stays at its init, N(0, 1e-6 squared); b, one number a token, still learns."""
    model = timm.model_entrypoint("gmlp_pico4")(pretrained, **kwargs)
    for module in model.modules():
        if isinstance(module, SpatialProjection):
            module.weight.requires_grad_(False)
    return model


@register_model
def resmlp_pico4(pretrained: bool = False, **kwargs: Any) -> MlpMixer:
    """ResMLP, with its own affine maps in place of norms."""
    size = {
        "num_blocks": 8,
        "embed_dim": 136,
        "mlp_ratio": 4.0,
        "block_layer": ResBlock,
        "norm_layer": Affine,
    }
    return build_model_with_cfg(MlpMixer, "resmlp_pico4", pretrained, **{**SHAPE, **size, **kwargs})


@register_model
def mixer_pico4(pretrained: bool = False, **kwargs: Any) -> MlpMixer:
    """MLP-Mixer: between tokens an MLP of half the width, between channels one of four times it."""
    size = {"num_blocks": 8, "embed_dim": 134, "mlp_ratio": (0.5, 4.0), "block_layer": MixerBlock}
    return build_model_with_cfg(MlpMixer, "mixer_pico4", pretrained, **{**SHAPE, **size, **kwargs})


@register_model
def vit_pico4(pretrained: bool = False, **kwargs: Any) -> VisionTransformer:
    """A ViT that pools as the others do: no class token, mean over the tokens."""
    size = {"depth": 8, "embed_dim": 112, "num_heads": 4, "class_token": False, "global_pool": "avg"}
    return build_model_with_cfg(VisionTransformer, "vit_pico4", pretrained, **{**SHAPE, **size, **kwargs})
