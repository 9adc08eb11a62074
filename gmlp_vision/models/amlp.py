"""aMLP: "Pay Attention to MLPs", Liu, Dai, So and Le, NeurIPS 2021, https://arxiv.org/abs/2105.08050

Shapes: B batch, N = H * W tokens in row-major order, D width, E hidden width, a attention width.

    Z = GELU(LN(X) U)                       U: D -> E
    A = softmax(Q K^T / sqrt(a)) R O        Q, K, R = LN(X) times a matrix each, D -> a; O: a -> E/2
    Y = X + (Z1 * (W LN(Z2) + b + A)) V     V: E/2 -> D; W: N x N; Z1, Z2 the halves of Z

gMLP with a tiny attention of one head in the gate. Read where the paper leaves a choice:

- The paper has aMLP for language only. Here it is gMLP at the sizes of Table 1, with the attention width of
  its base model, 64.
- The attention takes the block's normed input; Q, K and R have no biases, O has one. So it is in lucidrains'
  code too.
- The attention starts as other linear layers do, not at 0: how, the paper does not say.
- It knows no positions, which W and b tell apart, and has no dropout.
"""

from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any

import torch
from timm.layers import DropPath
from timm.models import generate_default_cfgs, register_model
from torch import nn
from torch.nn import functional

from gmlp_vision.checkpoints.families import isotropic_sizes
from gmlp_vision.checkpoints.names import Row
from gmlp_vision.layers import GatedMlp, SpatialGatingUnit
from gmlp_vision.layers.hidden_width import hidden_width
from gmlp_vision.layers.resample import Grid
from gmlp_vision.layers.spatial_gating import unit_of
from gmlp_vision.models import gmlp
from gmlp_vision.trunks import Isotropic, cfg, create
from gmlp_vision.trunks.checks import check_rate

SOURCE = (
    "A reading of the paper, which has it for language only; no weights were published. Equal to "
    "lucidrains' gMLPVision with `attn_dim`."
)
VERIFIED = ("equation",)


class TinyAttention(nn.Module):
    """Self-attention of one head, narrower than its input.

    Args:
        dim: D.
        attn_dim: a.
        out_dim: The width of what comes out.
        device, dtype: of the parameters.

    Shape: (B, H, W, D) -> (B, H, W, out_dim).

    Raises:
        ValueError: `attn_dim` is not positive.
    """

    def __init__(
        self, dim: int, attn_dim: int, out_dim: int, device: Any = None, dtype: torch.dtype | None = None
    ) -> None:
        super().__init__()
        if attn_dim < 1:
            raise ValueError(
                f"attn_dim is {attn_dim}; expected a width, at least 1: a model without is gmlp_*"
            )
        self.qkv = nn.Linear(dim, 3 * attn_dim, bias=False, device=device, dtype=dtype)
        self.proj = nn.Linear(attn_dim, out_dim, device=device, dtype=dtype)  # O

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        q, k, v = self.qkv(x).flatten(1, 2).unsqueeze(1).chunk(3, dim=-1)
        y = functional.scaled_dot_product_attention(q, k, v)  # it divides by sqrt(a)
        return self.proj(y).view(x.shape[0], x.shape[1], x.shape[2], self.proj.out_features)


class AttentiveMlp(GatedMlp):
    """GatedMlp to whose gate a TinyAttention of its input is added.

    Args:
        attn_dim: a.
        dim, hidden_dim, grid_size, unit, drop, device, dtype: As for GatedMlp.

    Shape: (B, H, W, D) -> (B, H, W, D).

    Raises:
        ValueError: `attn_dim` is not positive, or `hidden_dim` is odd.
    """

    def __init__(
        self,
        dim: int,
        hidden_dim: int,
        grid_size: Grid,
        attn_dim: int,
        unit: Callable[..., Any] = SpatialGatingUnit,
        drop: float = 0.0,
        device: torch.device | str | None = None,
        dtype: torch.dtype | None = None,
    ) -> None:
        super().__init__(dim, hidden_dim, grid_size, unit, drop, device, dtype)
        self.attn = TinyAttention(dim, attn_dim, self.gate.out_dim, device, dtype)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        z = self.drop1(self.act(self.fc1(x)))
        return self.drop2(self.fc2(self.gate(z, self.attn(x))))


class AMlpBlock(nn.Module):
    """One residual branch, as in gMLP.

    Args:
        dim: D.
        grid_size: (H, W) of the token grid, in tokens.
        mlp_ratio: E / D.
        attn_dim: a.
        spatial, groups, init_std: What W is and how it starts, as in gMLP's block.
        proj_drop_rate: Dropout after GELU and after V, in [0, 1).
        drop_path: Probability that a sample skips the block, in [0, 1).
        norm_eps: eps of the block's LayerNorm; the gate's own stays 1e-5.
        device, dtype: of the parameters.

    Shape: (B, H, W, D) -> (B, H, W, D).

    Raises:
        ValueError: E is odd, so Z has no halves, `attn_dim` is not positive, there is no such W, `groups`
            does not divide the channels of W, or a rate is outside what is listed above.
    """

    def __init__(
        self,
        dim: int,
        grid_size: Grid,
        mlp_ratio: float = 6.0,
        attn_dim: int = 64,
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
        self.mlp_channels = AttentiveMlp(
            dim,
            hidden_width(dim, mlp_ratio),
            grid_size,
            attn_dim,
            unit_of("split", spatial, groups, init_std),
            drop=proj_drop_rate,
            **dd,
        )
        gmlp.check_groups(groups, self.mlp_channels.gate.out_dim)
        self.drop_path = DropPath(drop_path) if drop_path > 0 else nn.Identity()

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x + self.drop_path(self.mlp_channels(self.norm(x)))


class AMlp(Isotropic):
    """aMLP for images: gMLP's trunk with AMlpBlock; no position embedding or class token.

    Args:
        kwargs: Those of Isotropic, and of AMlpBlock `mlp_ratio`, `attn_dim`, `spatial`, `groups`,
            `init_std` and `proj_drop_rate`; the size of gMLP-S by default.
    """

    def __init__(self, **kwargs: Any) -> None:
        super().__init__(AMlpBlock, **{**SIZES["amlp_s16"], **kwargs})


# Table 1 of the paper, at 224 px and patch 16, with the attention width of its base language model.
SIZES: dict[str, dict[str, Any]] = {
    "amlp_ti16": {"patch_size": 16, "depth": 30, "embed_dim": 128, "mlp_ratio": 6.0, "attn_dim": 64},
    "amlp_s16": {"patch_size": 16, "depth": 30, "embed_dim": 256, "mlp_ratio": 6.0, "attn_dim": 64},
    "amlp_b16": {"patch_size": 16, "depth": 30, "embed_dim": 512, "mlp_ratio": 6.0, "attn_dim": 64},
}


def sizes_of(state_dict: Mapping[str, torch.Tensor]) -> dict[str, Any] | None:
    """The arguments of the aMLP that has these tensors; None if they are not those of one."""
    sizes = isotropic_sizes(state_dict, "mlp_channels.fc1.weight")
    qkv = state_dict.get("blocks.0.mlp_channels.attn.qkv.weight")
    if sizes is None or qkv is None:
        return None
    spatial = gmlp.spatial_in(gmlp.projection_in(state_dict), sizes["patch_size"])
    return {**sizes, "attn_dim": len(qkv) // 3, **spatial}


# gMLPVision with attn_dim, as in gmlp.py with a row for each layer of the attention
LAYOUTS = {
    "lucidrains": replace(
        gmlp.LAYOUTS["lucidrains"],
        rows=(
            *gmlp.LUCIDRAINS_ROWS,
            Row("blocks.{i}.mlp_channels.attn.qkv", "layers.{i}.fn.fn.attn.to_qkv"),
            Row("blocks.{i}.mlp_channels.attn.proj", "layers.{i}.fn.fn.attn.to_out"),
        ),
        marks=("to_patch_embed.1.weight", "layers.0.fn.fn.attn.to_qkv.weight"),
        refuse=gmlp.refuse_heads,
        cannot=gmlp.lucidrains_cannot,
    )
}

default_cfgs = generate_default_cfgs(
    {
        "amlp_ti16.untrained": cfg(**gmlp.PAPER),
        "amlp_s16.untrained": cfg(**gmlp.PAPER),
        "amlp_b16.untrained": cfg(**gmlp.PAPER),
    }
)


@register_model
def amlp_ti16(pretrained: bool = False, **kwargs: Any) -> nn.Module:
    """aMLP at the size of gMLP-Ti: 7.35 M parameters, 224 px, patch 16."""
    return create("amlp_ti16", AMlp, SIZES, pretrained, **kwargs)


@register_model
def amlp_s16(pretrained: bool = False, **kwargs: Any) -> nn.Module:
    """aMLP at the size of gMLP-S: 22.39 M parameters, 224 px, patch 16."""
    return create("amlp_s16", AMlp, SIZES, pretrained, **kwargs)


@register_model
def amlp_b16(pretrained: bool = False, **kwargs: Any) -> nn.Module:
    """aMLP at the size of gMLP-B: 79.02 M parameters, 224 px, patch 16."""
    return create("amlp_b16", AMlp, SIZES, pretrained, **kwargs)
