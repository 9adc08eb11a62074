"""gMLP: "Pay Attention to MLPs", Liu, Dai, So and Le, NeurIPS 2021, https://arxiv.org/abs/2105.08050

Shapes: B batch, N = H * W tokens in row-major order, D width, E hidden width.

    Z = GELU(LN(X) U)                    U: D -> E
    Y = X + (Z1 * (W LN(Z2) + b)) V      V: E/2 -> D; W: N x N; Z1, Z2 the halves of Z

Names, shapes and arithmetic are those of timm's gMLP, so a checkpoint moves both ways as it is.
"""

from typing import Any

import torch
from timm.layers import DropPath
from timm.models import generate_default_cfgs, register_model
from torch import nn

from gmlp_vision.layers import GatedMlp
from gmlp_vision.layers.fast_form import fast_form
from gmlp_vision.layers.resample import Grid
from gmlp_vision.shipped import shipped
from gmlp_vision.trunks import Isotropic, cfg, create
from gmlp_vision.trunks.checks import check_rate


@fast_form(norm=nn.LayerNorm, mlp_channels=GatedMlp, drop_path=(DropPath, nn.Identity))
class GMlpBlock(nn.Module):
    """One residual branch holds both the channel projections and, between them, the spatial gating unit.

    Args:
        dim: D.
        grid_size: (H, W) of the token grid, in tokens.
        mlp_ratio: E / D.
        proj_drop_rate: Dropout after GELU and after V, in [0, 1).
        drop_path: Probability that a sample skips the block, in [0, 1).
        norm_eps: eps of the block's LayerNorm; the gate's own stays 1e-5.
        device, dtype: of the parameters.

    Shape: (B, H, W, D) -> (B, H, W, D).

    Raises:
        ValueError: E is odd, so Z has no halves, or a rate outside what is listed above.
    """

    def __init__(
        self,
        dim: int,
        grid_size: Grid,
        mlp_ratio: float = 6.0,
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
        self.mlp_channels = GatedMlp(dim, int(dim * mlp_ratio), grid_size, drop=proj_drop_rate, **dd)
        self.drop_path = DropPath(drop_path) if drop_path > 0 else nn.Identity()

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x + self.drop_path(self.mlp_channels(self.norm(x)))

    def fast_forward(self, x: torch.Tensor) -> torch.Tensor:
        """The same, written step over step where neither autograd nor a compiler needs them; `x` stays."""
        overwrite = not (torch.is_grad_enabled() or torch.compiler.is_compiling())
        y = self.drop_path(self.mlp_channels.fast_forward(self.norm(x), overwrite))
        return y.add_(x) if overwrite else x + y


class GMlp(Isotropic):
    """gMLP for images: patches, `depth` blocks, mean pool, linear head; no position embedding or class token.

    W ties the model to one token grid, that of `img_size` and `patch_size`; `set_input_size` carries it to
    another, and with `dynamic_img_size` each call carries it to its own.

    Args:
        kwargs: Those of Isotropic, and of GMlpBlock `mlp_ratio` and `proj_drop_rate`; gMLP-S's by default.
    """

    def __init__(self, **kwargs: Any) -> None:
        super().__init__(GMlpBlock, **{**SIZES["gmlp_s16"], **kwargs})


# Ti, S, B: Table 1 of the paper, at 224 px and patch 16 (196 tokens). E = 6 D in all of them.
# pico4 is this project's own, for small images: 32 px, patch 4 (64 tokens).
SIZES: dict[str, dict[str, Any]] = {
    "gmlp_ti16": {"patch_size": 16, "depth": 30, "embed_dim": 128, "mlp_ratio": 6.0},
    "gmlp_s16": {"patch_size": 16, "depth": 30, "embed_dim": 256, "mlp_ratio": 6.0},
    "gmlp_b16": {"patch_size": 16, "depth": 30, "embed_dim": 512, "mlp_ratio": 6.0},
    "gmlp_pico4": {"patch_size": 4, "depth": 8, "embed_dim": 128, "mlp_ratio": 6.0, "num_classes": 10},
}

PAPER = {"paper_ids": "arXiv:2105.08050", "paper_name": "Pay Attention to MLPs"}

default_cfgs = generate_default_cfgs(
    {
        "gmlp_ti16.untrained": cfg(**PAPER),
        # timm's own training of gMLP-S, the only public ImageNet weights of a gMLP: 79.65 top-1 by timm
        "gmlp_s16.ra3_in1k": cfg(**PAPER, hf_hub_id="timm/gmlp_s16_224.ra3_in1k"),
        "gmlp_b16.untrained": cfg(**PAPER),
        # trained by this project; the card beside the file says how
        "gmlp_pico4.cifar10": cfg(
            **PAPER,
            num_classes=10,
            input_size=(3, 32, 32),
            file=str(shipped("weights") / "gmlp_pico4.cifar10" / "model.safetensors"),
        ),
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
