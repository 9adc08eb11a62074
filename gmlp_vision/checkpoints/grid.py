"""Which grid the tokens of a file lie on. W does not say it: 64 tokens may be 8 x 8, or 4 x 16."""

import math
from collections.abc import Mapping
from typing import Any

from gmlp_vision.errors import CheckpointError

Grid = tuple[int, int]

GUESSED = "guessed to be square, since nothing states it"


def source_grid(
    tokens: int,
    patch_size: tuple[int, int],
    config: Mapping[str, Any],
    grid: Grid | None = None,
    own: Grid | None = None,
    pretrained_cfg: Mapping[str, Any] | None = None,
) -> tuple[Grid, str]:
    """The grid (H, W) of a file, and who says so.

    It is the first of these that has N tokens: `grid`; that of the image size in the file's own config; that
    of the model which is to take the weights; that of the input size in its pretrained cfg; a square.

    Args:
        tokens: N.
        patch_size: Of the file, in pixels.
        config: What the file says of its model, in the form of timm's config.json.
        grid: As the user says.
        own: The grid of the model.
        pretrained_cfg: Of the model.

    Raises:
        CheckpointError: `grid` does not have N tokens, or nothing tells and N is no square number.
    """
    if grid is not None:
        if math.prod(grid) != tokens:
            raise CheckpointError(
                f"the grid {grid[0]} x {grid[1]} has {math.prod(grid)} tokens, but W is {tokens} x {tokens}"
            )
        return grid, "as given"
    side = math.isqrt(tokens)
    candidates = [
        *_stated(config, patch_size),
        (own, "as the model's own"),
        (
            _divide((pretrained_cfg or {}).get("input_size"), patch_size),
            "by the input_size of the model's cfg",
        ),
        ((side, side), GUESSED),
    ]
    for candidate, how in candidates:
        if candidate is not None and math.prod(candidate) == tokens:
            return candidate, how
    raise CheckpointError(
        f"W is over {tokens} tokens, and nothing tells their grid: give the image's `input_size` in timm's "
        "pretrained_cfg_overlay, `grid=(H, W)` to load_checkpoint, or `--grid H W` to gmlp-vision convert"
    )


def _stated(config: Mapping[str, Any], patch_size: tuple[int, int]) -> list[tuple[Grid | None, str]]:
    """The grids that a config in the form of timm's config.json states and where, the surest first."""
    args, cfg = config.get("model_args"), config.get("pretrained_cfg", config)
    made = args.get("img_size") if isinstance(args, Mapping) else None
    used = cfg.get("input_size") if isinstance(cfg, Mapping) else None
    return [
        (_divide(made, patch_size), "by the img_size in its config"),
        (_divide(used, patch_size), "by the input_size in its config"),
    ]


def _divide(size: Any, patch_size: tuple[int, int]) -> Grid | None:
    """The grid of an image of H, (H, W) or (C, H, W) pixels; None for what else a config may hold."""
    if isinstance(size, int):
        size = (size, size)
    if not isinstance(size, list | tuple) or len(size) not in (2, 3):
        return None
    height, width = size[-2:]
    if not (isinstance(height, int) and isinstance(width, int)):
        return None
    return height // patch_size[0], width // patch_size[1]
