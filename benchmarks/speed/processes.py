"""Rows from processes of their own, one for each setting of glibc's allocator: it reads them at its start."""

import json
import os
import subprocess
from collections.abc import Iterator, Sequence

from rows import Row

from gmlp_vision.errors import UserError

ALLOCATORS = {
    "as it is": {},
    "thresholds raised": {"MALLOC_MMAP_THRESHOLD_": "1000000000", "MALLOC_TRIM_THRESHOLD_": "10000000000"},
}


def environment(allocator: str) -> dict[str, str]:
    """This process's, where nothing but the allocator's own settings tunes glibc's."""
    kept = {k: v for k, v in os.environ.items() if not k.startswith("MALLOC_") and k != "GLIBC_TUNABLES"}
    return {**kept, **ALLOCATORS[allocator]}


def rows_of(command: Sequence[str], allocator: str) -> Iterator[Row]:
    """The rows that a process prints, one JSON object a line, each as soon as it is there.

    The process ends with this generator.

    Raises:
        UserError: The process failed; the rows until then were yielded.
    """
    with subprocess.Popen(command, env=environment(allocator), stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None  # it is a pipe
        try:
            for line in process.stdout:
                if line.endswith("\n"):  # else the process ended while it wrote
                    yield json.loads(line)
            process.wait()
        finally:
            process.kill()  # which does nothing to one that has ended
    if process.returncode != 0:
        raise UserError(f"allocator {allocator!r} broke off with exit code {process.returncode}")
