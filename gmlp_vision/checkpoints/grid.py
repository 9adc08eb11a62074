"""Which grid the tokens of a file lie on. W does not say it: 64 tokens may be 8 x 8, or 4 x 16."""

import math
from collections.abc import Mapping
from typing import Any

from gmlp_vision.errors import CheckpointError

Grid = tuple[int, int]


def source_grid(
    tokens: int,
    patch_size: tuple[int, int],
    config: Mapping[str, Any],
    grid: Grid | None = None,
    own: Grid | None = None,
    pretrained_cfg: Mapping[str, Any] | None = None,
) -> tuple[Grid, str]:
    """The grid (H, W) of a file and who says so.

    The first of these with H * W = N: `grid`; the image size that the file's own config states; the grid of the
    model that is to take it; the input size of that model's pretrained cfg; a square.

    Args:
        tokens: N.
        patch_size: Of the file, in pixels.
        config: The file's own, in the form of timm's config.json, or {}.
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
    candidates = [(_divide(size, patch_size), "stated by the file's config") for size in stated_sizes(config)]
    candidates.append((own, "not stated by the file, taken as the model's own"))
    candidates += [
        (_divide(size, patch_size), "that of the model's pretrained cfg")
        for size in stated_sizes({"pretrained_cfg": pretrained_cfg})
    ]
    side = math.isqrt(tokens)
    candidates.append(((side, side), "guessed to be square, since nothing states it"))
    for candidate, how in candidates:
        if candidate is not None and math.prod(candidate) == tokens:
            return candidate, how
    raise CheckpointError(
        f"W is over {tokens} tokens, and nothing tells their grid: give it as `input_size` in the "
        "pretrained_cfg_overlay of timm.create_model, as `grid=(H, W)` of load_checkpoint, or as `--grid H W` of "
        "gmlp-vision convert"
    )


def stated_sizes(config: Mapping[str, Any]) -> list[tuple[int, int]]:
    """Image sizes, in pixels, that a config in the form of timm's config.json states, the surest first."""
    args, cfg = config.get("model_args"), config.get("pretrained_cfg", config)
    sizes = [
        args.get("img_size") if isinstance(args, Mapping) else None,
        cfg.get("input_size") if isinstance(cfg, Mapping) else None,
    ]
    return [pair for pair in map(_pair, sizes) if pair is not None]


def _pair(size: Any) -> tuple[int, int] | None:
    """(H, W) of H, (H, W) or (C, H, W); None for anything else, since a config may hold anything."""
    if isinstance(size, int):
        size = (size, size)
    if not isinstance(size, list | tuple) or len(size) not in (2, 3) or not all(isinstance(s, int) for s in size):
        return None
    return (size[-2], size[-1]) if min(size) > 0 else None


def _divide(size: tuple[int, int], patch_size: tuple[int, int]) -> Grid:
    return size[0] // patch_size[0], size[1] // patch_size[1]
