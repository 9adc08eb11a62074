"""Products with a W that knows offsets only, made of a table of them, in the form that costs least.

Shapes: B batch, H, W the token grid, N = H * W tokens in row-major order, C channels, G groups of channels,
F = H frequencies along the height.

    y[i, c] = sum_j T_g[offset of j from i] x[j, c] + b[i]        channel c is of group g = c mod G

On a small grid W itself is made, and applied as any W is. On a larger one it never is. Along the height the
tokens go through a Fourier transform of 2 H - 1 places, so that nothing wraps around; each frequency then has
a Toeplitz matrix of its own along the width, W x W in complex numbers; and back:

    U_f = sum_h (cos, sin)(f h) x[h]      V_f = T_f U_f      y[h] = sum_f (cos, sin)(f h) V_f / (2 H - 1)

All three are products of real matrices, 4 N (H + W) C multiply-adds in the place of N^2 C. Beside FFTs along
both axes that is more to multiply, but in the form that a processor and every runtime are best at: measured
in benchmarks/speed/RESULTS.md. It is in float32 or above whatever the dtype of a model.
"""

import math
from typing import Any

import torch
from torch.nn import functional

from gmlp_vision.layers.observed import is_observed
from gmlp_vision.layers.precision import at_least_float32, without_autocast
from gmlp_vision.layers.resample import offsets_of
from gmlp_vision.layers.structured import map_tokens, map_tokens_by_group

CHANNELS = 192  # at once where memory is written over: what 3 passes need then stays near the processor


def makes_w(height: int, width: int) -> bool:
    """Whether the form with W itself is the faster one: on square grids up to 17 x 17 tokens, and up to
    23 x 23 in a file of ONNX, where W is a constant.

    This is the one place where it is decided. The multiply-adds of W are N / (4 H + 4 W) times those of the
    other form, which loses a factor of 2 or 3 in smaller products. Measured:
    benchmarks/speed/RESULTS.md, "Large images".
    """
    factor = 9
    if not torch.jit.is_scripting():  # noqa: SIM102  TorchScript does not know the question below
        if torch.compiler.is_exporting() and torch.onnx.is_in_onnx_export():
            factor = 12
    return height * width < factor * (height + width)


def map_offsets(x: torch.Tensor, table: torch.Tensor, bias: torch.Tensor) -> torch.Tensor:
    """``W_g x + b`` over the tokens, of a table of offsets.

    Args:
        x: (B, H, W, C).
        table: (2 H - 1, 2 W - 1), or (2 H - 1, 2 W - 1, G); its centre is a token's own place.
        bias: (N,).

    Returns:
        (B, H, W, C), in the dtype of `x`.
    """
    height, width = x.shape[1], x.shape[2]
    if makes_w(height, width):
        w = toeplitz_matrix(table, height, width)
        if table.ndim == 2:
            return map_tokens(x, w, bias)
        return map_tokens_by_group(x, w.permute(2, 0, 1), bias)
    if table.ndim == 3 and x.shape[3] % table.shape[2] != 0:
        raise ValueError("the groups do not divide the channels")
    tokens = at_least_float32(x)
    groups = table.unsqueeze(2) if table.ndim == 2 else table
    groups, shift = groups.to(tokens.dtype), bias.to(tokens.dtype)
    if torch.jit.is_scripting():  # TorchScript knows no autocast that depends on the device
        y = _by_frequency(tokens, groups, shift)
    else:
        with without_autocast(tokens):
            step = InPieces.apply if _is_free(x) else _by_frequency
            y = step(tokens, groups, shift)
    return y.to(x.dtype)


def _is_free(x: torch.Tensor) -> bool:
    """Whether nobody sees the single steps."""
    return not torch.compiler.is_compiling() and x.device.type == "cpu" and not is_observed(x)


def _by_frequency(x: torch.Tensor, table: torch.Tensor, bias: torch.Tensor) -> torch.Tensor:
    """All at once, for autograd and graphs: of (B, H, W, C) and (2 H - 1, 2 W - 1, G)."""
    batch, height, width, channels = x.shape
    g = table.shape[2]
    n = batch * (channels // g)  # columns of each group
    there, back, waves = transforms(height, x)
    # with the batch beside the channels nothing more is copied, and of one image nothing at all
    columns = (
        x.reshape(batch, height, width, channels // g, g).permute(4, 2, 1, 0, 3).reshape(g, width, height, n)
    )
    u = torch.matmul(_for_each(there, columns), columns)  # rows (part, f)
    u = u.view(g, 2 * width, height, n).transpose(1, 2)  # rows (w, part) of each frequency
    v = torch.matmul(frequency_maps(table, waves), u)  # rows (part, w)
    v = v.view(g, 2 * height, width, n).transpose(1, 2)  # rows (f, part) of each column
    y = torch.matmul(_for_each(back, v), v)  # (G, W, H, n)
    y = y.view(g, width, height, batch, channels // g).permute(3, 2, 1, 4, 0).reshape(x.shape)
    return y + bias.view(height, width, 1)


def _for_each(matrix: torch.Tensor, of: torch.Tensor) -> torch.Tensor:
    """A matrix for each of the matrices (G, W, .., n)."""
    if torch.jit.is_scripting():  # TorchScript does not know the question below
        return matrix.expand(of.shape[0], of.shape[1], -1, -1)
    elif torch.compiler.is_exporting():  # noqa: RET505  it compiles no other form
        return matrix  # ONNX's product repeats it by itself; expanded, it would be copied
    else:
        return matrix.expand(of.shape[0], of.shape[1], -1, -1)


class InPieces(torch.autograd.Function):
    """The same, a few channels of one image at a time: new memory is dear on a CPU (docs/speed.md).

    Of what it makes it keeps nothing: for the gradients U is made again.
    """

    @staticmethod
    def forward(ctx: Any, x: torch.Tensor, table: torch.Tensor, bias: torch.Tensor) -> torch.Tensor:
        ctx.save_for_backward(x, table)
        (height, width), y = x.shape[1:3], torch.empty(x.shape, dtype=x.dtype)
        there, back, waves = transforms(height, x)
        there, back = there.expand(width, -1, -1), back.expand(width, -1, -1)
        shift = bias.view(height, width, 1).transpose(0, 1)
        for group, one in enumerate(table.split(1, 2)):
            maps = frequency_maps(one, waves)[0]
            for tokens, result in zip(_pieces(x, group, table), _pieces(y, group, table), strict=True):
                u = torch.bmm(there, tokens).view(2 * width, height, -1)
                v = torch.bmm(maps, u.transpose(0, 1)).view(2 * height, width, -1)
                torch.baddbmm(shift, back, v.transpose(0, 1), out=result)
        return y

    @staticmethod
    def backward(ctx: Any, *grads: torch.Tensor) -> tuple[torch.Tensor | None, ...]:
        x, table = ctx.saved_tensors
        of_bias = grads[0].sum((0, 3)).flatten()
        with without_autocast(x):
            if torch.is_grad_enabled():  # the gradients are to have gradients
                y = _by_frequency(x, table, torch.zeros_like(of_bias))
                learned = [t for t in (x, table) if t.requires_grad]
                found = iter(torch.autograd.grad(y, learned, grads, create_graph=True) if learned else ())
                return *(next(found) if t.requires_grad else None for t in (x, table)), of_bias
            return *_gradients(x, table, grads[0], ctx.needs_input_grad[1]), of_bias


def _gradients(
    x: torch.Tensor, table: torch.Tensor, of_y: torch.Tensor, is_learned: bool
) -> tuple[torch.Tensor, torch.Tensor | None]:
    """Of tokens and table, the latter if it is learned. That of the tokens is a map of opposite offsets."""
    (height, width), of_x, of_table = (
        x.shape[1:3],
        torch.empty(x.shape, dtype=x.dtype),
        torch.zeros_like(table),
    )
    there, back, waves = transforms(height, x)
    counts = back[0, ::2].view(height, 1, 1)  # what `back` has more than `there`
    there, back = there.expand(width, -1, -1), back.expand(width, -1, -1)
    for group, one in enumerate(table.split(1, 2)):
        maps = frequency_maps(one.flip(0, 1), waves)[0]
        of_maps = torch.zeros_like(maps)
        pieces = (_pieces(tensor, group, table) for tensor in (x, of_y, of_x))
        for tokens, of_tokens, result in zip(*pieces, strict=True):
            of_v = torch.bmm(there, of_tokens).view(2 * width, height, -1).transpose(0, 1)
            v = torch.bmm(maps, of_v).view(2 * height, width, -1)
            torch.bmm(back, v.transpose(0, 1), out=result)
            if is_learned:
                u = torch.bmm(there, tokens).view(2 * width, height, -1).permute(1, 2, 0)
                of_maps.baddbmm_(of_v, u)
        if is_learned:
            of_maps = of_maps.mul_(counts).view(height, width, 2, -1).transpose(1, 2).reshape_as(maps)
            with torch.enable_grad():
                one = one.detach().requires_grad_()
                (of_one,) = torch.autograd.grad(frequency_maps(one, waves)[0], one, of_maps)
            of_table[..., group : group + 1] = of_one
    return of_x, (of_table if is_learned else None)


def _pieces(x: torch.Tensor, group: int, table: torch.Tensor) -> list[torch.Tensor]:
    """Views (W, H, n) of (B, H, W, C): the channels of a group, of each image, a few at a time."""
    of_group = x[..., group :: table.shape[2]].transpose(1, 2)
    return [piece for image in of_group for piece in image.split(CHANNELS, 2)]


def transforms(height: int, like: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """What takes the rows of a grid to frequencies and back, and waves over offsets.

    Args:
        height: H.
        like: A tensor of the device and dtype that they get.

    Returns:
        (2 F, H), rows (part, f); (H, 2 F), columns (f, part); (2, F, 2 H - 1), the centre the offset 0. A
        part is the cosine or the sine.
    """
    places = 2 * height - 1
    f = torch.arange(height, device=like.device).unsqueeze(1)
    offsets = torch.arange(1 - height, height, device=like.device)
    # whole turns are left out while they are whole numbers, since cosines of large angles are inexact
    angles = (f * offsets % places).to(torch.float64) * (2 * math.pi / places)
    waves = torch.stack([angles.cos(), angles.sin()])
    rows = waves[:, :, height - 1 :]
    # each frequency but 0 stands for its conjugate too
    counts = torch.where(f == 0, 1.0, 2.0).to(torch.float64) / places
    back = (rows * counts).permute(2, 1, 0).reshape(height, 2 * height)
    return rows.reshape(2 * height, height).to(like.dtype), back.to(like.dtype), waves.to(like.dtype)


def frequency_maps(table: torch.Tensor, waves: torch.Tensor) -> torch.Tensor:
    """(2 H - 1, 2 W - 1, G) to the maps (G, F, 2 W, 2 W) along the width: rows (part, w), columns (w, part).

    Seen as complex numbers, row w of T_f has at column w' ``sum_d table[d, w' - w] exp(i d f)``.
    """
    width, height = (table.shape[1] + 1) // 2, waves.shape[1]
    cos, sin = torch.tensordot(waves, table, dims=([2], [0])).permute(0, 3, 1, 2).unbind(0)  # (G, F, 2 W - 1)
    parts = torch.stack([torch.stack([cos, -sin], 2), torch.stack([sin, cos], 2)], 2)  # [.., column's, row's]
    windows = parts.unfold(4, width, 1).flip(4)  # (G, F, 2, 2, w, w')
    return windows.permute(0, 1, 3, 4, 5, 2).reshape(table.shape[2], height, 2 * width, 2 * width)


def toeplitz_matrix(table: torch.Tensor, height: int, width: int) -> torch.Tensor:
    """W, (N, N, ...), of the table (2 H - 1, 2 W - 1, ...) of a grid of this height and width, in tokens."""
    rows = torch.arange(height, device=table.device)
    columns = torch.arange(width, device=table.device)
    down = rows - rows.unsqueeze(1) + (height - 1)  # [i, k] for the rows of tokens i and k
    right = columns - columns.unsqueeze(1) + (width - 1)
    w = table[down.unsqueeze(1).unsqueeze(3), right.unsqueeze(1)]  # (H, W, H, W, ...)
    return w.flatten(2, 3).flatten(0, 1)


def kernel_matrix(kernel: torch.Tensor, grid_size: tuple[int, int]) -> torch.Tensor:
    """W, (N, N, ...), on this grid, of a kernel (odd, odd, ...) whose middle is a token's own place.

    Offsets that the kernel does not have get 0, and those that the grid does not have are left out.
    """
    rows = grid_size[0] - 1 - kernel.shape[0] // 2
    columns = grid_size[1] - 1 - kernel.shape[1] // 2
    table = functional.pad(kernel, [0, 0] * (kernel.ndim - 2) + [columns, columns, rows, rows])
    return toeplitz_matrix(table, grid_size[0], grid_size[1])


def mean_of_offsets(weight: torch.Tensor, grid_size: tuple[int, int]) -> torch.Tensor:
    """The table, (2 H - 1, 2 W - 1) in float64, of the Toeplitz matrix nearest to W, (N, N): the mean over
    all pairs of tokens with an offset."""
    n = grid_size[0] * grid_size[1]
    sizes = offsets_of(grid_size)
    numbers = torch.arange(sizes[0] * sizes[1], device=weight.device).view(sizes)
    index = toeplitz_matrix(numbers, *grid_size).flatten()
    values = weight.double().reshape(n * n)
    total = torch.zeros(len(numbers.flatten()), dtype=values.dtype, device=weight.device)
    counts = total.scatter_add(0, index, torch.ones_like(values))
    return (total.scatter_add(0, index, values) / counts).view(sizes)
