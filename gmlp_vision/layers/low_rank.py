"""A linear map over tokens through a few numbers.

Shapes: B batch, H, W the token grid, N = H * W tokens in row-major order, C channels, R the rank.
"""

from collections.abc import Mapping

import torch
from torch import nn

from gmlp_vision.layers.resample import Grid
from gmlp_vision.layers.rules import TOKEN_MAP, TOKEN_READER
from gmlp_vision.layers.structured import Structured


class LowRankProjection(Structured):
    """``y = P (Q x) + b``: W = P Q has 2 N R numbers, and a call costs as many a channel.

    `reads` is Q turned, (N, R): each column is what one of the R numbers reads of the tokens. `writes` is P.

    On another grid P is R P, and Q is Q S (layers/resample.py), so W is R W S. Q starts with std N^-1/2, so
    that the R numbers have the scale of the tokens, and P with what gives W's entries `init_std`.

    The nearest one to a dense W is its singular value decomposition, cut after R values.

    Args:
        grid_size: (H, W) of the token grid, in tokens.
        init_std: As for a dense W; see Structured.
        init_bias: All of b at the start.
        rank: R.
        device, dtype: of the parameters.

    Shape: (B, H, W, C) -> (B, H, W, C).
    """

    RULES = {"writes": TOKEN_MAP, "reads": TOKEN_READER, "bias": TOKEN_MAP}  # noqa: RUF012  a ClassVar there
    OPTION = "rank"

    def __init__(
        self,
        grid_size: Grid,
        init_std: float | None = 1e-6,
        init_bias: float = 1.0,
        rank: int = 8,
        device: torch.device | str | None = None,
        dtype: torch.dtype | None = None,
    ) -> None:
        super().__init__(grid_size, init_std, init_bias)
        n = grid_size[0] * grid_size[1]
        self.rank = rank
        self.writes = nn.Parameter(torch.empty(n, rank, device=device, dtype=dtype))  # P
        self.reads = nn.Parameter(torch.empty(n, rank, device=device, dtype=dtype))  # Q^T
        self.bias = self.new_bias(device=device, dtype=dtype)
        self.reset_parameters()

    def reset_parameters(self) -> None:
        """As every kind of W starts; with `init_std` 0 only P is 0, so that both can be learned."""
        nn.init.normal_(self.writes, std=self.std_of(self.rank))
        nn.init.normal_(self.reads, std=len(self.reads) ** -0.5)
        nn.init.constant_(self.bias, self.init_bias)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        writes: torch.Tensor = self.writes
        reads: torch.Tensor = self.reads
        bias: torch.Tensor = self.bias
        if self.dynamic:
            writes, reads, bias = self.parameters_on((x.shape[1], x.shape[2]))
        return (writes @ (reads.transpose(0, 1) @ x.flatten(1, 2)) + bias.unsqueeze(1)).view_as(x)

    def matrix_of(self, grid_size: Grid, *parameters: torch.Tensor) -> torch.Tensor:
        writes, reads = parameters
        return (writes @ reads.T).unsqueeze(0)

    @classmethod
    def nearest(cls, weight: torch.Tensor, grid_size: Grid, rank: int = 8) -> dict[str, torch.Tensor]:
        u, values, v = torch.linalg.svd(weight.double())
        roots = values.sqrt()
        # W has no more than N values, and a model that came from a larger grid may have a larger R
        more = (0, max(0, rank - len(roots)))
        writes, reads = (nn.functional.pad((side * roots)[:, :rank], more) for side in (u, v.T))
        return {"writes": writes, "reads": reads}

    @classmethod
    def options_of(cls, tensors: Mapping[str, torch.Tensor]) -> dict[str, int] | None:
        known = tensors.keys() == {"writes", "reads", "bias"} and tensors["reads"].ndim == 2
        return {"rank": tensors["reads"].shape[1]} if known else None

    def note(self) -> str:
        return f"of rank {self.rank}"
