"""A file or a folder under its own name is whole, or it is what was there before."""

import os
from collections.abc import Callable
from contextlib import AbstractContextManager
from pathlib import Path

import pytest

from gmlp_vision.atomic import new_folder, replace_file
from gmlp_vision.errors import UserError

Form = Callable[[Path], AbstractContextManager[Path]]
both_forms = pytest.mark.parametrize("form", [replace_file, new_folder])


def write(temporary: Path, text: str) -> None:
    (temporary / "inside" if temporary.is_dir() else temporary).write_text(text)


def read(path: Path) -> str:
    return (path / "inside" if path.is_dir() else path).read_text()


@both_forms
def test_what_was_written_gets_its_name_at_the_end(form: Form, tmp_path: Path) -> None:
    path = tmp_path / "out.txt"
    with form(path) as temporary:
        write(temporary, "new")
        assert temporary.parent == tmp_path  # a rename to another disk would not be one stroke
        assert temporary.name.startswith(".")
        assert temporary.name.endswith(".tmp")
        assert not path.exists()
    assert read(path) == "new"
    assert list(tmp_path.iterdir()) == [path]


@both_forms
@pytest.mark.parametrize("error", [OSError, KeyboardInterrupt])
@pytest.mark.parametrize("written", [True, False])
def test_an_error_leaves_nothing(
    form: Form, error: type[BaseException], written: bool, tmp_path: Path
) -> None:
    with pytest.raises(error), form(tmp_path / "out") as temporary:  # noqa: PT012
        if written:
            write(temporary, "half")
        raise error
    assert not list(tmp_path.iterdir())


@both_forms
def test_a_rename_that_fails_leaves_nothing(
    form: Form, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(*args: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "replace", full)
    with pytest.raises(OSError, match="No space"), form(tmp_path / "out") as temporary:
        write(temporary, "new")
    assert not list(tmp_path.iterdir())


def test_a_file_is_replaced_and_kept_if_the_new_one_fails(tmp_path: Path) -> None:
    path = tmp_path / "out"
    path.write_text("old")
    with pytest.raises(ValueError, match="no more"), replace_file(path) as temporary:  # noqa: PT012
        write(temporary, "half")
        raise ValueError("no more")
    assert read(path) == "old"
    with replace_file(str(path)) as temporary:
        write(temporary, "new")
        assert read(path) == "old"
    assert read(path) == "new"
    assert list(tmp_path.iterdir()) == [path]


@pytest.mark.parametrize("there", ["file", "folder", "link"])
def test_a_new_folder_replaces_nothing(there: str, tmp_path: Path) -> None:
    path = tmp_path / "out"
    if there == "file":
        path.write_text("mine")
    elif there == "folder":
        path.mkdir()
        write(path, "mine")
    else:
        path.symlink_to(tmp_path / "nowhere")
    with pytest.raises(UserError, match="out exists; give the name of a new folder"), new_folder(path):
        pytest.fail("the body ran")
    assert list(tmp_path.iterdir()) == [path]
    assert there == "link" or read(path) == "mine"


def test_an_empty_folder_is_taken(tmp_path: Path) -> None:
    (tmp_path / "out").mkdir()
    with new_folder(str(tmp_path / "out")) as temporary:
        write(temporary, "new")
    assert read(tmp_path / "out") == "new"


@both_forms
def test_a_folder_that_is_not_there_is_told_before_the_work(form: Form, tmp_path: Path) -> None:
    with (
        pytest.raises(FileNotFoundError, match=r"out cannot be written: there is no folder .*/no"),
        form(tmp_path / "no/out"),
    ):
        pytest.fail("the body ran")
