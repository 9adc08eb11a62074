"""A full disk: one line of error, nothing left, and what was there is as it was."""

import os
import resource
import subprocess
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path

import pytest
from timm.models import save_for_hf
from tiny import tiny

from gmlp_vision.atomic import write_file
from gmlp_vision.cli import main

Full = Callable[[int], AbstractContextManager[None]]
PAGE = 4096  # of memory, in which a tmpfs counts


@contextmanager
def nothing_beyond(size: int) -> Iterator[None]:
    """No file may grow beyond this, anywhere: for where nothing can be mounted."""
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (size, before[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)


@pytest.fixture
def small(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[tuple[Path, Full]]:
    """A folder, and what leaves so much room there: on a disk of 64 KiB; by a limit where none is mounted."""
    folder = tmp_path / "disk"
    folder.mkdir()
    mount = ["mount", "-t", "tmpfs", "-o", "size=64k", "tmpfs", str(folder)]
    if request.param == "limit" or subprocess.run(mount, capture_output=True).returncode != 0:
        yield folder, lambda room: nothing_beyond(max(room, 1))
        return

    @contextmanager
    def fill(room: int) -> Iterator[None]:
        filler = folder / "filler"
        free = os.statvfs(folder)
        filler.write_bytes(bytes(free.f_bavail * free.f_frsize - room))
        yield
        filler.unlink()

    try:
        yield folder, fill
    finally:
        subprocess.run(["umount", str(folder)], check=True)


disk = pytest.mark.parametrize("small", ["disk"], indirect=True)


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> str:
    path = tmp_path_factory.mktemp("model") / "tiny"
    save_for_hf(tiny(), str(path), safe_serialization=True)
    return str(path)


COMMANDS = {
    "m.safetensors": "convert MODEL OUT",
    "m.pth": "convert MODEL OUT",
    "folder": "convert MODEL OUT",
    "f.png": "filters MODEL -o OUT",
    "f.pdf": "filters MODEL -o OUT",
    "f.svg": "filters MODEL -o OUT",
    "s.csv": "filters MODEL --stats OUT",
    "s.json": "filters MODEL --stats OUT",
    "p.html": "filters MODEL --html OUT",
    "m.onnx": "export MODEL OUT --format onnx",
    "m.xml": "export MODEL OUT --format openvino",
    "m.pt": "export MODEL OUT --format torchscript",
    "m.pt2": "export MODEL OUT --format exported-program",
}


def check(
    small: tuple[Path, Full], name: str, model: str, room: int, capsys: pytest.CaptureFixture[str]
) -> None:
    folder, full = small
    there = [] if name == "folder" else ["m.bin", "m.xml"] if name == "m.xml" else [name]
    for file in there:
        (folder / file).write_text("old")
    command = [{"MODEL": model, "OUT": str(folder / name)}.get(word, word) for word in COMMANDS[name].split()]
    with full(room):
        assert main(command) == 2
        assert sorted(path.name for path in folder.iterdir() if path.name != "filler") == there
    assert {(folder / file).read_text() for file in there} <= {"old"}
    error = capsys.readouterr().err
    assert error.count("\n") == 1
    assert error.startswith("gmlp-vision: ")
    assert any(word in error for word in ("No space left", "File too large", "is the disk full?"))
    assert ".tmp" not in error  # the name that the user gave


@pytest.mark.slow
@disk
@pytest.mark.parametrize("name", COMMANDS)
def test_a_full_disk(
    small: tuple[Path, Full], name: str, model: str, capsys: pytest.CaptureFixture[str]
) -> None:
    check(small, name, model, 0, capsys)


@pytest.mark.slow
@disk
@pytest.mark.parametrize("name", ["folder", "m.xml", "m.pt", "m.pt2"])
def test_a_disk_that_is_full_after_a_part(
    small: tuple[Path, Full], name: str, model: str, capsys: pytest.CaptureFixture[str]
) -> None:
    check(small, name, model, 2 * PAGE, capsys)


@pytest.mark.slow
@pytest.mark.parametrize("small", ["limit"], indirect=True)
@pytest.mark.parametrize("name", ["folder", "m.pt"])
def test_a_file_that_may_not_grow(
    small: tuple[Path, Full], name: str, model: str, capsys: pytest.CaptureFixture[str]
) -> None:
    check(small, name, model, 1000, capsys)


@pytest.mark.parametrize("small", ["disk", "limit"], indirect=True)
@pytest.mark.parametrize("room", [0, PAGE])
def test_the_room_itself(small: tuple[Path, Full], room: int) -> None:
    folder, full = small
    (folder / "out").write_text("old")
    with (
        full(room),
        pytest.raises(OSError, match=f"(No space left on device|File too large): '{folder}/out'$"),
    ):
        write_file(folder / "out", bytes(3 * PAGE))
    assert [path.name for path in folder.iterdir()] == ["out"]
    assert (folder / "out").read_text() == "old"


@disk
def test_the_demo(
    small: tuple[Path, Full], capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    folder, full = small
    monkeypatch.setattr("gmlp_vision.demo.train_model", lambda model, batches, epochs: None)
    with full(2 * PAGE):
        assert main(["demo", "--output", str(folder / "runs/demo")]) == 2
        assert [path.name for path in folder.iterdir() if path.name != "filler"] == []
    error = capsys.readouterr().err.splitlines()[-1]
    assert error.startswith("gmlp-vision: ")
    assert "No space left" in error
