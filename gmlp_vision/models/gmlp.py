"""gMLP: "Pay Attention to MLPs", Liu, Dai, So and Le, NeurIPS 2021, https://arxiv.org/abs/2105.08050

Shapes: B batch, N = H * W tokens in row-major order, D width, E hidden width.

    Z = GELU(LN(X) U)                    U: D -> E
    Y = X + (Z1 * (W LN(Z2) + b)) V      V: E/2 -> D; W: N x N; Z1, Z2 the halves of Z

Names, shapes and arithmetic are those of timm's gMLP, so a checkpoint moves both ways as it is.
"""

from collections.abc import Callable
from functools import partial
from typing import Any

import torch
from timm.layers import DropPath, GatedMlp
from timm.models import build_model_with_cfg, generate_default_cfgs, register_model
from torch import nn

from gmlp_vision.checkpoints import checkpoint_filter_fn, explain_hub_errors
from gmlp_vision.layers import DynamicSpatialProjection, SpatialGatingUnit, SpatialProjection
from gmlp_vision.layers.fast_block import fast_forward, may_be_fast
from gmlp_vision.models.checks import check_rate
from gmlp_vision.models.features import FeatureTrunk
from gmlp_vision.shipped import shipped


class GMlpBlock(nn.Module):
    """One residual branch holds both the channel projections and, between them, the spatial gating unit.

    Args:
        dim: D.
        grid_size: (H, W) of the token grid, in tokens.
        mlp_ratio: E / D.
        drop: Dropout after GELU and after V, in [0, 1).
        drop_path: Probability that a sample skips the block, in [0, 1).
        norm_eps: eps of the block's LayerNorm; the gate's own stays 1e-5.
        projection: The kind of W and b.
        device, dtype: of the parameters.

    Shape: (B, N, D) -> (B, N, D), or (B, H, W, D) -> (B, H, W, D) if that is what the projection takes.

    Raises:
        ValueError: E is odd, so Z has no halves.
    """

    def __init__(
        self,
        dim: int,
        grid_size: tuple[int, int],
        mlp_ratio: float = 6.0,
        drop: float = 0.0,
        drop_path: float = 0.0,
        norm_eps: float = 1e-6,
        projection: type[SpatialProjection] = SpatialProjection,
        device: torch.device | str | None = None,
        dtype: torch.dtype | None = None,
    ) -> None:
        super().__init__()
        hidden_dim = int(dim * mlp_ratio)
        if hidden_dim < 2 or hidden_dim % 2:
            raise ValueError(
                f"the hidden width is {hidden_dim} (embed_dim {dim} x mlp_ratio {mlp_ratio}); the spatial "
                "gating unit splits it in halves, so it must be even: change embed_dim or mlp_ratio"
            )
        dd: dict[str, Any] = {"device": device, "dtype": dtype}
        self.norm = nn.LayerNorm(dim, eps=norm_eps, **dd)
        # fc1 (U), GELU, gate, fc2 (V)
        gate: Any = partial(SpatialGatingUnit, grid_size=grid_size, projection=projection)
        self.mlp_channels = GatedMlp(dim, hidden_dim, gate_layer=gate, drop=drop, **dd)
        self.drop_path = DropPath(drop_path) if drop_path > 0 else nn.Identity()

    def settled(self, x: torch.Tensor) -> Callable[[torch.Tensor], torch.Tensor]:
        """This block for a call with `x`, and for its repetition in the backward pass: in the same steps."""
        return partial(self, fast=may_be_fast(x, self))

    def forward(self, x: torch.Tensor, fast: bool | None = None) -> torch.Tensor:
        if not torch.jit.is_scripting():  # noqa: SIM102  TorchScript would compile what stands after an `and`
            if may_be_fast(x, self) if fast is None else fast:  # the last line, in other steps
                return fast_forward(x, self.norm, self.mlp_channels, self.drop_path)
        return x + self.drop_path(self.mlp_channels(self.norm(x)))


class GMlp(FeatureTrunk):
    """gMLP for images: patches, `depth` blocks, mean pool, linear head; no position embedding or class token.

    W ties the model to one token grid, that of `img_size` and `patch_size`; `set_input_size` carries it to
    another, and with `dynamic_img_size` each call carries it to its own.

    Args:
        num_classes: Width of the logits; 0 for no head.
        in_chans: Channels of the image.
        global_pool: 'avg' for the mean over tokens, '' for none.
        img_size: Height and width of the image in pixels, as int or (H, W). The patch must divide it.
        patch_size: Height and width of a patch in pixels, as int or (H, W).
        embed_dim: D.
        depth: Number of blocks, L in the paper.
        mlp_ratio: E / D.
        drop_rate: Dropout before the head, in [0, 1).
        proj_drop_rate: Dropout after GELU and after V in each block, in [0, 1).
        drop_path_rate: Stochastic depth: 1 minus the paper's survival probability, in [0, 1).
        drop_path_rule: 'linear' ramps it from 0 at the first block to `drop_path_rate` at the last;
            'constant' gives it to every block, as timm's gMLP does.
        norm_eps: eps of the blocks' and the final LayerNorm; the gates' stays 1e-5.
        final_norm: Whether a LayerNorm follows the last block.
        dynamic_img_size: Whether each call may have its own image size, which the patch must divide. From
            block to block the tokens are then (B, H, W, D).
        device, dtype: of the parameters.

    Raises:
        ValueError: A value outside what is listed above; the message gives it and what was expected.
    """

    def __init__(
        self,
        num_classes: int = 1000,
        in_chans: int = 3,
        global_pool: str = "avg",
        img_size: int | tuple[int, int] = 224,
        patch_size: int | tuple[int, int] = 16,
        embed_dim: int = 256,
        depth: int = 30,
        mlp_ratio: float = 6.0,
        drop_rate: float = 0.0,
        proj_drop_rate: float = 0.0,
        drop_path_rate: float = 0.0,
        drop_path_rule: str = "linear",
        norm_eps: float = 1e-6,
        final_norm: bool = True,
        dynamic_img_size: bool = False,
        device: torch.device | str | None = None,
        dtype: torch.dtype | None = None,
    ) -> None:
        check_rate("proj_drop_rate", proj_drop_rate)
        super().__init__(
            block=partial(
                GMlpBlock,
                mlp_ratio=mlp_ratio,
                drop=proj_drop_rate,
                norm_eps=norm_eps,
                projection=DynamicSpatialProjection if dynamic_img_size else SpatialProjection,
            ),
            num_classes=num_classes,
            in_chans=in_chans,
            global_pool=global_pool,
            img_size=img_size,
            patch_size=patch_size,
            embed_dim=embed_dim,
            depth=depth,
            drop_rate=drop_rate,
            drop_path_rate=drop_path_rate,
            drop_path_rule=drop_path_rule,
            norm_eps=norm_eps,
            final_norm=final_norm,
            dynamic_img_size=dynamic_img_size,
            device=device,
            dtype=dtype,
        )


# Ti, S, B: Table 1 of the paper, at 224 px and patch 16 (196 tokens). E = 6 D in all of them.
# pico4 is this project's own, for small images: 32 px, patch 4 (64 tokens).
SIZES: dict[str, dict[str, Any]] = {
    "gmlp_ti16": {"patch_size": 16, "depth": 30, "embed_dim": 128, "mlp_ratio": 6.0},
    "gmlp_s16": {"patch_size": 16, "depth": 30, "embed_dim": 256, "mlp_ratio": 6.0},
    "gmlp_b16": {"patch_size": 16, "depth": 30, "embed_dim": 512, "mlp_ratio": 6.0},
    "gmlp_pico4": {"patch_size": 4, "depth": 8, "embed_dim": 128, "mlp_ratio": 6.0, "num_classes": 10},
}


def _cfg(**kwargs: Any) -> dict[str, Any]:
    return {
        "num_classes": 1000,
        "input_size": (3, 224, 224),
        "fixed_input_size": True,
        "crop_pct": 0.875,
        "interpolation": "bicubic",
        "mean": (0.5, 0.5, 0.5),
        "std": (0.5, 0.5, 0.5),
        "first_conv": "stem.proj",
        "classifier": "head",
        "license": "apache-2.0",
        "paper_ids": "arXiv:2105.08050",
        "paper_name": "Pay Attention to MLPs",
        **kwargs,
    }


default_cfgs = generate_default_cfgs(
    {
        "gmlp_ti16.untrained": _cfg(),
        # timm's own training of gMLP-S, the only public ImageNet weights of a gMLP: 79.65 top-1 by timm
        "gmlp_s16.ra3_in1k": _cfg(hf_hub_id="timm/gmlp_s16_224.ra3_in1k"),
        "gmlp_b16.untrained": _cfg(),
        # trained by this project; the card beside the file says how
        "gmlp_pico4.cifar10": _cfg(
            num_classes=10,
            input_size=(3, 32, 32),
            file=str(shipped("weights") / "gmlp_pico4.cifar10" / "model.safetensors"),
        ),
    }
)


def _create_gmlp(variant: str, pretrained: bool = False, **kwargs: Any) -> GMlp:
    out_indices = kwargs.pop("out_indices", 3)
    # A model of varying size is made at one size too, and timm reads that off the cfg only where it is fixed.
    # The cfg may come from the folder of a model of the other kind.
    overlay = {**(kwargs.pop("pretrained_cfg_overlay", None) or {}), "fixed_input_size": True}
    if overlay.keys() & {"hf_hub_id", "url"}:
        overlay.setdefault("file", None)  # timm would take the cfg's own file before them
    with explain_hub_errors(variant):
        model = build_model_with_cfg(
            partial(GMlp, **SIZES[variant]),  # what the user or the cfg says goes before the table
            variant,
            pretrained,
            pretrained_cfg_overlay=overlay,
            pretrained_filter_fn=checkpoint_filter_fn,
            feature_cfg={"out_indices": out_indices, "feature_cls": "getter"},
            **kwargs,
        )
    cfg: Any = model.default_cfg
    cfg["fixed_input_size"] = not kwargs.get("dynamic_img_size", False)
    return model


@register_model
def gmlp_ti16(pretrained: bool = False, **kwargs: Any) -> GMlp:
    """gMLP-Ti of Table 1: 5.87 M parameters, 224 px, patch 16. Any entry of its size may be overridden."""
    return _create_gmlp("gmlp_ti16", pretrained, **kwargs)


@register_model
def gmlp_s16(pretrained: bool = False, **kwargs: Any) -> GMlp:
    """gMLP-S of Table 1: 19.42 M parameters, 224 px, patch 16. Any entry of its size may be overridden."""
    return _create_gmlp("gmlp_s16", pretrained, **kwargs)


@register_model
def gmlp_b16(pretrained: bool = False, **kwargs: Any) -> GMlp:
    """gMLP-B of Table 1: 73.08 M parameters, 224 px, patch 16. Any entry of its size may be overridden."""
    return _create_gmlp("gmlp_b16", pretrained, **kwargs)


@register_model
def gmlp_pico4(pretrained: bool = False, **kwargs: Any) -> GMlp:
    """A small gMLP for small images: 1.2 M parameters, 32 px, patch 4, 10 classes unless told otherwise."""
    return _create_gmlp("gmlp_pico4", pretrained, **kwargs)
