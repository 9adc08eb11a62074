"""Where each family keeps its token mixing: one table, to which a family adds a row.

Shapes: N = H * W tokens in row-major order, K hidden units of a mixer.
"""

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass

import torch

from gmlp_vision.filters.bank import FilterLayer

Tensors = Mapping[str, torch.Tensor]


@dataclass(frozen=True)
class Family:
    """A row of the table.

    Attributes:
        models: The models it stands for, for messages.
        key: Pattern of the key, after 'blocks.N.', of the weight that reads the tokens: (rows, N).
        read: From (key without '.weight', N of 'blocks.N', all tensors by key, (H, W)) to the layers.
    """

    models: str
    key: str
    read: Callable[[str, int, Tensors, tuple[int, int]], list[FilterLayer]]


def _read_gmlp(key: str, block: int, tensors: Tensors, grid: tuple[int, int]) -> list[FilterLayer]:
    weight = _square(key, tensors)
    return [_layer(key, block, "token", weight, tensors.get(f"{key}.bias"), grid, init_std=1e-6)]


def _read_resmlp(key: str, block: int, tensors: Tensors, grid: tuple[int, int]) -> list[FilterLayer]:
    weight = _square(key, tensors)
    return [_layer(key, block, "token", weight, tensors.get(f"{key}.bias"), grid, _xavier_std(weight))]


def _read_mixer(fc1: str, block: int, tensors: Tensors, grid: tuple[int, int]) -> list[FilterLayer]:
    """Two layers over tokens, a non-linearity between: fc1 (K, N), or (2K, N) in gMixer, and fc2 (N, K)."""
    fc2 = fc1.removesuffix("fc1") + "fc2"
    if f"{fc2}.weight" not in tensors:
        raise ValueError(f"{fc1}.weight has no {fc2}.weight beside it; a mixer has both")
    reads, writes = tensors[f"{fc1}.weight"], tensors[f"{fc2}.weight"]
    n, k = grid[0] * grid[1], writes.shape[1]
    if writes.shape[0] != n or reads.shape[0] not in (k, 2 * k):
        raise ValueError(
            f"{fc1}.weight is {tuple(reads.shape)} and {fc2}.weight {tuple(writes.shape)}; expected (K, {n}) "
            f"or (2K, {n}), and ({n}, K)"
        )
    read_bias, write_bias = tensors.get(f"{fc1}.bias"), tensors.get(f"{fc2}.bias")
    read_std, write_std = _xavier_std(reads), _xavier_std(writes)
    layers = []
    if reads.shape[0] == k:
        layers.append(_layer(fc1, block, "hidden", reads, read_bias, grid, read_std))
    else:
        # timm's GluMlp, with its default gate_last: the first half is the value, the second goes through the
        # activation and gates it, and starts near zero.
        gate_bias = None if read_bias is None else read_bias[k:]
        gate = _layer(f"{fc1}.gate", block, "hidden", reads[k:], gate_bias, grid, 1e-6, "gate half")
        reads, read_bias = reads[:k], None if read_bias is None else read_bias[:k]
        value = _layer(f"{fc1}.value", block, "hidden", reads, read_bias, grid, read_std, "value half")
        layers += [value, gate]
    note = "transposed: where a hidden unit writes"
    layers.append(_layer(fc2, block, "hidden", writes.T, write_bias, grid, write_std, note))
    product_bias = None
    if read_bias is not None and write_bias is not None:
        product_bias = writes.double() @ read_bias.double() + write_bias.double()
    layers.append(
        _layer(
            f"{fc1.removesuffix('.fc1')}.product",
            block,
            "token",
            writes.double() @ reads.double(),
            product_bias,
            grid,
            init_std=math.sqrt(k) * read_std * write_std,
            note="ignores the non-linearity",
        )
    )
    return layers


FAMILIES = (
    Family("gMLP (gmlp_*)", r"mlp_channels\.gate\.proj", _read_gmlp),
    # 'attn' is the name in the files of the ResMLP authors, which some timm weights keep
    Family("ResMLP (resmlp_*)", r"(?:linear_tokens|attn)", _read_resmlp),
    Family("MLP-Mixer (mixer_*) and gMixer (gmixer_*)", r"mlp_tokens\.fc1", _read_mixer),
)


# -- pieces --------------------------------------------------------------------------------------------------


def _layer(
    name: str,
    block: int,
    kind: str,
    weight: torch.Tensor,
    bias: torch.Tensor | None,
    grid: tuple[int, int],
    init_std: float,
    note: str = "",
) -> FilterLayer:
    return FilterLayer(
        name=name,
        block=block,
        kind=kind,
        weight=_own(weight).unflatten(1, grid),
        bias=None if bias is None else _own(bias),
        init_std=init_std,
        note=note,
    )


def _own(tensor: torch.Tensor) -> torch.Tensor:
    """A copy: a bank stays as it is while its network trains on."""
    return tensor.detach().to("cpu", torch.float32, copy=True)


def _square(key: str, tensors: Tensors) -> torch.Tensor:
    weight = tensors[f"{key}.weight"]
    if weight.shape[0] != weight.shape[1]:
        raise ValueError(f"{key}.weight is of shape {tuple(weight.shape)}; expected (N, N) for N tokens")
    return weight


def _xavier_std(weight: torch.Tensor) -> float:
    """Of nn.init.xavier_uniform_, with which timm starts these (Glorot and Bengio 2010, equation 16)."""
    return math.sqrt(2 / (weight.shape[0] + weight.shape[1]))
