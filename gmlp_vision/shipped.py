"""What comes with the package beside its code: recipes for timm's train.py in `train/`, weights in
`weights/`.

In a checkout, so in an editable install too, they lie at its root; in a wheel, inside the package.
"""

from pathlib import Path

from gmlp_vision.errors import UserError


def shipped(folder: str) -> Path:
    """The path of one of these folders."""
    package = Path(__file__).resolve().parent
    installed = package / folder
    return installed if installed.is_dir() else package.parent / folder


def recipes() -> dict[str, Path]:
    """The path of each recipe by its name, in alphabetical order."""
    return {path.stem: path for path in sorted(shipped("train").glob("*.yaml"))}


def find_recipe(name: str) -> Path:
    """The path of one recipe, as train.py's --config takes it.

    Raises:
        UserError: No recipe has that name; the message lists those there are.
    """
    known = recipes()
    if name not in known:
        raise UserError(f"no recipe is named {name!r}; there are {', '.join(known)}")
    return known[name]


def recipe_title(path: Path) -> str:
    """The first line of a recipe's header."""
    with path.open(encoding="utf-8") as lines:
        return lines.readline().lstrip("# ").rstrip()
