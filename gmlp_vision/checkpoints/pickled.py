"""What a torch file may hold beside its tensors: which of its globals are data, and what stands for them.

torch's weights-only unpickler refuses every global that it does not know. Training scripts leave some that
are data: their arguments, numbers of numpy, paths, dates. None of these is called here. An object of this
module, which runs nothing, is made in its place: nobody reads what stands beside the weights, but for the
arguments of timm's train.py.
"""

import argparse
import re
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np
import torch


class Beside:
    """Something beside the weights, whatever it was made of."""

    def __init__(self, *args: Any) -> None:
        pass

    def __setstate__(self, state: Any) -> None:
        pass


class Dtype(Beside):
    """A numpy dtype, as its pickle states it."""

    def __init__(self, code: Any, *args: Any) -> None:
        self.code, self.order = code, "|"

    def __setstate__(self, state: Any) -> None:
        if isinstance(state, tuple) and len(state) > 1:
            self.order = state[1]

    def numpy(self) -> np.dtype[Any]:
        """The dtype, if it is one of plain numbers or text.

        Raises:
            ValueError: It is not.
        """
        stated = f"{self.order}{self.code}"
        if not re.fullmatch(r"[<>|=][biufcU]\d+", stated):
            raise ValueError(f"{stated} is no dtype of numbers or text")
        return np.dtype(stated)


def scalar(dtype: Any = None, data: Any = None) -> Any:
    """A scalar of numpy: its number or text as Python has it, or what stands for it."""
    try:
        return np.frombuffer(data, dtype.numpy()).item()
    except (AttributeError, TypeError, ValueError):  # dates, records, or bytes that are none of that dtype
        return Beside()


def new_dict(*args: Any) -> dict[Any, Any]:
    """For a defaultdict, which the unpickler would not fill."""
    return {}


def new_list(*args: Any) -> list[Any]:
    """For a deque, likewise."""
    return []


NUMPY = ("numpy._core.multiarray", "numpy.core.multiarray")  # of version 2 and of version 1
PATHLIB = ("pathlib", "pathlib._local")  # the second in Python 3.13
INERT = (
    *("builtins.bool", "builtins.bytes", "builtins.dict", "builtins.float", "builtins.frozenset"),
    *("builtins.int", "builtins.list", "builtins.range", "builtins.slice", "builtins.str", "builtins.tuple"),
    *(f"datetime.{name}" for name in ("date", "datetime", "time", "timedelta", "timezone")),
    *(f"{module}.{name}Path" for module in PATHLIB for name in ("", "Posix", "Windows")),
    *(f"{module}.Pure{name}Path" for module in PATHLIB for name in ("", "Posix", "Windows")),
    *("decimal.Decimal", "fractions.Fraction", "uuid.UUID", "types.SimpleNamespace"),
    *("torch.torch_version.TorchVersion", "numpy.ndarray", *(f"{module}._reconstruct" for module in NUMPY)),
    *(f"numpy.{kind}{bits}" for kind in ("int", "uint", "float") for bits in (8, 16, 32, 64)),
    *("numpy.bool", "numpy.bool_"),
)  # fmt: skip
DATA: list[Any] = [
    (argparse.Namespace, "argparse.Namespace"),
    (new_dict, "collections.defaultdict"),
    (new_list, "collections.deque"),
    (Dtype, "numpy.dtype"),
    *((scalar, f"{module}.scalar") for module in NUMPY),
    *((Beside, name) for name in INERT),
]

_lock, _readers = threading.Lock(), 0
_allowed = torch.serialization.safe_globals(DATA)


@contextmanager
def data_allowed() -> Iterator[None]:
    """Within, torch's weights-only unpickler takes DATA, and nothing else that it would not take by itself.

    torch keeps one list for all threads, so the last one to leave takes DATA off it.
    """
    global _readers
    with _lock:
        if not _readers:
            _allowed.__enter__()
        _readers += 1
    try:
        yield
    finally:
        with _lock:
            _readers -= 1
            if not _readers:
                _allowed.__exit__(None, None, None)
