"""Where the command `gmlp-vision` begins, ready for what comes before the package is imported.

That takes seconds, and importing anything of the package imports it all: hence a module of its own.
"""

import io
import os
import signal
import sys
from types import FrameType
from typing import NoReturn


def main() -> int:
    """Runs the command; returns its exit status."""
    _hold_standard_streams()
    if signal.getsignal(signal.SIGINT) is signal.default_int_handler:  # else nohup or a shell has it ignored
        signal.signal(signal.SIGINT, _leave)
    from gmlp_vision import cli

    if signal.getsignal(signal.SIGINT) is _leave:
        signal.signal(signal.SIGINT, signal.default_int_handler)
    return cli.main()


def _hold_standard_streams() -> None:
    """Opens what the shell has closed of 0, 1 and 2 (`2>&-`); else the next file would be opened as that."""
    while (descriptor := os.open(os.devnull, os.O_RDWR)) <= 2:
        os.set_inheritable(descriptor, True)
    os.close(descriptor)
    if sys.stderr is None:  # print would take None for stdout
        sys.stderr = open(os.devnull, "w")  # noqa: SIM115  for as long as the process runs
    if isinstance(sys.stdout, io.TextIOWrapper):  # a name that it cannot show is no reason to fail
        sys.stdout.reconfigure(errors="backslashreplace")


def _leave(number: int, frame: FrameType | None) -> NoReturn:
    """Ctrl-C while nothing is begun: at once, since an import may swallow an exception."""
    print("gmlp-vision: interrupted", file=sys.stderr, flush=True)
    os._exit(130)
