"""Folders that come with the package beside its code: recipes in `train/`, weights in `weights/`.

In a checkout, so in an editable install too, they lie at its root; in a wheel, inside the package.
"""

from pathlib import Path


def shipped(folder: str) -> Path:
    """The path of one of these folders."""
    package = Path(__file__).resolve().parent
    installed = package / folder
    return installed if installed.is_dir() else package.parent / folder
