"""AFT: "An Attention Free Transformer", Zhai et al., 2021, https://arxiv.org/abs/2105.14103

Shapes: B batch, H, W the token grid, N = H * W tokens in row-major order, D width, h heads, s kernel size.

    X = X + (sigmoid(Q) * C) O            Q, K, V = LN(X) times a matrix each; O: D -> D
    X = X + MLP(LN(X))

    C[t] = sum_t' exp(K[t'] + w[t, t']) V[t'] / sum_t' exp(K[t'] + w[t, t'])        each channel by itself

    full    w = u v^T, u and v (N, 128), the same for all channels
    simple  w = 0
    local   w of full where t' is less than `reach` tokens from t on both axes, else 0 (not -inf): all tokens
            stay in all sums
    conv    w of the offset t' - t and the head, s x s numbers a head, else 0; K has one channel a head, and
            D / h channels of Q and V in a row belong to a head

The trunk is DeiT's: patch 16, MLP ratio 4, pre-norm. Read where the paper leaves a choice:

- No position table, no class token, and the mean over tokens. For AFT-full the published sizes decide, 6.3
  and 22.6 M: so it has 6.28 and 22.58 M. With a table the small one has 22.65 M, with DeiT's class token too
  22.66 M.
- Q, K, V and O have biases, as in DeiT. AFT-conv then has 5.36 and 20.30 M; published are 5.4 and 20.3 M.
- AFT-local has no image classifier in the paper. Its window is a square, `reach` 6 that of a kernel of 11.
- w of AFT-conv is standardised over the offsets, gain (w - mean) / std + bias; gain and bias start at 0.
- u and v start normal with std 0.02.
- w is kept from where float32 ends. Of pairs, none counts less than exp(-40) of the largest of its row. A
  kernel's w counts as -10 at least, since 1 + (exp(w) - 1) loses digits below, and as 40 at most.
"""

from collections.abc import Mapping
from typing import Any

import torch
from timm.data import IMAGENET_DEFAULT_MEAN, IMAGENET_DEFAULT_STD
from timm.models import generate_default_cfgs, register_model
from torch import nn

from gmlp_vision.checkpoints.families import isotropic_sizes
from gmlp_vision.layers.ask import Operator
from gmlp_vision.layers.mix_mlp_block import MixMlpBlock
from gmlp_vision.layers.pair_bias import PairBias
from gmlp_vision.layers.precision import at_least_float32, depthwise_conv_float32, matmul_float32
from gmlp_vision.layers.resample import Grid
from gmlp_vision.trunks import Isotropic, cfg, create

torch.fx.wrap("at_least_float32")
torch.fx.wrap("matmul_float32")
torch.fx.wrap("depthwise_conv_float32")

SOURCE = "A reading of the paper; no weights and no code of its image models were published."
VERIFIED = ("count", "equation")

LOG_WEIGHTS = "log-weights: exp of it mixes"


class AttentionFree(nn.Module):
    """``(sigmoid(Q) * C) O``. What C is, the derived class says.

    Args:
        dim: D.
        key_dim: The channels of K.
        device, dtype: of the parameters.

    Shape: (B, H, W, D) -> (B, H, W, D).
    """

    def __init__(self, dim: int, key_dim: int, device: Any = None, dtype: torch.dtype | None = None) -> None:
        super().__init__()
        self.q = nn.Linear(dim, dim, device=device, dtype=dtype)
        self.k = nn.Linear(dim, key_dim, device=device, dtype=dtype)
        self.v = nn.Linear(dim, dim, device=device, dtype=dtype)
        self.proj = nn.Linear(dim, dim, device=device, dtype=dtype)  # O

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        v = self.v(x)
        c = self.context(self.k(x), v).to(v.dtype)
        return self.proj(torch.sigmoid(self.q(x)) * c)

    def context(self, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
        """C, or what broadcasts to it, in float32 or above.

        Args:
            k: (B, H, W, key_dim).
            v: (B, H, W, D).
        """
        raise NotImplementedError


class AftSimple(AttentionFree):
    """C is one vector for the whole image. It belongs to no grid; `grid_size` is not used."""

    NO_OPERATOR = "its tokens mix by one mean for all of them: there is no learned map over tokens to show"

    def __init__(
        self, dim: int, grid_size: Grid, device: Any = None, dtype: torch.dtype | None = None
    ) -> None:
        super().__init__(dim, dim, device, dtype)

    def context(self, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
        keys = exp_of_keys(k)
        return over_tokens(keys * v) / over_tokens(keys)


class AftFull(AttentionFree):
    """A number w for each pair of tokens.

    Args:
        dim: D.
        grid_size: (H, W) of the token grid, in tokens.
        rank: The columns of u and v.
        device, dtype: of the parameters.

    Raises:
        ValueError: `rank` is not positive.
    """

    def __init__(
        self,
        dim: int,
        grid_size: Grid,
        rank: int = 128,
        device: Any = None,
        dtype: torch.dtype | None = None,
    ) -> None:
        super().__init__(dim, dim, device, dtype)
        self.pairs = PairBias(grid_size, rank, device=device, dtype=dtype)

    def context(self, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
        w = self.pairs(k)
        # a factor of a whole row cancels, so the largest weight may be 1
        weights = (w - w.detach().amax(1, keepdim=True)).clamp(min=-40.0).exp()
        keys = exp_of_keys(k)
        sums = matmul_float32(weights, (keys * v).flatten(1, 2))
        return (sums / matmul_float32(weights, keys.flatten(1, 2))).view_as(v)

    def operators(self, grid_size: Grid) -> list[Operator]:
        """w, as `gmlp_vision.layers.ask.operators` tells it."""
        pairs = self.pairs
        w = pairs.product(pairs.u.detach(), pairs.v.detach(), *pairs.grid_size)
        return [Operator("", "token", w, None, pairs.init_std, LOG_WEIGHTS)]


class AftLocal(AftFull):
    """AftFull whose w is 0 for tokens that are not near one another.

    Args:
        reach: Tokens this far apart along either axis, or further, are not near.
        dim, grid_size, rank, device, dtype: As for AftFull.

    Raises:
        ValueError: `rank` or `reach` is not positive.
    """

    def __init__(
        self,
        dim: int,
        grid_size: Grid,
        *,
        reach: int,
        rank: int = 128,
        device: Any = None,
        dtype: torch.dtype | None = None,
    ) -> None:
        super().__init__(dim, grid_size, rank, device, dtype)
        if reach < 1:
            raise ValueError(
                f"reach is {reach}; expected at least 1, with which each token is near itself only"
            )
        self.pairs.reach = reach


class AftConv(AttentionFree):
    """A number w for each offset within a kernel. It belongs to no grid; `grid_size` is not used.

    Args:
        dim: D.
        heads: h; it divides D.
        kernel_size: s; odd, at least 3.
        device, dtype: of the parameters.

    Raises:
        ValueError: `heads` does not divide D, or `kernel_size` is even or less than 3.
    """

    def __init__(
        self,
        dim: int,
        grid_size: Grid,
        *,
        heads: int,
        kernel_size: int,
        device: Any = None,
        dtype: torch.dtype | None = None,
    ) -> None:
        if heads < 1 or dim % heads:
            raise ValueError(f"heads is {heads}; expected a divisor of embed_dim, which is {dim}")
        if kernel_size < 3 or kernel_size % 2 == 0:
            raise ValueError(f"kernel_size is {kernel_size}; expected an odd number of tokens, at least 3")
        super().__init__(dim, heads, device, dtype)
        self.weight = nn.Parameter(torch.empty(heads, kernel_size, kernel_size, device=device, dtype=dtype))
        self.gain = nn.Parameter(torch.empty(heads, device=device, dtype=dtype))
        self.bias = nn.Parameter(torch.empty(heads, device=device, dtype=dtype))
        self.reset_parameters()

    def reset_parameters(self) -> None:
        """w = 0; what is standardised may have any scale."""
        nn.init.normal_(self.weight)
        nn.init.zeros_(self.gain)
        nn.init.zeros_(self.bias)

    def log_weights(self) -> torch.Tensor:
        """w, (h, s, s); entry (i, j) is for the token i - s // 2 rows below and j - s // 2 columns right."""
        taps = at_least_float32(self.weight).flatten(1)
        centred = taps - taps.mean(1, keepdim=True)
        std = (centred.square().mean(1, keepdim=True) + 1e-12).sqrt()
        return (self.gain.unsqueeze(1) * centred / std + self.bias.unsqueeze(1)).view_as(self.weight)

    def context(self, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
        # every token counts exp(K), as outside the kernel; to that the kernel adds what it changes
        kernels = torch.expm1(self.log_weights().clamp(min=-10.0, max=40.0))
        keys, by_head = exp_of_keys(k), [k.shape[-1], v.shape[-1] // k.shape[-1]]
        values = (keys.unsqueeze(-1) * v.unflatten(-1, by_head)).flatten(-2)
        wide = kernels.repeat_interleave(by_head[1], 0)
        sums = depthwise_conv_float32(values, wide) + over_tokens(values)
        counts = depthwise_conv_float32(keys, kernels) + over_tokens(keys)
        return (sums.unflatten(-1, by_head) / counts.unsqueeze(-1)).flatten(-2)

    def operators(self, grid_size: Grid) -> list[Operator]:
        """w, as `gmlp_vision.layers.ask.operators` tells it."""
        return [Operator("", "kernel", self.log_weights().detach(), None, 0.0, LOG_WEIGHTS)]


def exp_of_keys(k: torch.Tensor) -> torch.Tensor:
    """exp(K) of (B, H, W, any) in float32 or above, but for a factor that cancels: the largest is 1."""
    k = at_least_float32(k)
    return (k - k.detach().amax((1, 2), keepdim=True)).exp()


def over_tokens(x: torch.Tensor) -> torch.Tensor:
    """The sum over tokens: (B, H, W, any) to (B, 1, 1, any)."""
    return x.sum((1, 2), keepdim=True)


MIXERS: dict[str, type[AttentionFree]] = {
    "full": AftFull,
    "simple": AftSimple,
    "local": AftLocal,
    "conv": AftConv,
}


def aft_block(dim: int, grid_size: Grid, *, mixer: str, **kwargs: Any) -> MixMlpBlock:
    """A MixMlpBlock whose mixer is said by its key in MIXERS, so that a config.json can hold it.

    Raises:
        ValueError: No such key.
    """
    if mixer not in MIXERS:
        raise ValueError(f"mixer is {mixer!r}; expected one of {', '.join(map(repr, MIXERS))}")
    return MixMlpBlock(dim, grid_size, mixer=MIXERS[mixer], **kwargs)


class Aft(Isotropic):
    """AFT for images: patches, `depth` blocks, final norm, mean pool, linear head.

    Args:
        mixer: A key of MIXERS.
        kwargs: Those of Isotropic, `mlp_ratio` and `proj_drop_rate` of MixMlpBlock, and what the mixer
            takes; the trunk of the small models by default.

    Raises:
        ValueError: An unknown `mixer`, or what the trunk and the mixer refuse.
        TypeError: An argument that none of them has, or one that the mixer lacks.
    """

    def __init__(self, mixer: str = "full", **kwargs: Any) -> None:
        super().__init__(aft_block, **{**SMALL, "mixer": mixer, **kwargs})


# DeiT-Ti and DeiT-S; kernels and heads of the paper's image models
TINY: dict[str, Any] = {"patch_size": 16, "depth": 12, "embed_dim": 192, "mlp_ratio": 4.0}
SMALL: dict[str, Any] = {"patch_size": 16, "depth": 12, "embed_dim": 384, "mlp_ratio": 4.0}

SIZES: dict[str, dict[str, Any]] = {
    "aft_full_ti16": {**TINY, "mixer": "full"},
    "aft_full_s16": {**SMALL, "mixer": "full"},
    "aft_simple_s16": {**SMALL, "mixer": "simple"},
    "aft_local_s16": {**SMALL, "mixer": "local", "reach": 6},
    "aft_conv_ti16": {**TINY, "mixer": "conv", "kernel_size": 11, "heads": 32},
    "aft_conv_s16": {**SMALL, "mixer": "conv", "kernel_size": 11, "heads": 16},
}

PAPER = {"paper_ids": "arXiv:2105.14103", "paper_name": "An Attention Free Transformer"}
DEIT = {"mean": IMAGENET_DEFAULT_MEAN, "std": IMAGENET_DEFAULT_STD}  # its training, so its preprocessing


def sizes_of(state_dict: Mapping[str, torch.Tensor]) -> dict[str, Any] | None:
    """The arguments of the AFT that has these tensors; None if they are not those of one.

    The tensors of AFT-full and AFT-local are alike, so neither is taken without a word.
    """
    k, kernels = state_dict.get("blocks.0.mixer.k.weight"), state_dict.get("blocks.0.mixer.weight")
    sizes = isotropic_sizes(state_dict, "mlp.fc1.weight")
    if sizes is None or k is None or "blocks.0.mixer.pairs.u" in state_dict:
        return None
    if kernels is None:
        return {**sizes, "mixer": "simple"}
    return {**sizes, "mixer": "conv", "heads": len(k), "kernel_size": kernels.shape[-1]}


default_cfgs = generate_default_cfgs(
    {
        "aft_full_ti16.untrained": cfg(**PAPER, **DEIT),
        "aft_full_s16.untrained": cfg(**PAPER, **DEIT),
        "aft_simple_s16.untrained": cfg(**PAPER, **DEIT, fixed_input_size=False),
        "aft_local_s16.untrained": cfg(**PAPER, **DEIT),
        "aft_conv_ti16.untrained": cfg(**PAPER, **DEIT, fixed_input_size=False),
        "aft_conv_s16.untrained": cfg(**PAPER, **DEIT, fixed_input_size=False),
    }
)


@register_model
def aft_full_ti16(pretrained: bool = False, **kwargs: Any) -> nn.Module:
    """AFT-full, tiny: 6.28 M parameters, 224 px, patch 16."""
    return create("aft_full_ti16", Aft, SIZES, pretrained, **kwargs)


@register_model
def aft_full_s16(pretrained: bool = False, **kwargs: Any) -> nn.Module:
    """AFT-full, small: 22.58 M parameters, 224 px, patch 16."""
    return create("aft_full_s16", Aft, SIZES, pretrained, **kwargs)


@register_model
def aft_simple_s16(pretrained: bool = False, **kwargs: Any) -> nn.Module:
    """AFT-simple at the small size, which the paper does not have: 21.97 M parameters, any image size."""
    return create("aft_simple_s16", Aft, SIZES, pretrained, **kwargs)


@register_model
def aft_local_s16(pretrained: bool = False, **kwargs: Any) -> nn.Module:
    """AFT-local at the small size, which the paper does not have: 22.58 M parameters, 224 px, patch 16."""
    return create("aft_local_s16", Aft, SIZES, pretrained, **kwargs)


@register_model
def aft_conv_ti16(pretrained: bool = False, **kwargs: Any) -> nn.Module:
    """AFT-conv, tiny, kernel 11, 32 heads: 5.36 M parameters, patch 16, any image size."""
    return create("aft_conv_ti16", Aft, SIZES, pretrained, **kwargs)


@register_model
def aft_conv_s16(pretrained: bool = False, **kwargs: Any) -> nn.Module:
    """AFT-conv, small, kernel 11, 16 heads: 20.30 M parameters, patch 16, any image size."""
    return create("aft_conv_s16", Aft, SIZES, pretrained, **kwargs)
