"""Sources to tensors, safely: files, folders, the hub. Nothing here knows a model."""

import argparse
import hashlib
import json
import os
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import torch

from gmlp_vision.checkpoints.formats import check_storage, parse
from gmlp_vision.checkpoints.hashes import check_sha256, read_bytes
from gmlp_vision.checkpoints.hub import download, download_pretrained
from gmlp_vision.checkpoints.looks import folder_looks_like
from gmlp_vision.checkpoints.shards import INDEX_SUFFIX, Content, read_index, read_shards, refuse_one_shard
from gmlp_vision.checkpoints.unwrap import unwrap
from gmlp_vision.errors import CheckpointError

# timm's local-dir: and hub forms, in timm's order, and the indexes of shards that others write.
FOLDER_FILES = (
    *("model.safetensors", f"model.safetensors{INDEX_SUFFIX}"),
    *("pytorch_model.bin", f"pytorch_model.bin{INDEX_SUFFIX}", "pytorch_model.pth", "model.pth"),
)


@dataclass(frozen=True)
class Checkpoint:
    """What a source holds.

    Attributes:
        state_dict: The tensors under their own names, without the prefixes of wrappers.
        config: What the source says of its model, in the form of timm's config.json ('architecture',
            'model_args', 'pretrained_cfg'); empty where it says nothing.
        source: What was read, for messages.
        weights: 'ema' for an exponential moving average, else 'raw'.
        sha256: Of the file, in hex; for one in shards of the index and then each shard, as if joined.
        outside: What stood beside the tensors, and why it is none of them.
        notes: Where in the file the network was, if that is not where timm puts it; what the source says that
            does not agree with its tensors, and loses nothing.
    """

    state_dict: dict[str, torch.Tensor]
    config: dict[str, Any]
    source: str
    weights: str
    sha256: str
    outside: Mapping[str, str] = field(default_factory=dict)
    notes: tuple[str, ...] = ()


def read_checkpoint(
    source: str | Path | Mapping[str, torch.Tensor],
    weights: str = "auto",
    sha256: str | None = None,
    prefix: str | None = None,
) -> Checkpoint:
    """Reads tensors from a file, a folder or the hub, or takes those that are there.

    Args:
        source: A file of safetensors or of torch, whatever its name, or the index of one in shards
            (.index.json); a folder with config.json, or 'local-dir:FOLDER'; 'hf-hub:OWNER/NAME', with
            '@REVISION' if wanted; or a timm model name that has released weights. What exists on disk goes
            before a model name. Or a state dict, or what else a training script would have saved.
        weights: 'ema', 'raw', or 'auto' for EMA where there is one.
        sha256: Hash that the file must have, in hex; see `Checkpoint`.
        prefix: Of the network that is meant, where the file holds more than one: 'teacher.', or any whole
            parts of it; dicts in dicts count as parts.

    Raises:
        ValueError: An unknown `weights`, what can be no source, or a hash of a state dict, which has none.
        CheckpointError: There is no such source, it cannot be read safely, it is damaged, or it holds no
            network of which one can be taken.
    """
    if weights not in ("auto", "ema", "raw"):
        raise ValueError(f"weights is {weights!r}; expected 'auto', 'ema' or 'raw'")
    if isinstance(source, Mapping):
        if sha256 is not None:
            raise ValueError("sha256 is of a file, and the source is a state dict: leave it out")
        return _unwrapped(source, "the state dict", weights, prefix)
    if not isinstance(source, str | os.PathLike):
        raise ValueError(f"the source is a {type(source).__name__}; expected a path, a name or a state dict")
    kind, _, rest = str(source).partition(":")
    if kind == "hf-hub":
        return _read_folder(download(rest), str(source), weights, sha256, prefix)
    path = Path(rest if kind == "local-dir" else source)
    if path.is_dir():
        return _read_folder(path, str(source), weights, sha256, prefix)
    if path.is_file():
        return _read_file(path, str(source), weights, sha256, prefix)
    if path.exists() or kind == "local-dir":
        raise CheckpointError(f"{source} is neither a file nor a folder")
    place = download_pretrained(str(source))
    read = _read_folder if place.is_dir() else _read_released_file
    return read(place, str(source), weights, sha256, prefix)


def _read_folder(
    folder: Path, source: str, weights: str, sha256: str | None, prefix: str | None
) -> Checkpoint:
    if (other := folder_looks_like(folder)) is not None:
        raise CheckpointError(f"{source} {other}")
    config = _read_config(folder / "config.json", source)
    found = [folder / name for name in FOLDER_FILES if (folder / name).is_file()]
    if not found:
        for path in sorted(folder.glob("*-of-*")):
            refuse_one_shard(path, f"{source} has no index of shards, and {path.name}")
        raise CheckpointError(
            f"{source} has a config.json and no weights; expected one of {', '.join(FOLDER_FILES)}"
        )
    return _read_file(found[0], source, weights, sha256, prefix, config)


def _read_released_file(
    path: Path, source: str, weights: str, sha256: str | None, prefix: str | None
) -> Checkpoint:
    beside = path.with_name("config.json")
    config = _read_config(beside, source) if beside.is_file() else None
    return _read_file(path, source, weights, sha256, prefix, config)


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
    path: Path,
    source: str,
    weights: str,
    sha256: str | None,
    prefix: str | None,
    config: dict[str, Any] | None = None,
) -> Checkpoint:
    if path.name.lower().endswith(".json"):
        content = read_shards(read_index(path, source), source)
        _check_stated(content.sha256, sha256, config, source)
    else:
        refuse_one_shard(path, source)
        data = read_bytes(path, source)  # once: the hash is then that of the very bytes that are parsed
        digest = hashlib.sha256(data).hexdigest()
        _check_stated(digest, sha256, config, source)
        content = Content(parse(data, path, source), digest, len(data))
    checkpoint = _unwrapped(content.loaded, source, weights, prefix)
    check_storage(checkpoint.state_dict, content.size, source)
    return replace(
        checkpoint,
        config=checkpoint.config if config is None else config,
        sha256=content.sha256,
        notes=checkpoint.notes + content.notes,
    )


def _unwrapped(loaded: Mapping[str, Any], source: str, weights: str, prefix: str | None) -> Checkpoint:
    """The Checkpoint in what was loaded; its sha256 is empty, since only a file has one."""
    network = unwrap(loaded, weights, source, prefix)
    return Checkpoint(
        network.tensors,
        _train_config(loaded),
        source,
        network.weights or "raw",
        "",
        network.outside,
        network.notes,
    )


def _check_stated(found: str, given: str | None, config: Mapping[str, Any] | None, source: str) -> None:
    stated = (config or {}).get("sha256")
    if given is not None:
        check_sha256(found, given, source, "as given")
    elif isinstance(stated, str):
        check_sha256(found, stated, source, "by its config.json")


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
