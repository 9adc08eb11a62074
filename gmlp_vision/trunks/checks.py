"""What a model accepts. Each check refuses the rest with the value, what was expected and what to do."""

import math
from collections.abc import Iterable, Mapping
from numbers import Integral, Real
from typing import Any

import torch

Pair = tuple[int, int]


def check_divides(img_size: Any, patch_size: Any) -> tuple[Pair, Pair]:
    """Both as (height, width), if the patch divides the image; timm would drop what remains in silence.

    Raises:
        ValueError: It does not, or one of them is no size.
    """
    sizes, patches = pixels("img_size", img_size), pixels("patch_size", patch_size)
    for axis, size, patch in zip(("height", "width"), sizes, patches, strict=True):
        if size < 1 or patch < 1 or size % patch:
            raise ValueError(
                f"img_size has a {axis} of {size} pixels, which a patch of {patch} does not divide; "
                f"choose a multiple of {patch}"
            )
    return sizes, patches


def pixels(name: str, size: Any) -> Pair:
    """A size as (height, width).

    Raises:
        ValueError: It is none.
    """
    pair = tuple(size) if isinstance(size, Iterable) and not isinstance(size, str) else (size, size)
    if len(pair) != 2 or not all(_is_whole(x) for x in pair):
        raise ValueError(
            f"{name} is {size!r}; expected whole pixels, one number or (H, W), such as {name}=32 or "
            f"{name}=(32, 48)"
        )
    return int(pair[0]), int(pair[1])


def _is_whole(value: Any) -> bool:
    return isinstance(value, Integral) and not isinstance(value, bool)


def check_batch(x: torch.Tensor, in_chans: int) -> None:
    """Refuses what is no batch (B, in_chans, height, width) of floats, and says what it looks like."""
    shape = list(x.shape)
    if len(shape) == 3 and shape[0] == in_chans:
        raise ValueError(
            f"the input is {shape}, which looks like one image, (C, height, width): give a batch, "
            "`images[None]`"
        )
    if len(shape) == 3 and shape[2] == in_chans:
        raise ValueError(
            f"the input is {shape}, which looks like one image, (height, width, C): give a batch with the "
            "channels first, `images.permute(2, 0, 1)[None]`"
        )
    if len(shape) != 4:
        raise ValueError(f"the input is {shape}; expected a batch of images, (B, {in_chans}, height, width)")
    if shape[1] != in_chans and shape[3] == in_chans:
        raise ValueError(
            f"the input is {shape}, which looks like (B, height, width, C): give the channels first, "
            "`images.permute(0, 3, 1, 2)`"
        )
    if shape[1] != in_chans:
        raise ValueError(
            f"the images have {shape[1]} channels, and this model takes {in_chans}: convert them, or create "
            f"the model with in_chans={shape[1]}"
        )
    if not x.is_floating_point():
        raise ValueError(
            "the images are whole numbers; expected floats, normalised by the mean and std of the model's "
            "training: timm.data.create_transform makes a transform that does both"
        )


def check_image(x: torch.Tensor, img_size: tuple[int, int], step: tuple[int, int], fixed_size: bool) -> None:
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
    """Refuses a size, in pixels, that the patch, or what a stage of a pyramid takes, does not divide."""
    if height < 1 or width < 1 or height % step[0] != 0 or width % step[1] != 0:
        raise ValueError(
            f"the image is {height} x {width} pixels (height x width), and this model takes multiples of "
            f"{step[0]} x {step[1]}: resize or pad the image to one"
        )


def check_count(name: str, count: Any, least: int = 1) -> None:
    if not _is_whole(count):
        raise ValueError(f"{name} is {count!r}; expected a whole number of at least {least}")
    if count < least:
        raise ValueError(f"{name} is {count}; expected at least {least}")


def check_rate(name: str, rate: Any) -> None:
    if not isinstance(rate, Real) or not 0.0 <= float(rate) < 1.0:
        raise ValueError(f"{name} is {rate!r}; expected a probability in [0, 1)")


def check_eps(eps: Any) -> None:
    if not isinstance(eps, Real) or not 0.0 <= float(eps) < math.inf:
        raise ValueError(f"norm_eps is {eps!r}; expected a small number, such as 1e-6")


def check_pool(global_pool: str, class_token: bool) -> None:
    if global_pool not in ("avg", "", *(["token"] if class_token else [])):
        token = ", 'token' for the class token" if class_token else ""
        raise ValueError(f"global_pool is {global_pool!r}; expected 'avg'{token}, or '' for no pooling")


def check_fixed(kwargs: Mapping[str, Any], *names: str) -> None:
    """Refuses arguments of the trunk that a family decides.

    Python would refuse them too, as given twice; but while another exception is being handled, Python 3.11
    says so with a bare KeyError.
    """
    given = [name for name in names if name in kwargs]
    if given:
        raise TypeError(f"{given[0]} is fixed in this family; create the model without it")
