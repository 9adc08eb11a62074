"""What is written is whole under its name, keeps what the old one was, and leaves nothing else behind."""

import gc
import inspect
import os
import shutil
import signal
import stat
import sys
import threading
import time
from collections.abc import Callable
from contextlib import AbstractContextManager
from itertools import count
from pathlib import Path
from types import FrameType
from typing import Any

import pytest

from gmlp_vision import atomic, temporary
from gmlp_vision.atomic import new_folder, replace_files, write_file
from gmlp_vision.errors import UserError

Form = Callable[[Path], AbstractContextManager[Path]]
both_forms = pytest.mark.parametrize("form", [replace_files, new_folder])
# what a forked child does here takes no lock of another thread
forks = pytest.mark.filterwarnings("ignore:This process .* is multi-threaded:DeprecationWarning")
OLD, NEW = b"old" * 400_000, b"new!" * 400_000


def left(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir())


def mode(path: Path) -> int:
    return stat.S_IMODE(path.stat().st_mode)


@pytest.fixture
def fast(monkeypatch: pytest.MonkeyPatch) -> None:
    """For tests that write often: without waiting for the disk."""
    monkeypatch.setattr(os, "fsync", lambda descriptor: None)


# -- whole or not at all -----------------------------------------------------------------------------------


@pytest.mark.parametrize("data", ["Zürich\n", "Zürich\n".encode(), memoryview("Zürich\n".encode())])
def test_a_file(data: str | bytes | memoryview, tmp_path: Path) -> None:
    write_file(tmp_path / "out.txt", data)
    write_file(str(tmp_path / "out.txt"), data)
    assert (tmp_path / "out.txt").read_bytes() == "Zürich\n".encode()
    assert left(tmp_path) == ["out.txt"]


def test_on_the_disk_before_it_has_its_name(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    steps = []
    sync, replace = os.fsync, os.replace

    def fsync(descriptor: int) -> None:
        steps.append(("fsync", Path(os.readlink(f"/proc/self/fd/{descriptor}"))))
        sync(descriptor)

    def rename(source: Path, target: Path) -> None:
        steps.append(("replace", source))
        replace(source, target)

    monkeypatch.setattr(os, "fsync", fsync)
    monkeypatch.setattr(os, "replace", rename)
    write_file(tmp_path / "out", b"new")
    name = steps[0][1]
    assert steps == [("fsync", name), ("replace", name), ("fsync", tmp_path)]
    assert name.parent == tmp_path  # a rename to another disk would not be one stroke
    assert name.name.startswith(".out.")
    assert name.suffix == ".tmp"
    steps.clear()
    with new_folder(tmp_path / "folder") as folder:
        (folder / "inner").mkdir()
        for file in ("a", "inner/b"):
            (folder / file).write_text("new")
        (folder / "link").symlink_to("nowhere")
    on_disk = {folder, folder / "a", folder / "inner", folder / "inner/b"}
    assert {path for step, path in steps[:4] if step == "fsync"} == on_disk
    assert steps[4:] == [("replace", folder), ("fsync", tmp_path)]


@both_forms
def test_what_a_body_wrote_gets_its_name_at_the_end(form: Form, tmp_path: Path) -> None:
    path = tmp_path / "out"
    with form(path) as name:
        (name / "inside" if form is new_folder else name).write_text("new")
        assert left(tmp_path) == [next(part for part in name.parts if part.endswith(".tmp"))]
        assert left(tmp_path)[0].startswith(".")
    assert (path / "inside" if form is new_folder else path).read_text() == "new"
    assert left(tmp_path) == ["out"]


@both_forms
@pytest.mark.parametrize("error", [OSError, KeyboardInterrupt, SystemExit])
def test_an_error_in_the_body_leaves_nothing(form: Form, error: type[BaseException], tmp_path: Path) -> None:
    with pytest.raises(error), form(tmp_path / "out") as name:  # noqa: PT012
        (name / "half" if form is new_folder else name).write_text("half")
        raise error
    assert left(tmp_path) == []


def test_several_files_are_all_replaced(tmp_path: Path) -> None:
    (tmp_path / "m.bin").write_text("old")
    (tmp_path / "m.xml").write_text("old")
    (tmp_path / "m.bin").chmod(0o600)
    with replace_files(tmp_path / "m.xml") as name:
        name.write_text("new")
        name.with_suffix(".bin").write_text("new")
    assert left(tmp_path) == ["m.bin", "m.xml"]
    assert {path.read_text() for path in tmp_path.iterdir()} == {"new"}
    assert mode(tmp_path / "m.bin") == 0o600


@pytest.mark.parametrize("at", ["m.bin", "m.xml"])
def test_several_files_none_of_which_is_replaced(
    at: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    replace = os.replace

    def refuse(source: Path, target: Path) -> None:
        if target == tmp_path / at and ".before" not in str(source):
            raise OSError(18, "Invalid cross-device link")
        replace(source, target)

    for file in ("m.bin", "m.xml"):
        (tmp_path / file).write_text("old")
    told = pytest.raises(OSError, match=f"cross-device link: '{tmp_path / at}'$")
    with told, replace_files(tmp_path / "m.xml") as name:
        name.write_text("new")
        name.with_suffix(".bin").write_text("new")
        monkeypatch.setattr(os, "replace", refuse)
    assert left(tmp_path) == ["m.bin", "m.xml"]
    assert (tmp_path / "m.xml").read_text() == "old"


@pytest.mark.parametrize("error", [OSError(28, "No space left on device"), OSError(5, "I/O error")])
@pytest.mark.parametrize("call", ["fsync", "replace"])
def test_a_disk_that_fails(
    error: OSError, call: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "out"
    path.write_text("old")

    def fail(*args: object) -> None:
        raise error

    monkeypatch.setattr(os, call, fail)
    with pytest.raises(OSError, match=f"{error.strerror}: '{path}'$"):
        write_file(path, b"new")
    assert left(tmp_path) == ["out"]
    assert path.read_text() == "old"


def test_a_new_folder_replaces_nothing(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("mine")
    (tmp_path / "folder").mkdir()
    (tmp_path / "folder/inside").write_text("mine")
    (tmp_path / "link").symlink_to(tmp_path / "nowhere")
    for name in ("file", "folder", "link"):
        with (
            pytest.raises(UserError, match=f"{name} exists; give the name of a new folder"),
            new_folder(tmp_path / name),
        ):
            pytest.fail("the body ran")
    assert left(tmp_path) == ["file", "folder", "link"]
    with pytest.raises(UserError, match="out exists by now"), new_folder(tmp_path / "out"):  # noqa: PT012
        (tmp_path / "out").mkdir()
        (tmp_path / "out/other").write_text("of somebody else")
    assert left(tmp_path) == ["file", "folder", "link", "out"]
    assert left(tmp_path / "out") == ["other"]


def test_an_empty_folder_is_taken_with_its_mode(tmp_path: Path) -> None:
    (tmp_path / "empty").mkdir()
    (tmp_path / "empty").chmod(0o2750)
    (tmp_path / "link").symlink_to("empty")
    with new_folder(str(tmp_path / "link")) as folder:
        (folder / "inside").write_text("new")
    assert left(tmp_path) == ["empty", "link"]
    assert (tmp_path / "link").is_symlink()
    assert (tmp_path / "empty/inside").read_text() == "new"
    assert mode(tmp_path / "empty") == 0o2750


def test_the_folder_one_is_in_stays(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    for name in (".", str(tmp_path), "../" + tmp_path.name):
        with pytest.raises(UserError, match="in use; give the name of a new folder"), new_folder(name):
            pytest.fail("the body ran")


def test_folders_above_a_new_folder(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="no"), new_folder(tmp_path / "a/b/c", parents=True):  # noqa: PT012
        (tmp_path / "a/mine").write_text("")
        raise ValueError("no")
    assert left(tmp_path) == ["a"]
    assert left(tmp_path / "a") == ["mine"]
    with new_folder(tmp_path / "a/b/c", parents=True):
        pass
    assert (tmp_path / "a/b/c").is_dir()


@both_forms
def test_a_folder_that_is_not_there_is_told_before_the_work(form: Form, tmp_path: Path) -> None:
    message = r"out cannot be written: there is no folder .*/no$"
    with pytest.raises(FileNotFoundError, match=message), form(tmp_path / "no/out"):
        pytest.fail("the body ran")
    with pytest.raises(FileNotFoundError, match=message):
        write_file(tmp_path / "no/out", b"")


# -- what it takes over ------------------------------------------------------------------------------------


@pytest.mark.parametrize("umask", [0o022, 0o077, 0o002])
def test_new_things_have_the_mode_of_the_umask(umask: int, tmp_path: Path) -> None:
    before = os.umask(umask)
    try:
        write_file(tmp_path / "file", b"")
        with replace_files(tmp_path / "files") as name:
            name.touch(0o600)
        with new_folder(tmp_path / "folder") as folder:
            (folder / "private").touch(0o600)  # as safetensors makes its files
            (folder / "program").touch(0o700)
    finally:
        os.umask(before)
    assert mode(tmp_path / "file") == mode(tmp_path / "files") == 0o666 & ~umask
    assert mode(tmp_path / "folder") == 0o777 & ~umask
    assert mode(tmp_path / "folder/private") == 0o666 & ~umask
    assert mode(tmp_path / "folder/program") == 0o700 | 0o666 & ~umask


@pytest.mark.parametrize("bits", [0o600, 0o640, 0o666, 0o755, 0o4755])
def test_a_file_that_is_replaced_hands_on_its_mode(
    bits: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path, seen = tmp_path / "out", []
    path.write_text("old")
    path.chmod(bits)
    monkeypatch.setattr(os, "fsync", lambda descriptor: seen.append(os.fstat(descriptor).st_mode))
    write_file(path, b"new")
    assert mode(path) == bits
    assert seen[0] & 0o077 & ~bits == 0  # nor was it open to others before
    with replace_files(path) as name:
        name.write_text("newer")
    assert mode(path) == bits


def test_a_file_that_is_replaced_hands_on_its_owner(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    asked = []

    def chown(path: Path, owner: int, group: int) -> None:
        asked.append((owner, group))
        raise PermissionError  # as of all but root

    (tmp_path / "out").touch()
    monkeypatch.setattr(os, "chown", chown)
    write_file(tmp_path / "out", b"new")
    there = (tmp_path / "out").stat()
    assert asked == [(-1, there.st_gid), (there.st_uid, -1)]


@pytest.mark.parametrize("dangling", [False, True])
def test_a_link_is_followed_and_stays(dangling: bool, tmp_path: Path) -> None:
    for folder in ("here", "there"):
        (tmp_path / folder).mkdir()
    target = tmp_path / "there/file"
    (tmp_path / "here/link").symlink_to("../there/second")
    (tmp_path / "there/second").symlink_to(target)
    if not dangling:
        target.write_text("old")
        target.chmod(0o600)
    for data in ("new", "newer"):
        if data == "new":
            write_file(tmp_path / "here/link", data)
        else:
            with replace_files(tmp_path / "here/link") as name:
                name.write_text(data)
        assert target.read_text() == data
        assert not target.is_symlink()
    assert mode(target) == (0o644 if dangling else 0o600)
    assert left(tmp_path / "here") == ["link"]
    assert left(tmp_path / "there") == ["file", "second"]
    assert os.readlink(tmp_path / "here/link") == "../there/second"


def test_links_that_lead_nowhere(tmp_path: Path) -> None:
    (tmp_path / "round").symlink_to("about")
    (tmp_path / "about").symlink_to("round")
    with pytest.raises(OSError, match="symbolic links"):
        write_file(tmp_path / "round", b"")
    (tmp_path / "far").symlink_to("no/file")
    with pytest.raises(FileNotFoundError, match=r"there is no folder .*no$"):
        write_file(tmp_path / "far", b"")
    assert left(tmp_path) == ["about", "far", "round"]


@pytest.mark.parametrize("name", ["n" * 255, "é" * 127 + "n", "n" + "\N{GRINNING FACE}" * 63, "-[*\n"])
def test_any_name(name: str, tmp_path: Path) -> None:
    for data in ("old", "new"):
        write_file(tmp_path / name, data)
        assert left(tmp_path) == [name]
    with pytest.raises(OSError, match="File name too long"):
        write_file(tmp_path / ("n" * 256), b"")
    (tmp_path / name).unlink()
    with new_folder(tmp_path / name):
        pass
    assert left(tmp_path) == [name]


def test_a_folder_or_a_protected_file_is_not_replaced(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with pytest.raises(IsADirectoryError, match=str(tmp_path)):
        write_file(tmp_path, b"")
    (tmp_path / "out").touch(0o444)
    monkeypatch.setattr(os, "access", lambda path, way: Path(path).name != "out")  # which root may always
    for form in (lambda path: write_file(path, b""), lambda path: replace_files(path).__enter__()):
        with pytest.raises(PermissionError, match=r"write-protected: .*out'$"):
            form(tmp_path / "out")
    assert left(tmp_path) == ["out"]


# -- what cannot be replaced -------------------------------------------------------------------------------


def child(action: Callable[[], object]) -> int:
    """The id of a forked process that does this and ends, with 0 if it went well."""
    process = os.fork()
    if process == 0:
        status = 1
        try:
            action()
            status = 0
        finally:
            os._exit(status)
    return process


def status(process: int) -> int:
    return os.waitstatus_to_exitcode(os.waitpid(process, 0)[1])


def test_into_a_fifo_and_into_nothing(tmp_path: Path) -> None:
    write_file("/dev/null", b"gone")
    assert stat.S_ISCHR(os.stat("/dev/null").st_mode)
    (tmp_path / "null.csv").symlink_to("/dev/null")
    write_file(tmp_path / "null.csv", b"gone")
    assert (tmp_path / "null.csv").is_symlink()
    os.mkfifo(tmp_path / "fifo")
    read: list[bytes] = []
    reader = threading.Thread(target=lambda: read.append((tmp_path / "fifo").read_bytes()))
    reader.start()
    write_file(tmp_path / "fifo", NEW)
    reader.join()
    assert read == [NEW]
    for name in ("null.csv", "fifo"):
        with (
            pytest.raises(UserError, match="not a file that can be replaced"),
            replace_files(tmp_path / name),
        ):
            pytest.fail("the body ran")
    assert left(tmp_path) == ["fifo", "null.csv"]


@forks
@pytest.mark.parametrize("name", ["/dev/stdout", "/dev/fd/1", "link.csv"])
def test_stdout_in_a_file_keeps_what_was_printed(name: str, tmp_path: Path) -> None:
    """`--json /dev/stdout > FILE`: a rename would leave what is printed later in a file without a name."""
    (tmp_path / "link.csv").symlink_to("/dev/stdout")
    out = os.open(tmp_path / "out", os.O_CREAT | os.O_WRONLY)

    def act() -> None:
        os.dup2(out, 1)
        os.write(1, b"before\n")
        write_file(tmp_path / name, b"data\n")  # an absolute path stays itself
        os.lseek(1, 0, os.SEEK_END)
        os.write(1, b"after\n")

    assert status(child(act)) == 0
    os.close(out)
    assert (tmp_path / "out").read_text() == "before\ndata\nafter\n"
    assert left(tmp_path) == ["link.csv", "out"]


# -- killed, interrupted -----------------------------------------------------------------------------------


def replace_one(path: Path) -> None:
    write_file(path, NEW)


def replace_two(path: Path) -> None:
    with replace_files(path) as name:
        name.write_bytes(NEW)
        name.with_suffix(".bin").write_bytes(NEW)


def make_folder(path: Path) -> None:
    with new_folder(path) as folder:
        (folder / "a").write_bytes(NEW)
        (folder / "b").write_bytes(NEW)


def fail(path: Path) -> None:
    with new_folder(path) as folder:
        (folder / "a").write_bytes(NEW)
        raise ValueError


ALL = [replace_one, replace_two, make_folder]


def put_old(action: Callable[[Path], None], path: Path) -> None:
    if action in (replace_one, replace_two):
        path.write_bytes(OLD)
    if action is replace_two:
        path.with_suffix(".bin").write_bytes(OLD)


def found(action: Callable[[Path], None], path: Path) -> str:
    """Whether 'old' or 'new' is there, whole; two files of different age would compute anything."""
    names = {replace_one: [path], replace_two: [path, path.with_suffix(".bin")]}
    files = names.get(action) or [path / "a", path / "b"]
    data = [file.read_bytes() if file.exists() else b"" for file in files]
    if action is replace_two and not data[0]:
        return "none"  # no .xml, so its .bin says nothing
    if action in (make_folder, fail) and not path.exists():
        return "old"
    assert data in ([OLD] * len(files), [NEW] * len(files)), "torn"
    return "old" if data[0] == OLD else "new"


def temporaries(folder: Path) -> list[str]:
    return [name for name in left(folder) if name.startswith(".") and name.endswith(".tmp")]


class Steps:
    """Calls `at_step` once, before the line of that number in the room, or in what it stands on."""

    def __init__(self, step: int, at_step: Callable[[], None]) -> None:
        self.step, self.at_step, self.passed = step, at_step, 0

    def trace(self, frame: FrameType, event: str, arg: object) -> Any:
        if event == "call":
            name = frame.f_code.co_filename
            if name not in (atomic.__file__, temporary.__file__) and not name.endswith("contextlib.py"):
                return None
        # Python itself looks for Ctrl-C at calls and at jumps back. A tracer that raises where a generator
        # goes on would end it past its `finally`, as no signal does.
        resumed = event == "call" and frame.f_code.co_flags & inspect.CO_GENERATOR
        if event in ("call", "line") and not resumed:
            self.passed += 1
            if self.passed == self.step:
                sys.settrace(None)
                self.at_step()
        return self.trace

    def run(self, action: Callable[[], None]) -> None:
        sys.settrace(self.trace)
        try:
            action()
        finally:
            sys.settrace(None)


def interrupt() -> None:
    raise KeyboardInterrupt


@pytest.mark.usefixtures("fast")
@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")  # a file that Python closes
@pytest.mark.parametrize("action", [*ALL, fail])
def test_ctrl_c_at_any_line_leaves_nothing(
    action: Callable[[Path], None], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sys.modules[__name__], "OLD", b"old")
    monkeypatch.setattr(sys.modules[__name__], "NEW", b"new")
    gc.collect()
    gc.freeze()  # else each collection below goes through all of torch
    seen = set()
    for step in count(1):
        folder = tmp_path / str(step)
        folder.mkdir()
        put_old(action, folder / "m.xml")
        before = left(folder)
        try:
            Steps(step, interrupt).run(lambda folder=folder: action(folder / "m.xml"))
            break  # it has fewer steps than that
        except KeyboardInterrupt:
            pass
        except ValueError:
            break
        gc.collect()  # between two lines of contextlib only a generator's end is left to tidy up
        seen.add(found(action, folder / "m.xml"))
        assert left(folder) in (before, ["m.xml"]), step
    gc.unfreeze()
    assert step > 100
    assert seen == ({"old"} if action is fail else {"old", "new"})
    for number in (signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, signal.SIG_DFL)


def clear(action: Callable[[Path], None], path: Path) -> None:
    if path.is_dir():
        shutil.rmtree(path)
    put_old(action, path)


@forks
def test_killed_at_50_moments(tmp_path: Path) -> None:
    path = tmp_path / "m.xml"

    def start() -> int:
        get, put = os.pipe()
        process = child(lambda: (os.write(put, b"."), replace_one(path)))
        os.read(get, 1)  # it has begun
        os.close(get)
        os.close(put)
        return process

    clear(replace_one, path)
    begin = time.perf_counter()
    assert status(start()) == 0
    takes = time.perf_counter() - begin
    seen = set()
    for moment in range(50):
        clear(replace_one, path)
        process = start()
        time.sleep(takes * moment / 50)
        os.kill(process, signal.SIGKILL)
        os.waitpid(process, 0)
        seen.add(found(replace_one, path))
        assert left(tmp_path) == sorted([*temporaries(tmp_path), "m.xml"])
    assert "old" in seen
    replace_one(path)
    assert left(tmp_path) == ["m.xml"]  # what the killed ones left is gone too


@forks
@pytest.mark.usefixtures("fast")
@pytest.mark.parametrize("action", ALL)
def test_killed_at_20_lines(action: Callable[[Path], None], tmp_path: Path) -> None:
    """Where time has too large a grain: between two renames, between lock and name."""
    path = tmp_path / "m.xml"
    clear(action, path)
    whole = Steps(0, interrupt)
    whole.run(lambda: action(path))
    seen = []
    for moment in range(20):
        clear(action, path)
        steps = Steps(1 + moment * whole.passed // 20, lambda: os.kill(os.getpid(), signal.SIGKILL))
        assert status(child(lambda steps=steps: steps.run(lambda: action(path)))) == -signal.SIGKILL
        seen.append(found(action, path))
        files = {"m.xml", "m.bin"} if action is replace_two else {"m.xml"}
        assert set(left(tmp_path)) - files == set(temporaries(tmp_path))
    assert {"old", "new"} <= set(seen)
    assert seen == sorted(seen, key=["old", "none", "new"].index)
    clear(action, path)
    action(path)
    assert temporaries(tmp_path) == []


@forks
@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGHUP])
@pytest.mark.parametrize("form", [replace_files, new_folder])
def test_a_signal_that_ends_the_process_leaves_nothing(
    number: signal.Signals, form: Form, tmp_path: Path
) -> None:
    get, put = os.pipe()

    def act() -> None:
        with form(tmp_path / "a" / "out", **({"parents": True} if form is new_folder else {})) as name:
            write_file(name / "half" if form is new_folder else name, b"half")
            os.write(put, b".")
            time.sleep(60)

    if form is replace_files:
        (tmp_path / "a").mkdir()
    process = child(act)
    os.read(get, 1)
    assert temporaries(tmp_path / "a") != []
    os.kill(process, number)
    assert status(process) == -number  # as a shell and a scheduler expect it
    assert left(tmp_path) == ([] if form is new_folder else ["a"])
    assert form is new_folder or left(tmp_path / "a") == []
    os.close(get)
    os.close(put)


def test_handlers_of_signals_are_the_callers(tmp_path: Path) -> None:
    def own(number: int, frame: object) -> None:
        pass

    asked = (signal.SIGTERM, signal.SIGHUP)
    before = [signal.signal(signal.SIGTERM, own), signal.signal(signal.SIGHUP, signal.SIG_IGN)]  # nohup
    try:
        with new_folder(tmp_path / "out"):
            assert [signal.getsignal(number) for number in asked] == [own, signal.SIG_IGN]
        signal.signal(signal.SIGTERM, signal.SIG_DFL)
        with new_folder(tmp_path / "second"):
            assert signal.getsignal(signal.SIGTERM) is not signal.SIG_DFL
            signal.signal(signal.SIGHUP, own)
        assert [signal.getsignal(number) for number in asked] == [signal.SIG_DFL, own]
    finally:
        for number, handler in zip(asked, before, strict=True):
            signal.signal(number, handler)


# -- several at once ---------------------------------------------------------------------------------------


@pytest.mark.usefixtures("fast")
def test_four_threads_write_one_path(tmp_path: Path) -> None:
    path, done, faults = tmp_path / "out", threading.Event(), []
    write_file(path, bytes([0]) * 100_000)

    def write(number: int) -> None:
        try:
            for i in range(60):
                write_file(path, bytes([number * 60 + i]) * 100_000)
        except BaseException as error:
            faults.append(error)

    def read() -> None:
        while not done.is_set():
            data = path.read_bytes()
            if len(data) != 100_000 or len(set(data)) != 1:
                faults.append(f"torn: {len(data)} bytes of {set(data)}")

    readers = [threading.Thread(target=read) for _ in range(2)]
    writers = [threading.Thread(target=write, args=[number]) for number in range(4)]
    for thread in (*readers, *writers):
        thread.start()
    for thread in writers:
        thread.join()
    done.set()
    for thread in readers:
        thread.join()
    assert faults == []
    assert left(tmp_path) == ["out"]


def test_what_is_taken_for_dead_before_it_is_locked(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Another writer comes between the making of a temporary and its lock, twice."""
    lock, swept = temporary._lock, []

    def late(path: Path, wait: bool) -> list[int]:
        if wait and len(swept) < 2:
            swept.append(path)
            temporary._remove_dead(tmp_path, path.name.split(".")[1])
            assert not path.exists()
        return lock(path, wait)

    monkeypatch.setattr(temporary, "_lock", late)
    write_file(tmp_path / "out", b"new")
    assert (tmp_path / "out").read_bytes() == b"new"
    swept.clear()
    with new_folder(tmp_path / "folder"):
        pass
    assert left(tmp_path) == ["folder", "out"]


def test_only_what_is_dead_and_of_this_name_is_removed(tmp_path: Path) -> None:
    token = "0123456789abcdef"
    dead, others = f".out.gmlp-{token}.tmp", [f".other.gmlp-{token}.tmp", ".out.tmp", f".out.{token}.tmp"]
    for name in (dead, *others):
        (tmp_path / name).touch()
    (tmp_path / f".out.gmlp-{token[::-1]}.tmp").mkdir()
    (tmp_path / f".out.gmlp-{token[::-1]}.tmp/inside").touch()
    with replace_files(tmp_path / "out") as alive:
        alive.touch()
        write_file(tmp_path / "out", b"another writer")
        assert left(tmp_path) == sorted([alive.parent.name, *others, "out"])
    assert left(tmp_path) == sorted([*others, "out"])


def test_without_locks_all_works_and_nothing_is_taken_for_dead(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(temporary, "fcntl", None)
    with new_folder(tmp_path / "out") as alive:
        write_file(alive / "a", b"new")
        temporary._remove_dead(tmp_path, "out")
        assert alive.exists()
    assert left(tmp_path) == ["out"]
