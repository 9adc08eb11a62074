"""The one room that writes files. Under its name each is whole at any time: the old one or the new one.

What is written has a name of its own in the same folder, `.NAME.gmlp-TOKEN.tmp`. When the disk has all of it,
it is renamed. After an error, a full disk, Ctrl-C, SIGTERM or SIGHUP it is removed.

SIGKILL or a power cut can leave it there. The next write to the same path removes it: a writer holds a lock
(flock) on what it writes, and the lock ends with the writer. Where the system has no such locks, it stays.
"""

import errno
import os
import stat
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from functools import partial
from pathlib import Path
from typing import NamedTuple

from gmlp_vision.errors import UserError
from gmlp_vision.temporary import beside, ended_tidily


def write_file(path: str | Path, data: bytes | memoryview | str) -> None:
    """Writes a file, in place of what was there at the end.

    A link is followed, a dangling one too. A file that is replaced hands on its mode and, as far as the
    system lets it, its owner and group; a new one has the mode that the umask says. What cannot be replaced
    (/dev/null, /dev/stdout, a FIFO) is written into.

    Args:
        data: Text is written as UTF-8.

    Raises:
        OSError: The folder that `path` is to be in is not there, `path` is a folder or write-protected, or
            the disk is full. At `path` all is as it was.
    """
    data = data.encode() if isinstance(data, str) else data
    target = _followed(Path(path))
    before = _replaceable(target)
    if _is_stream(target, before):
        with target.open("ab") as stream:  # not "wb", which would cut what `> FILE` has put under /dev/stdout
            stream.write(data)
        return
    # as private as the old one from the start
    mode = 0o666 if before is None else stat.S_IMODE(before.st_mode) & 0o777 | 0o600
    with ended_tidily(), beside(target, partial(_create, mode=mode)) as temporary:
        try:
            with temporary.open("wb") as file:
                file.write(data)
                file.flush()
                os.fsync(file.fileno())
        except OSError as error:
            error.filename = str(target)  # a full disk is told without a name
            raise
        _rename(temporary, target, before)
        _sync_folder(target.parent)


@contextmanager
def replace_files(path: str | Path) -> Iterator[Path]:
    """For a writer that makes files of its own: yields a name for `path`, alone in a folder.

    At the end all that is in that folder replaces what has those names beside `path`, as `write_file` does
    it, and `path` last. Where there are several, a kill in between leaves no `path`, rather than an old one
    beside what is new.

    Raises:
        OSError: As `write_file`, before the body runs; or what is beside `path` cannot be replaced.
        UserError: `path` is a device or a FIFO.
    """
    target = _followed(Path(path))
    _moved(target, target)  # that it can be is found out before the work
    with ended_tidily(), beside(target, Path.mkdir) as folder:
        yield folder / target.name
        _settle(folder)
        names = sorted(file.name for file in folder.iterdir() if file.name != target.name)
        moves = [_moved(folder / name, _followed(target.with_name(name))) for name in names]
        moves.append(_moved(folder / target.name, target))
        try:
            _rename_all(moves, folder / ".before")
        except (KeyboardInterrupt, SystemExit):
            _rename_all(moves, folder / ".before")  # the rest: half of them would be worse than all
            raise
        _sync_folder(target.parent)


@contextmanager
def new_folder(path: str | Path, parents: bool = False) -> Iterator[Path]:
    """Yields an empty folder to write into; it becomes `path` at the end, or is removed if the body raises.

    Its files are at least as readable as the umask says: some libraries make theirs for the owner only.

    Args:
        path: A name that is not taken, or an empty folder, perhaps by a link.
        parents: Whether to make the folders above it too; they go again where the body raises.

    Raises:
        UserError: There is something else at `path`. Several files cannot be replaced at one stroke, so none
            is.
        OSError: The folder that `path` is to be in is not there, or cannot be written.
    """
    path = Path(path)
    target = check_new_folder(path)
    missing = [folder for folder in target.parents if not folder.exists()] if parents else []
    with ended_tidily():
        try:
            for folder in reversed(missing):
                folder.mkdir(exist_ok=True)
            with beside(target, Path.mkdir) as temporary:
                yield temporary
                _settle(temporary)
                try:
                    _rename(temporary, target, _stat(target))
                except OSError as error:
                    if error.errno in (errno.ENOTEMPTY, errno.EEXIST, errno.ENOTDIR):
                        raise UserError(f"{path} exists by now; give the name of a new folder") from None
                    raise
                _sync_folder(target.parent)
        except BaseException:
            for folder in missing:
                with suppress(OSError):  # somebody else's things are in it
                    folder.rmdir()
            raise


def make_folders(path: Path) -> None:
    """Makes a folder that a stopped command goes on in, with those above it; one that is there stays.

    Raises:
        OSError: There is a file in its place, or it cannot be written.
    """
    path.mkdir(parents=True, exist_ok=True)


def check_new_folder(path: Path) -> Path:
    """Where a new folder of this name would be.

    Raises:
        UserError: The name is taken, or is that of a folder in use.
    """
    if os.path.lexists(path) and (not path.is_dir() or any(path.iterdir())):
        raise UserError(f"{path} exists; give the name of a new folder")
    target = Path(os.path.realpath(path))
    if target == Path.cwd() or os.path.ismount(target):
        raise UserError(f"{path} is a folder that is in use; give the name of a new folder")
    return target


# -- what is there -----------------------------------------------------------------------------------------


def _followed(path: Path) -> Path:
    """Where a path leads, by links too; not by the kernel's, which say what is open and not what it is."""
    for _ in range(40):  # as many as Linux follows
        path = Path(os.path.realpath(path.parent), path.name)
        if _is_kernels(path.parent) or not path.is_symlink():
            return path
        path = path.parent / path.readlink()
    raise OSError(errno.ELOOP, os.strerror(errno.ELOOP), str(path))


def _is_kernels(folder: Path) -> bool:
    """Whether this is where /dev/stdout and the like stand."""
    return folder in (Path("/dev"), Path("/dev/fd")) or folder.parts[:2] == ("/", "proc")


def _is_stream(path: Path, there: os.stat_result | None) -> bool:
    return there is not None and (not stat.S_ISREG(there.st_mode) or _is_kernels(path.parent))


def _stat(path: Path) -> os.stat_result | None:
    try:
        return path.stat()
    except FileNotFoundError:
        return None


def _replaceable(path: Path) -> os.stat_result | None:
    """What is there, if a file may take its place."""
    if not path.parent.is_dir():
        raise FileNotFoundError(f"{path} cannot be written: there is no folder {path.parent}")
    there = _stat(path)
    if there and stat.S_ISDIR(there.st_mode):
        raise IsADirectoryError(errno.EISDIR, os.strerror(errno.EISDIR), str(path))
    if there and not os.access(path, os.W_OK):  # a rename would not ask
        raise PermissionError(errno.EACCES, "write-protected", str(path))
    return there


# -- the end -----------------------------------------------------------------------------------------------


class Move(NamedTuple):
    """What is written, its name to be, and what has that name."""

    temporary: Path
    target: Path
    before: os.stat_result | None


def _moved(temporary: Path, target: Path) -> Move:
    """Of one among several files: nothing of it can be written into a device or a FIFO."""
    before = _replaceable(target)
    if _is_stream(target, before):
        raise UserError(f"{target} is not a file that can be replaced; give another name")
    return Move(temporary, target, before)


def _create(path: Path, mode: int) -> None:
    os.close(os.open(path, os.O_CREAT | os.O_EXCL | os.O_WRONLY, mode))


def _rename(temporary: Path, target: Path, before: os.stat_result | None) -> None:
    """Gives it its name, with owner and mode of what it replaces."""
    if before is not None:
        if hasattr(os, "chown"):
            for owner, group in ((-1, before.st_gid), (before.st_uid, -1)):
                with suppress(OSError):  # only root may give a file away
                    os.chown(temporary, owner, group)
        temporary.chmod(stat.S_IMODE(before.st_mode))
    try:
        os.replace(temporary, target)
    except OSError as error:
        raise OSError(error.errno, error.strerror, str(target)) from None


def _rename_all(moves: list[Move], aside: Path) -> None:
    """Those that were not renamed yet; what the last one replaces is put aside meanwhile."""
    last = moves[-1]
    if len(moves) > 1 and last.temporary.exists() and last.target.exists():
        os.replace(last.target, aside)
    try:
        for move in moves:
            if move.temporary.exists():
                _rename(*move)
    except OSError:
        if aside.exists():
            os.replace(aside, last.target)
        raise


def _settle(folder: Path) -> None:
    """All that is in a new folder onto the disk, and readable as far as the folder itself is."""
    readable = folder.stat().st_mode & 0o666
    for place, _, files in os.walk(folder, topdown=False):
        for file in (Path(place, name) for name in files):
            mode = file.lstat().st_mode
            if stat.S_ISREG(mode):
                file.chmod(stat.S_IMODE(mode) | readable)
                _sync(file)
        _sync_folder(Path(place))


def _sync_folder(folder: Path) -> None:
    with suppress(OSError):  # Windows opens no folders, and some file systems know no such thing
        _sync(folder)


def _sync(path: Path) -> None:
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
