"""What no tensor shows: the arguments, such as a norm's eps, with which a model computes something else."""

from collections.abc import Mapping
from functools import cache
from typing import Any

import timm

from gmlp_vision.errors import CheckpointError
from gmlp_vision.layers.sized import sized


def settings_of(model: Any) -> dict[str, Any]:
    """The settings of a model; none of one that does not tell."""
    tell = getattr(sized(model) or model, "settings", None)
    return tell() if callable(tell) else {}


@cache
def settings_of_name(name: str) -> Mapping[str, Any]:
    """The settings of a registered name as it is by default."""
    return settings_of(timm.create_model(name, device="meta"))


def stated_settings(config: Mapping[str, Any], own: Mapping[str, Any]) -> dict[str, Any]:
    """What a config states of the settings that a model has.

    Args:
        config: In the form of timm's config.json.
        own: The settings of the model.

    Raises:
        CheckpointError: The config has something else in their place.
    """
    args = config.get("model_args")
    stated = {k: args[k] for k in own if k in args} if isinstance(args, Mapping) else {}
    for name, value in stated.items():
        if not _of_the_kind(value, own[name]):
            raise CheckpointError(f"the file's config says {name}={value!r}, which is no value for it")
    return stated


def check_settings(model: Any, settings: Mapping[str, Any], source: str) -> None:
    """Refuses a model that would compute something else from the same tensors."""
    own = settings_of(model)
    for name, value in differing(settings, own).items():
        raise CheckpointError(
            f"{source} was trained with {name}={value}, and this model has {name}={own[name]}, which "
            f"computes something else: create the model with {name}={value}"
        )


def differing(settings: Mapping[str, Any], own: Mapping[str, Any]) -> dict[str, Any]:
    """Those of `settings` that a model with the settings `own` has, and with another value."""
    return {k: v for k, v in settings.items() if k in own and _plain(own[k]) != _plain(v)}


def _of_the_kind(value: Any, own: Any) -> bool:
    if isinstance(own, float):
        return isinstance(value, float | int) and not isinstance(value, bool)
    return type(_plain(value)) is type(_plain(own))


def _plain(value: Any) -> Any:
    return [_plain(v) for v in value] if isinstance(value, list | tuple) else value  # as JSON has it
