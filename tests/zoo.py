"""One row a class of blocks: what is known of it beside its code. tests/test_zoo.py runs over the rows."""

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

import torch

TINY = {"depth": 2, "embed_dim": 16, "img_size": 32, "patch_size": 8, "num_classes": 5}

TINY_PYRAMID = {"img_size": 32, "num_classes": 5}

Tensors = Mapping[str, torch.Tensor]
Resize = Callable[[torch.Tensor], torch.Tensor]


@dataclass(frozen=True, eq=False)
class Row:
    """A class of blocks.

    Attributes:
        names: The registered names that have it, and their exact numbers of parameters. The first stands for
            all where one is enough.
        tiny: What a small model of it takes beside TINY; that of a pyramid has `depths` and `embed_dims`.
        sizes: Two images, (height, width) in pixels, such a model may be for, the second one the larger.
        equation: The (first) block written out, in float64: its tensors and the tokens of one image,
            (H, W, D) or with a class token (1 + N, D), to tokens.
        resize: 'resampled' if it has parameters that belong to a grid and go to others, 'fixed' if they
            cannot, 'free' if it has none.
        law: For 'resampled', asserts what the rule claims: parameters of a block before, after, and R, the
            bicubic resize of (n, ...) token maps to a larger grid.
        filters: The kinds of operators over tokens that it has to show.
        released: The shapes of some tensors of files that others released, by our names.
    """

    names: dict[str, int]
    equation: Callable[[Tensors, torch.Tensor], torch.Tensor]
    resize: Literal["resampled", "fixed", "free"]
    filters: set[str]
    tiny: dict[str, Any] = field(default_factory=dict)
    sizes: tuple[tuple[int, int], tuple[int, int]] = ((24, 32), (32, 48))
    law: Callable[[Tensors, Tensors, Resize], None] | None = None
    released: dict[str, tuple[int, ...]] = field(default_factory=dict)

    def __str__(self) -> str:
        return next(iter(self.names))


def tiny_kwargs(name: str) -> dict[str, Any]:
    """The arguments that make a small model of a registered name."""
    tiny = row_of(name).tiny
    return {**(TINY_PYRAMID if "depths" in tiny else TINY), **tiny}


def row_of(name: str) -> Row:
    return next(row for row in ROWS if name in row.names)


# -- pieces of the equations ------------------------------------------------------------------------------


def norm(x: torch.Tensor, p: Tensors, name: str, eps: float = 1e-6) -> torch.Tensor:
    centred = x - x.sum(-1, keepdim=True) / x.shape[-1]
    variance = (centred**2).sum(-1, keepdim=True) / x.shape[-1]
    return centred / (variance + eps).sqrt() * p[f"{name}.weight"] + p[f"{name}.bias"]


def linear(x: torch.Tensor, p: Tensors, name: str) -> torch.Tensor:
    y = torch.einsum("...c,dc->...d", x, p[f"{name}.weight"])
    return y + p[f"{name}.bias"] if f"{name}.bias" in p else y


def gelu(x: torch.Tensor) -> torch.Tensor:
    return x * (1 + torch.erf(x / math.sqrt(2))) / 2


def two_branches(
    mixer: Callable[[Tensors, torch.Tensor], torch.Tensor], eps: float = 1e-6
) -> Callable[[Tensors, torch.Tensor], torch.Tensor]:
    """The equation of a MixMlpBlock with this mixer."""

    def equation(p: Tensors, x: torch.Tensor) -> torch.Tensor:
        x = x + mixer(p, norm(x, p, "norm1", eps))
        return x + linear(gelu(linear(norm(x, p, "norm2", eps), p, "mlp.fc1")), p, "mlp.fc2")

    return equation


def places(x: torch.Tensor) -> list[tuple[int, int]]:
    """(row, column) of the tokens of (H, W, D), in order."""
    return [(i, j) for i in range(x.shape[0]) for j in range(x.shape[1])]


# -- gMLP -------------------------------------------------------------------------------------------------


def of_pair(p: Tensors, x: torch.Tensor, t: tuple[int, int], s: tuple[int, int]) -> torch.Tensor:
    return p["mlp_channels.gate.proj.weight"][places(x).index(t), places(x).index(s)]


def gmlp(
    unit: Callable[[torch.Tensor, Callable[[torch.Tensor], torch.Tensor]], torch.Tensor],
    weight: Callable[[Tensors, torch.Tensor, tuple[int, int], tuple[int, int]], torch.Tensor] = of_pair,
) -> Callable[[Tensors, torch.Tensor], torch.Tensor]:
    """The block, from the unit: (Z, f) to s(Z), and the weight of token s in the sum of token t."""

    def equation(p: Tensors, x: torch.Tensor) -> torch.Tensor:
        def f(z: torch.Tensor) -> torch.Tensor:
            z = norm(z, p, "mlp_channels.gate.norm", eps=1e-5)
            y = torch.zeros_like(z)
            for i, t in enumerate(places(x)):
                y[t] = p["mlp_channels.gate.proj.bias"][i] + sum(weight(p, x, t, s) * z[s] for s in places(x))
            return y

        z = gelu(linear(norm(x, p, "norm"), p, "mlp_channels.fc1"))
        return x + linear(unit(z, f), p, "mlp_channels.fc2")

    return equation


def split(z: torch.Tensor, f: Callable[[torch.Tensor], torch.Tensor]) -> torch.Tensor:
    half = z.shape[-1] // 2
    return z[..., :half] * f(z[..., half:])


def amlp(p: Tensors, x: torch.Tensor) -> torch.Tensor:
    """gMLP's block, with the attention added to the gate."""
    q, k, v = torch.einsum(
        "...c,dc->...d", norm(x, p, "norm"), p["mlp_channels.attn.qkv.weight"]
    ).tensor_split(3, -1)
    mixed = torch.empty_like(v)
    for t in places(x):
        weights = {s: torch.exp((q[t] * k[s]).sum() / math.sqrt(q.shape[-1])) for s in places(x)}
        mixed[t] = sum(weights[s] * v[s] for s in places(x)) / sum(weights.values())
    attention = linear(mixed, p, "mlp_channels.attn.proj")

    def unit(z: torch.Tensor, f: Callable[[torch.Tensor], torch.Tensor]) -> torch.Tensor:
        half = z.shape[-1] // 2
        return z[..., :half] * (f(z[..., half:]) + attention)

    return gmlp(unit)(p, x)


def of_offset(p: Tensors, x: torch.Tensor, t: tuple[int, int], s: tuple[int, int]) -> torch.Tensor:
    return p["mlp_channels.gate.proj.table"][s[0] - t[0] + x.shape[0] - 1, s[1] - t[1] + x.shape[1] - 1]


def by_group(numbers: torch.Tensor, p: Tensors) -> torch.Tensor:
    """One number a group, as one a channel of W."""
    return numbers.repeat(len(p["mlp_channels.gate.norm.weight"]) // len(numbers))


def of_grouped_offset(p: Tensors, x: torch.Tensor, t: tuple[int, int], s: tuple[int, int]) -> torch.Tensor:
    return by_group(of_offset(p, x, t, s), p)


def of_gaussian(p: Tensors, x: torch.Tensor, t: tuple[int, int], s: tuple[int, int]) -> torch.Tensor:
    centers, spreads = p["mlp_channels.gate.proj.centers"], p["mlp_channels.gate.proj.spreads"]

    def score(to: tuple[int, int]) -> torch.Tensor:
        away = torch.tensor([to[0] - t[0], to[1] - t[1]], dtype=x.dtype) - centers
        precision = torch.einsum("gij,gkj->gik", spreads, spreads)
        return torch.exp(-torch.einsum("gi,gik,gk->g", away, precision, away) / 2)

    return by_group(score(s) / sum(score(to) for to in places(x)), p)


def of_axes(p: Tensors, x: torch.Tensor, t: tuple[int, int], s: tuple[int, int]) -> torch.Tensor:
    rows, columns = p["mlp_channels.gate.proj.rows"], p["mlp_channels.gate.proj.columns"]
    return rows[t[0], s[0]] * (t[1] == s[1]) + columns[t[1], s[1]] * (t[0] == s[0])


def of_offset_around(p: Tensors, x: torch.Tensor, t: tuple[int, int], s: tuple[int, int]) -> torch.Tensor:
    around = p["mlp_channels.gate.proj.around"]
    return by_group(around[(s[0] - t[0]) % x.shape[0], (s[1] - t[1]) % x.shape[1]], p)


def of_factors(p: Tensors, x: torch.Tensor, t: tuple[int, int], s: tuple[int, int]) -> torch.Tensor:
    writes, reads = p["mlp_channels.gate.proj.writes"], p["mlp_channels.gate.proj.reads"]
    return (writes[places(x).index(t)] * reads[places(x).index(s)]).sum()


def gaussian_law(before: Tensors, after: Tensors, resize: Resize) -> None:
    """The Gaussian stays, and ``b' = R b``."""
    for name in ("centers", "spreads"):
        assert after[f"mlp_channels.gate.proj.{name}"] is before[f"mlp_channels.gate.proj.{name}"]
    old, new = (p["mlp_channels.gate.proj.bias"] for p in (before, after))
    torch.testing.assert_close(new, resize(old), atol=1e-12, rtol=1e-10)


def offset_law(before: Tensors, after: Tensors, resize: Resize) -> None:
    """From 3 x 4 to 4 x 6 tokens: equal offsets keep their number, new ones have 0, and ``b' = R b``."""
    table = before["mlp_channels.gate.proj.table"]
    expected = torch.zeros(7, 11, *table.shape[2:], dtype=torch.float64)
    expected[1:6, 2:9] = table
    assert torch.equal(after["mlp_channels.gate.proj.table"], expected)
    old, new = (p["mlp_channels.gate.proj.bias"] for p in (before, after))
    torch.testing.assert_close(new, resize(old), atol=1e-12, rtol=1e-10)


def operator_law(before: Tensors, after: Tensors, resize: Resize) -> None:
    """``W' R = R W`` and ``b' = R b``."""
    n = before["mlp_channels.gate.proj.weight"].shape[0]
    r = resize(torch.eye(n, dtype=torch.float64))
    w, b = (before[f"mlp_channels.gate.proj.{key}"] for key in ("weight", "bias"))
    torch.testing.assert_close(after["mlp_channels.gate.proj.weight"] @ r, r @ w, atol=1e-12, rtol=1e-10)
    torch.testing.assert_close(after["mlp_channels.gate.proj.bias"], r @ b, atol=1e-12, rtol=1e-10)


def axes_law(before: Tensors, after: Tensors, resize: Resize) -> None:
    """From 3 x 4 to 4 x 6 tokens: ``A' R = R A`` along each axis, and ``b' = R b``."""
    r = resize(torch.eye(12, dtype=torch.float64)).view(4, 6, 3, 4)
    # the rows of R for one axis, on pictures that are constant along the other one
    for name, axis in (("rows", r.sum(3)[:, 0]), ("columns", r.sum(2)[0])):
        old, new = (p[f"mlp_channels.gate.proj.{name}"] for p in (before, after))
        torch.testing.assert_close(new @ axis, axis @ old, atol=1e-12, rtol=1e-10)
    old, new = (p["mlp_channels.gate.proj.bias"] for p in (before, after))
    torch.testing.assert_close(new, resize(old), atol=1e-12, rtol=1e-10)


def cyclic_law(before: Tensors, after: Tensors, resize: Resize) -> None:
    """From 3 x 4 to 4 x 6 tokens: offsets the shorter way round keep their number, 2 columns are halved."""
    around = before["mlp_channels.gate.proj.around"]
    expected = torch.zeros(4, 6, *around.shape[2:], dtype=torch.float64)
    for i in (-1, 0, 1):
        for j in (-2, -1, 0, 1, 2):
            expected[i, j] = around[i, j] / (2 if abs(j) == 2 else 1)
    torch.testing.assert_close(after["mlp_channels.gate.proj.around"], expected, atol=0, rtol=0)
    old, new = (p["mlp_channels.gate.proj.bias"] for p in (before, after))
    torch.testing.assert_close(new, resize(old), atol=1e-12, rtol=1e-10)


def factors_law(before: Tensors, after: Tensors, resize: Resize) -> None:
    """``W' R = R W`` of the product, and ``b' = R b``."""
    r = resize(torch.eye(12, dtype=torch.float64))
    old, new = (
        p["mlp_channels.gate.proj.writes"] @ p["mlp_channels.gate.proj.reads"].T for p in (before, after)
    )
    torch.testing.assert_close(new @ r, r @ old, atol=1e-12, rtol=1e-10)
    old, new = (p["mlp_channels.gate.proj.bias"] for p in (before, after))
    torch.testing.assert_close(new, resize(old), atol=1e-12, rtol=1e-10)


# -- S2-MLP -----------------------------------------------------------------------------------------------


@two_branches
def s2mlp(p: Tensors, x: torch.Tensor) -> torch.Tensor:
    x = gelu(linear(x, p, "mixer.fc1"))
    rows, columns, width = x.shape
    moved = torch.empty_like(x)
    for i, j in places(x):
        sources = [(i, j - 1), (i, j + 1), (i - 1, j), (i + 1, j)]
        for group, (k, l) in enumerate(sources):  # noqa: E741
            inside = 0 <= k < rows and 0 <= l < columns
            channels = slice(group * width // 4, (group + 1) * width // 4)
            moved[i, j, channels] = x[k, l, channels] if inside else x[i, j, channels]
    return linear(moved, p, "mixer.fc2")


# -- AFT --------------------------------------------------------------------------------------------------


def aft(
    log_weight: Callable[[Tensors, torch.Tensor, tuple[int, int], tuple[int, int]], Any],
) -> Callable[[Tensors, torch.Tensor], torch.Tensor]:
    """The mixer, from w: (parameters, tokens, place of t, place of t') to a number, or to one a channel."""

    def mixer(p: Tensors, x: torch.Tensor) -> torch.Tensor:
        q, k, v = (linear(x, p, f"mixer.{name}") for name in "qkv")
        k = k.repeat_interleave(v.shape[-1] // k.shape[-1], dim=-1)  # a channel of K for each of its head
        y = torch.empty_like(v)
        for t in places(x):
            weights = {s: torch.exp(k[s] + log_weight(p, x, t, s)) for s in places(x)}
            y[t] = sum(weights[s] * v[s] for s in places(x)) / sum(weights[s] for s in places(x))
        return linear(y / (1 + torch.exp(-q)), p, "mixer.proj")

    return mixer


def of_pairs(p: Tensors, x: torch.Tensor, t: tuple[int, int], s: tuple[int, int]) -> torch.Tensor:
    columns = x.shape[1]
    u, v = p["mixer.pairs.u"], p["mixer.pairs.v"]
    return (u[t[0] * columns + t[1]] * v[s[0] * columns + s[1]]).sum()


def of_near_pairs(p: Tensors, x: torch.Tensor, t: tuple[int, int], s: tuple[int, int]) -> Any:
    return of_pairs(p, x, t, s) if max(abs(t[0] - s[0]), abs(t[1] - s[1])) < 2 else 0.0


def of_offsets(p: Tensors, x: torch.Tensor, t: tuple[int, int], s: tuple[int, int]) -> Any:
    taps = p["mixer.weight"].flatten(1)
    deviations = taps - taps.mean(1, keepdim=True)
    taps = deviations / (deviations**2).mean(1, keepdim=True).sqrt()
    kernels = p["mixer.gain"][:, None] * taps + p["mixer.bias"][:, None]
    side = p["mixer.weight"].shape[1]
    i, j = s[0] - t[0] + side // 2, s[1] - t[1] + side // 2
    if not (0 <= i < side and 0 <= j < side):
        return 0.0
    heads = kernels.unflatten(1, (side, side))[:, i, j]
    return heads.repeat_interleave(x.shape[-1] // len(heads))


def factor_law(before: Tensors, after: Tensors, resize: Resize) -> None:
    """``u' = R u`` and ``v' = R v``, so ``w' = R w R^T``."""
    for name in ("mixer.pairs.u", "mixer.pairs.v"):
        torch.testing.assert_close(after[name], resize(before[name]), atol=1e-12, rtol=1e-10)


# -- FNet -------------------------------------------------------------------------------------------------


@two_branches
def fnet(p: Tensors, x: torch.Tensor) -> torch.Tensor:
    y = torch.empty_like(x)
    tokens, width = x.shape[0] * x.shape[1], x.shape[2]
    parts = torch.arange(tokens).double()[:, None] / tokens, torch.arange(width).double() / width
    for u, here in enumerate(places(x)):
        for v in range(width):
            cosines = torch.cos(2 * math.pi * (u * parts[0] + v * parts[1]))
            y[here][v] = (cosines * x.flatten(0, 1)).sum() / math.sqrt(tokens * width)
    return y


# -- GFNet ------------------------------------------------------------------------------------------------


def gfnet(p: Tensors, x: torch.Tensor) -> torch.Tensor:
    """The filter as a convolution: of each frequency a wave, summed over all pairs of tokens."""
    z, k = norm(x, p, "norm1"), p["mixer.complex_weight"]
    (rows, columns), y = x.shape[:2], torch.zeros_like(x)
    for t in places(x):
        for s in places(x):
            for u in range(rows):
                for v in range(columns // 2 + 1):
                    angle = 2 * math.pi * (u * (t[0] - s[0]) / rows + v * (t[1] - s[1]) / columns)
                    twice = 1 if 2 * v in (0, columns) else 2  # for a frequency and for its conjugate
                    wave = k[u, v, :, 0] * math.cos(angle) - k[u, v, :, 1] * math.sin(angle)
                    y[t] += twice * wave * z[s] / (rows * columns)
    return x + linear(gelu(linear(norm(y, p, "norm2"), p, "mlp.fc1")), p, "mlp.fc2")


def gfnet_h(p: Tensors, x: torch.Tensor) -> torch.Tensor:
    return x + p["layer_scale.gamma"] * (gfnet(p, x) - x)


def frequencies_law(before: Tensors, after: Tensors, resize: Resize) -> None:
    """The ends of the spectrum stay, and the rest is torch's bicubic between them."""
    k, grown = before["mixer.complex_weight"], after["mixer.complex_weight"]
    assert k.shape == (3, 3, 16, 2)
    assert grown.shape == (4, 4, 16, 2)
    for u in (0, -1):
        for v in (0, -1):
            torch.testing.assert_close(grown[u, v], k[u, v], atol=1e-12, rtol=1e-10)
    maps = k.permute(2, 3, 0, 1)
    expected = torch.nn.functional.interpolate(maps, (4, 4), mode="bicubic", align_corners=True)
    torch.testing.assert_close(grown, expected.permute(2, 3, 0, 1), atol=1e-12, rtol=1e-10)


# -- CCS --------------------------------------------------------------------------------------------------


def circulant(p: Tensors, x: torch.Tensor) -> torch.Tensor:
    w, sequence, y = p["mixer.weight"], x.flatten(0, 1), torch.zeros_like(x).flatten(0, 1)
    tokens, groups = w.shape
    for i in range(tokens):
        for j in range(tokens):
            for c in range(x.shape[-1]):
                y[i, c] += w[j, c % groups] * sequence[(i + j) % tokens, c]
    return y.view_as(x)


def ccs_resmlp(p: Tensors, x: torch.Tensor) -> torch.Tensor:
    x = x + p["ls1.gamma"] * circulant(p, x * p["norm1.weight"] + p["norm1.bias"])
    y = x * p["norm2.weight"] + p["norm2.bias"]
    return x + p["ls2.gamma"] * linear(gelu(linear(y, p, "mlp.fc1")), p, "mlp.fc2")


def offsets_law(before: Tensors, after: Tensors, resize: Resize) -> None:
    """What the first token takes is resized as a map; what it takes in all stays, up to the resize."""
    w, grown = before["mixer.weight"], after["mixer.weight"]
    torch.testing.assert_close(grown, resize(w) * len(w) / len(grown), atol=1e-12, rtol=1e-10)
    assert len(grown) == 2 * len(w)


# -- LightConv, DynamicConv -------------------------------------------------------------------------------


def softmax_conv(
    logits: Callable[[Tensors, torch.Tensor], torch.Tensor],
) -> Callable[[Tensors, torch.Tensor], torch.Tensor]:
    """The mixer, from w of a token: (parameters, the token after GLU) to (heads, side, side)."""

    def mixer(p: Tensors, x: torch.Tensor) -> torch.Tensor:
        a, b = linear(x, p, "mixer.fc").split(x.shape[-1], dim=-1)
        z = a / (1 + torch.exp(-b))
        y = torch.zeros_like(z)
        for t in places(x):
            weights = torch.exp(logits(p, z[t]))
            weights = weights / weights.sum((1, 2), keepdim=True)
            heads, half = len(weights), weights.shape[1] // 2
            for s in places(x):
                i, j = s[0] - t[0] + half, s[1] - t[1] + half
                if 0 <= i <= 2 * half and 0 <= j <= 2 * half:
                    y[t] += weights[:, i, j].repeat_interleave(x.shape[-1] // heads) * z[s]
        return linear(y, p, "mixer.proj")

    return mixer


def of_the_token(p: Tensors, z: torch.Tensor) -> torch.Tensor:
    return (p["mixer.kernel_fc.weight"] @ z).view(4, 3, 3)


# -- Synthesizer ------------------------------------------------------------------------------------------


def synthesizer(
    row: Callable[[Tensors, torch.Tensor, int, int], torch.Tensor], heads: int = 4
) -> Callable[[Tensors, torch.Tensor], torch.Tensor]:
    """The mixer, from a row of R: (parameters, tokens (N, D), token, head) to (N,)."""

    def mixer(p: Tensors, x: torch.Tensor) -> torch.Tensor:
        tokens, d = x.flatten(0, 1), x.shape[-1] // heads
        v = linear(tokens, p, "mixer.v")
        y = torch.empty_like(v)
        for t in range(len(tokens)):
            for head in range(heads):
                weights = torch.exp(row(p, tokens, t, head))
                channels = slice(head * d, (head + 1) * d)
                y[t, channels] = sum(
                    w / weights.sum() * value for w, value in zip(weights, v[:, channels], strict=True)
                )
        return linear(y, p, "mixer.proj").view_as(x)

    return mixer


def learned_row(p: Tensors, tokens: torch.Tensor, t: int, head: int) -> torch.Tensor:
    return p["mixer.scores.weight"][t, :, head]


def row_of_factors(p: Tensors, tokens: torch.Tensor, t: int, head: int) -> torch.Tensor:
    a, b = p["mixer.scores.r1"], p["mixer.scores.r2"]
    return torch.stack([(a[t, head] * b[s, head]).sum() for s in range(len(tokens))])


def computed_row(p: Tensors, tokens: torch.Tensor, t: int, head: int) -> torch.Tensor:
    reads, bias = p["mixer.scores.in_weight"][head], p["mixer.scores.in_bias"][head]
    d = len(reads)
    hidden = reads @ tokens[t, head * d : (head + 1) * d] + bias
    hidden = torch.where(hidden > 0, hidden, 0.0)
    return p["mixer.scores.out_weight"][:, head] @ hidden + p["mixer.scores.out_bias"][:, head]


def both_sides_law(before: Tensors, after: Tensors, resize: Resize) -> None:
    """``R' = r R r^T`` of each head, r the resize."""
    old, new = before["mixer.scores.weight"], after["mixer.scores.weight"]
    r = resize(torch.eye(len(old), dtype=torch.float64))
    for head in range(old.shape[-1]):
        torch.testing.assert_close(new[..., head], r @ old[..., head] @ r.T, atol=1e-12, rtol=1e-10)


def token_maps_law(*names: str) -> Callable[[Tensors, Tensors, Resize], None]:
    """``P' = r P`` of these parameters, and no other changes."""

    def law(before: Tensors, after: Tensors, resize: Resize) -> None:
        for name, old in before.items():
            expected = resize(old) if name in names else old
            torch.testing.assert_close(after[name], expected, atol=1e-12, rtol=1e-10)

    return law


# -- External attention -----------------------------------------------------------------------------------


def external_attention(p: Tensors, x: torch.Tensor) -> torch.Tensor:
    tokens = x.flatten(0, -2)
    q = linear(tokens, p, "mixer.q")
    d = p["mixer.m_k.weight"].shape[1]
    y = torch.empty_like(q)
    for start in range(0, q.shape[1], d):
        scores = torch.exp(linear(q[:, start : start + d], p, "mixer.m_k"))  # (N, S)
        over_tokens = torch.stack([slot / sum(slot) for slot in scores.T], 1)
        over_slots = torch.stack([token / (sum(token) + 1e-9) for token in over_tokens])
        y[:, start : start + d] = linear(over_slots, p, "mixer.m_v")
    return linear(y, p, "mixer.proj").view_as(x)


# -- FF-only ----------------------------------------------------------------------------------------------


def ff_only(p: Tensors, x: torch.Tensor) -> torch.Tensor:
    x = x + linear(gelu(linear(norm(x, p, "norm1"), p, "mlp1.fc1")), p, "mlp1.fc2")
    channels = [norm(x[:, c], p, "norm2") for c in range(x.shape[1])]
    mixed = [linear(gelu(linear(channel, p, "mlp2.fc1")), p, "mlp2.fc2") for channel in channels]
    return x + torch.stack(mixed, 1)


# -- pyramids ---------------------------------------------------------------------------------------------


def fused(p: Tensors, branches: list[torch.Tensor]) -> torch.Tensor:
    """The three branches, weighted for each channel by a softmax over them, and projected."""
    mean = sum(branches).sum(dim=(0, 1)) / branches[0][..., 0].numel()
    scores = linear(gelu(linear(mean, p, "mixer.reweight.mlp.fc1")), p, "mixer.reweight.mlp.fc2")
    y = torch.zeros_like(branches[0])
    for c in range(y.shape[-1]):
        e = [torch.exp(scores[3 * c + i]) for i in range(3)]
        y[..., c] = sum(e[i] * branches[i][..., c] for i in range(3)) / sum(e)
    return linear(y, p, "mixer.proj")


def batch_norm(x: torch.Tensor, p: Tensors, name: str, eps: float = 1e-5) -> torch.Tensor:
    scale = p[f"{name}.weight"] / (p[f"{name}.running_var"] + eps).sqrt()
    return (x - p[f"{name}.running_mean"]) * scale + p[f"{name}.bias"]


def group_norm(x: torch.Tensor, p: Tensors, name: str, eps: float = 1e-5) -> torch.Tensor:
    centred = x - x.sum() / x.numel()
    return centred / ((centred**2).sum() / x.numel() + eps).sqrt() * p[f"{name}.weight"] + p[f"{name}.bias"]


def depthwise(x: torch.Tensor, kernel: torch.Tensor) -> torch.Tensor:
    """(C, h, w) kernels, odd, over (H, W, C), zeros outside."""
    y = torch.zeros_like(x)
    rows, columns = kernel.shape[1] // 2, kernel.shape[2] // 2
    for i, j in places(x):
        for di in range(-rows, rows + 1):
            for dj in range(-columns, columns + 1):
                if 0 <= i + di < x.shape[0] and 0 <= j + dj < x.shape[1]:
                    y[i, j] += kernel[:, di + rows, dj + columns] * x[i + di, j + dj]
    return y


def channel_mlp(x: torch.Tensor, p: Tensors, name: str = "mlp") -> torch.Tensor:
    return linear(gelu(linear(x, p, f"{name}.fc1")), p, f"{name}.fc2")


def normed_branches(
    mixer: Callable[[Tensors, torch.Tensor], torch.Tensor],
    norm_of: Callable[[torch.Tensor, Tensors, str], torch.Tensor],
) -> Callable[[Tensors, torch.Tensor], torch.Tensor]:
    """The equation of a MixMlpBlock with norms over channels."""

    def equation(p: Tensors, x: torch.Tensor) -> torch.Tensor:
        x = x + mixer(p, norm_of(x, p, "norm1.norm"))
        return x + channel_mlp(norm_of(x, p, "norm2.norm"), p)

    return equation


def moved(x: torch.Tensor, axis: int, by: int, keep: bool = False) -> torch.Tensor:
    """What lies `by` places further along an axis, one channel after the other; outside 0, or its own."""
    y = x.clone() if keep else torch.zeros_like(x)
    for place in places(x):
        there = list(place)
        there[axis] += by
        if 0 <= there[axis] < x.shape[axis]:
            y[place] = x[tuple(there)]
    return y


def s2mlpv2(p: Tensors, x: torch.Tensor) -> torch.Tensor:
    branches = list(linear(x, p, "mixer.fc1").tensor_split(3, -1))
    for k, axes in enumerate((1, 0), start=0):
        quarters = branches[k].tensor_split(4, -1)
        steps = [(axes, -1), (axes, 1), (1 - axes, -1), (1 - axes, 1)]
        branches[k] = torch.cat(
            [moved(q, axis, by, keep=True) for q, (axis, by) in zip(quarters, steps, strict=True)], -1
        )
    total = sum(sum(branches)[place] for place in places(x))
    scores = p["mixer.split_attention.mlp.fc2.weight"] @ gelu(
        p["mixer.split_attention.mlp.fc1.weight"] @ total
    )
    e = torch.exp(scores.reshape(3, -1))
    return linear(sum(e[k] / e.sum(0) * branches[k] for k in range(3)), p, "mixer.fc2")


def hire(p: Tensors, x: torch.Tensor) -> torch.Tensor:
    """Regions of 3 tokens, moved on by 2."""
    region, step = 3, 2

    def along(axis: int, name: str) -> torch.Tensor:
        y, n = torch.zeros_like(x), x.shape[axis]
        for other in range(x.shape[1 - axis]):
            line = x.select(1 - axis, other)
            for start in range(0, n, region):
                tokens = [(k % n - step) % n for k in range(start, start + region)]
                z = p[f"{name}.fc1.weight"] @ torch.cat([line[t] for t in tokens])
                z = batch_norm(z, p, f"{name}.norm.norm").clamp(min=0)
                z = p[f"{name}.fc2.weight"] @ z + p[f"{name}.fc2.bias"]
                for k, part in enumerate(z.reshape(region, -1)):
                    if start + k < n:  # what was put behind the end comes to nothing
                        y.select(1 - axis, other)[tokens[k]] = part
        return y

    branches = [along(0, "mixer.mlp_h"), along(1, "mixer.mlp_w"), linear(x, p, "mixer.mlp_c")]
    return fused(p, branches)


def wave(wide: bool) -> Callable[[Tensors, torch.Tensor], torch.Tensor]:
    def mixer(p: Tensors, x: torch.Tensor) -> torch.Tensor:
        def one(name: str) -> torch.Tensor:
            if wide:
                t = depthwise(x, p[f"{name}.phase.weight"][:, 0])
            else:
                t = x @ p[f"{name}.phase.weight"][:, :, 0, 0].T + p[f"{name}.phase.bias"]
            t = batch_norm(t, p, f"{name}.norm").clamp(min=0)
            a = linear(x, p, f"{name}.fc")
            pair = torch.cat([a * t.cos(), a * t.sin()], -1)
            kernel = p[f"{name}.conv.weight"]
            return depthwise(pair[..., 0::2], kernel[:, 0]) + depthwise(pair[..., 1::2], kernel[:, 1])

        return fused(p, [one("mixer.wave_h"), one("mixer.wave_w"), linear(x, p, "mixer.fc_c")])

    return mixer


def as_mlp(p: Tensors, x: torch.Tensor) -> torch.Tensor:
    z = gelu(group_norm(linear(x, p, "mixer.fc1"), p, "mixer.norm1.norm"))
    size = -(-x.shape[-1] // 5)

    def shifted(axis: int) -> torch.Tensor:
        groups = [moved(z[..., g * size : (g + 1) * size], axis, 2 - g) for g in range(5)]
        return torch.cat(groups, -1)

    y = gelu(linear(shifted(1), p, "mixer.fc_w")) + gelu(linear(shifted(0), p, "mixer.fc_h"))
    return linear(group_norm(y, p, "mixer.norm2.norm"), p, "mixer.fc2")


def smlpnet(p: Tensors, x: torch.Tensor) -> torch.Tensor:
    y = depthwise(gelu(batch_norm(x, p, "mixer.norm1")), p["mixer.conv.weight"][:, 0])
    y = gelu(batch_norm(y, p, "mixer.norm2"))
    rows, columns = torch.zeros_like(y), torch.zeros_like(y)
    for i, j in places(y):
        rows[i, j] = sum(p["mixer.over_rows.weight"][i, k] * y[k, j] for k in range(y.shape[0]))
        columns[i, j] = sum(p["mixer.over_columns.weight"][j, k] * y[i, k] for k in range(y.shape[1]))
    rows += p["mixer.over_rows.bias"][:, None, None]
    columns += p["mixer.over_columns.bias"][None, :, None]
    x = x + linear(torch.cat([y, columns, rows], -1), p, "mixer.fuse")
    return x + channel_mlp(norm(x, p, "norm", 1e-5), p)


def resized_axes(before: Tensors, after: Tensors, resize: Resize) -> None:
    """What the map over the rows makes of a resized column is, where the grid grows, its output resized."""
    for name, axis in (("mixer.over_rows", 0), ("mixer.over_columns", 1)):
        old, new = before[f"{name}.weight"], after[f"{name}.weight"]
        across = {0: 6, 1: 8}[1 - axis]
        column = torch.linspace(-1, 1, len(old), dtype=old.dtype).sin()

        def grown(line: torch.Tensor, axis: int = axis, across: int = across) -> torch.Tensor:
            maps = line.unsqueeze(1 - axis).expand((len(line), across) if axis == 0 else (across, len(line)))
            wide = resize(maps.reshape(-1, 1)).reshape(10, 12)
            return wide[:, 0] if axis == 0 else wide[0]

        torch.testing.assert_close(new @ grown(column), grown(old @ column), atol=1e-10, rtol=0)
        torch.testing.assert_close(after[f"{name}.bias"], grown(before[f"{name}.bias"]), atol=1e-10, rtol=0)


def bottleneck(p: Tensors, x: torch.Tensor) -> torch.Tensor:
    y = x
    for k in (1, 2, 3):
        kernel, z = p[f"conv{k}.proj.weight"], 0
        reach = kernel.shape[2] // 2
        for di in range(-reach, reach + 1):
            for dj in range(-reach, reach + 1):
                z = z + moved(moved(y, 0, di), 1, dj) @ kernel[:, :, di + reach, dj + reach].T
        y = batch_norm(z, p, f"conv{k}.norm.norm").clamp(min=0)
    return x + y


def raft(p: Tensors, x: torch.Tensor) -> torch.Tensor:
    """Two rafts."""

    def mixed(y: torch.Tensor, axis: int, name: str) -> torch.Tensor:
        z, half = torch.zeros_like(y), y.shape[-1] // 2
        for other in range(y.shape[1 - axis]):
            for c in range(half):
                line = torch.cat([y.select(1 - axis, other)[:, raft * half + c] for raft in (0, 1)])
                hidden = gelu(p[f"{name}.weight1"] @ line + p[f"{name}.bias1"])
                out = p[f"{name}.weight2"] @ hidden + p[f"{name}.bias2"]
                for raft, part in enumerate(out.reshape(2, -1)):
                    z.select(1 - axis, other)[:, raft * half + c] = part
        return z

    x = x + mixed(norm(x, p, "norm1", 1e-5), 0, "column_mixer")
    x = x + mixed(norm(x, p, "norm2", 1e-5), 1, "row_mixer")
    return x + channel_mlp(norm(x, p, "norm3", 1e-5), p)


def posmlp(p: Tensors, x: torch.Tensor) -> torch.Tensor:
    """Windows of 4 tokens, 2 groups."""
    z = gelu(linear(norm(x, p, "norm"), p, "fc1"))
    half = z.shape[-1] // 2
    u, y = z[..., :half], torch.zeros_like(z[..., :half])
    for i, j in places(x):
        corner = i // 4 * 4, j // 4 * 4
        window = [(corner[0] + a, corner[1] + b) for a in range(4) for b in range(4)]
        for c in range(half):
            m, s = p["pos.mixer.centers"][c % 2], p["pos.mixer.spreads"][c % 2]
            scores = []
            for a, b in window:
                away = torch.tensor([a - i, b - j], dtype=x.dtype) - m
                scores.append(-(away @ s @ s.T @ away) / 2)
            weights = torch.stack(scores).softmax(0)
            y[i, j, c] = sum(w * u[t][c] for w, t in zip(weights, window, strict=True))
        y[i, j] += p["pos.mixer.bias"][window.index((i, j))]
    return x + linear(y * z[..., half:], p, "fc2")


def swin_mlp(p: Tensors, x: torch.Tensor) -> torch.Tensor:
    """Windows of 4 tokens, 2 heads, not shifted."""
    w, bias = p["mixer.windows.mixer.weight"], p["mixer.windows.mixer.bias"]
    y = torch.zeros_like(x)
    for i, j in places(x):
        corner = i // 4 * 4, j // 4 * 4
        window = [(corner[0] + a, corner[1] + b) for a in range(4) for b in range(4)]
        here = window.index((i, j))
        for c in range(x.shape[-1]):
            g = c // (x.shape[-1] // 2)
            y[i, j, c] = sum(w[g, here, k] * x[t][c] for k, t in enumerate(window)) + bias[g, here]
    return y


def vip(p: Tensors, x: torch.Tensor) -> torch.Tensor:
    """Segments as many as rows and columns."""
    side, _, dim = x.shape
    width = dim // side
    h, w = torch.zeros_like(x), torch.zeros_like(x)
    for s in range(side):
        channels = slice(s * width, (s + 1) * width)
        for i, j in places(x):
            column, row = x[:, j, channels].flatten(), x[i, :, channels].flatten()
            numbers = slice(i * width, (i + 1) * width), slice(j * width, (j + 1) * width)
            h[i, j, channels] = p["mixer.mlp_h.weight"][numbers[0]] @ column
            w[i, j, channels] = p["mixer.mlp_w.weight"][numbers[1]] @ row
    return fused(p, [h, w, linear(x, p, "mixer.mlp_c")])


def cycle(p: Tensors, x: torch.Tensor) -> torch.Tensor:
    def turned(axis: int) -> torch.Tensor:
        return torch.stack([moved(x[..., c], axis, (0, 1, -1)[c % 3]) for c in range(x.shape[-1])], -1)

    h, w = linear(turned(1), p, "mixer.sfc_h"), linear(turned(0), p, "mixer.sfc_w")
    return fused(p, [h, w, linear(x, p, "mixer.mlp_c")])


# -- Sparse-MLP -------------------------------------------------------------------------------------------


@two_branches
def token_mlp(p: Tensors, x: torch.Tensor) -> torch.Tensor:
    y = torch.empty_like(x)
    for c in range(x.shape[-1]):
        reads = [(p["mixer.fc1.weight"][:, k] * x[..., c].flatten()).sum() for k in range(7)]
        hidden = gelu(torch.stack(reads) + p["mixer.fc1.bias"])
        for i, t in enumerate(places(x)):
            y[t][c] = (p["mixer.fc2.weight"][i] * hidden).sum() + p["mixer.fc2.bias"][i]
    return y


def mlp(x: torch.Tensor, p: Tensors, name: str) -> torch.Tensor:
    return linear(gelu(linear(x, p, f"{name}.fc1")), p, f"{name}.fc2")


def mixture(vectors: torch.Tensor, p: Tensors, name: str, k: int) -> torch.Tensor:
    """Each of (T, D) through the k experts that its scores prefer, told one by one."""
    y = torch.zeros_like(vectors)
    for row, vector in enumerate(vectors):
        scores = [(weights * vector).sum() for weights in p[f"{name}.gate.weight"]]
        total = sum(torch.exp(score) for score in scores)
        for expert in sorted(range(len(scores)), key=lambda i: -scores[i])[:k]:
            y[row] += torch.exp(scores[expert]) / total * mlp(vector, p, f"{name}.experts.{expert}")
    return y


def sparse_block(experts: bool) -> Callable[[Tensors, torch.Tensor], torch.Tensor]:
    def equation(p: Tensors, x: torch.Tensor) -> torch.Tensor:
        first, last = "represent1", "represent2"
        y = norm(x, p, f"{first}.norm1").flatten(0, 1)
        reads = [
            sum(p[f"{first}.over_tokens.weight"][t, s] * y[t] for t in range(len(y)))
            + p[f"{first}.over_tokens.bias"][s]
            for s in range(10)
        ]
        y = gelu(linear(norm(gelu(torch.stack(reads)), p, f"{first}.norm2"), p, f"{first}.over_channels"))
        y = y + mixture(norm(y, p, "norm1").T, p, "mlp_tokens", 1).T
        z = norm(y, p, "norm2")
        y = y + (mixture(z, p, "mlp_channels", 2) if experts else mlp(z, p, "mlp_channels"))
        y = norm(gelu(linear(norm(y, p, f"{last}.norm1"), p, f"{last}.over_channels")), p, f"{last}.norm2")
        writes = [
            sum(p[f"{last}.over_tokens.weight"][t, s] * y[s] for s in range(10))
            + p[f"{last}.over_tokens.bias"][t]
            for t in range(x.shape[0] * x.shape[1])
        ]
        return gelu(torch.stack(writes)).view_as(x)

    return equation


def token_layers_law(reader: str, writer: str) -> Callable[[Tensors, Tensors, Resize], None]:
    """``A' R = A`` of what reads tokens, ``C' = R C`` and ``c' = R c`` of what writes; the rest stays."""

    def law(before: Tensors, after: Tensors, resize: Resize) -> None:
        old, new = before[f"{reader}.weight"], after[f"{reader}.weight"]
        r = resize(torch.eye(len(old), dtype=torch.float64))
        torch.testing.assert_close(new.T @ r, old.T, atol=1e-12, rtol=1e-10)
        kept = {name: p for name, p in before.items() if name != f"{reader}.weight"}
        token_maps_law(f"{writer}.weight", f"{writer}.bias")(kept, after, resize)

    return law


# such that no vector of the contract's images goes to another expert in bfloat16
SPARSE_TINY = {
    "token_dim": 7,
    "sparse_tokens": 10,
    "sparse_channels": 11,
    "token_experts": 3,
    "token_expert_dim": 14,
    "channel_expert_dim": 18,
}

ROWS = [
    Row(
        names={
            "gmlp_ti16": 5_867_328,
            "gmlp_s16": 19_422_656,
            "gmlp_b16": 73_075_392,
            "gmlp_pico4": 1_236_106,
        },
        equation=gmlp(split),
        resize="resampled",
        law=operator_law,
        filters={"token"},
    ),
    Row(
        names={
            "gmlp_ti16_linear": 7_364_928,
            "gmlp_s16_linear": 25_366_976,
            "gmlp_b16_linear": 96_760_512,
        },
        equation=gmlp(lambda z, f: f(z)),
        resize="resampled",
        law=operator_law,
        filters={"token"},
    ),
    Row(
        names={
            "gmlp_ti16_additive": 7_364_928,
            "gmlp_s16_additive": 25_366_976,
            "gmlp_b16_additive": 96_760_512,
        },
        equation=gmlp(lambda z, f: z + f(z)),
        resize="resampled",
        law=operator_law,
        filters={"token"},
    ),
    Row(
        names={
            "gmlp_ti16_multiplicative": 7_364_928,
            "gmlp_s16_multiplicative": 25_366_976,
            "gmlp_b16_multiplicative": 96_760_512,
        },
        equation=gmlp(lambda z, f: z * f(z)),
        resize="resampled",
        law=operator_law,
        filters={"token"},
    ),
    Row(
        names={
            "gmlp_ti16_toeplitz": 4_736_718,
            "gmlp_s16_toeplitz": 18_292_046,
            "gmlp_b16_toeplitz": 71_944_782,
        },
        equation=gmlp(split, of_offset),
        resize="resampled",
        law=offset_law,
        filters={"token"},
    ),
    Row(
        names={"gmlp_s16_lrpe": 18_620_096},
        tiny={"groups": 4},
        equation=gmlp(split, of_grouped_offset),
        resize="resampled",
        law=offset_law,
        filters={"token"},
    ),
    Row(
        names={"gmlp_s16_gqpe": 18_273_056},
        tiny={"groups": 4},
        equation=gmlp(split, of_gaussian),
        resize="resampled",
        law=gaussian_law,
        filters={"token"},
    ),
    Row(
        names={"gmlp_s16_axial": 18_281_936},
        equation=gmlp(split, of_axes),
        resize="resampled",
        law=axes_law,
        filters={"token"},
    ),
    Row(
        names={"gmlp_s16_circulant": 18_364_256},
        tiny={"groups": 4},
        equation=gmlp(split, of_offset_around),
        resize="resampled",
        law=cyclic_law,
        filters={"token"},
    ),
    Row(
        names={"gmlp_s16_rank16": 18_458_336},
        tiny={"spatial": "rank:3"},
        equation=gmlp(split, of_factors),
        resize="resampled",
        law=factors_law,
        filters={"token"},
    ),
    Row(
        names={"amlp_ti16": 7_353_408, "amlp_s16": 22_394_816, "amlp_b16": 79_019_712},
        tiny={"attn_dim": 8},
        equation=amlp,
        resize="resampled",
        law=operator_law,
        filters={"token"},
    ),
    Row(
        names={"s2mlp_wide": 72_242_920, "s2mlp_deep": 53_918_056},
        equation=s2mlp,
        resize="free",
        filters=set(),
    ),
    Row(
        names={"aft_full_s16": 22_576_744, "aft_full_ti16": 6_281_512},
        equation=two_branches(aft(of_pairs)),
        resize="resampled",
        law=factor_law,
        filters={"token"},
    ),
    Row(
        names={"aft_simple_s16": 21_974_632},
        equation=two_branches(aft(lambda *_: 0.0)),
        resize="free",
        filters=set(),
    ),
    Row(
        names={"aft_local_s16": 22_576_744},
        tiny={"reach": 2},
        equation=two_branches(aft(of_near_pairs)),
        resize="resampled",
        law=factor_law,
        filters={"token"},
    ),
    Row(
        names={"aft_conv_s16": 20_298_088, "aft_conv_ti16": 5_356_072},
        tiny={"heads": 4, "kernel_size": 5},
        equation=two_branches(aft(of_offsets)),
        resize="free",
        filters={"kernel"},
    ),
    Row(
        names={"fnet_s16": 14_953_576, "fnet_ti16": 3_938_344, "fnet_b16": 58_217_704},
        equation=fnet,
        resize="resampled",  # its position table
        filters=set(),
    ),
    Row(
        names={
            "gfnet_ti": 7_511_784,
            "gfnet_xs": 15_985_768,
            "gfnet_s": 24_869_608,
            "gfnet_b": 43_120_616,
        },
        equation=gfnet,
        resize="resampled",
        law=frequencies_law,
        filters={"kernel"},
    ),
    Row(
        names={"ccs_s16": 14_897_128, "ccs_mixer_b16": 58_085_992},
        equation=two_branches(circulant),
        resize="resampled",
        law=offsets_law,
        filters={"kernel"},
    ),
    Row(
        names={"ccs_resmlp_36": 43_356_904},
        equation=ccs_resmlp,
        resize="resampled",
        law=offsets_law,
        filters={"kernel"},
    ),
    Row(
        names={"synthesizer_random_s16": 21_267_688, "synthesizer_random_ti16": 6_210_664},
        tiny={"heads": 4},
        equation=two_branches(synthesizer(learned_row)),
        resize="resampled",
        law=both_sides_law,
        filters={"token"},
    ),
    Row(
        names={"synthesizer_factorized_s16": 18_727_528, "synthesizer_factorized_ti16": 4_940_584},
        tiny={"heads": 4, "rank": 3},
        equation=two_branches(synthesizer(row_of_factors)),
        resize="resampled",
        law=token_maps_law("mixer.scores.r1", "mixer.scores.r2"),
        filters={"token"},
    ),
    Row(
        names={"synthesizer_dense_s16": 19_718_536, "synthesizer_dense_ti16": 5_436_088},
        tiny={"heads": 4},
        equation=two_branches(synthesizer(computed_row)),
        resize="resampled",
        law=token_maps_law("mixer.scores.out_weight", "mixer.scores.out_bias"),
        filters=set(),
    ),
    Row(
        # counted by hand: DeiT-S's stem, table, norms, MLPs and head, 14,953,576, and 12 mixers of 1,189,888
        names={"ea_s16": 29_232_232},
        tiny={"heads": 8, "slots": 6},
        equation=two_branches(external_attention),
        resize="resampled",  # the position table; no block has anything of a grid
        filters=set(),
    ),
    Row(
        # eamlp_7 at 384 px, the size of its weights
        names={"eamlp_7": 6_243_918, "eamlp_14": 29_877_070, "eamlp_19": 54_559_054},
        tiny={"heads": 8, "slots": 6},
        equation=two_branches(external_attention, eps=1e-5),
        resize="resampled",  # the fixed sinusoids; no block has anything of a grid
        filters=set(),
    ),
    Row(
        names={"ff_ti16": 7_676_332, "ff_b16": 61_943_020, "ff_l32": 206_363_576},
        equation=ff_only,
        resize="fixed",
        filters={"hidden", "token"},
    ),
    Row(
        names={"lightconv_s16": 20_209_960},
        tiny={"heads": 4, "kernel_size": 3},
        equation=two_branches(softmax_conv(lambda p, z: p["mixer.weight"])),
        resize="free",
        filters={"kernel"},
    ),
    Row(
        names={"dynamicconv_s16": 23_813_224},
        tiny={"heads": 4, "kernel_size": 3},
        equation=two_branches(softmax_conv(of_the_token)),
        resize="free",
        filters=set(),
    ),
    Row(
        names={"vip_s14": 29892904, "vip_s7": 25114984, "vip_m7": 55272488, "vip_l7": 87784936},
        tiny={"depths": (1, 2), "embed_dims": (16, 24), "strides": (4, 2), "segments": (8, 4)},
        sizes=((32, 32), (64, 64)),
        equation=two_branches(vip, eps=1e-5),
        resize="fixed",
        filters=set(),
        released={"stages.0.blocks.0.mixer.mlp_h.weight": (192, 192)},
    ),
    Row(
        names={
            "cycle_b1": 15155400,
            "cycle_b2": 26802504,
            "cycle_b3": 38385720,
            "cycle_b4": 51796552,
            "cycle_b5": 75747280,
        },
        tiny={"depths": (1, 2), "embed_dims": (16, 24), "strides": (4, 2), "mlp_ratio": (4.0, 2.0)},
        sizes=((24, 31), (33, 48)),
        equation=two_branches(cycle, eps=1e-5),
        resize="free",
        filters=set(),
    ),
    Row(
        names={"s2mlpv2_s7": 25113448, "s2mlpv2_m7": 55269864},
        tiny={"depths": (1, 2), "embed_dims": (16, 24), "strides": (4, 2)},
        sizes=((24, 32), (32, 48)),
        equation=two_branches(s2mlpv2, eps=1e-5),
        resize="free",
        filters=set(),
    ),
    Row(
        names={"hire_t": 18041672, "hire_s": 33113848, "hire_b": 58226856, "hire_l": 95723944},
        tiny={
            "depths": (1, 2),
            "embed_dims": (16, 24),
            "strides": (4, 2),
            "region": (3, 2),
            "step": (2, (0, 1)),
        },
        sizes=((24, 31), (33, 48)),
        equation=normed_branches(hire, batch_norm),
        resize="free",
        filters=set(),
    ),
    Row(
        names={"wave_t_dw": 15286472},
        tiny={"depths": (1, 2), "embed_dims": (16, 24), "strides": (4, 2)},
        sizes=((24, 31), (33, 48)),
        equation=normed_branches(wave(wide=True), batch_norm),
        resize="free",
        filters=set(),
    ),
    Row(
        names={"wave_t": 17193160},
        tiny={"depths": (1, 2), "embed_dims": (16, 24), "strides": (4, 2)},
        sizes=((24, 31), (33, 48)),
        equation=normed_branches(wave(wide=False), batch_norm),
        resize="free",
        filters=set(),
    ),
    Row(
        names={"wave_s": 30708040, "wave_m": 44056632, "wave_b": 63586360},
        tiny={"depths": (1, 2), "embed_dims": (16, 24), "strides": (4, 2), "mlp_ratio": (4.0, 2.0)},
        sizes=((24, 31), (33, 48)),
        equation=normed_branches(wave(wide=False), group_norm),
        resize="free",
        filters=set(),
    ),
    Row(
        names={"as_mlp_t": 28282696, "as_mlp_s": 49594696, "as_mlp_b": 87752808},
        tiny={"depths": (1, 2), "embed_dims": (16, 24), "strides": (4, 2)},
        sizes=((24, 32), (32, 48)),
        equation=normed_branches(as_mlp, group_norm),
        resize="free",
        filters=set(),
    ),
    Row(
        names={"smlp_t": 24123584, "smlp_s": 48558136, "smlp_b": 65880408},
        tiny={"depths": (1, 2), "embed_dims": (16, 24), "strides": (4, 2)},
        sizes=((24, 32), (40, 48)),
        equation=smlpnet,
        resize="resampled",
        law=resized_axes,
        filters={"token"},
    ),
    Row(
        names={"raft_s": 9868768, "raft_m": 21413632, "raft_l": 36184672},
        tiny={"depths": (1, 2), "embed_dims": (16, 24), "strides": (4, 2)},
        sizes=((24, 32), (32, 48)),
        equation=raft,
        resize="fixed",
        filters=set(),
    ),
    Row(
        names={"convmlp_s": 9022920, "convmlp_m": 17410504, "convmlp_l": 42728440},
        tiny={"depths": (1, 2), "embed_dims": (16, 24), "strides": (4, 2), "mlp_ratio": (2.0, 2.0)},
        sizes=((24, 31), (33, 48)),
        equation=bottleneck,
        resize="free",
        filters={"kernel"},
    ),
    Row(
        names={"posmlp_t": 20925538, "posmlp_s": 36816450},
        tiny={
            "depths": (1, 2),
            "embed_dims": (16, 32),
            "strides": (4, 2),
            "window": (4, 2),
            "groups": (2, 4),
            "mlp_ratio": (4.0, 2.0),
        },
        sizes=((16, 32), (32, 48)),
        equation=posmlp,
        resize="free",
        filters={"token"},
    ),
    Row(
        names={
            "swin_mlp_t_c24": 20386632,
            "swin_mlp_t_c12": 21152072,
            "swin_mlp_t_c6": 22682952,
            "swin_mlp_b": 60659416,
        },
        tiny={
            "depths": (1, 2),
            "embed_dims": (16, 24),
            "strides": (4, 2),
            "window": (4, 2),
            "heads": (2, 4),
            "shifted": (False, (False, True)),
        },
        sizes=((16, 32), (32, 48)),
        equation=two_branches(swin_mlp, eps=1e-5),
        resize="free",
        filters={"token"},
    ),
    Row(
        names={"gfnet_h_ti": 15085096, "gfnet_h_s": 32162632, "gfnet_h_b": 53744200},
        tiny={"depths": (1, 2), "embed_dims": (16, 24), "strides": (8, 1)},
        equation=gfnet_h,
        resize="resampled",
        law=frequencies_law,
        filters={"kernel"},
    ),
    Row(
        # counted by hand from Table 2: 22,402,608, 69,976,768 and 130,436,456 without the head
        names={"sparse_mlp_s": 22_915_608},
        tiny={**SPARSE_TINY, "dense_depth": 0},
        equation=sparse_block(experts=False),
        resize="resampled",
        law=token_layers_law("represent1.over_tokens", "represent2.over_tokens"),
        filters={"hidden"},
    ),
    Row(
        names={"sparse_mlp_b": 70_745_768},
        tiny={**SPARSE_TINY, "dense_depth": 0},
        equation=sparse_block(experts=True),
        resize="resampled",
        law=token_layers_law("represent1.over_tokens", "represent2.over_tokens"),
        filters={"hidden"},
    ),
    Row(
        names={"sparse_mlp_l": 131_205_456},
        tiny={**SPARSE_TINY, "channel_experts": 3, "dense_depth": 1},  # of which the first block is shown
        equation=token_mlp,
        resize="resampled",
        law=token_layers_law("mixer.fc1", "mixer.fc2"),
        filters={"hidden", "token"},
    ),
]

ISOTROPIC_NAMES = [str(row) for row in ROWS if "depths" not in row.tiny]
PYRAMID_NAMES = [str(row) for row in ROWS if "depths" in row.tiny]
