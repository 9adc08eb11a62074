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
        y = torch.fft.fft2(sequence, dim=[1, 2], norm="ortho").real
    elif torch.compiler.is_exporting():
        y = _real_part_by_products(sequence)
    else:
        y = torch.fft.fft2(sequence, dim=[1, 2], norm="ortho").real
    return y.reshape(x.shape)


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
