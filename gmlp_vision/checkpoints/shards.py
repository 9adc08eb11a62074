"""Weights in several files, and the index that says which tensor is in which.

The index is JSON, `{"metadata": {"total_size": bytes}, "weight_map": {tensor: file}}`, as Hugging Face's
libraries write it; the files stand beside it.
"""

import hashlib
import json
import re
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from typing import Any

import torch

from gmlp_vision.checkpoints.formats import parse
from gmlp_vision.checkpoints.hashes import read_bytes
from gmlp_vision.checkpoints.report import first_five
from gmlp_vision.errors import CheckpointError

INDEX_SUFFIX = ".index.json"


@dataclass(frozen=True)
class Index:
    """What an index says.

    Attributes:
        path: Where it is.
        data: Its bytes.
        shards: The tensors of each file, by its path relative to the index, in alphabetical order.
        total_size: Of all tensors, in bytes; None where it does not say.
    """

    path: Path
    data: bytes
    shards: dict[str, list[str]]
    total_size: int | None


@dataclass(frozen=True)
class Content:
    """What was in one file, or in all shards.

    Attributes:
        loaded: Tensors by their names, or whatever else a file held.
        sha256: Of all the bytes, in hex: of the index and then of each shard, in alphabetical order.
        size: How many bytes that are.
        notes: What does not agree and loses nothing.
    """

    loaded: Any
    sha256: str
    size: int
    notes: tuple[str, ...] = ()


def read_index(path: Path, source: str) -> Index:
    """Reads an index.

    Raises:
        CheckpointError: It is none, or names a file outside its folder.
    """
    data = read_bytes(path, source)
    try:
        stated = json.loads(data)
    except (ValueError, RecursionError) as error:
        raise CheckpointError(f"{source}: {path.name} is not JSON: {error}") from error
    places = stated.get("weight_map") if isinstance(stated, dict) else None
    if (
        not isinstance(places, dict)
        or not places
        or not all(isinstance(file, str) for file in places.values())
    ):
        raise CheckpointError(
            f"{source}: {path.name} is no index of shards; expected a weight_map, which names a file "
            "for each tensor. To load a folder, give the folder"
        )
    shards: dict[str, list[str]] = {}
    for name, file in places.items():
        shards.setdefault(file, []).append(name)
    outside = [file for file in shards if not _is_inside(file)]
    if outside:
        raise CheckpointError(
            f"{source}: {path.name} names files outside its folder: {first_five(outside)}; they are not read"
        )
    metadata = stated.get("metadata")
    total = metadata.get("total_size") if isinstance(metadata, dict) else None
    return Index(path, data, dict(sorted(shards.items())), total if type(total) is int else None)


def read_shards(index: Index, source: str) -> Content:
    """Reads every shard, one after the other.

    Raises:
        CheckpointError: A shard is missing or cannot be read, or its tensors are not those that the index
            says.
    """
    folder = index.path.parent
    missing = [file for file in index.shards if not (folder / file).is_file()]
    if missing:
        raise CheckpointError(
            f"{source} lacks {len(missing)} of its {len(index.shards)} shards: {first_five(missing)}"
        )
    digest, size, state_dict = hashlib.sha256(index.data), len(index.data), dict[str, torch.Tensor]()
    places = {name: file for file, names in index.shards.items() for name in names}
    for file in index.shards:
        data = read_bytes(folder / file, f"{source}, shard {file},")
        digest.update(data)
        size += len(data)
        tensors = parse(data, folder / file, f"{source}, shard {file},")
        _check_shard(tensors, file, places, source)
        state_dict |= tensors
    total, stated = sum(t.numel() * t.element_size() for t in state_dict.values()), index.total_size
    agree = stated is None or stated == total
    notes = () if agree else (f"the index says {stated:,} bytes, and its tensors have {total:,}",)
    return Content({name: state_dict[name] for name in places}, digest.hexdigest(), size, notes)


def refuse_one_shard(path: Path, source: str) -> None:
    """Refuses a file that says by its name that there are more.

    Raises:
        CheckpointError: And says what to give instead.
    """
    match = re.fullmatch(r"(.+?)[-_](\d+)-of-(\d+)(\.\w+)", path.name)
    if match and int(match[3]) > 1:
        raise CheckpointError(
            f"{source} is one of {int(match[3])} shards: give the index that names them all, such as "
            f"{match[1]}{match[4]}{INDEX_SUFFIX}, or the folder"
        )


def _is_inside(file: str) -> bool:
    parts = PurePosixPath(file).parts
    return bool(parts) and not (file.startswith("/") or ".." in parts or set("\\:\0") & set(file))


def _check_shard(tensors: Any, file: str, places: dict[str, str], source: str) -> None:
    """Refuses a shard whose tensors are not those that the index says."""
    if not isinstance(tensors, dict) or not all(isinstance(t, torch.Tensor) for t in tensors.values()):
        raise CheckpointError(f"{source}: the shard {file} is no dict of tensors")
    listed = {name for name, place in places.items() if place == file}
    twice = [name for name in tensors if name in places and name not in listed]
    if twice:
        raise CheckpointError(
            f"{source}: the shard {file} has {first_five(twice)}, which by the index are in another, "
            f"{places[twice[0]]}"
        )
    absent, unlisted = sorted(listed - tensors.keys()), [name for name in tensors if name not in listed]
    if absent or unlisted:
        raise CheckpointError(
            f"{source}: the shard {file} is not what the index says. In the index, not in the shard: "
            f"{first_five(absent) or 'none'}. In the shard, not in the index: "
            f"{first_five([str(name) for name in unlisted]) or 'none'}"
        )
