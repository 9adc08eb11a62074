"""Writing a file whole or not at all."""

import os
from pathlib import Path


def replace_file(path: str | Path, data: bytes) -> None:
    """Writes `data` beside `path` and renames it, so that a failure leaves what was there before.

    Raises:
        OSError: The folder is not there or cannot be written.
    """
    path = Path(path)
    if not path.parent.is_dir():
        raise FileNotFoundError(f"{path} cannot be written: there is no folder {path.parent}")
    part = path.with_name(f".{path.name}.{os.getpid()}.part")
    try:
        part.write_bytes(data)
        os.replace(part, path)
    finally:
        part.unlink(missing_ok=True)
