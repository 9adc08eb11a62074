"""The shape of the package: imports point one way, and only public names of timm are used."""

import ast
from pathlib import Path

import pytest

import gmlp_vision

ROOT = Path(gmlp_vision.__file__).parent
MODULES = sorted(ROOT.rglob("*.py"))

# Each room, from the ground up. A module imports from its own room and from rooms of a lower rank.
RANKS = {
    "errors": 0,
    "atomic": 0,
    "search_path": 0,
    "layers.resample": 1,
    "layers.spatial_projection": 2,
    "layers.spatial_gating": 3,
    "layers": 4,
    "checkpoints": 5,
    "filters": 6,
    "models.checks": 5,
    "models.recompute": 5,
    "models.weight_init": 5,
    "models.trunk": 6,
    "models": 7,
    "": 8,  # the package's __init__
    "export": 9,
    "recipes": 9,
    "demo": 9,
    "export": 9,
    "run": 9,
    "cli": 10,
}


def dotted(path: Path) -> str:
    parts = path.relative_to(ROOT).with_suffix("").parts
    return ".".join(p for p in parts if p != "__init__")


def rank(module: str) -> int:
    while module not in RANKS:
        if "." not in module:
            raise AssertionError(f"{module} has no place in RANKS: say which rooms it may import from")
        module = module.rpartition(".")[0]
    return RANKS[module]


def imports(path: Path) -> list[tuple[str, list[str]]]:
    """(module, names) of every import statement, those inside functions too."""
    found = []
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{path}: relative import"
            found.append((node.module or "", [a.name for a in node.names]))
        elif isinstance(node, ast.Import):
            found.extend((a.name, []) for a in node.names)
    return found


@pytest.mark.parametrize("path", MODULES, ids=dotted)
def test_imports_point_down(path: Path) -> None:
    for module, names in imports(path):
        if module.split(".")[0] != "gmlp_vision":
            continue
        target = module.removeprefix("gmlp_vision").lstrip(".")
        for name in names or [""]:
            inner = f"{target}.{name}".strip(".")
            leaf = inner if (ROOT / inner.replace(".", "/")).with_suffix(".py").exists() else target
            if leaf == "" and name == "__version__":
                continue  # a constant, not a room
            assert rank(leaf) <= rank(dotted(path)), f"{dotted(path)} imports {leaf or 'the package'}"


@pytest.mark.parametrize("path", MODULES, ids=dotted)
def test_only_public_names_of_timm(path: Path) -> None:
    for module, names in imports(path):
        if module.split(".")[0] == "timm":
            private = [part for part in [*module.split("."), *names] if part.startswith("_")]
            assert not private, f"{module}: {private}"


def test_plotting_is_imported_only_where_something_is_drawn() -> None:
    for path in MODULES:
        top_level = [
            n for n in ast.parse(path.read_text()).body if isinstance(n, ast.Import | ast.ImportFrom)
        ]
        for node in top_level:
            names = [a.name for a in node.names] if isinstance(node, ast.Import) else [node.module or ""]
            assert not any(n.split(".")[0] == "matplotlib" for n in names), dotted(path)


def test_a_checker_that_sees_an_upward_import(tmp_path: Path) -> None:
    bad = tmp_path / "bad.py"
    bad.write_text("from gmlp_vision.models.trunk import Trunk\nimport timm.models._builder\n")
    assert imports(bad) == [("gmlp_vision.models.trunk", ["Trunk"]), ("timm.models._builder", [])]
    assert rank("models.trunk") > rank("layers.resample")
