"""What a checkpoint or a model name is, in words, before anything is built from it."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import timm
import torch
from timm.models import is_model, split_model_name_tag

from gmlp_vision.checkpoints.convert import recognise, to_ours
from gmlp_vision.checkpoints.grid import source_grid
from gmlp_vision.checkpoints.hub import released_at
from gmlp_vision.checkpoints.into_model import stated_settings
from gmlp_vision.checkpoints.load import read_checkpoint
from gmlp_vision.checkpoints.sizes import find_model, read_sizes
from gmlp_vision.errors import CheckpointError


def describe(source: str | Path) -> dict[str, str]:
    """What there is to say about a checkpoint, or about a model by its name, which then is not downloaded.

    Args:
        source: As for `read_checkpoint`.

    Returns:
        Titles and values, in the order of reading.

    Raises:
        CheckpointError: The source cannot be read, or is no gMLP, or a name has no such tag.
    """
    name = str(source)
    if is_model(split_model_name_tag(name)[0]) and not Path(name).exists():
        return _describe_model(name)
    checkpoint = read_checkpoint(source)
    layout = recognise(checkpoint.state_dict)
    settings = stated_settings(layout, checkpoint.config)
    return {
        "source": checkpoint.source,
        "sha256": checkpoint.sha256,
        "weights": checkpoint.weights,
        "names": layout,
        **_describe_tensors(to_ours(checkpoint.state_dict, layout), checkpoint.config, checkpoint.source),
        "settings": ", ".join(f"{k}={v}" for k, v in settings.items()) or "none stated",
    }


def _describe_model(name: str) -> dict[str, str]:
    place = released_at(name)
    model = timm.create_model(name, device="meta")
    return {
        "source": name,
        "weights": f"hf-hub:{place}" if isinstance(place, str) else str(place or "none released"),
        **_describe_tensors(model.state_dict(), {}, name),
    }


def _describe_tensors(
    state_dict: Mapping[str, torch.Tensor], config: Mapping[str, Any], source: str
) -> dict[str, str]:
    sizes = read_sizes(state_dict, source)
    shape, (height, width) = sizes.shape, sizes.shape["patch_size"]
    name, cfg = find_model(sizes)
    try:
        (rows, columns), how, _ = source_grid(sizes.tokens, (height, width), config, pretrained_cfg=cfg)
        grid, image = f"{rows} x {columns} tokens, {how}", f"{rows * height} x {columns * width} pixels"
    except CheckpointError:
        grid, image = f"{sizes.tokens} tokens in a grid that nothing states", "of unknown size"
    dtypes = {str(tensor.dtype).removeprefix("torch.") for tensor in state_dict.values()}
    return {
        "architecture": name or "a gMLP without a name",
        "depth": str(shape["depth"]),
        "width": f"{shape['embed_dim']}, hidden {shape['mlp_ratio']:g} times that",
        "image": f"{sizes.in_chans} channels, {image}",
        "patch": f"{height} x {width} pixels",
        "grid": grid,
        "classes": str(sizes.num_classes),
        "dtype": ", ".join(sorted(dtypes)),
        "parameters": f"{sum(tensor.numel() for tensor in state_dict.values()):,}",
    }
