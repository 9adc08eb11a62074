"""Sparse-MLP: "Sparse-MLP: A Fully-MLP Architecture with Conditional Computation", Lou et al., https://arxiv.org/abs/2109.02008

Shapes: B batch, H, W the token grid, N = H * W tokens in row-major order, D width, S tokens and C channels
within a sparse block. MLP(X) = GELU(X F + f) G + g. Each LN is over the channels.

    dense, as in Mixer    X = X + MLP(LN(X)^T)^T                     N -> token_dim -> N
                          X = X + MLP(LN(X))                         D -> mlp_ratio D -> D

    sparse                Y = GELU(LN(GELU(P LN(X))) Q)              N -> S, then D -> C: re-represent 1
                          Y = Y + mixture(LN(Y)^T)^T                 experts S -> token_expert_dim -> S
                          Y = Y + mixture(LN(Y))                     experts C -> channel_expert_dim -> C
                          X = GELU(T LN(GELU(LN(Y) R)))              C -> D, then S -> N: re-represent 2

The dense blocks come first. A mixture (`gmlp_vision/layers/experts.py`) takes each of its vectors by itself:
the first one the S numbers of a channel, the second one the C numbers of a token. Its loss for balance adds
its gradient in the backward pass, so that timm's train.py needs no change; `auxiliary_loss()` of the model
tells its value. docs/training.md says what a loop that scales its loss has to do. Read where the paper leaves
a choice:

- Both mixtures and their residual sums stand between the re-represent layers, and nothing goes around those
  (Figure 1), so a sparse block is no residual branch. Each projection of Algorithm 1 has a bias, the router
  none.
- Sparse-S, with no experts for channels, has one MLP of their width there.
- k probabilities are kept as they are, not divided by their sum (equation 5).
- The noise is within the softmax, has std 1 / n, and is there in training only. The threshold of the load is
  the k-th largest of all noisy scores, as equation 9 and V-MoE have it, not Shazeer's of the others.
- No expert has a capacity; no vector is dropped. The losses are of the batch that a device sees.
- S stays as it is for other images, S = 2 N at 224 px: what reads and writes the N tokens is carried to their
  grid, and experts are not.

Parameters without the head: 22.40, 69.98 and 130.44 M; Table 2 says 22, 69 and 130 M (Table 3 has 21 M for
the small model). They trained by MoCo v3 on ImageNet-1k, then fine-tuned.
"""

from collections.abc import Mapping
from functools import partial
from typing import Any

import torch
from timm.data import IMAGENET_DEFAULT_MEAN, IMAGENET_DEFAULT_STD
from timm.layers import DropPath, Mlp
from timm.models import generate_default_cfgs, register_model
from torch import nn

from gmlp_vision.checkpoints.families import isotropic_sizes
from gmlp_vision.layers.experts import Mixture, check_weight
from gmlp_vision.layers.mix_mlp_block import MixMlpBlock
from gmlp_vision.layers.resample import Grid
from gmlp_vision.layers.token_mlp import TokenMlp, TokenReader, TokenWriter
from gmlp_vision.trunks import Isotropic, cfg, create

SOURCE = "A reading of the paper; no weights and no code were published."
VERIFIED = ("equation",)


class Represent1(nn.Module):
    """``GELU(LN(GELU(P LN(X))) Q)``: more tokens, fewer channels.

    Args:
        dim: D.
        grid_size: (H, W) of the token grid, in tokens.
        tokens, channels: S and C.
        norm_eps: eps of both LayerNorms.
        device, dtype: of the parameters.

    Shape: (B, H, W, D) -> (B, S, C).
    """

    def __init__(
        self, dim: int, grid_size: Grid, tokens: int, channels: int, norm_eps: float, **dd: Any
    ) -> None:
        super().__init__()
        self.norm1 = nn.LayerNorm(dim, eps=norm_eps, **dd)
        self.over_tokens = TokenReader(grid_size, tokens, **dd)
        self.norm2 = nn.LayerNorm(dim, eps=norm_eps, **dd)
        self.over_channels = nn.Linear(dim, channels, **dd)
        self.act = nn.GELU()

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y = self.act(self.over_tokens(self.norm1(x)))
        return self.act(self.over_channels(self.norm2(y)))


class Represent2(nn.Module):
    """``GELU(T LN(GELU(LN(Y) R)))``: the tokens and channels that there were before.

    Args:
        As for Represent1.

    Shape: (B, S, C), H and W -> (B, H, W, D).
    """

    def __init__(
        self, dim: int, grid_size: Grid, tokens: int, channels: int, norm_eps: float, **dd: Any
    ) -> None:
        super().__init__()
        self.norm1 = nn.LayerNorm(channels, eps=norm_eps, **dd)
        self.over_channels = nn.Linear(channels, dim, **dd)
        self.norm2 = nn.LayerNorm(dim, eps=norm_eps, **dd)
        self.over_tokens = TokenWriter(grid_size, tokens, **dd)
        self.act = nn.GELU()

    def forward(self, y: torch.Tensor, height: int, width: int) -> torch.Tensor:
        y = self.norm2(self.act(self.over_channels(self.norm1(y))))
        return self.act(self.over_tokens(y, height, width))


class SparseBlock(nn.Module):
    """Two mixtures of experts, over the tokens and over the channels, between layers that re-represent.

    Args:
        dim: D.
        grid_size: (H, W) of the token grid, in tokens.
        sparse_tokens, sparse_channels: S and C.
        token_experts, token_expert_dim, token_top_k: Of the mixture over tokens: how many experts, of which
            hidden width, how many for each channel.
        channel_experts, channel_expert_dim, channel_top_k: Of that over channels; with 0 experts one MLP.
        aux_weight: Of the loss for balance, of both mixtures.
        proj_drop_rate: Dropout in the MLP or the experts over channels, in [0, 1].
        drop_path: Probability that a sample skips a mixture, in [0, 1).
        norm_eps: eps of the LayerNorms.
        device, dtype: of the parameters.

    Shape: (B, H, W, D) -> (B, H, W, D).

    Raises:
        ValueError: A width or count that is too small, or a value that a mixture or a dropout refuses.
    """

    def __init__(
        self,
        dim: int,
        grid_size: Grid,
        *,
        sparse_tokens: int,
        sparse_channels: int,
        token_experts: int,
        token_expert_dim: int,
        token_top_k: int,
        channel_experts: int,
        channel_expert_dim: int,
        channel_top_k: int,
        aux_weight: float = 0.01,
        proj_drop_rate: float = 0.0,
        drop_path: float = 0.0,
        norm_eps: float = 1e-6,
        device: Any = None,
        dtype: torch.dtype | None = None,
    ) -> None:
        super().__init__()
        check_sizes(sparse_tokens=sparse_tokens, sparse_channels=sparse_channels)
        dd: dict[str, Any] = {"device": device, "dtype": dtype}
        sizes = (dim, grid_size, sparse_tokens, sparse_channels, norm_eps)
        self.represent1 = Represent1(*sizes, **dd)
        self.norm1 = nn.LayerNorm(sparse_channels, eps=norm_eps, **dd)
        self.mlp_tokens = Mixture(
            sparse_tokens, token_expert_dim, token_experts, token_top_k, aux_weight, **dd
        )
        self.norm2 = nn.LayerNorm(sparse_channels, eps=norm_eps, **dd)
        self.mlp_channels = (
            Mixture(
                sparse_channels,
                channel_expert_dim,
                channel_experts,
                channel_top_k,
                aux_weight,
                proj_drop_rate,
                **dd,
            )
            if channel_experts
            else Mlp(sparse_channels, channel_expert_dim, drop=proj_drop_rate, **dd)
        )
        self.represent2 = Represent2(*sizes, **dd)
        self.drop_path = DropPath(drop_path) if drop_path > 0 else nn.Identity()  # each call draws anew

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y = self.represent1(x)
        y = y + self.drop_path(self.mlp_tokens(self.norm1(y).transpose(1, 2)).transpose(1, 2))
        y = y + self.drop_path(self.mlp_channels(self.norm2(y)))
        return self.represent2(y, x.shape[1], x.shape[2])


def check_sizes(**sizes: int) -> None:
    for name, size in sizes.items():
        if size < 1:
            raise ValueError(f"{name} is {size}; expected at least 1")


class SparseMlp(Isotropic):
    """Patches, `dense_depth` dense blocks, sparse blocks up to `depth`, final norm, mean pool, linear head.

    Args:
        kwargs: Those of Isotropic; `dense_depth`, how many of the `depth` blocks are dense, all if it is
            larger; `token_dim` and `mlp_ratio` of these; those of SparseBlock. The base model's by default.

    Raises:
        ValueError: `dense_depth` is negative, or a value that the trunk or the blocks refuse.
        TypeError: An argument that none of them has.
    """

    def __init__(self, **kwargs: Any) -> None:
        args = {**SIZES["sparse_mlp_b"], "aux_weight": 0.01, **kwargs}
        dense = partial(MixMlpBlock, mixer=TokenMlp, **{name: args.pop(name) for name in DENSE})
        sparse = partial(SparseBlock, **{name: args.pop(name) for name in SPARSE})
        depth, first = args["depth"], args.pop("dense_depth")
        if first < 0:
            raise ValueError(f"dense_depth is {first}; expected 0 or more dense blocks")
        super().__init__(([dense] * first + [sparse] * depth)[:depth], **args)

    def auxiliary_loss(self) -> torch.Tensor:
        """What the last call in training added to the loss: the mixtures' losses for balance, weighted."""
        return torch.stack([m.aux_weight * m.balance for m in self.mixtures()]).sum()

    def set_aux_weight(self, weight: float) -> None:
        """The weight of the losses for balance from now on.

        A loop that multiplies its loss before the backward pass, as torch.amp.GradScaler or 1 / steps of
        accumulation do, multiplies this by the same number.

        Raises:
            ValueError: It is negative, infinite or no number.
        """
        for mixture in self.mixtures():
            mixture.aux_weight = check_weight(weight)

    def mixtures(self) -> list[Mixture]:
        return [m for m in self.modules() if isinstance(m, Mixture)]


DENSE = ("mlp_ratio", "token_dim")
SPARSE = (
    "sparse_tokens",
    "sparse_channels",
    "token_experts",
    "token_expert_dim",
    "token_top_k",
    "channel_experts",
    "channel_expert_dim",
    "channel_top_k",
    "aux_weight",
)

# Table 2 of the paper, at 224 px
SIZES: dict[str, dict[str, Any]] = {
    "sparse_mlp_s": {
        "patch_size": 16,
        "depth": 8,
        "dense_depth": 6,
        "embed_dim": 512,
        "mlp_ratio": 4.0,
        "token_dim": 256,
        "sparse_tokens": 392,
        "sparse_channels": 512,
        "token_experts": 4,
        "token_expert_dim": 512,
        "token_top_k": 1,
        "channel_experts": 0,
        "channel_expert_dim": 2048,
        "channel_top_k": 2,
    },
    "sparse_mlp_b": {
        "patch_size": 16,
        "depth": 12,
        "dense_depth": 10,
        "embed_dim": 768,
        "mlp_ratio": 4.0,
        "token_dim": 384,
        "sparse_tokens": 392,
        "sparse_channels": 384,
        "token_experts": 8,
        "token_expert_dim": 768,
        "token_top_k": 1,
        "channel_experts": 4,
        "channel_expert_dim": 1536,
        "channel_top_k": 2,
    },
    "sparse_mlp_l": {
        "patch_size": 16,
        "depth": 14,
        "dense_depth": 8,
        "embed_dim": 768,
        "mlp_ratio": 4.0,
        "token_dim": 384,
        "sparse_tokens": 392,
        "sparse_channels": 384,
        "token_experts": 16,
        "token_expert_dim": 768,
        "token_top_k": 1,
        "channel_experts": 4,
        "channel_expert_dim": 1536,
        "channel_top_k": 2,
    },
}


def sizes_of(state_dict: Mapping[str, torch.Tensor]) -> dict[str, Any] | None:
    """The arguments of the Sparse-MLP that has these tensors; None if they are not those of one.

    How many experts a vector goes to, no tensor shows: 1 and 2, as in the paper.
    """
    blocks = {name.split(".")[1] for name in state_dict if name.startswith("blocks.")}
    sparse = [i for i in blocks if f"blocks.{i}.mlp_tokens.gate.weight" in state_dict]
    dense = len(blocks) - len(sparse)
    sizes = isotropic_sizes(state_dict, "mlp.fc1.weight" if dense else "represent2.over_channels.weight")
    if sizes is None or not sparse:
        return None

    def shape(name: str) -> tuple[int, ...]:
        tensor = state_dict.get(f"blocks.{name}.weight")
        return (0, 0) if tensor is None or tensor.ndim != 2 else tuple(tensor.shape)

    token_experts, tokens = shape(f"{dense}.mlp_tokens.gate")
    channel_experts, _ = shape(f"{dense}.mlp_channels.gate")
    channel_mlp = "mlp_channels.experts.0" if channel_experts else "mlp_channels"
    channel_expert_dim, channels = shape(f"{dense}.{channel_mlp}.fc1")
    own = {
        "dense_depth": dense,
        "token_dim": shape("0.mixer.fc1")[1] if dense else 1,
        "sparse_tokens": tokens,
        "sparse_channels": channels,
        "token_experts": token_experts,
        "token_expert_dim": shape(f"{dense}.mlp_tokens.experts.0.fc1")[0],
        "token_top_k": 1,
        "channel_experts": channel_experts,
        "channel_expert_dim": channel_expert_dim,
        "channel_top_k": min(2, channel_experts),
    }
    needed = set(own) - {"dense_depth", "channel_experts", "channel_top_k"}
    return {**sizes, **own} if all(own[name] for name in needed) else None


# Their preprocessing is that of MoCo v3
PAPER = cfg(
    paper_ids="arXiv:2109.02008",
    paper_name="Sparse-MLP: A Fully-MLP Architecture with Conditional Computation",
    mean=IMAGENET_DEFAULT_MEAN,
    std=IMAGENET_DEFAULT_STD,
)

default_cfgs = generate_default_cfgs({f"{name}.untrained": PAPER for name in SIZES})


@register_model
def sparse_mlp_s(pretrained: bool = False, **kwargs: Any) -> nn.Module:
    """Sparse-S: 22.92 M parameters, 4 experts over tokens, none over channels, 224 px, patch 16."""
    return create("sparse_mlp_s", SparseMlp, SIZES, pretrained, **kwargs)


@register_model
def sparse_mlp_b(pretrained: bool = False, **kwargs: Any) -> nn.Module:
    """Sparse-B: 70.75 M parameters, 8 experts over tokens, 4 over channels, 224 px, patch 16."""
    return create("sparse_mlp_b", SparseMlp, SIZES, pretrained, **kwargs)


@register_model
def sparse_mlp_l(pretrained: bool = False, **kwargs: Any) -> nn.Module:
    """Sparse-L: 131.21 M parameters, 16 experts over tokens, 4 over channels, 224 px, patch 16."""
    return create("sparse_mlp_l", SparseMlp, SIZES, pretrained, **kwargs)
