"""What a file held to the state dict in it: which of its dicts, and without the prefixes of wrappers."""

from collections.abc import Mapping
from typing import Any

import torch
from timm.models import clean_state_dict

from gmlp_vision.checkpoints.report import first_five
from gmlp_vision.errors import CheckpointError

# The names under which training scripts file their weights, the ones of timm's train.py first.
EMA_KEYS = ("state_dict_ema", "model_ema")
RAW_KEYS = ("state_dict", "model")


def select_weights(checkpoint: Any, weights: str, source: str) -> tuple[dict[str, torch.Tensor], str | None]:
    """The state dict in what a file held, cleaned, and whether it is 'ema' or 'raw'; None without a wrapper.

    Raises:
        CheckpointError: No such weights, or something in them is not a tensor.
    """
    if not isinstance(checkpoint, Mapping):
        raise CheckpointError(
            f"{source} holds a {type(checkpoint).__name__}; expected a state dict, or a dict with one under "
            f"{', '.join(EMA_KEYS + RAW_KEYS)}"
        )
    for key in EMA_KEYS:
        if checkpoint.get(key) is not None and weights != "raw":
            return _clean(checkpoint[key], f"{source}[{key}]"), "ema"
    if weights == "ema":
        raise CheckpointError(
            f"{source} holds no EMA weights ({' or '.join(EMA_KEYS)}); ask for 'raw' or 'auto'"
        )
    for key in RAW_KEYS:
        if checkpoint.get(key) is not None:
            return _clean(checkpoint[key], f"{source}[{key}]"), "raw"
    return _clean(checkpoint, source), None


def _clean(state_dict: Any, source: str) -> dict[str, torch.Tensor]:
    if not isinstance(state_dict, Mapping):
        raise CheckpointError(f"{source} is a {type(state_dict).__name__}; expected a dict of tensors")
    alien = [str(k) for k, v in state_dict.items() if not (isinstance(k, str) and _is_plain(v))]
    if alien:
        raise CheckpointError(
            f"{source} is no state dict: of its {len(state_dict)} entries these are no plain tensors: "
            f"{first_five(alien)}"
        )
    if not state_dict:
        raise CheckpointError(f"{source} is empty; expected tensors")
    cleaned = {name: tensor.detach() for name, tensor in state_dict.items()}
    # timm strips a `module.` and the `_orig_mod.` around it; wrappers may be stacked in any order and number.
    while any(name.startswith(("module.", "_orig_mod.")) for name in cleaned):
        cleaned = clean_state_dict(cleaned)
    if len(cleaned) < len(state_dict):
        raise CheckpointError(f"{source} has the same tensor twice, with and without a wrapper's prefix")
    return cleaned


def _is_plain(value: Any) -> bool:
    return (
        isinstance(value, torch.Tensor)
        and value.layout == torch.strided
        and not (value.is_meta or value.is_quantized or value.is_nested)
        # a few bytes, expanded, may claim to be more than the memory holds
        and value.numel() * value.element_size() <= value.untyped_storage().nbytes()
    )
