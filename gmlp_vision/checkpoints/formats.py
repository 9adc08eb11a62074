"""Bytes to tensors, by what they are and not by what the file is called; and what else they look like.

Only safetensors and torch's weights-only unpickler are used, and there is no other way in: a file that needs
more is refused.
"""

import io
import pickle
import re
import zipfile
from pathlib import Path
from typing import Any

import safetensors.torch
import torch

from gmlp_vision.checkpoints.looks import looks_like
from gmlp_vision.checkpoints.names import Tensors
from gmlp_vision.checkpoints.pickled import data_allowed
from gmlp_vision.errors import CheckpointError

# In a zip: torch reads such an entry as nothing and leaves its tensor uninitialised.
DOS_FOLDER = 0x10
LARGEST_HEADER = 100_000_000  # bytes, as safetensors has it


def parse(data: bytes, path: Path, source: str) -> Any:
    """What the bytes of a checkpoint hold: tensors by name, or whatever a training script filed.

    Args:
        data: All of the file.
        path: Where it is; its name counts only where the bytes do not say what they are.
        source: For messages.

    Raises:
        CheckpointError: It is damaged, or no file of tensors, or to load it would run code.
    """
    named_safe = path.name.lower().endswith(".safetensors")
    safe = _is_safetensors(data) or (named_safe and not data.startswith((b"PK\x03\x04", b"\x80")))
    try:
        if safe:
            return safetensors.torch.load(data)
        if zipfile.is_zipfile(io.BytesIO(data)):
            _check_zip(data, path, source)
        with data_allowed():
            return torch.load(io.BytesIO(data), map_location="cpu", weights_only=True)
    except CheckpointError:
        raise
    except Exception as error:  # a parser of foreign bytes may raise anything
        raise CheckpointError(_refusal(error, data, path, safe, source)) from error


def check_storage(tensors: Tensors, size: int, source: str) -> None:
    """Refuses tensors that take more memory than the file has bytes, before anybody touches them.

    Raises:
        CheckpointError: A pickle of a few bytes asked torch for tensors that are not in it.
    """
    storages = {s.data_ptr(): s.nbytes() for s in (tensor.untyped_storage() for tensor in tensors.values())}
    total = sum(storages.values())
    if total > size:
        raise CheckpointError(
            f"{source} does not hold its tensors: they would take {total:,} bytes, and it has {size:,}"
        )


def _is_safetensors(data: bytes) -> bool:
    """Whether these bytes begin as that format does: the length of a header, and a header in JSON."""
    return data[8:9] == b"{" and 2 <= int.from_bytes(data[:8], "little") <= LARGEST_HEADER


def _check_zip(data: bytes, path: Path, source: str) -> None:
    """What torch does not look at: with a flipped bit here it would give wrong or uninitialised numbers."""
    if (other := looks_like(data, path)) is not None:
        raise CheckpointError(f"{source} {other}")
    with zipfile.ZipFile(io.BytesIO(data)) as archive:
        if sum(info.file_size for info in archive.infolist()) > len(data):
            raise CheckpointError(
                f"{source} is a compressed zip, which torch does not write: unpack it, and give what is in it"
            )
        damaged = archive.testzip()
        folders = [info.filename for info in archive.infolist() if info.external_attr & DOS_FOLDER]
    if damaged is not None or folders:
        raise CheckpointError(f"{source} is damaged: the CRC or the kind of {damaged or folders[0]} is wrong")


def _refusal(error: Exception, data: bytes, path: Path, safe: bool, source: str) -> str:
    # the length of a safetensors header may begin as another format does
    other = None if _is_safetensors(data) else looks_like(data, path)
    if other is not None:
        return f"{source} {other}"
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
    if isinstance(error, (pickle.UnpicklingError, LookupError)):  # LookupError says only where it stopped
        reason = "its pickle is not torch's"
    return f"{source} is not a whole torch file of tensors: {reason}"
