"""Writing a file or a folder whole or not at all: under another name beside it, then renamed.

A kill may leave what was begun: a name that begins with a dot and ends in `.tmp`.
"""

import os
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from gmlp_vision.errors import UserError


@contextmanager
def replace_file(path: str | Path) -> Iterator[Path]:
    """Yields the name to write the file under; it becomes `path` at the end, in place of what was there.

    Where the body raises, what was written is removed and `path` is as it was.

    Raises:
        FileNotFoundError: The folder that `path` is to be in is not there.
    """
    path = Path(path)
    temporary = _beside(path)
    try:
        yield temporary
        os.replace(temporary, path)
    finally:
        temporary.unlink(missing_ok=True)


@contextmanager
def new_folder(path: str | Path) -> Iterator[Path]:
    """Yields an empty folder to write into; it becomes `path` at the end.

    Where the body raises, what was written is removed.

    Raises:
        UserError: There is something at `path`, other than an empty folder. Several files cannot be replaced
            at one stroke, so none is.
        FileNotFoundError: The folder that `path` is to be in is not there.
    """
    path = Path(path)
    if os.path.lexists(path) and (not path.is_dir() or any(path.iterdir())):
        raise UserError(f"{path} exists; give the name of a new folder")
    temporary = _beside(path)
    try:
        temporary.mkdir()
        yield temporary
        os.replace(temporary, path)
    finally:
        shutil.rmtree(temporary, ignore_errors=True)


def _beside(path: Path) -> Path:
    if not path.parent.is_dir():
        raise FileNotFoundError(f"{path} cannot be written: there is no folder {path.parent}")
    return path.with_name(f".{path.name}.{os.getpid()}.tmp")
