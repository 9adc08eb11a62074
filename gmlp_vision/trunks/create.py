"""A registered model through timm's builder: the same few lines for every family."""

from collections.abc import Callable, Mapping
from functools import partial
from typing import Any

import torch
from timm.models import build_model_with_cfg

from gmlp_vision.checkpoints import checkpoint_filter_fn, data_allowed, explain_hub_errors, refuse_page
from gmlp_vision.errors import CheckpointError
from gmlp_vision.trunks.trunk import Trunk


def cfg(**kwargs: Any) -> dict[str, Any]:
    """An entry of a family's `default_cfgs`, for a model at 224 px unless told otherwise."""
    return {
        "num_classes": 1000,
        "input_size": (3, 224, 224),
        "fixed_input_size": True,
        "crop_pct": 0.875,
        "interpolation": "bicubic",
        "mean": (0.5, 0.5, 0.5),
        "std": (0.5, 0.5, 0.5),
        "first_conv": "stem.proj",
        "classifier": "head",
        "license": "apache-2.0",
        **kwargs,
    }


def create(
    variant: str,
    model: Callable[..., Trunk],
    sizes: Mapping[str, Mapping[str, Any]],
    pretrained: bool = False,
    **kwargs: Any,
) -> Trunk:
    """What an entrypoint returns.

    Args:
        variant: The registered name.
        model: Makes the model from its arguments.
        sizes: The arguments of each name; what the user or the cfg says goes before them.
        pretrained: Whether to load the weights that the cfg names.
        kwargs: Of the entrypoint, and so of the model.

    Raises:
        CheckpointError: The weights cannot be had, or do not fit.
    """
    # the last three blocks of an isotropic model, all stages of a pyramid
    stages = {**sizes[variant], **kwargs}.get("depths")
    out_indices = kwargs.pop("out_indices", len(stages) if stages else 3)
    # A model of varying size is made at one size too, and timm reads that off the cfg only where it is fixed.
    # The cfg may come from the folder of a model of the other kind.
    overlay = {**(kwargs.pop("pretrained_cfg_overlay", None) or {}), "fixed_input_size": True}
    if overlay.keys() & {"hf_hub_id", "url"}:
        overlay.setdefault("file", None)  # timm would take the cfg's own file before them
    tag = kwargs.get("pretrained_cfg") or ""
    if (
        pretrained
        and isinstance(tag, str)
        and not overlay.keys() & {"hf_hub_id", "url", "file", "state_dict"}
    ):
        refuse_page(f"{variant}.{tag}".rstrip("."))
    device = torch.device(kwargs.get("device") or torch.get_default_device())
    if pretrained and device.type == "meta":
        raise CheckpointError(
            f"{variant}: timm loads nothing into a model on the meta device. Create it without "
            "pretrained=True, then `gmlp_vision.load_checkpoint(model, SOURCE)` gives it weights, on the CPU"
        )
    # many released files hold the arguments of their training and the like, which run nothing
    with explain_hub_errors(variant), data_allowed():
        built: Any = build_model_with_cfg(
            partial(model, **sizes[variant]),
            variant,
            pretrained,
            pretrained_cfg_overlay=overlay,
            pretrained_filter_fn=checkpoint_filter_fn,
            feature_cfg={"out_indices": out_indices, "feature_cls": "getter"},
            **kwargs,
        )
    trunk: Trunk = getattr(built, "model", built)  # features_only wraps it
    built.default_cfg["fixed_input_size"] = trunk.fixed_input_size
    return built
