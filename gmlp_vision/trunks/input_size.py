"""A live model to another image size, in place: one of this package, or one of timm's that a family knows."""

import torch

# What timm's own models record a change with. Private: timm.models has the functions that read the record
# (get_model_input_config, get_model_args, and so save_for_hf), but not the one that writes it.
from timm.models._input import update_model_input_size
from torch import nn

from gmlp_vision.layers.grid_tied import carry
from gmlp_vision.layers.resample import Grid
from gmlp_vision.layers.sized import Size, Sized, sized


def set_input_size(model: nn.Module, img_size: Size | None = None, patch_size: Size | None = None) -> None:
    """Carries the weights of a model, in place, to another image or patch size (docs/resampling.md).

    Call it before making an optimizer: what it changes become new parameters. timm's classes stay what they
    are, and what timm reads of the size (`get_model_input_config`, `resolve_input_data_config`,
    `save_for_hf`) is the new one.

    Args:
        model: One of this package, or timm's ResMLP, MLP-Mixer, gMixer or gMLP; not in a wrapper.
        img_size: Height and width in pixels, as int or (H, W); None for the present ones.
        patch_size: The same of a patch. A new one resizes the stem's kernel by timm's own rule.

    Raises:
        ValueError: Another model, the patch does not divide the image, a layer has no rule for another grid,
            what belongs to a grid is computed, shared, sharded or quantised, or a tool has put more of the
            grid around it (LoRA); nothing changes.
    """
    parts = sized(model)
    if parts is None:
        raise ValueError(
            f"the model is a {type(model).__name__}; expected one of this package, or timm's MlpMixer with "
            "blocks of timm's own, unwrapped"
        )
    parts.set_input_size(img_size, patch_size)


def resize(model: nn.Module, parts: Sized, img_size: Size | None, patch_size: Size | None) -> Grid:
    """What the `set_input_size` of every model does: all of it, or nothing; returns the new image size.

    Args:
        model: Changed in place.
        parts: What tells its sizes; the model itself where it is one of this package.
        img_size, patch_size: As for `set_input_size`.

    Raises:
        ValueError: As `set_input_size`.
    """
    image, patch = parts.sizes(img_size, patch_size)
    carried = carry(model, parts.grids(image, patch))  # all before any is replaced
    with torch.inference_mode(False):  # what it replaces can be trained
        parts.resize_stem(image, patch)
        for layer, grid_size, parameters in carried:
            layer.replace_grid(grid_size, parameters)
    update_model_input_size(model, image, patch_size=patch_size)
    return image
