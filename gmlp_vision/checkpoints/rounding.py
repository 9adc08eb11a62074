"""Numbers that another dtype cannot hold: what is too large is refused, what is too small is noted."""

import torch

from gmlp_vision.checkpoints.names import Tensors
from gmlp_vision.checkpoints.report import first_five, of_all_blocks
from gmlp_vision.errors import CheckpointError

# The dtypes that weights are read from: torch cannot cast the others, such as four bits a number.
FLOATS = {torch.float64, torch.float32, torch.float16, torch.bfloat16} | {
    dtype
    for name in ("e4m3fn", "e4m3fnuz", "e5m2", "e5m2fnuz", "e8m0fnu")
    if (dtype := getattr(torch, f"float8_{name}", None)) is not None
}


def joined(a: torch.dtype, b: torch.dtype) -> torch.dtype:
    """The smallest dtype of 16 bits or more that holds the numbers of both; of an 8-bit one, float32."""
    return torch.promote_types(*(torch.float32 if dtype.itemsize == 1 else dtype for dtype in (a, b)))


def losses(before: Tensors, after: Tensors, source: str) -> list[str]:
    """What rounding has lost, in words: how many numbers are 0 that were none before.

    Args:
        before: In dtypes that hold the numbers.
        after: The same, in the dtypes that were asked for.
        source: What they are of.

    Raises:
        CheckpointError: A number is now infinite.
    """
    changed: dict[torch.dtype, list[str]] = {}
    for name, tensor in after.items():
        if tensor.dtype != before[name].dtype:
            changed.setdefault(tensor.dtype, []).append(name)
    notes = []
    for dtype, names in changed.items():
        _check_range(dtype, before, {name: after[name] for name in names}, source)
        vanished = {n: int(((before[n] != 0) & (after[n].to(before[n].device) == 0)).sum()) for n in names}
        if lost := sum(vanished.values()):
            notes.append(
                f"{lost:,} of {sum(before[n].numel() for n in names):,} numbers were too small for "
                f"{_name(dtype)} and became 0, in {of_all_blocks([n for n in names if vanished[n]])}"
            )
    return notes


def _check_range(dtype: torch.dtype, before: Tensors, after: Tensors, source: str) -> None:
    too_large = [n for n, t in after.items() if not t.isfinite().all() and before[n].isfinite().all()]
    if too_large:
        largest = max(float(before[name].abs().max()) for name in too_large)
        wider = "bfloat16 or float32" if largest <= torch.finfo(torch.bfloat16).max else "float64"
        raise CheckpointError(
            f"{_name(dtype)} ends at {torch.finfo(dtype).max:.5g} and cannot hold {first_five(too_large)} of "
            f"{source}, where the largest number is {largest:.5g}: take {wider}"
        )


def _name(dtype: torch.dtype) -> str:
    return str(dtype).removeprefix("torch.")
