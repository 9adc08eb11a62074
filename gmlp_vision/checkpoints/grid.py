"""Which image size a file is of. Its tensors do not say it: 64 tokens may be 8 x 8, or 4 x 16.

Sizes and grids are (height, width), the one in pixels and the other in tokens.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping
from itertools import count, islice
from typing import Any, NamedTuple

from torch import nn

from gmlp_vision.checkpoints.families import part
from gmlp_vision.checkpoints.names import Tensors
from gmlp_vision.checkpoints.values import LARGEST_SIDE
from gmlp_vision.errors import CheckpointError
from gmlp_vision.layers.grid_tied import tied_layers
from gmlp_vision.layers.resample import Grid
from gmlp_vision.layers.rules import Rule
from gmlp_vision.layers.sized import sized

BY_CFG = "by the input_size of the model's pretrained cfg"
BY_SHAPE = "by the shapes of its tensors"
GUESSED = "guessed to be square, since nothing states it"
ADVICE = (
    "give `grid=(H, W)`, on the command line `--grid H W`, or on timm's way the image's `input_size` in "
    "pretrained_cfg_overlay"
)
LARGEST_GUESS = 256  # tokens a side


class SourceSize(NamedTuple):
    """The size of a file, and how it is known.

    Attributes:
        grids: Of each layer that belongs to one, by its name.
        image: In pixels.
        grid: Of the tokens behind the stem.
        how: Who says so, for the report.
        doubtful: Whether a person should look at it: a guess, or not the only size that is stated.
    """

    grids: Mapping[str, Grid]
    image: Grid
    grid: Grid
    how: str
    doubtful: bool = False


class Stem(NamedTuple):
    """How a file's stem cuts an image.

    Attributes:
        reduction: Pixels of the image a token, on each axis.
        patch_size: The same, where the model could take another; else None.
    """

    reduction: Grid
    patch_size: Grid | None


def source_size(
    tensors: Tensors,
    model: Any,
    config: Mapping[str, Any],
    grid: Grid | None = None,
    *,
    overlaid_cfg: Mapping[str, Any] | None = None,
    own: bool = True,
) -> SourceSize | None:
    """The first size that is stated, or may be guessed, at which the model's tensors have the file's shapes.

    Args:
        tensors: Of the file, in our names.
        model: A model that has these tensors, at whatever size.
        config: What the file says of its model, in the form of timm's config.json.
        grid: As the user says.
        overlaid_cfg: On timm's way, the model's pretrained cfg, in which the user may have put a word.
        own: Whether the model's own size is one that the file may have.

    Returns:
        The size; None where no grid at all gives the tensors their shapes.

    Raises:
        CheckpointError: The file does not have the shapes of `grid`, or nothing tells its size.
    """
    parts = sized(model)
    layers = tied_layers(model)
    rules = {
        f"{name}.{key}": (name, rule) for name, layer in layers.items() for key, rule in layer.RULES.items()
    }
    stem = stem_of(model, tensors)

    def at(image: Grid) -> Mapping[str, Grid] | None:
        try:
            grids: Mapping[str, Grid] = parts.grids(image, stem.patch_size)
        except ValueError:  # no image of this model
            return None
        if not _fit(tensors, rules, grids):
            return None
        # a tensor that is alike on every grid and goes to no other can only be of the model's own
        bound = {layer for layer, rule in rules.values() if rule.refusal and not rule.leading((1, 1))}
        return grids if all(grids[layer] == layers[layer].grid_size for layer in bound) else None

    for told in _told(tensors, rules):
        grids = at(_pixels(told, stem.reduction))
        if grids is None:  # another tensor is misshapen, or a layer has another grid than the stem
            continue
        if grid not in (None, told):
            raise CheckpointError(
                f"the grid {grid[0]} x {grid[1]} is given, and the shapes of the file's tensors are those of "
                f"{told[0]} x {told[1]}"
            )
        return SourceSize(grids, _pixels(told, stem.reduction), told, BY_SHAPE)
    image = None
    if own or not rules:
        (height, width), _ = parts.sizes(None, None)
        tall, wide = stem_of(model, {}).reduction
        image = _pixels((height // tall, width // wide), stem.reduction)
    try:
        return first_that_fits(
            at, stem.reduction, config, grid, overlaid_cfg, image, getattr(model, "pretrained_cfg", None)
        )
    except CheckpointError as error:
        name = next(iter(rules), None)
        if name is None:
            raise
        # a single row of as many tokens as the first tensor has, one of which may be the class token's: if
        # not even that, a tensor is misshapen
        shape = tuple(tensors[name].shape) if name in tensors else ()
        tokens = shape[rules[name][1].axis :][:1]
        rows = [n - prefix for n in tokens for prefix in (0, getattr(model, "num_prefix_tokens", 0))]
        if all(at(_pixels((1, n), stem.reduction)) is None for n in rows):
            return None
        raise CheckpointError(f"{name} is {shape}: {error}") from error


def first_that_fits(
    at: Callable[[Grid], Mapping[str, Grid] | None],
    reduction: Grid,
    config: Mapping[str, Any],
    grid: Grid | None = None,
    overlaid_cfg: Mapping[str, Any] | None = None,
    own: Grid | None = None,
    pretrained_cfg: Mapping[str, Any] | None = None,
) -> SourceSize:
    """The first of these image sizes that fits.

    That of `grid`; that of the file's own config; the input size in `overlaid_cfg`; that of the model which
    is to take the weights; the input size in its `pretrained_cfg`; a square.

    Args:
        at: From an image size to the grids that it means, or None where the file is not of this size.
        reduction: Pixels of the image a token, on each axis.
        config, grid, overlaid_cfg: As in `source_size`.
        own: The image size of the model, in pixels of the file.
        pretrained_cfg: Of the model.

    Raises:
        CheckpointError: `grid` does not fit, or nothing does.
    """

    def found(image: Grid, how: str, doubtful: bool = False) -> SourceSize | None:
        grids = at(image)
        if grids is None:
            return None
        return SourceSize(grids, image, (image[0] // reduction[0], image[1] // reduction[1]), how, doubtful)

    if grid is not None:
        given = found(_pixels(grid, reduction), "as given") if min(grid) > 0 else None
        if given is None:
            raise CheckpointError(
                f"the grid {grid[0]} x {grid[1]} has {grid[0] * grid[1]} tokens, the file another number: "
                "height and width are at least 1, and their product is the count of tokens"
            )
        return given
    for image, how, doubtful in _stated(config, overlaid_cfg, own, pretrained_cfg, at):
        if (size := found(image, how, doubtful)) is not None:
            return size
    for image in _squares(reduction):
        if (size := found(image, GUESSED, True)) is not None:
            return size
    raise CheckpointError(f"nothing tells the grid of the file's tokens: {ADVICE}")


def _stated(
    config: Mapping[str, Any],
    overlaid_cfg: Mapping[str, Any] | None,
    own: Grid | None,
    pretrained_cfg: Mapping[str, Any] | None,
    at: Callable[[Grid], Any],
) -> Iterator[tuple[Grid, str, bool]]:
    """(image size, who says so, whether it is doubtful), the surest first."""
    args, cfg = config.get("model_args"), config.get("pretrained_cfg", config)
    made = _image(args.get("img_size")) if isinstance(args, Mapping) else None
    used = _image(cfg.get("input_size")) if isinstance(cfg, Mapping) else None
    overlaid = _image((overlaid_cfg or {}).get("input_size"))
    released = _image((pretrained_cfg or {}).get("input_size"))
    rival = ""
    if own is not None and overlaid is not None and own != overlaid and at(own) is not None:
        rival = (
            f"; the model's own size, {own[0]} x {own[1]} pixels of the file, would fit too: if the file was "
            "trained at that one, give it as `input_size` in pretrained_cfg_overlay"
        )
    candidates = [
        (made, "by the img_size in its config", False),
        (used, "by the input_size in its config", False),
        (overlaid, BY_CFG + rival, bool(rival)),
        (own, "as the model's own", False),
        (released, BY_CFG, False),
    ]
    for image, how, doubtful in candidates:
        if image is not None:
            yield image, how, doubtful


def _told(tensors: Tensors, rules: Mapping[str, tuple[str, Rule]]) -> Iterator[Grid]:
    """The grids that single tensors tell by their shapes."""
    for name, (_, rule) in rules.items():
        told = rule.grid_of(tuple(tensors[name].shape)) if name in tensors else None
        if told is not None:
            yield told


def _squares(reduction: Grid) -> Iterable[Grid]:
    return (_pixels((side, side), reduction) for side in islice(count(1), LARGEST_GUESS))


def _fit(tensors: Tensors, rules: Mapping[str, tuple[str, Rule]], grids: Mapping[str, Grid]) -> bool:
    return all(
        name in tensors and rule.fits(tensors[name], grids[layer]) for name, (layer, rule) in rules.items()
    )


def stem_of(model: Any, tensors: Tensors) -> Stem:
    """How the stem cuts an image: by the file's kernel where it cuts patches, else as the model's does."""
    first_conv = part(model, "first_conv")
    conv = None if first_conv is None else model.get_submodule(first_conv)
    if not isinstance(conv, nn.Conv2d):
        (height, width), _ = sized(model).sizes(None, None)
        rows, columns = next((layer.grid_size for layer in tied_layers(model).values()), (height, width))
        return Stem((height // rows, width // columns), None)
    stride = (conv.stride[0], conv.stride[1])
    if conv.kernel_size != conv.stride:
        return Stem(stride, None)
    kernel = tensors.get(f"{first_conv}.weight")
    if kernel is not None and kernel.ndim == 4 and min(kernel.shape) > 0:
        stride = (kernel.shape[2], kernel.shape[3])
    return Stem(stride, stride)


def _pixels(grid: Grid, reduction: Grid) -> Grid:
    return grid[0] * reduction[0], grid[1] * reduction[1]


def _image(size: Any) -> Grid | None:
    """An image of H, (H, W) or (C, H, W) pixels as (height, width); None for what else a config may hold."""
    if isinstance(size, int):
        size = (size, size)
    if not isinstance(size, list | tuple) or len(size) not in (2, 3):
        return None
    height, width = size[-2:]
    fit = all(type(side) is int and 1 <= side <= LARGEST_SIDE for side in (height, width))
    return (height, width) if fit else None
