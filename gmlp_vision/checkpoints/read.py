"""Bytes to tensors, safely: files, folders, the hub. Nothing here knows a model.

Only safetensors and torch's weights-only unpickler are used, and there is no other way in: a file that needs
more is refused.
"""

import argparse
import hashlib
import io
import json
import pickle
import re
import zipfile
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import safetensors.torch
import torch
from timm.models import clean_state_dict

from gmlp_vision.checkpoints.hub import download, download_pretrained
from gmlp_vision.checkpoints.report import first_five
from gmlp_vision.errors import CheckpointError

# The names under which training scripts file their weights, the ones of timm's train.py first.
EMA_KEYS = ("state_dict_ema", "model_ema")
RAW_KEYS = ("state_dict", "model")
# timm's local-dir: and hub forms, in timm's order.
FOLDER_FILES = ("model.safetensors", "pytorch_model.bin", "pytorch_model.pth", "model.pth")
# In a zip: torch reads such an entry as nothing and leaves its tensor uninitialised.
DOS_FOLDER = 0x10


@dataclass(frozen=True)
class Checkpoint:
    """What a source holds.

    Attributes:
        state_dict: The tensors under their own names, without the prefixes of wrappers.
        config: What the source says of its model, in the form of timm's config.json ('architecture',
            'model_args', 'pretrained_cfg'); empty where it says nothing.
        source: What was read, for messages.
        weights: 'ema' for an exponential moving average, else 'raw'.
        sha256: Of the file, in hex.
    """

    state_dict: dict[str, torch.Tensor]
    config: dict[str, Any]
    source: str
    weights: str
    sha256: str


def read_checkpoint(source: str | Path, weights: str = "auto", sha256: str | None = None) -> Checkpoint:
    """Reads tensors from a file, a folder or the hub.

    Args:
        source: A .safetensors file or one of torch's (.pth, .pt, .pth.tar, .bin); a folder with config.json,
            or 'local-dir:FOLDER'; 'hf-hub:OWNER/NAME', with '@REVISION' if wanted; or a timm model name that
            has released weights. What exists on disk goes before a model name.
        weights: 'ema', 'raw', or 'auto' for EMA where there is one.
        sha256: Hash that the file must have, in hex.

    Raises:
        ValueError: An unknown `weights`.
        CheckpointError: There is no such source, it cannot be read safely, it is damaged, or it holds no
            state dict.
    """
    if weights not in ("auto", "ema", "raw"):
        raise ValueError(f"weights is {weights!r}; expected 'auto', 'ema' or 'raw'")
    kind, _, rest = str(source).partition(":")
    if kind == "hf-hub":
        return _read_folder(download(rest), str(source), weights, sha256)
    path = Path(rest if kind == "local-dir" else source)
    if path.is_dir():
        return _read_folder(path, str(source), weights, sha256)
    if path.is_file():
        return _read_file(path, str(source), weights, sha256)
    if path.exists() or kind == "local-dir":
        raise CheckpointError(f"{source} is neither a file nor a folder")
    place = download_pretrained(str(source))
    read = _read_folder if place.is_dir() else _read_released_file
    return read(place, str(source), weights, sha256)


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


def _read_folder(folder: Path, source: str, weights: str, sha256: str | None) -> Checkpoint:
    config = _read_config(folder / "config.json", source)
    found = [folder / name for name in FOLDER_FILES if (folder / name).is_file()]
    if not found:
        raise CheckpointError(
            f"{source} has a config.json and no weights; expected one of {', '.join(FOLDER_FILES)}"
        )
    return _read_file(found[0], source, weights, sha256 or _known_hash(found[0], config), config)


def _read_released_file(path: Path, source: str, weights: str, sha256: str | None) -> Checkpoint:
    beside = path.with_name("config.json")
    config = _read_config(beside, source) if beside.is_file() else {}
    return _read_file(path, source, weights, sha256 or _known_hash(path, config), config)


def _known_hash(path: Path, config: dict[str, Any]) -> str | None:
    """The hash that a config.json of ours states, or the one by which the hub files what it sends."""
    stated = config.get("sha256")
    if isinstance(stated, str):
        return stated
    # In the hub's cache a file is a link to a blob named after its etag: the sha256 for everything in LFS.
    blob = path.resolve().name
    return blob if len(blob) == 64 and set(blob) <= set("0123456789abcdef") else None


def _read_config(path: Path, source: str) -> dict[str, Any]:
    if not path.is_file():
        raise CheckpointError(
            f"{source} is a folder without config.json; give the weights file in it instead"
        )
    try:
        config = json.loads(path.read_text(encoding="utf-8"))
    except (ValueError, RecursionError) as error:
        raise CheckpointError(f"{path} is not JSON: {error}") from error
    if not isinstance(config, dict):
        raise CheckpointError(f"{path} holds a {type(config).__name__}; expected timm's config.json, a dict")
    if "transformers_version" in config:
        config.pop(
            "sha256", None
        )  # carried along, as all that it does not know: of the weights it started from
    return config


def _read_file(
    path: Path, source: str, weights: str, sha256: str | None, config: dict[str, Any] | None = None
) -> Checkpoint:
    # Read once: the hash is then that of the very bytes that are parsed.
    data = path.read_bytes()
    digest = hashlib.sha256(data).hexdigest()
    if sha256 is not None and digest != sha256.lower():
        raise CheckpointError(
            f"{source} is damaged, or another file: its sha256 is {digest}; expected {sha256.lower()}"
        )
    loaded = _parse(data, path.name.endswith(".safetensors"), source)
    state_dict, taken = select_weights(loaded, weights, source)
    config = _train_config(loaded) if config is None else config
    return Checkpoint(state_dict, config, source, taken or "raw", digest)


def _parse(data: bytes, safe: bool, source: str) -> Any:
    try:
        if safe:
            return safetensors.torch.load(data)
        if zipfile.is_zipfile(io.BytesIO(data)):
            _check_zip(data, source)
        # timm's train.py keeps its arguments as a Namespace, which holds data and runs nothing.
        with torch.serialization.safe_globals([argparse.Namespace]):
            return torch.load(io.BytesIO(data), map_location="cpu", weights_only=True)
    except CheckpointError:
        raise
    except Exception as error:  # a parser of foreign bytes may raise anything
        raise CheckpointError(_refusal(error, safe, source)) from error


def _check_zip(data: bytes, source: str) -> None:
    """What torch does not look at: with a flipped bit here it would give wrong or uninitialised numbers."""
    with zipfile.ZipFile(io.BytesIO(data)) as archive:
        damaged = archive.testzip()
        folders = [info.filename for info in archive.infolist() if info.external_attr & DOS_FOLDER]
    if damaged is not None or folders:
        raise CheckpointError(f"{source} is damaged: the CRC or the kind of {damaged or folders[0]} is wrong")


def _refusal(error: Exception, safe: bool, source: str) -> str:
    reason = (str(error).strip().splitlines() or [type(error).__name__])[0]
    if safe:
        return f"{source} is not a whole .safetensors file: {reason}"
    # torch's own message tells people to switch the safe unpickler off
    wanted = re.search(r"GLOBAL (\S+)", str(error))
    if wanted:
        return (
            f"{source} is refused: to load it would run {wanted[1]}, and tensors need no code. If you trust "
            "its author, ask for the state_dict() alone"
        )
    if isinstance(error, pickle.UnpicklingError):
        reason = "its pickle is not torch's"
    return f"{source} is not a whole torch file of tensors: {reason}"


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


def _train_config(loaded: Any) -> dict[str, Any]:
    """What timm's train.py filed of its model beside the weights, in the form of config.json."""
    args = loaded.get("args") if isinstance(loaded, Mapping) else None
    if not isinstance(args, argparse.Namespace):
        return {}
    model_args, size = getattr(args, "model_kwargs", None), getattr(args, "input_size", None)
    return {
        "architecture": getattr(args, "model", None),
        "model_args": dict(model_args) if isinstance(model_args, Mapping) else {},
        "pretrained_cfg": {"input_size": size if size is not None else getattr(args, "img_size", None)},
    }
