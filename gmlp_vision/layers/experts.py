"""A mixture of experts: MLPs of which each vector goes through a few, and the loss that keeps all in use.

Shapes: D width of a vector, n experts, k of them chosen.

    p = softmax(x W + e)               W: D -> n; in training e is normal noise with std 1 / n, else 0
    y = sum of p[i] E_i(x) over the k largest p[i]

The loss over a batch of vectors, in training only (Shazeer et al. 2017, Riquelme et al. 2021):

    L = CV^2(importance) / 2 + CV^2(load) / 2         CV: standard deviation over mean, of the n experts
    importance[i] = sum of softmax(x W)[i]
    load[i] = sum of P(x W[i] + e' >= the k-th largest of x W + e), e' another noise
"""

import math
import warnings
from typing import Any

import torch
from timm.layers import Mlp
from torch import nn

from gmlp_vision.layers.observed import is_transformed, may_branch
from gmlp_vision.layers.precision import matmul_float32

torch.fx.wrap("matmul_float32")
torch.fx.wrap("with_noise")  # traced it would be other steps in training, where a trace should have the same


class Mixture(nn.Module):
    """n experts, each an MLP with GELU between, and a router that sends each vector to k of them.

    All vectors of a batch are routed one by one, and none is dropped. Where nobody records the steps, an
    expert computes its own vectors only. What is traced, compiled or exported has all experts compute all
    vectors, times p or 0, which is the same but for rounding: there a file or graph may not depend on values.
    Routing is in float32 at least, whatever the dtype of the model and under autocast.

    In training the gradient of `aux_weight` times L is added to that of whatever the output is used for, in
    the backward pass, so that a loop which sees only the model's output trains it too. That gradient does not
    know what the loop multiplies its own loss by: see `aux_weight`.

    Args:
        dim: D.
        hidden_dim: Of each expert.
        experts: n.
        top_k: k, 1 to n.
        aux_weight: What L is multiplied by; 0 for no balancing. A loop that scales its loss before the
            backward pass (GradScaler, 1 / accumulation steps) must scale this alike.
        drop: Dropout in the experts, after GELU and at their ends, in [0, 1].
        device, dtype: of the parameters.

    Attributes:
        balance: L of the last call in training; 0 before.

    Shape: (..., D) -> (..., D).

    Raises:
        ValueError: `experts` or `hidden_dim` is not positive, `top_k` is not in 1 to n, or `aux_weight` is
            negative.
    """

    balance: torch.Tensor

    def __init__(
        self,
        dim: int,
        hidden_dim: int,
        experts: int,
        top_k: int = 1,
        aux_weight: float = 0.01,
        drop: float = 0.0,
        device: Any = None,
        dtype: torch.dtype | None = None,
    ) -> None:
        super().__init__()
        if hidden_dim < 1 or experts < 1:
            raise ValueError(
                f"a mixture of {experts} experts of width {hidden_dim}; expected at least 1 of each"
            )
        if not 1 <= top_k <= experts:
            raise ValueError(
                f"top_k is {top_k}; expected 1 to {experts}, since a vector goes to so many experts"
            )
        self.top_k = top_k
        self.aux_weight = check_weight(aux_weight)
        self.gate = Router(dim, experts, bias=False, device=device, dtype=dtype)
        self.experts = nn.ModuleList(
            Mlp(dim, hidden_dim, drop=drop, device=device, dtype=dtype) for _ in range(experts)
        )
        # a buffer: assigned anew, it would be a side effect that torch.compile refuses under checkpointing
        self.register_buffer("balance", torch.zeros((), device=device), persistent=False)

    def reset_parameters(self) -> None:
        self.balance.zero_()

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        scores = self.gate(x)
        noisy = with_noise(scores, 1 / len(self.experts), self.training)
        y = self.mix(x, keep_largest(noisy.softmax(-1), self.top_k))
        if not torch.jit.is_scripting():  # noqa: SIM102  TorchScript knows it in this form only
            if self.training and type(x) is torch.Tensor:  # torch.fx has no values to balance
                y = self.with_loss(y, scores, noisy)
        return y

    def mix(self, x: torch.Tensor, p: torch.Tensor) -> torch.Tensor:
        """The sum of ``p[..., i] E_i(x)``; p is (..., n), 0 but for k of them."""
        if not torch.jit.is_scripting():  # noqa: SIM102
            if may_branch(x):
                return self.mix_chosen(x, p)
        y = torch.zeros_like(x)
        for i, expert in enumerate(self.experts):
            part = expert(x)
            y = y + part * p[..., i : i + 1].to(part.dtype)
        return y

    def mix_chosen(self, x: torch.Tensor, p: torch.Tensor) -> torch.Tensor:
        """As `mix`; an expert computes only the vectors for which p is not 0."""
        rows, p = x.flatten(0, -2), p.flatten(0, -2)
        places, parts = [], []
        for expert, weights in zip(self.experts, p.unbind(-1), strict=True):
            place = chosen(weights, self.top_k, len(self.experts))
            # one without vectors is called too: DDP waits for a gradient of each parameter
            part = expert(rows[place])
            places.append(place)
            parts.append(part * weights[place].unsqueeze(-1).to(part.dtype))
        part = torch.cat(parts)
        y = torch.zeros(rows.shape, dtype=part.dtype, device=part.device)
        return y.index_add(0, torch.cat(places), part).view(x.shape)

    @torch.jit.ignore
    def with_loss(self, y: torch.Tensor, scores: torch.Tensor, noisy: torch.Tensor) -> torch.Tensor:
        """`y`, through which the gradient of L goes too."""
        loss = balance_loss(scores, noisy, self.top_k)
        if not is_transformed():
            self.balance.copy_(loss.detach())
        if not self.aux_weight:
            return y
        if y.dtype == torch.float16 and not torch.compiler.is_compiling():
            warnings.warn(
                "the balance of the experts is lost in float16 if the loss is scaled, as by timm's train.py: "
                "train in bfloat16 (--amp-dtype bfloat16), or scale aux_weight with the loss",
                stacklevel=2,
            )
        with_loss: torch.Tensor = _WithLoss.apply(y, loss, self.aux_weight)
        return with_loss


class Router(nn.Linear):
    """A linear layer that is computed in float32 at least."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return matmul_float32(x, self.weight.t())


class _WithLoss(torch.autograd.Function):
    """Its first input; backwards, the gradient of the second, a scalar, is the third, whatever comes in."""

    generate_vmap_rule = True

    @staticmethod
    def forward(y: torch.Tensor, loss: torch.Tensor, weight: float) -> torch.Tensor:
        return y.view_as(y)

    @staticmethod
    def setup_context(ctx: Any, inputs: Any, output: Any) -> None:
        _, loss, ctx.weight = inputs
        ctx.dtype = loss.dtype

    @staticmethod
    def backward(ctx: Any, *grads: Any) -> Any:
        return grads[0], grads[0].new_full((), ctx.weight, dtype=ctx.dtype), None


def with_noise(scores: torch.Tensor, std: float, training: bool) -> torch.Tensor:
    return scores + torch.randn_like(scores) * std if training else scores


def keep_largest(p: torch.Tensor, k: int) -> torch.Tensor:
    """(..., n) with 0 in the place of all but the k largest."""
    values, places = p.topk(k, dim=-1)
    return torch.zeros_like(p).scatter(-1, places, values)


def chosen(weights: torch.Tensor, k: int, experts: int) -> torch.Tensor:
    """The places of the vectors, of all (T,), whose weight for an expert is not 0."""
    if weights.is_meta:  # where nothing has a value, each has its share, so that operations can be counted
        return torch.empty(len(weights) * k // experts, dtype=torch.int64, device="meta")
    return weights.nonzero().squeeze(1)


def balance_loss(scores: torch.Tensor, noisy: torch.Tensor, k: int) -> torch.Tensor:
    """L: ``x W`` (..., n), and with the noise by which k were chosen, to a scalar."""
    scores, noisy = scores.flatten(0, -2), noisy.flatten(0, -2)
    n = scores.shape[-1]
    importance = scores.softmax(-1).mean(0)
    threshold = noisy.topk(k, dim=-1).values[:, -1:]
    load = torch.special.ndtr((scores - threshold) * n).mean(0)  # of noise with std 1 / n
    return (squared_variation(importance) + squared_variation(load)) / 2


def squared_variation(values: torch.Tensor) -> torch.Tensor:
    """The variance over the square of the mean; a factor of all values cancels."""
    return values.var(correction=0) / values.mean().square()


def check_weight(weight: float) -> float:
    if not 0 <= weight < math.inf:
        raise ValueError(f"aux_weight is {weight}; expected a number, 0 for no balancing")
    return weight
