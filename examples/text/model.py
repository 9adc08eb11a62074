"""A masked language model of this package's blocks: an embedding, blocks on a 1 x 128 grid, a tied head.

There is no position embedding, as in the paper (https://arxiv.org/abs/2105.08050, Section 4): W and b know
the positions. The blocks are those of the image models, unchanged; to them a text is an image one token high.

Shapes: B batch, N tokens, D width.
"""

from collections.abc import Callable
from functools import partial
from typing import Any

import torch
from corpus import MASK, N
from timm.layers import RelPosBias
from timm.models import named_apply
from timm.models.vision_transformer_relpos import RelPosBlock
from torch import nn

from gmlp_vision.layers.mix_mlp_block import MixMlpBlock
from gmlp_vision.layers.token_mlp import TokenMlp
from gmlp_vision.models.amlp import AMlpBlock
from gmlp_vision.models.gmlp import GMlpBlock
from gmlp_vision.trunks.init import init_layer

D, DEPTH, GRID = 128, 6, (1, N)


class TextModel(nn.Module):
    """Shape: (B, N) bytes or MASK, and (B, N) bool with M true -> (M, 256) logits of what stands there."""

    def __init__(self, block: Callable[..., nn.Module], frozen: bool = False) -> None:
        super().__init__()
        self.embedding = nn.Embedding(MASK + 1, D)
        self.blocks = nn.Sequential(*(block(D, GRID) for _ in range(DEPTH)))
        self.norm = nn.LayerNorm(D)
        self.bias = nn.Parameter(torch.zeros(MASK))
        named_apply(init_layer, self)
        nn.init.normal_(self.embedding.weight, std=0.02)
        if frozen:  # W stays where it starts, near zero: the tokens do not mix
            for name, parameter in self.named_parameters():
                parameter.requires_grad = not name.endswith("gate.proj.weight")

    def forward(self, seen: torch.Tensor, asked: torch.Tensor) -> torch.Tensor:
        x = self.blocks(self.embedding(seen).unsqueeze(1))  # (B, 1, N, D)
        return self.norm(x.squeeze(1)[asked]) @ self.embedding.weight[:MASK].T + self.bias


class TransformerBlock(RelPosBlock):
    """timm's, with a learned bias for each offset and head."""

    def __init__(self, dim: int, grid_size: tuple[int, int], **kwargs: Any) -> None:
        super().__init__(dim, rel_pos_cls=partial(RelPosBias, window_size=grid_size), **kwargs)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return super().forward(x.flatten(1, 2)).view_as(x)


# name: (block, whether W is frozen); the hidden widths make the parameters equal to within 2 %
ROWS: dict[str, tuple[Callable[..., nn.Module], bool]] = {
    "split": (partial(GMlpBlock, mlp_ratio=6.0), False),
    "multiplicative": (partial(GMlpBlock, unit="multiplicative", mlp_ratio=4.5), False),
    "additive": (partial(GMlpBlock, unit="additive", mlp_ratio=4.5), False),
    "linear": (partial(GMlpBlock, unit="linear", mlp_ratio=4.5), False),
    "toeplitz": (partial(GMlpBlock, spatial="toeplitz", mlp_ratio=6.625), False),
    "frozen": (partial(GMlpBlock, mlp_ratio=6.0), True),
    "mixer": (partial(MixMlpBlock, mixer=TokenMlp, token_dim=N, mlp_ratio=4.0), False),
    "transformer": (partial(TransformerBlock, num_heads=4, mlp_ratio=3.0), False),
    "amlp": (partial(AMlpBlock, attn_dim=64, mlp_ratio=4.375), False),
    "lines": (partial(GMlpBlock, mlp_ratio=6.0), False),
}
