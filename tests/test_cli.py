"""The command as a shell sees it: exit codes, one line of error, no traceback."""

import argparse
import subprocess
import sys
from pathlib import Path

import pytest

from gmlp_vision import __version__, cli
from gmlp_vision.errors import CheckpointError, UserError

COMMAND = str(Path(sys.executable).with_name("gmlp-vision"))


def test_version(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as exit_:
        cli.main(["--version"])
    assert exit_.value.code == 0
    assert capsys.readouterr().out == f"gmlp-vision {__version__}\n"


@pytest.mark.parametrize("argv", [[], ["nonsense"], ["demo", "--epochs", "many"]])
def test_bad_usage_exits_with_2(argv: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as exit_:
        cli.main(argv)
    assert exit_.value.code == 2
    assert "usage: gmlp-vision" in capsys.readouterr().err


@pytest.mark.parametrize(
    "error", [UserError("a\nb"), CheckpointError("a b"), ValueError("a b"), OSError("a b")]
)
def test_what_a_user_can_mend_is_one_line(
    error: Exception, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def add(commands: argparse._SubParsersAction) -> None:
        commands.add_parser("fail").set_defaults(call=fail)

    def fail(args: argparse.Namespace) -> None:
        raise error

    monkeypatch.setattr(cli, "COMMANDS", (add,))
    assert cli.main(["fail"]) == 2
    assert capsys.readouterr().err == "gmlp-vision: a b\n"


def test_a_fault_of_ours_keeps_its_traceback(monkeypatch: pytest.MonkeyPatch) -> None:
    def add(commands: argparse._SubParsersAction) -> None:
        commands.add_parser("fail").set_defaults(call=lambda args: {}["missing"])

    monkeypatch.setattr(cli, "COMMANDS", (add,))
    with pytest.raises(KeyError):
        cli.main(["fail"])


@pytest.mark.slow
def test_a_reader_that_leaves_early_gets_no_traceback() -> None:
    pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True}
    with subprocess.Popen([COMMAND, "recipe"], **pipes) as process:
        process.stdout.close()  # before anything is written
        assert process.stderr.read() == ""
        assert process.wait(timeout=60) == 141
