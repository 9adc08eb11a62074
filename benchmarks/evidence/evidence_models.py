"""The models that evidence.py trains; those of other families are in families.py. train.py gets what is
registered here by --device-modules.

All see 32 px images of 10 classes in patches of 4 px, so 64 tokens, through 8 blocks and a mean over the
tokens. The widths of timm's three are those at which their parameters come close to gmlp_pico4's 1,236,106.
Two things of theirs are as timm has them: the blocks of MlpMixer all have the full drop path rate, and blocks
other than gMLP's have two residual branches, each of which may be skipped.
"""

import argparse
from collections.abc import Mapping
from functools import partial
from typing import Any, NamedTuple

import timm
import torch
from timm.layers import DropPath, Mlp
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
from timm.utils import ParseKwargs
from torch import nn
from torch.nn.utils import parametrize

import gmlp_vision  # noqa: F401  registers the names
from gmlp_vision.layers import SpatialProjection
from gmlp_vision.layers.shared_kernel import DenseToeplitz
from gmlp_vision.trunks import Isotropic

# A gMLP's images, so that the loader treats all models alike
IMAGES = {
    key: get_pretrained_cfg_value("gmlp_pico4.cifar10", key)
    for key in ("num_classes", "input_size", "fixed_input_size", "crop_pct", "interpolation", "mean", "std")
}
SMALL_START = 1e-3  # times what timm draws, in the rows small_*
SHAPE: dict[str, Any] = {"img_size": 32, "patch_size": 4, "num_classes": 10}

default_cfgs = generate_default_cfgs(
    {
        "resmlp_pico4": {**IMAGES, "first_conv": "stem.proj", "classifier": "head"},
        "mixer_pico4": {**IMAGES, "first_conv": "stem.proj", "classifier": "head"},
        "vit_pico4": {**IMAGES, "first_conv": "patch_embed.proj", "classifier": "head"},
        "patch_mlp_pico4": {**IMAGES, "first_conv": "stem.proj", "classifier": "head"},
    }
)


class Contender(NamedTuple):
    """What one row of a table trains: its title there, the model, what is not as in the recipe.

    `model_kwargs` are train.py's --model-kwargs, beside the recipe's, `options` others of its options.
    """

    title: str
    model: str
    model_kwargs: dict[str, str] = {}  # noqa: RUF012  nothing writes to it
    options: dict[str, str] = {}  # noqa: RUF012  nothing writes to it


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

# Does an optimizer train W, by how W starts? Learning rates other than the recipe's were chosen on held-out
# training images (RESULTS.md).
OPTIMIZERS = {
    f"{opt}_{std}": Contender(f"{name}, W starts at {std}", "gmlp_pico4", {"init_std": std}, options)
    for opt, name, options in (
        ("adamw", "AdamW", {}),
        ("lamb", "LAMB", {"opt": "lamb", "lr": "3e-2"}),
        ("lars", "LARS", {"opt": "lars", "lr": "0.1", "opt-kwargs": "trust_coeff=0.03"}),
    )
    for std in ("1e-6", "1e-4", "1e-3")
}
OPTIMIZERS["lamb_undecayed"] = Contender(
    "LAMB, no weight decay of W, which starts at 1e-6",
    "gmlp_pico4_undecayed",
    {"init_std": "1e-6"},
    {"opt": "lamb", "lr": "1e-2"},
)

# The rates that were chosen on held-out training images (RESULTS.md)
ADAMW = {"lr": "4e-3"}
NADAMUON = {"opt": "nadamuon", "lr": "8e-3"}

# Does a shared kernel beside W help? `dense+...` is merged into W after training.
KERNELS = {
    f"{opt}_{spatial}": Contender(f"{name}, {title}", "gmlp_pico4", {"spatial": spatial}, options)
    for opt, name, options in (("adamw", "AdamW", ADAMW), ("nadamuon", "NAdaMuon", NADAMUON))
    for spatial, title in (
        ("dense", "W alone"),
        ("dense+toeplitz", "W and a number for each offset"),
        ("dense+3x3", "W and a 3 x 3 kernel"),
        ("dense+7x7", "W and a 7 x 7 kernel"),
    )
}
# In which form? Each is merged as exactly.
KERNELS |= {
    f"nadamuon_dense+toeplitz_{form}": Contender(
        f"NAdaMuon, W and a number for each offset, {title}",
        "gmlp_pico4_formed",
        {"spatial": "dense+toeplitz", "form": form},
        NADAMUON,
    )
    for form, title in (
        ("undecayed", "without weight decay"),
        ("quarter", "times 1/4"),
        ("four", "times 4"),
        ("normed", "of norm 1, times a gain that starts at 0"),
        ("blur", "that starts as a Gaussian of 1 token"),
    )
}

# Which optimizer, and at which rate? On held-out training images.
RATES = {
    f"{opt}_lr{rate}": Contender(name, "gmlp_pico4", {}, {"opt": opt, "lr": rate})
    for opt, name, rates in (
        ("adamw", "AdamW", ("1e-3", "2e-3", "4e-3", "8e-3")),
        ("muon", "Muon", ("5e-3", "1e-2", "2e-2")),
        ("nadamuon", "NAdaMuon", ("2e-3", "4e-3", "8e-3", "16e-3")),
    )
    for rate in rates
}


def values(model_kwargs: Mapping[str, str]) -> dict[str, Any]:
    """--model-kwargs as train.py reads them."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--model-kwargs", nargs="*", action=ParseKwargs)
    words = [f"{key}={value}" for key, value in model_kwargs.items()]
    return parser.parse_args(["--model-kwargs", *words]).model_kwargs


def parameters(contender: Contender, model_kwargs: Mapping[str, Any]) -> int:
    """The number of its parameters, frozen ones too."""
    model = timm.create_model(contender.model, num_classes=10, device="meta", **model_kwargs)
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
def gmlp_pico4_undecayed(pretrained: bool = False, **kwargs: Any) -> nn.Module:
    """gmlp_pico4 whose W timm puts into the group of parameters without weight decay."""
    model = timm.model_entrypoint("gmlp_pico4")(pretrained, **kwargs)
    spatial = {name for name, module in model.named_modules() if isinstance(module, SpatialProjection)}
    model.no_weight_decay = lambda: {f"{name}.weight" for name in spatial}
    return model


@register_model
def gmlp_pico4_formed(pretrained: bool = False, *, form: str, **kwargs: Any) -> nn.Module:
    """gmlp_pico4 with a kernel k beside W that is learned in another form.

    Args:
        form: 'undecayed', k has no weight decay; 'quarter' and 'four', k is so many times what is learned;
            'normed', k is a learned direction times a learned gain; 'blur', k starts as a blur.
    """
    model = timm.model_entrypoint("gmlp_pico4")(pretrained, **kwargs)
    layers = {name: module for name, module in model.named_modules() if isinstance(module, DenseToeplitz)}
    for layer in layers.values():
        if form in ("quarter", "four"):
            parametrize.register_parametrization(layer, "table", Times(4.0 if form == "four" else 0.25))
        elif form == "normed":
            nn.init.normal_(layer.table)
            parametrize.register_parametrization(layer, "table", Normed())
        elif form == "blur":
            rows, columns = (torch.arange(size) - size // 2 for size in layer.table.shape)
            bump = torch.exp(-(rows[:, None] ** 2 + columns**2) / 2)
            layer.table.data.copy_(bump / bump.sum())
    if form == "undecayed":
        model.no_weight_decay = lambda: {f"{name}.table" for name in layers}
    return model


class Times(nn.Module):
    def __init__(self, gain: float) -> None:
        super().__init__()
        self.gain = gain

    def forward(self, kernel: torch.Tensor) -> torch.Tensor:
        return self.gain * kernel


class Normed(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.gain = nn.Parameter(torch.zeros(1))

    def forward(self, kernel: torch.Tensor) -> torch.Tensor:
        return self.gain * kernel / kernel.norm()


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
def resmlp_pico4_small(pretrained: bool = False, **kwargs: Any) -> MlpMixer:
    """resmlp_pico4 whose maps over tokens start near 0, as gMLP's W does; timm draws them at full size."""
    model = timm.model_entrypoint("resmlp_pico4")(pretrained, **kwargs)
    for block in model.blocks:
        block.linear_tokens.weight.data.mul_(SMALL_START)
    return model


@register_model
def mixer_pico4_small(pretrained: bool = False, **kwargs: Any) -> MlpMixer:
    """mixer_pico4 whose second maps over tokens start near 0; with both there were hardly a gradient."""
    model = timm.model_entrypoint("mixer_pico4")(pretrained, **kwargs)
    for block in model.blocks:
        block.mlp_tokens.fc2.weight.data.mul_(SMALL_START)
    return model


@register_model
def vit_pico4(pretrained: bool = False, **kwargs: Any) -> VisionTransformer:
    """A ViT that pools as the others do: no class token, mean over the tokens."""
    size = {"depth": 8, "embed_dim": 112, "num_heads": 4, "class_token": False, "global_pool": "avg"}
    return build_model_with_cfg(VisionTransformer, "vit_pico4", pretrained, **{**SHAPE, **size, **kwargs})


class PatchMlpBlock(nn.Module):
    """``X + MLP(LN(X))``: what is left of a block of two branches without the one that mixes tokens.

    Args:
        dim: D.
        grid_size: (H, W) of the token grid; not used, since each token goes by itself.
        mlp_ratio: The hidden width, as a multiple of D.
        drop_path: Probability that a sample skips the block, in [0, 1).
        norm_eps: eps of the LayerNorm.
        device, dtype: of the parameters.

    Shape: (B, H, W, D) -> (B, H, W, D).
    """

    def __init__(
        self,
        dim: int,
        grid_size: tuple[int, int],
        mlp_ratio: float = 4.0,
        drop_path: float = 0.0,
        norm_eps: float = 1e-6,
        device: torch.device | str | None = None,
        dtype: torch.dtype | None = None,
    ) -> None:
        super().__init__()
        self.norm = nn.LayerNorm(dim, eps=norm_eps, device=device, dtype=dtype)
        self.mlp = Mlp(dim, int(dim * mlp_ratio), device=device, dtype=dtype)
        self.drop_path = DropPath(drop_path) if drop_path > 0 else nn.Identity()

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x + self.drop_path(self.mlp(self.norm(x)))


@register_model
def patch_mlp_pico4(pretrained: bool = False, **kwargs: Any) -> Isotropic:
    """An MLP on each patch and its place; the mean over the tokens alone looks at more than one."""
    size = {"depth": 8, "embed_dim": 136, "pos_embed": True}
    model: Any = partial(Isotropic, PatchMlpBlock)
    return build_model_with_cfg(model, "patch_mlp_pico4", pretrained, **{**SHAPE, **size, **kwargs})
