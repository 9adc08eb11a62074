"""How a new model starts: the weights of each kind of layer, and the drop-path rate of each block."""

from typing import cast

from timm.layers import calculate_drop_path_rates, lecun_normal_
from torch import nn

from gmlp_vision.models.checks import check_rate


def init_layer(module: nn.Module, name: str) -> None:
    """Init of one layer by its kind; visited depth first, so a parent's `init_weights` has the last word."""
    if isinstance(module, nn.Linear):
        if name.startswith("head"):
            nn.init.zeros_(module.weight)
        else:
            nn.init.xavier_uniform_(module.weight)
        nn.init.zeros_(module.bias)
    elif isinstance(module, nn.Conv2d):
        lecun_normal_(module.weight)
        if module.bias is not None:
            nn.init.zeros_(module.bias)
    elif isinstance(module, nn.LayerNorm):
        module.reset_parameters()
    elif name and (own := getattr(module, "init_weights", None)):  # the model itself has no name
        own()


def drop_path_rates(rate: float, depth: int, rule: str) -> list[float]:
    """The drop-path rate of each block. The paper gives one survival probability and no rule (Table 1)."""
    check_rate("drop_path_rate", rate)
    if rule == "linear":
        return cast("list[float]", calculate_drop_path_rates(rate, depth))  # one list, for one depth
    if rule == "constant":
        return [rate] * depth
    raise ValueError(f"drop_path_rule is {rule!r}; expected 'linear' or 'constant'")
