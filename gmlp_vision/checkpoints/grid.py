"""Which grid the tokens of a file lie on. W does not say it: 64 tokens may be 8 x 8, or 4 x 16."""

import math
from collections.abc import Mapping
from typing import Any, NamedTuple

from gmlp_vision.errors import CheckpointError

Grid = tuple[int, int]

BY_CFG = "by the input_size of the model's pretrained cfg"


class SourceGrid(NamedTuple):
    """The grid of a file, and how it is known.

    Attributes:
        size: (H, W), in tokens.
        how: Who says so, for the report.
        doubtful: Whether a person should look at it: a guess, or not the only grid that is stated.
    """

    size: Grid
    how: str
    doubtful: bool = False


def source_grid(
    tokens: int,
    patch_size: tuple[int, int],
    config: Mapping[str, Any],
    grid: Grid | None = None,
    overlaid_cfg: Mapping[str, Any] | None = None,
    own: Grid | None = None,
    pretrained_cfg: Mapping[str, Any] | None = None,
) -> SourceGrid:
    """The grid of a file: the first of these that has N tokens.

    `grid`; that of the image size in the file's own config; that of the input size in `overlaid_cfg`; that of
    the model which is to take the weights; that of the input size in its `pretrained_cfg`; a square.

    Args:
        tokens: N.
        patch_size: Of the file, in pixels.
        config: What the file says of its model, in the form of timm's config.json.
        grid: As the user says.
        overlaid_cfg: On timm's way, the model's pretrained cfg, in which the user may have put a word.
        own: The grid of the model.
        pretrained_cfg: Of the model.

    Raises:
        CheckpointError: `grid` does not have N tokens, or nothing tells and N is no square number.
    """
    if grid is not None:
        if min(grid) < 1 or math.prod(grid) != tokens:
            raise CheckpointError(
                f"the grid {grid[0]} x {grid[1]} has {math.prod(grid)} tokens, but W is {tokens} x {tokens}: "
                f"height and width are at least 1, and their product is {tokens}"
            )
        return SourceGrid(grid, "as given")
    side = math.isqrt(tokens)
    overlaid = _divide((overlaid_cfg or {}).get("input_size"), patch_size)
    rival = ""
    if own is not None and own != overlaid and math.prod(own) == tokens:
        rival = (
            f"; the model's own, {own[0]} x {own[1]}, has as many: if the file was trained on that one, "
            "give its image as `input_size` in pretrained_cfg_overlay"
        )
    candidates = [
        *_stated(config, patch_size),
        (overlaid, BY_CFG + rival, bool(rival)),
        (own, "as the model's own", False),
        (_divide((pretrained_cfg or {}).get("input_size"), patch_size), BY_CFG, False),
        ((side, side), "guessed to be square, since nothing states it", True),
    ]
    for size, how, doubtful in candidates:
        if size is not None and min(size) > 0 and math.prod(size) == tokens:
            return SourceGrid(size, how, doubtful)
    raise CheckpointError(
        f"W is over {tokens} tokens, and nothing tells their grid: give `grid=(H, W)`, on the command line "
        "`--grid H W`, or on timm's way the image's `input_size` in pretrained_cfg_overlay"
    )


def _stated(config: Mapping[str, Any], patch_size: tuple[int, int]) -> list[tuple[Grid | None, str, bool]]:
    """The grids that a config in the form of timm's config.json states and where, the surest first."""
    args, cfg = config.get("model_args"), config.get("pretrained_cfg", config)
    made = args.get("img_size") if isinstance(args, Mapping) else None
    used = cfg.get("input_size") if isinstance(cfg, Mapping) else None
    return [
        (_divide(made, patch_size), "by the img_size in its config", False),
        (_divide(used, patch_size), "by the input_size in its config", False),
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
