"""External attention: "Beyond Self-attention", Guo et al., TPAMI 2022, https://arxiv.org/abs/2105.02358

Shapes: B batch, H, W the token grid, N = H * W tokens in row-major order, D width, h heads of d = r D / h
channels, S slots of the memories.

    X = X + concat over heads (A Mv) O          Q = LN(X) times a matrix, D -> r D, split over heads
    X = X + MLP(LN(X))

    A = softmax over the N tokens of (Q Mk), then each token's S numbers divided by 1e-9 + their sum
    Mk: d -> S and Mv: S -> d, memories that are learned, and the same for all images, tokens and heads

The order of the two normalisations is the paper's: over the tokens first, over the slots then. Nothing in the
mixer belongs to a grid; the position table of the trunk does.

The mixer is the multi-head form as released with EAMLP (https://github.com/MenghaoGuo/EANet, folder EAMLP,
models/transformer_block.py): Q is r = 4 times as wide as X; the heads are r times as many as a transformer
has, 24 at D = 384, so that d = 64; S = 256 / r = 64; all four linear maps have a bias. Its dropouts, 0 by
default there, are left out.

The trunk is not EAMLP's (eamlp.py), which is T2T-ViT's. It is that of this package's other models at DeiT-S's
size: patches of 16, a learned position table, MLP ratio 4, the mean over tokens.
"""

from collections.abc import Mapping
from functools import partial
from typing import Any

import torch
from timm.data import IMAGENET_DEFAULT_MEAN, IMAGENET_DEFAULT_STD
from timm.models import generate_default_cfgs, register_model
from torch import nn

from gmlp_vision.checkpoints.families import isotropic_sizes
from gmlp_vision.layers.mix_mlp_block import MixMlpBlock
from gmlp_vision.layers.precision import at_least_float32
from gmlp_vision.layers.resample import Grid
from gmlp_vision.trunks import Isotropic, cfg, create
from gmlp_vision.trunks.checks import check_count

torch.fx.wrap("at_least_float32")

SOURCE = (
    "The mixer is the released multi-head one, on a trunk of this project's own; no weights of it were "
    "published."
)
VERIFIED = ("equation", "authors' code")


class ExternalAttention(nn.Module):
    """``concat over heads (A Mv) O``. It belongs to no grid; `grid_size` is not used.

    Args:
        dim: D.
        grid_size: (H, W) of the token grid, in tokens.
        heads: h; it divides r D.
        widening: r, the width of Q as a multiple of D.
        slots: S.
        device, dtype: of the parameters.

    Shape: (B, H, W, D) -> (B, H, W, D), or (B, 1 + N, D) -> (B, 1 + N, D) with a class token.

    Raises:
        ValueError: `heads` does not divide r D, or `widening` or `slots` is not positive.
    """

    NO_OPERATOR = (
        "what a token takes from others goes through memories and depends on the image: there is no learned "
        "map over tokens to show"
    )

    def __init__(
        self,
        dim: int,
        grid_size: Grid,
        *,
        heads: int,
        widening: int = 4,
        slots: int = 64,
        device: torch.device | str | None = None,
        dtype: torch.dtype | None = None,
    ) -> None:
        super().__init__()
        check_count("widening", widening)
        check_count("slots", slots)
        if heads < 1 or dim * widening % heads:
            raise ValueError(
                f"heads is {heads}; expected a divisor of embed_dim * widening, which is {dim * widening}"
            )
        dd: dict[str, Any] = {"device": device, "dtype": dtype}
        head_dim = dim * widening // heads
        self.by_head = [heads, head_dim]
        self.q = nn.Linear(dim, dim * widening, **dd)
        self.m_k = nn.Linear(head_dim, slots, **dd)
        self.m_v = nn.Linear(slots, head_dim, **dd)
        self.proj = nn.Linear(dim * widening, dim, **dd)  # O

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        q = self.q(x).flatten(1, -2).unflatten(-1, self.by_head).transpose(1, 2)  # (B, h, N, d)
        a = normalise_twice(at_least_float32(self.m_k(q))).to(q.dtype)
        return self.proj(self.m_v(a).transpose(1, 2).flatten(2)).reshape(x.shape)


def normalise_twice(scores: torch.Tensor) -> torch.Tensor:
    """(..., N, S): softmax over the N tokens, then each token's numbers over their sum."""
    a = scores.softmax(-2)
    return a / (1e-9 + a.sum(-1, keepdim=True))


class ExternalAttentionMlp(Isotropic):
    """Patches, a position table, `depth` blocks of external attention and an MLP, mean pool, linear head.

    Args:
        kwargs: Those of Isotropic, of MixMlpBlock `mlp_ratio` and `proj_drop_rate`, and of ExternalAttention
            `heads`, `widening` and `slots`; those of `ea_s16` by default.
    """

    def __init__(self, **kwargs: Any) -> None:
        block = partial(MixMlpBlock, mixer=ExternalAttention)
        super().__init__(block, **{**SIZES["ea_s16"], "pos_embed": True, **kwargs})


# DeiT-S, and the heads and slots that EAMLP-14 has at this width
SIZES: dict[str, dict[str, Any]] = {
    "ea_s16": {
        "patch_size": 16,
        "depth": 12,
        "embed_dim": 384,
        "mlp_ratio": 4.0,
        "heads": 24,
        "widening": 4,
        "slots": 64,
    },
}


def sizes_of(state_dict: Mapping[str, torch.Tensor]) -> dict[str, Any] | None:
    """The arguments of the model that has these tensors; None if they are not those of one."""
    sizes, own = isotropic_sizes(state_dict, "mlp.fc1.weight"), mixer_sizes(state_dict)
    return None if sizes is None or own is None else {**sizes, **own}


def mixer_sizes(state_dict: Mapping[str, torch.Tensor]) -> dict[str, Any] | None:
    """Those of ExternalAttention among them."""
    q, m_k = (state_dict.get(f"blocks.0.mixer.{name}.weight") for name in ("q", "m_k"))
    if q is None or m_k is None or min(*m_k.shape, *q.shape) < 1:
        return None
    return {"heads": q.shape[0] // m_k.shape[1], "widening": q.shape[0] // q.shape[1], "slots": m_k.shape[0]}


default_cfgs = generate_default_cfgs(
    {
        # EAMLP's preprocessing
        "ea_s16.untrained": cfg(
            paper_ids="arXiv:2105.02358",
            paper_name="Beyond Self-attention: External Attention using Two Linear Layers for Visual Tasks",
            crop_pct=0.9,
            mean=IMAGENET_DEFAULT_MEAN,
            std=IMAGENET_DEFAULT_STD,
        ),
    }
)


@register_model
def ea_s16(pretrained: bool = False, **kwargs: Any) -> nn.Module:
    """External attention at the small size, 24 heads, 64 slots: 29.23 M parameters, 224 px, patch 16."""
    return create("ea_s16", ExternalAttentionMlp, SIZES, pretrained, **kwargs)
