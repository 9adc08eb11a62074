"""A file's bytes, and whether they are those that somebody stated."""

import hashlib
import os
import re
from pathlib import Path

from gmlp_vision.errors import CheckpointError


def read_bytes(path: Path, source: str) -> bytes:
    """The bytes of a file. One in the hub's cache is compared with the hash that it is filed under.

    Raises:
        CheckpointError: It is another.
    """
    data = path.read_bytes()
    stated = hub_sha256(path)
    if stated is not None:
        check_sha256(hashlib.sha256(data).hexdigest(), stated, source, "which the hub's cache files it under")
    return data


def check_sha256(found: str, stated: str, source: str, by: str) -> None:
    """Refuses a source that has another hash.

    Raises:
        CheckpointError: And says both, and who stated the one that was expected.
    """
    if found != stated.lower():
        raise CheckpointError(
            f"{source} is damaged, or another file: its sha256 is {found}; expected {stated.lower()}, {by}"
        )


def hub_sha256(path: Path) -> str | None:
    """The sha256 of a file in the hub's cache; None where its name there is no such hash.

    There `models--OWNER--NAME/snapshots/REVISION/FILE` is a link to `models--OWNER--NAME/blobs/ETAG`, and for
    all that is in LFS the etag is the sha256. That may again be a link, to a name that is another hash.
    """
    while True:
        place = Path(os.path.realpath(path.parent)) / path.name
        if place.parent.name == "blobs" and place.parent.parent.name.startswith("models--"):
            return place.name if re.fullmatch("[0-9a-f]{64}", place.name) else None
        if not path.is_symlink():
            return None
        path = path.parent / os.readlink(path)
