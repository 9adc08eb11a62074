"""What is being written, under a name of its own, until it is whole; and that none of it is left behind."""

import os
import re
import secrets
import shutil
import signal
import tempfile
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from types import FrameType

try:
    import fcntl
except ImportError:  # Windows
    fcntl = None  # type: ignore[assignment]


@contextmanager
def beside(target: Path, make: Callable[[Path], None]) -> Iterator[Path]:
    """A file or folder beside `target`, locked, and removed at the end if it is still there."""
    if not target.parent.is_dir():
        raise FileNotFoundError(f"{target} cannot be written: there is no folder {target.parent}")
    # with the rest less than 143 bytes, the shortest limit of a file system of today; no character is cut
    tag = os.fsencode(target.name)[:100].decode(errors="ignore")
    _remove_dead(target.parent, tag)
    locks: list[int] = []
    temporary = _name(target.parent, tag)
    try:
        try:
            make(temporary)
            locks += _lock(temporary, wait=True)
            while not os.path.lexists(temporary):  # taken for a dead one in the moment before it was locked
                temporary = _name(target.parent, tag)
                make(temporary)
                locks += _lock(temporary, wait=True)
            yield temporary
        except OSError as error:
            if isinstance(error.filename, str):  # the name that the user knows
                error.filename = error.filename.replace(str(temporary), str(target))
            raise
        finally:
            _remove(temporary)
    finally:  # again: Ctrl-C may have come in the middle of the first time
        _remove(temporary)
        for lock in locks:
            os.close(lock)


def _name(folder: Path, tag: str) -> Path:
    return folder / f".{tag}.gmlp-{secrets.token_hex(8)}.tmp"


def _remove(path: Path) -> None:
    with suppress(OSError):
        if path.is_dir() and not path.is_symlink():
            shutil.rmtree(path, ignore_errors=True)
        else:
            path.unlink(missing_ok=True)


def _remove_dead(folder: Path, tag: str) -> None:
    """Removes what writers under this name left that were killed: nobody holds a lock on it."""
    ours = re.compile(rf"\.{re.escape(tag)}\.gmlp-[0-9a-f]{{16}}\.tmp")
    try:
        found = [name for name in os.listdir(folder) if ours.fullmatch(name)]
    except OSError:  # a folder that may be written and not read
        return
    for name in found:
        for lock in _lock(folder / name, wait=False):
            _remove(folder / name)
            os.close(lock)


def _lock(path: Path, wait: bool) -> list[int]:
    """The descriptor that holds the lock; none if another has it, or where there are no locks."""
    if fcntl is None:
        return []
    try:
        kind = os.O_DIRECTORY if path.is_dir() else os.O_RDWR  # NFS locks only what is open to be written
        lock = os.open(path, kind | os.O_NOFOLLOW)
    except OSError:
        return []
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | (0 if wait else fcntl.LOCK_NB))
    except OSError:
        os.close(lock)
        return []
    return [lock]


@contextmanager
def scratch_folder() -> Iterator[Path]:
    """A folder where the system has such, removed at the end."""
    with ended_tidily(), tempfile.TemporaryDirectory(prefix="gmlp-vision-") as folder:
        yield Path(folder)


@contextmanager
def ended_tidily() -> Iterator[None]:
    """Where SIGTERM and SIGHUP would end the process at once, they end it when the body has been left.

    In the main thread, which alone may set handlers; a handler of the caller's, or none (nohup), stays.
    """
    came: list[int] = []

    def leave(number: int, frame: FrameType | None) -> None:
        if not came:
            came.append(number)
            raise SystemExit(128 + number)

    deadly = []
    if threading.current_thread() is threading.main_thread():
        deadly = [getattr(signal, name) for name in ("SIGTERM", "SIGHUP") if hasattr(signal, name)]
        deadly = [number for number in deadly if signal.getsignal(number) is signal.SIG_DFL]
    try:
        for number in deadly:
            signal.signal(number, leave)
        yield
    finally:
        for number in deadly:
            if signal.getsignal(number) is leave:
                signal.signal(number, signal.SIG_DFL)
        if came:
            signal.raise_signal(came[0])
