"""Runs a script of timm, unchanged, with this package's models registered.

    gmlp-vision run validate.py --model gmlp_s16 ...
    torchrun --no-python --nproc-per-node 8 gmlp-vision run train.py --model gmlp_s16 ...

Of timm's scripts only train.py can import a plugin by itself. In a checkout they lie beside a timm/ of their
own, which may be another version; here the installed one is used.
"""

import os
import runpy
import sys
import traceback
from collections.abc import Sequence
from multiprocessing import context
from multiprocessing.process import BaseProcess
from multiprocessing.reduction import ForkingPickler
from pathlib import Path
from typing import Any

import timm

from gmlp_vision.errors import UserError


def find_script(script: str) -> Path:
    """The file of a script.

    Args:
        script: A path, or a bare name, looked up in the folder $TIMM_SCRIPTS and then in the current one.

    Raises:
        UserError: There is no such file; the message tells how to get timm's scripts.
    """
    candidates = [Path(script)]
    scripts = os.environ.get("TIMM_SCRIPTS")
    if scripts and Path(script).name == script:
        candidates.insert(0, Path(scripts, script))
    for candidate in candidates:
        if candidate.is_file():
            return candidate.resolve()
    tag, home = f"v{timm.__version__}", "https://github.com/huggingface/pytorch-image-models"
    raise UserError(
        f"no script at {' or '.join(map(str, candidates))}. timm's package holds none of its scripts: "
        f"git clone --depth 1 --branch {tag} {home} brings them; then give a script's path (that "
        "folder where the option is --scripts), or set TIMM_SCRIPTS to it"
    )


def run_script(script: Path, args: Sequence[str]) -> None:
    """Runs a script as `__main__`. What it raises, SystemExit too, comes out as it is.

    A worker that it spawns knows the models too, unless its class is one derived from Process.

    Args:
        script: The file. The folder it is in goes to the end of sys.path.
        args: Its arguments.
    """
    put_last(script.parent)
    for kind in ("Process", "SpawnProcess", "ForkServerProcess"):
        if hasattr(context, kind):  # Windows has no server
            ForkingPickler.register(getattr(context, kind), reduce_process)
    sys.argv = [str(script), *args]
    runpy.run_path(str(script), run_name="__main__")


def run_to_end(script: Path, args: Sequence[str]) -> None:
    """As `run_script`, for a command: an error of the script is not the command's, and is told whole.

    Raises:
        SystemExit: The script's own; or with status 1, and its traceback has been printed.
    """
    try:
        run_script(script, args)
    except Exception:
        traceback.print_exc()
        raise SystemExit(1) from None


def reduce_process(process: BaseProcess) -> tuple[Any, tuple[Any], dict[str, Any]]:
    """A process as it is sent to the worker that becomes it: made there by a function of this module.

    So the worker, a new Python that has read nothing but the script, imports this package.
    """
    return new_process, (type(process),), process.__dict__


def new_process(kind: type[BaseProcess]) -> BaseProcess:
    return kind.__new__(kind)


def put_last(folder: str | os.PathLike[str]) -> None:
    """Moves a folder to the end of sys.path, or adds it there: its modules are found, but shadow none."""
    last = os.path.realpath(folder)
    sys.path[:] = [entry for entry in sys.path if os.path.realpath(entry) != last] + [last]
