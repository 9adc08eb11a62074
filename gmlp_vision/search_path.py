"""The order of sys.path, so that the timm that is imported is the installed one. Imports no timm itself."""

import os
import sys


def put_last(folder: str | os.PathLike[str]) -> None:
    """Moves a folder to the end of sys.path, or adds it there: its modules are found, but shadow none."""
    last = os.path.realpath(folder)
    sys.path[:] = [entry for entry in sys.path if os.path.realpath(entry) != last] + [last]


def prefer_installed_timm() -> None:
    """Under `python -m gmlp_vision.run`, moves the current folder from the head of sys.path to its end.

    In a checkout of timm the current folder has a timm/ of its own, maybe of another version. Python imports
    the package before run.py, and the package imports timm, so this is called at the package's own import.
    """
    looking_for_module = sys.argv[:1] == ["-m"]
    if looking_for_module and "gmlp_vision.run" in sys.orig_argv and os.getcwd() in sys.path:
        put_last(os.getcwd())
