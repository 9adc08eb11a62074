"""The command as a shell sees it: exit codes, one line of error, no traceback."""

import argparse
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest
import torch

from gmlp_vision import __version__, cli
from gmlp_vision.errors import CheckpointError, UserError

COMMAND = str(Path(sys.executable).with_name("gmlp-vision"))


@pytest.fixture
def call(monkeypatch: pytest.MonkeyPatch) -> list:
    """A command `try` that calls what a test puts into the list."""
    calls: list = []

    def add(commands: argparse._SubParsersAction) -> None:
        commands.add_parser("try").set_defaults(call=lambda args: calls[0]())

    monkeypatch.setattr(cli, "COMMANDS", (add,))
    return calls


def raises(error: BaseException) -> object:
    def fail() -> None:
        raise error

    return fail


def test_version(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as exit_:
        cli.main(["--version"])
    assert exit_.value.code == 0
    assert capsys.readouterr().out == f"gmlp-vision {__version__}\n"


def test_alone_it_prints_its_help(capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main([]) == 0
    out = capsys.readouterr().out
    assert out.startswith("usage: gmlp-vision ")
    assert {line.split()[0] for line in out.splitlines() if line.startswith("    ")} >= helps().keys()


def helps() -> dict[str, str]:
    """The help of each command."""
    (commands,) = (a for a in cli.make_parser()._actions if isinstance(a, argparse._SubParsersAction))
    return {title: parser.format_help() for title, parser in commands.choices.items()}


def test_the_help_of_every_command_has_an_example_that_parses() -> None:
    assert sorted(helps()) == [
        "convert",
        "demo",
        "export",
        "filters",
        "info",
        "recipe",
        "run",
        "structure",
        "verify",
        "zoo",
    ]
    for title, text in helps().items():
        example = text.splitlines()[-1]
        assert example.startswith("example: "), title
        words = example.partition("gmlp-vision ")[2].partition(")")[0].split()
        assert words[0] == title
        cli.make_parser().parse_args(words)


@pytest.mark.parametrize(
    ("argv", "message"),
    [
        (["nonsense"], "invalid choice: 'nonsense'"),
        (["demo", "--epochs", "many"], "argument --epochs: invalid int value: 'many'"),
        (["convert", "a", "b", "--num", "3"], "unrecognized arguments: --num 3"),  # no abbreviations
        (["convert", "a"], "the following arguments are required: OUT"),
        (["convert", "", "b"], "argument IN: it is empty"),
        (["convert", "a", ""], "argument OUT: it is empty"),
        (["recipe", ""], "argument NAME: it is empty"),
        (["run"], "no script is given"),
        (["demo", "--seed", "-1"], "seed is -1; expected 0 to 4294967295"),
        (["demo", "--epochs", "2"], "epochs is 2; expected more than the 2 of warm-up"),
        (["demo", "--epochs", "1" + 30 * "0"], "expected at most 100000"),
    ],
)
def test_bad_usage_is_one_line(
    argv: list[str], message: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys
) -> None:
    monkeypatch.chdir(tmp_path)
    assert cli.main(argv) == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert line.startswith("gmlp-vision: ")
    assert message in line
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    "error", [UserError("a\nb"), CheckpointError("a b"), ValueError("a b"), OSError("a b")]
)
def test_what_a_user_can_mend_is_one_line(error: Exception, call: list, capsys) -> None:
    call.append(raises(error))
    assert cli.main(["try"]) == 2
    assert capsys.readouterr().err == "gmlp-vision: a b\n"


@pytest.mark.parametrize("error", [KeyError("missing"), RuntimeError("of torch")])
def test_a_fault_of_ours_keeps_its_traceback(error: Exception, call: list) -> None:
    call.append(raises(error))
    with pytest.raises(type(error)):
        cli.main(["try"])


@pytest.mark.parametrize("allocate", [lambda: torch.empty(2**60), raises(MemoryError())])
def test_too_little_memory_is_one_line(allocate: object, call: list, capsys) -> None:
    call.append(allocate)
    assert cli.main(["try"]) == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert "there is not enough memory" in line


def test_ctrl_c_is_one_line(call: list, capsys) -> None:
    call.append(raises(KeyboardInterrupt()))
    assert cli.main(["try"]) == 130
    assert capsys.readouterr().err == "gmlp-vision: interrupted\n"


# -- as a process --------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def light(tmp_path_factory: pytest.TempPathFactory) -> str:
    """A folder with the command and nothing else of the package, so that it starts at once."""
    folder, real = tmp_path_factory.mktemp("light"), Path(cli.__file__).parents[1]
    (folder / "gmlp_vision_command.py").symlink_to(real.with_name("gmlp_vision_command.py"))
    (folder / "gmlp_vision").mkdir()
    for name in ("cli", "errors.py", "shipped.py"):
        (folder / "gmlp_vision" / name).symlink_to(real / name)
    (folder / "gmlp_vision/__init__.py").write_text("__version__ = '0'")
    (folder / "gmlp_vision/checkpoints.py").write_text("DTYPES = {}")
    return str(folder)


def shell(line: str, python: str, light: str) -> subprocess.CompletedProcess[str]:
    """Runs a line of bash, in which CMD is some Python in the light folder; its status is that of CMD."""
    return subprocess.run(
        ["bash", "-c", line.replace("CMD", f"{sys.executable} -c '{python}'") + "; exit ${PIPESTATUS[0]}"],
        cwd=light,  # where Python looks first
        env={name: value for name, value in os.environ.items() if name != "PYTHONUNBUFFERED"},
        capture_output=True,
        text=True,
        timeout=60,
    )


ENTRY = "import sys, gmlp_vision_command as entry; sys.exit(entry.main())"
FULL = "gmlp-vision: [Errno 28] No space left on device: 'standard output'\n"


@pytest.mark.parametrize(
    ("line", "status", "error"),
    [
        ("CMD recipe", 0, ""),
        ("CMD recipe >&-", 2, "gmlp-vision: standard output is closed: send it to a file, or to /dev/null\n"),
        ("CMD recipe >/dev/full", 2, FULL),
        ("CMD --help >/dev/full", 2, FULL),
        ("CMD recipe nonsense 2>&-", 2, ""),
        ("CMD recipe nonsense 2>/dev/full", 2, ""),
        ("CMD recipe 2>&-", 0, ""),
        ("PYTHONIOENCODING=ascii CMD recipe é", 2, None),
        ("CMD recipe $'\\xff' | cat", 2, None),
        ("CMD --help | (exec <&-; sleep 1)", 141, ""),
    ],
)
def test_wherever_the_streams_lead(line: str, status: int, error: str | None, light: str) -> None:
    done = shell(line, ENTRY, light)
    assert done.returncode == status, done.stderr
    assert done.stderr == error if error is not None else done.stderr.count("\n") == 1


def test_no_file_is_opened_as_a_stream_that_is_closed(light: str) -> None:
    """A library that prints, without Python, would write into it."""
    opened = ENTRY.replace(
        "sys.exit", 'import gmlp_vision.cli as cli; cli.main = lambda: open("/dev/null").fileno(); sys.exit'
    )
    for closed in ("", "<&-", ">&-", "2>&-", "<&- >&- 2>&-"):
        assert shell(f"CMD {closed}", opened, light).returncode > 2, closed


def test_what_a_terminal_cannot_show_is_no_error(light: str) -> None:
    printed = ENTRY.replace(
        "sys.exit", 'import gmlp_vision.cli as cli; cli.main = lambda: print("\\u00e9 \\udcff"); sys.exit'
    )
    done = shell("PYTHONIOENCODING=ascii CMD", printed, light)
    assert (done.stdout, done.stderr) == ("\\xe9 \\udcff\n", "")


SLOW_TORCH = """
import time
print("importing", flush=True)
while True:
    try:
        time.sleep(60)
    except BaseException:  # as some modules do
        pass
"""


def test_ctrl_c_during_the_imports_is_one_line(tmp_path: Path) -> None:
    (tmp_path / "torch.py").write_text(SLOW_TORCH)
    pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True}
    # A job in the background of a shell is started deaf to Ctrl-C, and its children inherit that.
    hear = {"preexec_fn": lambda: signal.signal(signal.SIGINT, signal.SIG_DFL)}
    path = os.pathsep.join([str(tmp_path), os.environ.get("PYTHONPATH", "")])
    env = {**os.environ, "PYTHONPATH": path}
    with subprocess.Popen([COMMAND, "recipe"], **pipes, **hear, env=env) as process:
        assert process.stdout.readline() == "importing\n"
        process.send_signal(signal.SIGINT)
        assert process.communicate(timeout=60)[1] == "gmlp-vision: interrupted\n"
    assert process.returncode == 130


@pytest.mark.slow
def test_a_reader_that_leaves_early_gets_no_traceback() -> None:
    pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True}
    with subprocess.Popen([COMMAND, "recipe"], **pipes) as process:
        process.stdout.close()  # before anything is written
        assert process.stderr.read() == ""
        assert process.wait(timeout=60) == 141
