"""What a model accepts. Each check refuses the rest with the value, what was expected and what to do."""

from collections.abc import Sequence

import torch
from timm.layers import to_2tuple


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


def check_pyramid_image(
    x: torch.Tensor, img_size: tuple[int, int], step: tuple[int, int], fixed_size: bool
) -> None:
    """Refuses images of another size than `img_size`; if it is not fixed, those that leave a rest."""
    height, width = x.shape[-2], x.shape[-1]
    if fixed_size and (height != img_size[0] or width != img_size[1]):
        raise ValueError(
            f"the image is {height} x {width} pixels (height x width) but this model was made for "
            f"{img_size[0]} x {img_size[1]}: resize the image, or create the model with "
            f"img_size=({height}, {width}) or, if it is of a family that can, with dynamic_img_size=True"
        )
    check_steps(height, width, step)


def check_steps(height: int, width: int, step: tuple[int, int]) -> None:
    """Refuses an image of a size, in pixels, that would leave a rest in some stage of a pyramid."""
    if height < 1 or width < 1 or height % step[0] != 0 or width % step[1] != 0:
        raise ValueError(
            f"the image is {height} x {width} pixels (height x width), and this model takes multiples of "
            f"{step[0]} x {step[1]}: resize or pad the image to one"
        )


def check_count(name: str, count: int) -> None:
    if count < 1:
        raise ValueError(f"{name} is {count}; expected at least 1")


def check_rate(name: str, rate: float) -> None:
    if not 0.0 <= rate < 1.0:
        raise ValueError(f"{name} is {rate}; expected a probability in [0, 1)")


def check_pool(global_pool: str, class_token: bool) -> None:
    if global_pool not in ("avg", "", *(["token"] if class_token else [])):
        token = ", 'token' for the class token" if class_token else ""
        raise ValueError(f"global_pool is {global_pool!r}; expected 'avg'{token}, or '' for no pooling")
