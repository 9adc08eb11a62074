"""Linear maps over the channels of each token, U and V of the paper, by whichever library is faster."""

import torch
from torch.nn import functional

# asked here, since torch.compile cannot trace the questions
HAS_BOTH = torch.backends.mkldnn.is_available() and torch.backends.mkl.is_available()


def project_channels(x: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor) -> torch.Tensor:
    """``x weight^T + bias`` over the last dimension.

    Shapes: (B, ..., C) tokens, (C', C) weight, (C',) bias -> the same with C' for C.
    """
    if not suits_onednn(x):
        return functional.linear(x, weight, bias)
    # Pictures of one row of tokens, channels last.
    rows = x.flatten(1, -2).unsqueeze(1).permute(0, 3, 1, 2)
    # To a kernel of one pixel a dilation is nothing, but without one torch takes oneDNN for fewer than 16
    # pictures only if it has more than one thread.
    y = functional.conv2d(rows, weight[:, :, None, None], bias, dilation=2)
    return y.permute(0, 2, 3, 1).reshape(*x.shape[:-1], weight.shape[0])


def suits_onednn(x: torch.Tensor) -> bool:
    """Whether a 1 x 1 convolution is the faster form of a linear layer.

    In float32 torch gives a linear layer to MKL, which is slow on a CPU not of Intel's (docs/speed.md), and a
    convolution to oneDNN, which is not, but for a single small picture (`use_mkldnn` in ATen's
    Convolution.cpp). In bfloat16 it gives both to oneDNN. An exported model is computed by others.
    """
    if x.dtype != torch.float32 or x.device.type != "cpu" or torch.compiler.is_exporting():
        return False
    return HAS_BOTH and bool(torch.backends.mkldnn.enabled) and (x.shape[0] > 1 or x.numel() > 20_480)
