"""Synthesizer: "Rethinking Self-Attention in Transformer Models", Tay et al., https://arxiv.org/abs/2005.00743

Shapes: B batch, H, W the token grid, N = H * W tokens in row-major order, D width, h heads of d = D / h
channels.

    X = X + concat over heads (softmax(R) V) O           V = LN(X) times a matrix, a head's channels of it
    X = X + MLP(LN(X))

    random      R is learned, (N, N) a head
    factorized  R = R1 R2^T, R1 and R2 learned, (N, k) a head
    dense       R[t] = ReLU(Y[t] F) G, Y the head's channels of LN(X); F: d -> d, G: d -> N

R stands where attention has Q K^T: row t of softmax(R) is what token t takes from each token, and sums to 1.

The paper has language models only; its image models are a reading, on DeiT's trunk (patch 16, MLP ratio 4,
pre-norm), as wide and deep and with as many heads. Read where it leaves a choice:

- A learned position table, no class token, the mean over tokens.
- V, O, F and G have biases, as in DeiT. F and G are a head's own.
- 'random' is the paper's random synthesizer whose R is trained, not the fixed one. R is not divided by
  sqrt(d), since no product of two vectors of d channels is in it.
- R starts normal with std 1, in 'factorized' by factors of std k^(-1/4), so that tokens differ in what they
  take from the first step on. F and G start as linear layers do.

To another grid R goes as a token map on both of its sides, and so do its factors and G: softmax takes a mean,
which does not weigh by how many tokens there are, so R is the same function of two places on every grid.
"""

from collections.abc import Mapping
from functools import partial
from typing import Any

import torch
from timm.data import IMAGENET_DEFAULT_MEAN, IMAGENET_DEFAULT_STD
from timm.models import generate_default_cfgs, register_model
from torch import nn

from gmlp_vision.checkpoints.families import isotropic_sizes
from gmlp_vision.layers.ask import Operator
from gmlp_vision.layers.grid_tied import GridTied
from gmlp_vision.layers.mix_mlp_block import MixMlpBlock
from gmlp_vision.layers.precision import at_least_float32
from gmlp_vision.layers.resample import Grid, resample_map
from gmlp_vision.layers.rules import TOKEN_MAP, Rule
from gmlp_vision.trunks import Isotropic, cfg, create

torch.fx.wrap("at_least_float32")

SOURCE = "A reading of the paper, which has no image models; no weights of one were published."
VERIFIED = ("equation",)


def resample_pairs(scores: torch.Tensor, old_grid: Grid, new_grid: Grid) -> torch.Tensor:
    """``R P R^T`` of what belongs to pairs of tokens, R the resize of token maps.

    Args:
        scores: P, (n, n, ...).
        old_grid, new_grid: (height, width), in tokens.

    Returns:
        (n', n', ...).

    Raises:
        ValueError: `scores` does not have one row and one column for each token of the old grid.
    """
    rows = resample_map(scores.double(), old_grid, new_grid)  # double: rounded once, at the end
    both = resample_map(rows.transpose(0, 1), old_grid, new_grid).transpose(0, 1)
    return both.to(scores.dtype).contiguous()


PAIR_MAP = Rule(resample_pairs, lambda grid: (grid[0] * grid[1],) * 2)


class RandomScores(GridTied):
    """R is a parameter, kept as (N, N, h) so that what belongs to the grid comes first.

    Args:
        head_dim: d; not used.
        heads: h.
        grid_size: (H, W) of the token grid, in tokens.
        device, dtype: of the parameters.

    Shape: (B, H, W, h, d), of which only the grid is read -> (h, N, N).
    """

    RULES = {"weight": PAIR_MAP}  # noqa: RUF012  a ClassVar in the base

    def __init__(
        self, head_dim: int, heads: int, grid_size: Grid, device: Any = None, dtype: torch.dtype | None = None
    ) -> None:
        super().__init__(grid_size)
        n = grid_size[0] * grid_size[1]
        self.weight = nn.Parameter(torch.empty(n, n, heads, device=device, dtype=dtype))
        self.reset_parameters()

    def reset_parameters(self) -> None:
        nn.init.normal_(self.weight)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        weight: torch.Tensor = self.weight
        if self.dynamic:
            (weight,) = self.parameters_on((x.shape[1], x.shape[2]))
        return weight.permute(2, 0, 1)

    def operators(self, grid_size: Grid) -> list[Operator]:
        """softmax(R) of each head, as `gmlp_vision.layers.ask.operators` tells it."""
        return of_heads(self.weight.permute(2, 0, 1))


class FactorizedScores(GridTied):
    """``R = R1 R2^T``, R1 and R2 kept as (N, h, k) so that what belongs to the grid comes first.

    Args:
        head_dim, heads, grid_size, device, dtype: As for RandomScores.
        rank: k.

    Shape: (B, H, W, h, d), of which only the grid is read -> (h, N, N).

    Raises:
        ValueError: `rank` is not positive.
    """

    RULES = {"r1": TOKEN_MAP, "r2": TOKEN_MAP}  # noqa: RUF012  a ClassVar in the base

    def __init__(
        self,
        head_dim: int,
        heads: int,
        grid_size: Grid,
        rank: int,
        device: Any = None,
        dtype: torch.dtype | None = None,
    ) -> None:
        super().__init__(grid_size)
        if rank < 1:
            raise ValueError(f"rank is {rank}; expected at least 1")
        n = grid_size[0] * grid_size[1]
        self.r1 = nn.Parameter(torch.empty(n, heads, rank, device=device, dtype=dtype))
        self.r2 = nn.Parameter(torch.empty(n, heads, rank, device=device, dtype=dtype))
        self.reset_parameters()

    def reset_parameters(self) -> None:
        """A sum of k products of two numbers each, so that R has std 1."""
        std = self.r1.shape[-1] ** -0.25
        nn.init.normal_(self.r1, std=std)
        nn.init.normal_(self.r2, std=std)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        r1: torch.Tensor = self.r1
        r2: torch.Tensor = self.r2
        if self.dynamic:
            r1, r2 = self.parameters_on((x.shape[1], x.shape[2]))
        return r1.transpose(0, 1) @ r2.permute(1, 2, 0)

    def operators(self, grid_size: Grid) -> list[Operator]:
        """softmax(R) of each head, as `gmlp_vision.layers.ask.operators` tells it."""
        return of_heads(self.r1.transpose(0, 1) @ self.r2.permute(1, 2, 0))


class DenseScores(GridTied):
    """``R[t] = ReLU(Y[t] F) G``: each token computes its own row. G is kept as (N, h, d), its bias as (N, h).

    Args:
        head_dim: d.
        heads, grid_size, device, dtype: As for RandomScores.

    Shape: (B, H, W, h, d) -> (B, h, N, N).
    """

    RULES = {"out_weight": TOKEN_MAP, "out_bias": TOKEN_MAP}  # noqa: RUF012  a ClassVar in the base
    NO_OPERATOR = "each token computes its row of the map from itself: there is no learned map to show"

    def __init__(
        self, head_dim: int, heads: int, grid_size: Grid, device: Any = None, dtype: torch.dtype | None = None
    ) -> None:
        super().__init__(grid_size)
        dd: dict[str, Any] = {"device": device, "dtype": dtype}
        n = grid_size[0] * grid_size[1]
        self.in_weight = nn.Parameter(torch.empty(heads, head_dim, head_dim, **dd))  # F, (h, out, in)
        self.in_bias = nn.Parameter(torch.empty(heads, head_dim, **dd))
        self.out_weight = nn.Parameter(torch.empty(n, heads, head_dim, **dd))  # G
        self.out_bias = nn.Parameter(torch.empty(n, heads, **dd))
        self.reset_parameters()

    def reset_parameters(self) -> None:
        """Xavier-uniform, each head by itself, as the trunk starts its linear layers; biases 0."""
        for head in range(self.in_weight.shape[0]):
            nn.init.xavier_uniform_(self.in_weight[head])
            nn.init.xavier_uniform_(self.out_weight[:, head])
        nn.init.zeros_(self.in_bias)
        nn.init.zeros_(self.out_bias)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        weight: torch.Tensor = self.out_weight
        bias: torch.Tensor = self.out_bias
        if self.dynamic:
            weight, bias = self.parameters_on((x.shape[1], x.shape[2]))
        y = x.flatten(1, 2).transpose(1, 2)  # (B, h, N, d)
        hidden = torch.relu(y @ self.in_weight.transpose(1, 2) + self.in_bias.unsqueeze(1))
        return hidden @ weight.permute(1, 2, 0) + bias.transpose(0, 1).unsqueeze(1)


def of_heads(scores: torch.Tensor) -> list[Operator]:
    """softmax(R) of each head, from R (h, N, N)."""
    weights = at_least_float32(scores.detach()).softmax(-1)
    # R starts (nearly) normal with std 1, and then exp(R) has the mean exp(1/2) and the variance e (e - 1)
    init_std = 1.31 / weights.shape[-1]
    return [Operator(f"head{i}", "token", w, None, init_std, "softmax(R)") for i, w in enumerate(weights)]


class SyntheticAttention(nn.Module):
    """``concat over heads (softmax(R) V) O``.

    Args:
        dim: D.
        grid_size: (H, W) of the token grid, in tokens.
        scores: Makes what gives R, from d, h, the grid, device and dtype.
        heads: h; it divides D.
        device, dtype: of the parameters.
        own: What `scores` takes beside these.

    Shape: (B, H, W, D) -> (B, H, W, D).

    Raises:
        ValueError: `heads` does not divide D, or what `scores` refuses.
        TypeError: An argument that `scores` does not have.
    """

    def __init__(
        self,
        dim: int,
        grid_size: Grid,
        *,
        scores: type[GridTied],
        heads: int,
        device: Any = None,
        dtype: torch.dtype | None = None,
        **own: Any,
    ) -> None:
        super().__init__()
        if heads < 1 or dim % heads:
            raise ValueError(f"heads is {heads}; expected a divisor of embed_dim, which is {dim}")
        dd: dict[str, Any] = {"device": device, "dtype": dtype}
        self.by_head = [heads, dim // heads]
        make: Any = scores
        self.scores = make(dim // heads, heads, grid_size, **own, **dd)
        self.v = nn.Linear(dim, dim, **dd)
        self.proj = nn.Linear(dim, dim, **dd)  # O

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        v = self.v(x).flatten(1, 2).unflatten(-1, self.by_head).transpose(1, 2)  # (B, h, N, d)
        weights = at_least_float32(self.scores(x.unflatten(-1, self.by_head))).softmax(-1)
        y = weights.to(v.dtype) @ v
        return self.proj(y.transpose(1, 2).flatten(2).view_as(x))


SCORES: dict[str, type[GridTied]] = {
    "random": RandomScores,
    "factorized": FactorizedScores,
    "dense": DenseScores,
}


def synthesizer_block(dim: int, grid_size: Grid, *, scores: str, **kwargs: Any) -> MixMlpBlock:
    """A MixMlpBlock whose R is said by its key in SCORES, so that a config.json can hold it.

    Raises:
        ValueError: No such key.
    """
    if scores not in SCORES:
        raise ValueError(f"scores is {scores!r}; expected one of {', '.join(map(repr, SCORES))}")
    mixer = partial(SyntheticAttention, scores=SCORES[scores])
    return MixMlpBlock(dim, grid_size, mixer=mixer, **kwargs)


class Synthesizer(Isotropic):
    """Synthesizer for images: patches, a position table, `depth` blocks, final norm, mean pool, linear head.

    Args:
        scores: A key of SCORES.
        heads: h; it divides `embed_dim`.
        kwargs: Those of Isotropic, `mlp_ratio` and `proj_drop_rate` of MixMlpBlock, and for 'factorized'
            `rank`; the trunk of the small models by default.

    Raises:
        ValueError: An unknown `scores`, `heads` that do not divide `embed_dim`, or what the trunk refuses.
        TypeError: An argument that none of them has, or one that is missing.
    """

    def __init__(self, scores: str = "random", heads: int = 6, **kwargs: Any) -> None:
        args = {**SMALL, "pos_embed": True, "scores": scores, "heads": heads, **kwargs}
        super().__init__(synthesizer_block, **args)


# Width, depth and heads of DeiT-Ti and DeiT-S; k of the paper's factorized random synthesizer
TINY: dict[str, Any] = {"patch_size": 16, "depth": 12, "embed_dim": 192, "heads": 3, "mlp_ratio": 4.0}
SMALL: dict[str, Any] = {"patch_size": 16, "depth": 12, "embed_dim": 384, "heads": 6, "mlp_ratio": 4.0}

SIZES: dict[str, dict[str, Any]] = {
    "synthesizer_random_ti16": {**TINY, "scores": "random"},
    "synthesizer_random_s16": {**SMALL, "scores": "random"},
    "synthesizer_factorized_ti16": {**TINY, "scores": "factorized", "rank": 8},
    "synthesizer_factorized_s16": {**SMALL, "scores": "factorized", "rank": 8},
    "synthesizer_dense_ti16": {**TINY, "scores": "dense"},
    "synthesizer_dense_s16": {**SMALL, "scores": "dense"},
}

# No image model is in the paper; the trunk is DeiT's, and so the preprocessing
PAPER = cfg(
    paper_ids="arXiv:2005.00743",
    paper_name="Synthesizer: Rethinking Self-Attention in Transformer Models",
    mean=IMAGENET_DEFAULT_MEAN,
    std=IMAGENET_DEFAULT_STD,
)


def sizes_of(state_dict: Mapping[str, torch.Tensor]) -> dict[str, Any] | None:
    """The arguments of the Synthesizer that has these tensors; None if they are not those of one."""
    sizes = isotropic_sizes(state_dict, "mlp.fc1.weight")
    parts = {name: state_dict.get(f"blocks.0.mixer.scores.{name}") for name in ("weight", "r1", "in_weight")}
    if sizes is None or "pos_embed.weight" not in state_dict:
        return None
    random, factor, dense = parts.values()
    if random is not None and random.ndim == 3:
        return {**sizes, "scores": "random", "heads": random.shape[2]}
    if factor is not None and factor.ndim == 3:
        return {**sizes, "scores": "factorized", "heads": factor.shape[1], "rank": factor.shape[2]}
    if dense is not None and dense.ndim == 3:
        return {**sizes, "scores": "dense", "heads": dense.shape[0]}
    return None


default_cfgs = generate_default_cfgs({f"{name}.untrained": PAPER for name in SIZES})


@register_model
def synthesizer_random_ti16(pretrained: bool = False, **kwargs: Any) -> nn.Module:
    """Random Synthesizer, tiny, 3 heads: 6.21 M parameters, 224 px, patch 16."""
    return create("synthesizer_random_ti16", Synthesizer, SIZES, pretrained, **kwargs)


@register_model
def synthesizer_random_s16(pretrained: bool = False, **kwargs: Any) -> nn.Module:
    """Random Synthesizer, small, 6 heads: 21.27 M parameters, 224 px, patch 16."""
    return create("synthesizer_random_s16", Synthesizer, SIZES, pretrained, **kwargs)


@register_model
def synthesizer_factorized_ti16(pretrained: bool = False, **kwargs: Any) -> nn.Module:
    """Factorized random Synthesizer, tiny, 3 heads, k = 8: 4.94 M parameters, 224 px, patch 16."""
    return create("synthesizer_factorized_ti16", Synthesizer, SIZES, pretrained, **kwargs)


@register_model
def synthesizer_factorized_s16(pretrained: bool = False, **kwargs: Any) -> nn.Module:
    """Factorized random Synthesizer, small, 6 heads, k = 8: 18.73 M parameters, 224 px, patch 16."""
    return create("synthesizer_factorized_s16", Synthesizer, SIZES, pretrained, **kwargs)


@register_model
def synthesizer_dense_ti16(pretrained: bool = False, **kwargs: Any) -> nn.Module:
    """Dense Synthesizer, tiny, 3 heads: 5.44 M parameters, 224 px, patch 16."""
    return create("synthesizer_dense_ti16", Synthesizer, SIZES, pretrained, **kwargs)


@register_model
def synthesizer_dense_s16(pretrained: bool = False, **kwargs: Any) -> nn.Module:
    """Dense Synthesizer, small, 6 heads: 19.72 M parameters, 224 px, patch 16."""
    return create("synthesizer_dense_s16", Synthesizer, SIZES, pretrained, **kwargs)
