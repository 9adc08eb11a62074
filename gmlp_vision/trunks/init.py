"""How a new model starts: the weights of each kind of layer."""

from timm.layers import lecun_normal_
from torch import nn


def init_layer(module: nn.Module, name: str, head: str = "") -> None:
    """Init of one layer by its kind, and every other by its own `reset_parameters`; visited depth first.

    A layer that has children as well as `reset_parameters` therefore has the last word over them.

    Args:
        module: The layer.
        name: Its name in the model.
        head: That of the classifier, which starts at zero.
    """
    if any(p.is_meta for p in module.parameters(recurse=False)):
        return  # no numbers to draw, though torch takes milliseconds a layer for it
    if isinstance(module, nn.Linear):
        if name == head:
            nn.init.zeros_(module.weight)
        else:
            nn.init.xavier_uniform_(module.weight)
    elif isinstance(module, nn.Conv2d):
        lecun_normal_(module.weight)
    elif name and callable(own := getattr(module, "reset_parameters", None)):  # the model itself has no name
        own()
        return
    if isinstance(bias := getattr(module, "bias", None), nn.Parameter):
        nn.init.zeros_(bias)
