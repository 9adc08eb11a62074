"""What the command prints: written whole, or said not to be."""

import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TextIO

from gmlp_vision.errors import UserError


@contextmanager
def whole_output() -> Iterator[None]:
    """Writes at the end what was printed, so that a full disk or a reader that has gone is noticed here."""
    if sys.stdout is None:
        raise UserError("standard output is closed: send it to a file, or to /dev/null")
    stdout = sys.stdout
    try:
        yield
    finally:
        try:
            if not stdout.closed:  # by a script
                stdout.flush()
        except OSError as error:
            to_nowhere(stdout)
            error.filename = "standard output"
            raise


def say(message: str) -> None:
    """One line on stderr."""
    try:
        print(f"gmlp-vision: {' '.join(message.split())}", file=sys.stderr, flush=True)
    except OSError:
        to_nowhere(sys.stderr)


def to_nowhere(stream: TextIO) -> None:
    """Else Python tries again at exit to write what could not be written, and complains."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), stream.fileno())
