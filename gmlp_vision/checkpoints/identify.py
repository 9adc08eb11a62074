"""What a checkpoint is: whose names it has, of which family, of which size, with which settings."""

from collections.abc import Iterator, Mapping
from dataclasses import replace
from types import ModuleType
from typing import Any

from gmlp_vision.checkpoints import families
from gmlp_vision.checkpoints.candidates import Identity, Reading, create
from gmlp_vision.checkpoints.names import OWN, Tensors
from gmlp_vision.checkpoints.read import Checkpoint
from gmlp_vision.checkpoints.report import first_five
from gmlp_vision.checkpoints.settings import differing, settings_of, stated_settings
from gmlp_vision.errors import CheckpointError


def identify(
    checkpoint: Checkpoint,
    *,
    model: str | None = None,
    layout: str | None = None,
    patch_size: tuple[int, int] | None = None,
) -> Identity:
    """What a checkpoint is: what the user or its config says, if its tensors agree; else what they show.

    Where its sizes are those of a family, but not all of its tensors, it is taken for that family's: who goes
    on to load it learns which are wrong.

    Args:
        checkpoint: As read.
        model: The registered name of such a model.
        layout: Whose names the file has.
        patch_size: (height, width) of its patch in pixels, where a stem that is a matrix leaves it open.

    Raises:
        ValueError: An unknown layout, or a name of no known family.
        CheckpointError: It is of no known family, may be of several models that compute something else, or
            holds what the family that knows its names refuses.
    """
    families.check_layout(layout)
    families.check_model(model)
    state = checkpoint.state_dict
    nearest: list[Identity] = []
    spoken: dict[str, None] = {}
    for places in _places(state, checkpoint.config, model, layout):
        readings = [
            Reading(family, names, state, checkpoint.config, layout, patch_size) for family, names in places
        ]
        exact, refusals = _exact(readings)
        if exact:
            return _with_settings(_the_only(exact, checkpoint.source), checkpoint)
        if refusals:
            raise refusals[0]
        nearest += [found for reading in readings for found in reading.by_sizes]
        spoken |= dict.fromkeys(reading.in_words for reading in readings if reading.depends_on_sizes)
    if nearest:
        return _with_settings(nearest[0], checkpoint)
    if spoken:
        raise CheckpointError(
            f"{checkpoint.source} has the names of {' or '.join(spoken)}, of none of its registered sizes; "
            "there the names depend on the sizes: create the model with its own, and call "
            "`gmlp_vision.load_checkpoint(model, FILE)`"
        )
    known = ", ".join(families.title(family) for family in families.families())
    raise CheckpointError(
        f"{checkpoint.source} does not hold the weights of {model or 'a model known here'} ({known}), in "
        f"names that are known; its tensors are {first_five(list(checkpoint.state_dict))}"
    )


def _exact(readings: list[Reading]) -> tuple[list[Identity], list[CheckpointError]]:
    """The models that have all the tensors, and the refusals of what one family cannot read.

    Another family may: the same layout may name the tensors of both.
    """
    found, refusals = [], []
    for reading in readings:
        try:
            found += reading.exact()
        except CheckpointError as error:
            refusals.append(error)
    return found, refusals


def _places(
    state: Tensors, config: Mapping[str, Any], model: str | None, layout: str | None
) -> Iterator[list[tuple[ModuleType, list[str]]]]:
    """Where to look, families with some of their names, the surest first."""
    named = model or config.get("architecture")
    family = families.family_of_name(named)
    if family is not None:
        yield [(family, [str(named)])]
    if model is not None:
        return
    found = families.families()
    if layout is None:
        found = [f for f in found if families.recognise(state, f) != OWN] or found
    yield [(family, families.names_of(family)) for family in found]


def _the_only(found: list[Identity], source: str) -> Identity:
    """The first of the models that fit, if the others compute the same.

    Raises:
        CheckpointError: They do not.
    """
    first, own = found[0], settings_of(found[0].model)
    rivals = [
        other
        for other in found
        if other.family is not first.family or differing(settings_of(other.model), own)
    ]
    if rivals:
        names = dict.fromkeys(str(identity.name) for identity in (first, *rivals))
        raise CheckpointError(
            f"the tensors of {source} may be those of {', '.join(names)}, which compute different things: "
            "say which it is, `model=NAME`, on the command line `--model NAME`"
        )
    return first


def _with_settings(identity: Identity, checkpoint: Checkpoint) -> Identity:
    """The same with what the file's config states, and without arguments that are so by default."""
    settings = identity.settings
    if identity.layout == OWN:
        settings = stated_settings(checkpoint.config, settings_of(identity.model))
    identity = replace(identity, settings=settings)
    if not settings:
        return identity
    bare = {key: value for key, value in identity.args.items() if key not in settings}
    default = _default_settings(identity, bare)
    # what the default model does not even have, such as the window of another mixer, is stated as well
    needed = {k: v for k, v in settings.items() if k not in default or differing({k: v}, default)}
    args = {**bare, **needed}
    model = create(identity.family, identity.name, {**args, "device": "meta"})
    return replace(identity, args=args, model=model)


def _default_settings(identity: Identity, args: Mapping[str, Any]) -> dict[str, Any]:
    """The settings of a model that has these arguments and no others; none where there is no such model."""
    try:
        return settings_of(create(identity.family, identity.name, {**args, "device": "meta"}))
    except (ValueError, TypeError):  # a pyramid of two stages has not the strides of its name's four
        return {}
