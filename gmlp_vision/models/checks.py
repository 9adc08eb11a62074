"""What a model accepts. Each check refuses the rest with the value, what was expected and what to do."""

from collections.abc import Iterable, Sequence

import torch
from timm.layers import to_2tuple
from torch import nn


def check_divides(img_size: int | Sequence[int], patch_size: int | Sequence[int]) -> None:
    """Refuses an image that the patch does not divide; timm would drop the remaining pixels in silence."""
    sizes, patches = to_2tuple(img_size), to_2tuple(patch_size)
    if len(sizes) != 2 or len(patches) != 2:
        raise ValueError(
            f"img_size is {img_size} and patch_size {patch_size}; expected an int or (H, W), in pixels"
        )
    for axis, size, patch in zip(("height", "width"), sizes, patches, strict=True):
        if size < 1 or patch < 1 or size % patch:
            raise ValueError(
                f"img_size has a {axis} of {size} pixels, which a patch of {patch} does not divide; "
                f"choose a multiple of {patch}"
            )


def check_image(
    x: torch.Tensor, img_size: tuple[int, int], patch_size: tuple[int, int], fixed_size: bool
) -> None:
    """Refuses images of another size than `img_size`; if it is not fixed, those the patch does not divide."""
    height, width = x.shape[-2], x.shape[-1]
    if fixed_size and (height != img_size[0] or width != img_size[1]):
        raise ValueError(
            f"the image is {height} x {width} pixels (height x width) but this model was made for "
            f"{img_size[0]} x {img_size[1]}: resize the image, or create the model with "
            f"img_size=({height}, {width}) or with dynamic_img_size=True"
        )
    if height % patch_size[0] != 0 or width % patch_size[1] != 0:
        raise ValueError(
            f"the image is {height} x {width} pixels (height x width), which a patch of "
            f"{patch_size[0]} x {patch_size[1]} does not divide: resize or pad the image to a multiple of it"
        )


def check_count(name: str, count: int) -> None:
    if count < 1:
        raise ValueError(f"{name} is {count}; expected at least 1")


def check_rate(name: str, rate: float) -> None:
    if not 0.0 <= rate < 1.0:
        raise ValueError(f"{name} is {rate}; expected a probability in [0, 1)")


def check_pool(global_pool: str) -> None:
    if global_pool not in ("avg", ""):
        raise ValueError(f"global_pool is {global_pool!r}; expected 'avg', or '' for no pooling")


def block_indices(indices: int | Sequence[int] | None, depth: int) -> list[int]:
    """timm's three ways to choose blocks, as ascending positions in range(depth)."""
    if indices is None:
        return list(range(depth))
    if isinstance(indices, int):
        if not 1 <= indices <= depth:
            raise ValueError(f"indices asks for the last {indices} blocks; expected 1 to {depth}")
        return list(range(depth - indices, depth))
    if not indices or not all(-depth <= i < depth for i in indices):
        raise ValueError(f"indices are {list(indices)}; expected at least one, each in [{-depth}, {depth})")
    return sorted({i % depth for i in indices})


def check_replaceable(model: nn.Module, layers: Iterable[str]) -> None:
    """Refuses a layer whose weight or bias is not a parameter of its own, before another takes its place.

    Args:
        layers: Their names in the model.
    """
    own = {name for name, _ in model.named_parameters()}  # one that is shared has its first name only
    for layer in layers:
        if not {f"{layer}.weight", f"{layer}.bias"} <= own:
            raise ValueError(
                f"the weight or bias of {layer} is computed (parametrize, prune) or shared, so no other can "
                "take its place: call remove_parametrizations or prune.remove, or give it a copy"
            )
