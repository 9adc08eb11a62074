"""Where results are to go: asked before the work that makes them."""

import os
from collections.abc import Iterable
from pathlib import Path

from gmlp_vision.atomic import check_new_folder
from gmlp_vision.checkpoints.save import is_file_name
from gmlp_vision.errors import UserError


def check_files(paths: Iterable[Path], source: str | Path | None = None, *others: Path) -> None:
    """Refuses files that could not be written, or that would replace another result or what is read.

    Args:
        paths: Of the files.
        source: What is read, as for `read_checkpoint`.
        others: Files that are read too.

    Raises:
        UserError: And says what to do.
        OSError: A path that the system cannot have, such as one that is too long.
    """
    places: dict[str, Path] = {}
    for path in paths:
        place = os.path.realpath(path)
        try:
            path.stat()
            exists = True
        except FileNotFoundError:
            exists = False
        if path.is_dir():
            raise UserError(f"{path} is a folder; give the name of a file")
        if not os.path.isdir(os.path.dirname(place)):
            raise UserError(f"{path} cannot be written: there is no folder {path.parent}; make it first")
        if not os.access(path if exists else os.path.dirname(place), os.W_OK):
            raise UserError(f"{path} cannot be written: it is write-protected, or its folder is")
        if place in places:
            raise UserError(f"{path} and {places[place]} are one file; give each result a name of its own")
        places[place] = path
        if exists and any(read.exists() and path.samefile(read) for read in [*_read(source), *others]):
            raise UserError(f"{path} is what is read, and would be lost; give another name")


def check_folder(path: Path) -> None:
    """Refuses what is no name for a new folder.

    Raises:
        UserError: There is something at `path`, other than an empty folder, or its own folder is not there.
        OSError: As `check_files`.
    """
    check_new_folder(path)
    if not path.parent.is_dir():
        raise UserError(f"{path} cannot be written: there is no folder {path.parent}; make it first")


def _read(source: str | Path | None) -> list[Path]:
    """The files of a source on this disk."""
    if source is None:
        return []
    path = Path(str(source).removeprefix("local-dir:"))
    if not path.is_dir():
        return [path]
    return [f for f in path.iterdir() if is_file_name(f) or f.name.endswith(("config.json", ".index.json"))]
