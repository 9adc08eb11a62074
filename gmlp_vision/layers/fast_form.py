"""Layers that have, beside the equation, a fast form of it; and whether a layer is one and nothing else.

A layer with a fast form is marked by `@fast_form(...)`, which names its parts and what each may be. A fast
form reaches into its parts, so nobody may have changed, replaced or hooked one of them.
"""

from collections.abc import Callable
from typing import Any, NamedTuple, TypeVar

import torch
from torch import nn

Layer = TypeVar("Layer", bound=type[nn.Module])


class Known(NamedTuple):
    """A class as it was when it was imported: its forward, and the classes of each of its parts."""

    forward: Callable[..., Any]
    parts: dict[str, set[type[nn.Module]]]


KNOWN: dict[type[nn.Module], Known] = {}


def fast_form(**parts: type[nn.Module] | tuple[type[nn.Module], ...]) -> Callable[[Layer], Layer]:
    """Marks a class that has a `fast_forward`.

    Args:
        parts: The classes that each of its modules may have; a class derived from one may compute something
            else.
    """

    def mark(cls: Layer) -> Layer:
        sets = {name: set(kinds) if isinstance(kinds, tuple) else {kinds} for name, kinds in parts.items()}
        for leaf in set().union(*sets.values()) - KNOWN.keys():
            KNOWN[leaf] = Known(leaf.forward, {})
        KNOWN[cls] = Known(cls.forward, sets)
        return cls

    return mark


def is_plain(module: Any) -> bool:
    """Whether its class alone says what a module computes, and that of its parts, and nobody hooked any."""
    known = KNOWN.get(type(module))
    return (
        known is not None
        and type(module).forward is known.forward
        and is_unhooked(module)
        and all(_is_plain_parameter(p) for p in module._parameters.values())
        and not _is_dropping(module)
        and module._modules.keys() == known.parts.keys()
        and all(type(part) in known.parts[name] and is_plain(part) for name, part in module._modules.items())
    )


def is_unhooked(module: Any) -> bool:
    """Whether a call of the module itself is a call of its class's forward, and nothing more."""
    return (
        type(module).__call__ is nn.Module.__call__
        and not (module._forward_hooks or module._forward_pre_hooks)
        and not (module._backward_hooks or module._backward_pre_hooks)
        and "forward" not in vars(module)  # as accelerate puts one there
        and module._compiled_call_impl is None
    )


def _is_plain_parameter(parameter: Any) -> bool:
    """Whether it is there, and no quantized one. An exporter has fake tensors in the place of parameters."""
    return type(parameter) is nn.Parameter or (
        torch.compiler.is_exporting() and isinstance(parameter, nn.Parameter)
    )


def _is_dropping(module: nn.Module) -> bool:
    """Whether it is a dropout at work, which draws once for a whole tensor and otherwise for its halves."""
    return type(module) is nn.Dropout and module.training and module.p > 0
