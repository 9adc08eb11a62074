"""Fourier transforms over tokens, in float32 or above whatever the dtype of a model: half precision has no
complex numbers on a CPU, and on a GPU only for sizes that are powers of two.

Shapes: B batch, H, W the token grid, N = H * W tokens in row-major order, C channels.

All of them are unitary ("ortho"). ONNX takes no FFT of PyTorch's, so an exported model has products with the
matrices of cosines and sines instead.
"""

import math

import torch

from gmlp_vision.layers.precision import at_least_float32, matmul_float32


def real_part_of_dft(x: torch.Tensor) -> torch.Tensor:
    """Re of the discrete Fourier transform over tokens, as one sequence, and over channels.

    Args:
        x: (B, H, W, C).

    Returns:
        (B, H, W, C), in float32 or above.
    """
    sequence = at_least_float32(x).flatten(1, 2)
    if torch.jit.is_scripting():  # TorchScript does not know the question below
        y = _real_part_by_fft(sequence)
    elif torch.compiler.is_exporting():
        y = _real_part_by_products(sequence)
    else:
        y = _real_part_by_fft(sequence)
    return y.reshape(x.shape)


def _real_part_by_fft(x: torch.Tensor) -> torch.Tensor:
    """Of (B, N, C)."""
    if x.shape[0] == 0:  # MKL refuses an empty batch
        return x
    return torch.fft.fft2(x, dim=[1, 2], norm="ortho").real


def _real_part_by_products(x: torch.Tensor) -> torch.Tensor:
    """The same of (B, N, C): ``cos x cos - sin x sin``."""
    cos_n, sin_n = dft_matrices(x.shape[1], x)
    cos_c, sin_c = dft_matrices(x.shape[2], x)
    cosines = matmul_float32(cos_n, matmul_float32(x, cos_c))
    return cosines - matmul_float32(sin_n, matmul_float32(x, sin_c))


def dft_matrices(n: int, like: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """The (n, n) matrices of cosines and of sines, so that ``cos - i sin`` is the unitary DFT of n numbers.

    Args:
        n: How many.
        like: A tensor of the device and dtype that they get.
    """
    steps = torch.arange(n, device=like.device)
    # whole turns are left out while they are whole numbers, since cosines of large angles are inexact
    turns = (steps.unsqueeze(1) * steps % n).to(torch.float64)
    angles = turns * (2 * math.pi / n)
    return (angles.cos() / math.sqrt(n)).to(like.dtype), (angles.sin() / math.sqrt(n)).to(like.dtype)


def filter_frequencies(x: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
    """Each channel times its own number at each frequency of the grid: a circular convolution.

    Args:
        x: (B, H, W, C).
        weight: (H, W // 2 + 1, C, 2), real and imaginary parts; of the frequencies along the width only those
            that are not the conjugate of another one.

    Returns:
        (B, H, W, C), in float32 or above.
    """
    x = at_least_float32(x)
    # a model that was brought to channels_last has every tensor of four axes in that order, and torch reads
    # complex numbers only off neighbours
    weight = at_least_float32(weight).to(x.dtype).contiguous()
    if torch.jit.is_scripting():  # TorchScript does not know the question below
        return _filter_by_fft(x, weight)
    elif torch.compiler.is_exporting():  # noqa: RET505  it compiles no other form
        return _filter_by_products(x, weight)
    else:
        return _filter_by_fft(x, weight)


def _filter_by_fft(x: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
    if x.shape[0] == 0:  # MKL refuses an empty batch
        return x
    frequencies = torch.fft.rfft2(x, dim=[1, 2], norm="ortho") * torch.view_as_complex(weight)
    # told its size, or it would take every width for an even one
    return torch.fft.irfft2(frequencies, s=[x.shape[1], x.shape[2]], dim=[1, 2], norm="ortho")


def _filter_by_products(x: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
    """The same in real numbers: each pair is a real and an imaginary part."""
    columns, (k_re, k_im) = weight.shape[1], weight.transpose(0, 1).unbind(-1)  # K: (W // 2 + 1, H, C)
    cos_h, sin_h = dft_matrices(x.shape[1], x)
    cos_w, sin_w = (matrix[:columns] for matrix in dft_matrices(x.shape[2], x))
    # (B, W // 2 + 1, H, C)
    re = matmul_float32(cos_w, x).transpose(1, 2)
    im = matmul_float32(-sin_w, x).transpose(1, 2)
    re, im = _turn(re, im, cos_h, -sin_h)
    re, im = re * k_re - im * k_im, re * k_im + im * k_re
    re, im = _turn(re, im, cos_h, sin_h)
    # a frequency that is not its own conjugate stands for two
    own = torch.arange(columns, device=x.device) * 2 % x.shape[2] == 0
    counts = torch.where(own, 1.0, 2.0).to(x.dtype)
    back_re, back_im = (cos_w.transpose(0, 1) * counts), (sin_w.transpose(0, 1) * counts)
    return matmul_float32(back_re, re.transpose(1, 2)) - matmul_float32(back_im, im.transpose(1, 2))


def _turn(
    re: torch.Tensor, im: torch.Tensor, cosines: torch.Tensor, sines: torch.Tensor
) -> tuple[torch.Tensor, torch.Tensor]:
    """``(cosines + i sines) (re + i im)``, in two parts again."""
    return (
        matmul_float32(cosines, re) - matmul_float32(sines, im),
        matmul_float32(cosines, im) + matmul_float32(sines, re),
    )


def correlate_in_groups(x: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
    """``y[i] = sum_j w[j] x[(i + j) mod N]`` over the tokens as one sequence; channel c has the w of group
    c mod G.

    Args:
        x: (B, H, W, C).
        weight: (N, G), G a divisor of C.

    Returns:
        (B, H, W, C), in float32 or above.
    """
    sequence, weight = at_least_float32(x).flatten(1, 2), at_least_float32(weight)
    sequence = sequence.unflatten(2, [sequence.shape[2] // weight.shape[1], weight.shape[1]])
    weight = weight.to(sequence.dtype)
    if torch.jit.is_scripting():  # TorchScript does not know the question below
        y = _correlate_by_fft(sequence, weight)
    elif torch.compiler.is_exporting():
        by_group = sequence.permute(0, 3, 1, 2)
        y = matmul_float32(circulants(weight), by_group).permute(0, 2, 3, 1)
    else:
        y = _correlate_by_fft(sequence, weight)
    return y.reshape(x.shape)


def _correlate_by_fft(x: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
    """The same of (B, N, C / G, G)."""
    if x.shape[0] == 0:  # MKL refuses an empty batch
        return x
    products = torch.fft.rfft(x, dim=1) * torch.fft.rfft(weight, dim=0).conj().unsqueeze(1)
    return torch.fft.irfft(products, n=x.shape[1], dim=1)


def circulants(weight: torch.Tensor) -> torch.Tensor:
    """(N, G) to the (G, N, N) matrices of which row i is w moved by i places, around the end."""
    places = torch.arange(weight.shape[0], device=weight.device)
    return weight[(places - places.unsqueeze(1)) % weight.shape[0]].permute(2, 0, 1)


def correlate_on_torus(x: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
    """``y[i] = sum_d w[d] x[i + d]`` over the grid, offsets taken around its borders; channel c has the w of
    group c mod G.

    Args:
        x: (B, H, W, C).
        weight: (H, W, G), G a divisor of C.

    Returns:
        (B, H, W, C), in float32 or above.
    """
    x = at_least_float32(x)
    weight = at_least_float32(weight).to(x.dtype)
    if torch.jit.is_scripting():  # TorchScript does not know the question below
        return _on_torus_by_fft(x, weight)
    elif torch.compiler.is_exporting():  # noqa: RET505  it compiles no other form
        return filter_frequencies(x, torch.stack(_frequencies_of(weight, x.shape[3]), dim=-1))
    else:
        return _on_torus_by_fft(x, weight)


def _on_torus_by_fft(x: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
    if x.shape[0] == 0:  # MKL refuses an empty batch
        return x
    frequencies = torch.fft.rfft2(weight, dim=[0, 1]).conj()
    frequencies = frequencies.repeat(1, 1, x.shape[3] // weight.shape[2])
    products = torch.fft.rfft2(x, dim=[1, 2]) * frequencies
    return torch.fft.irfft2(products, s=[x.shape[1], x.shape[2]], dim=[1, 2])


def _frequencies_of(weight: torch.Tensor, channels: int) -> tuple[torch.Tensor, torch.Tensor]:
    """What the correlation multiplies each frequency by, (H, W // 2 + 1, channels), in two parts."""
    height, width, groups = weight.shape
    (cos_h, sin_h), (cos_w, sin_w) = dft_matrices(height, weight), dft_matrices(width, weight)
    half = width // 2 + 1
    along = weight.transpose(0, 1).flatten(1)  # (W, H G)
    scale = math.sqrt(height * width)  # the matrices are unitary, and the filter is not
    re, im = (matmul_float32(m[:half] * scale, along) for m in (cos_w, sin_w))
    re, im = (part.view(half, height, groups) for part in (re, im))
    re, im = _turn(re, im, cos_h, sin_h)  # the conjugate
    re, im = (part.transpose(0, 1).repeat(1, 1, channels // groups) for part in (re, im))
    return re, im
