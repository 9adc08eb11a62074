"""What a checkpoint or a model name is, in words, before anything is built from it."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import timm
from timm.models import is_model, split_model_name_tag

from gmlp_vision.checkpoints import families
from gmlp_vision.checkpoints.build import size_of
from gmlp_vision.checkpoints.candidates import DEPTHS, Identity, is_own
from gmlp_vision.checkpoints.grid import stem_of
from gmlp_vision.checkpoints.hub import page_of, released_at
from gmlp_vision.checkpoints.identify import identify
from gmlp_vision.checkpoints.read import Checkpoint, read_checkpoint
from gmlp_vision.checkpoints.report import first_five
from gmlp_vision.errors import CheckpointError
from gmlp_vision.layers.grid_tied import tied_layers

WIDTHS = ("embed_dim", "embed_dims")


def describe(source: str | Path, *, model: str | None = None, prefix: str | None = None) -> dict[str, str]:
    """What there is to say about a checkpoint, or about a model by its name, which then is not downloaded.

    Args:
        source: As for `read_checkpoint`.
        model: The registered name of the model in it, where its tensors leave that open.
        prefix: Of the network that is meant, where the source holds more than one; see `read_checkpoint`.

    Returns:
        Titles and values, in the order of reading.

    Raises:
        CheckpointError: The source cannot be read, or holds no model that is known here, or a name has no
            such tag.
        ValueError: `model` is a name of no known family, or it or a prefix is given for a model name.
    """
    families.check_model(model)
    name = str(source)
    if is_model(split_model_name_tag(name)[0]) and not Path(name).exists():
        for title, value in (("prefix", prefix), ("model", model)):
            if value is not None:
                raise ValueError(f"{title} is {value!r}, which is of a file; {name} is the name of a model")
        return _describe_name(name)
    checkpoint = read_checkpoint(source, prefix=prefix)
    identity = identify(checkpoint, model=model)
    return {
        "source": checkpoint.source,
        "sha256": checkpoint.sha256,
        "weights": checkpoint.weights,
        "names": identity.layout,
        **_describe_model(identity, checkpoint),
        "settings": _in_words(identity.settings) or "none stated",
        **({"note": "; ".join(checkpoint.notes)} if checkpoint.notes else {}),
        **({"beside it": first_five(list(checkpoint.outside))} if checkpoint.outside else {}),
    }


def _describe_name(name: str) -> dict[str, str]:
    place = released_at(name)
    config = {"architecture": split_model_name_tag(name)[0]}
    model = timm.create_model(name, device="meta")
    checkpoint = Checkpoint(model.state_dict(), config, name, "raw", "")
    return {
        "source": name,
        "weights": _place(place, page_of(name)),
        **_describe_model(identify(checkpoint), checkpoint),
    }


def _place(place: Path | str | None, page: str | None) -> str:
    if page is not None:
        return f"behind a page, {page}"
    if isinstance(place, str) and "://" not in place:
        return f"hf-hub:{place}"
    return str(place or "none released")


def _describe_model(identity: Identity, checkpoint: Checkpoint) -> dict[str, str]:
    tensors = identity.tensors
    try:
        size = size_of(identity, checkpoint)
    except CheckpointError:
        size = None
    if not tied_layers(identity.model):
        image, grid = _any_size(identity.model), "any: nothing belongs to one"
    elif size is None:
        image, grid = "of unknown size", "of the tokens: nothing states it"
    else:
        image = f"{size.image[0]} x {size.image[1]} pixels"
        stages = getattr(identity.model, "stage_grids", None)
        grids = [size.grid] if stages is None else stages(size.image)
        grid = f"{', '.join(f'{h} x {w}' for h, w in grids)} tokens, {size.how}"
    stem = stem_of(identity.model, tensors)
    # a batch norm counts its batches in whole numbers, whatever the dtype of the weights
    dtypes = {str(t.dtype).removeprefix("torch.") for t in tensors.values() if t.is_floating_point()}
    buffers = {name for name, _ in identity.model.named_buffers()}
    return {
        "architecture": _architecture(identity),
        **_shape(identity),
        "image": f"{identity.in_chans} channels, {image}",
        **({"patch": f"{stem.patch_size[0]} x {stem.patch_size[1]} pixels"} if stem.patch_size else {}),
        "grid": grid,
        "classes": str(identity.num_classes),
        "dtype": ", ".join(sorted(dtypes)),
        "parameters": f"{sum(t.numel() for name, t in tensors.items() if name not in buffers):,}",
    }


def _any_size(model: Any) -> str:
    step: tuple[int, int] = getattr(model, "size_step", (1, 1))
    return "of any size" if step == (1, 1) else f"of any multiple of {step[0]} x {step[1]} pixels"


def _architecture(identity: Identity) -> str:
    # timm writes the pooling into every config; where it makes another model, it is a setting
    passed_over = {*identity.settings, "global_pool"}
    resized = [key for key in identity.args if key not in passed_over and is_own(key)]
    if resized or identity.name is None:
        return f"{families.title(identity.family)}, of a size without a name"
    return identity.name


def _shape(identity: Identity) -> dict[str, str]:
    """Depth, width and the kind of W, as far as the arguments tell them; nothing of a dense W."""
    told = {
        **families.sizes_of_name(str(identity.name)),
        **(families.sizes_of(identity.family, identity.tensors) or {}),
        **identity.args,
    }
    depth, width = (next((told[key] for key in keys if key in told), None) for keys in (DEPTHS, WIDTHS))
    hidden = f", hidden {_numbers(_alike(told['mlp_ratio']))} times that" if "mlp_ratio" in told else ""
    kind, groups = told.get("spatial", "dense"), told.get("groups", 1)
    return {
        **({} if depth is None else {"depth": _numbers(depth)}),
        **({} if width is None else {"width": f"{_numbers(width)}{hidden}"}),
        **({} if kind == "dense" else {"W": kind if groups == 1 else f"{kind}, in {groups} groups"}),
    }


def _numbers(value: Any) -> str:
    return ", ".join(f"{v:g}" for v in value) if isinstance(value, list | tuple) else f"{value:g}"


def _alike(value: Any) -> Any:
    """One value for all stages, where they have the same."""
    return value[0] if isinstance(value, list | tuple) and len(set(value)) == 1 else value


def _in_words(args: Mapping[str, Any]) -> str:
    return ", ".join(f"{name}={value}" for name, value in args.items())
