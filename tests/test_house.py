"""The shape of the package: imports point one way, and only public names of timm are used."""

import ast
import re
from pathlib import Path

import pytest
import timm
from zoo import ROWS, tiny_kwargs

import gmlp_vision
from gmlp_vision.trunks import Trunk

ROOT = Path(gmlp_vision.__file__).parent
MODULES = sorted(ROOT.rglob("*.py"))

# Each room, from the ground up. A module imports from its own room and from rooms of a lower rank.
GROUND_UP = [
    {"errors", "temporary"},
    {"atomic"},
    {"accuracy", "shipped"},
    {
        "layers.hidden_width",
        "layers.linear",
        "layers.observed",
        "layers.precision",
        "layers.resample",
        "layers.windows",
    },
    {"layers.ask", "layers.fast_form", "layers.rules", "layers.sized", "layers.tied_linear"},
    {"layers.grid_tied", "layers.offsets", "layers.structured"},
    {
        "layers.axial",
        "layers.cells",
        "layers.circulant",
        "layers.experts",
        "layers.fourier",
        "layers.local",
        "layers.low_rank",
        "layers.position",
        "layers.posmlp",
        "layers.spatial_projection",
        "layers.token_mlp",
        "layers.toeplitz",
    },
    {"layers.shared_kernel"},
    {"layers.spatial", "layers.spatial_gating"},
    {"layers"},
    {"checkpoints"},
    {"filters", "trunks"},
    {"models"},
    {""},  # the package's __init__
    {"demo", "export", "run", "structure_measure", "zoo"},
    {"structure", "verify"},
    {"cli"},
]
RANKS = {room: rank for rank, rooms in enumerate(GROUND_UP) for room in rooms}

# Private names of timm that have no public twin; the place of each import says why it is needed.
ALLOWED_PRIVATE = {
    ("trunks.trunk", "timm.models._input", "update_model_args"),
    ("trunks.input_size", "timm.models._input", "update_model_input_size"),
}


def dotted(path: Path) -> str:
    parts = path.relative_to(ROOT).with_suffix("").parts
    return ".".join(p for p in parts if p != "__init__")


def rank(module: str) -> int:
    while module not in RANKS:
        if "." not in module:
            raise AssertionError(f"{module} has no place in GROUND_UP: say which rooms it may import from")
        module = module.rpartition(".")[0]
    return RANKS[module]


def imports(source: str) -> list[tuple[str, str]]:
    """(module, name) of every import statement, those inside functions too; the name is '' for a module."""
    found = []
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.ImportFrom):
            assert node.level == 0, "a relative import"
            found.extend((node.module or "", alias.name) for alias in node.names)
        elif isinstance(node, ast.Import):
            found.extend((alias.name, "") for alias in node.names)
    return found


def upward(module: str, source: str) -> list[str]:
    """The rooms of this package that a module imports and that stand above it."""
    found = []
    for imported, name in imports(source):
        if imported.split(".")[0] != "gmlp_vision" or (imported, name) == ("gmlp_vision", "__version__"):
            continue
        room = imported.removeprefix("gmlp_vision").lstrip(".")
        inner = f"{room}.{name}".strip(".")
        place = ROOT / inner.replace(".", "/")
        if place.is_dir() or place.with_suffix(".py").exists():
            room = inner
        if rank(room) > rank(module):
            found.append(room)
    return found


def private(module: str, source: str) -> list[tuple[str, str, str]]:
    """The private names of timm that a module imports."""
    return [
        (module, imported, name)
        for imported, name in imports(source)
        if imported.split(".")[0] == "timm"
        and any(part.startswith("_") for part in (*imported.split("."), name))
        and (module, imported, name) not in ALLOWED_PRIVATE
    ]


@pytest.mark.parametrize("path", MODULES, ids=dotted)
def test_imports_point_down(path: Path) -> None:
    assert upward(dotted(path), path.read_text()) == []


@pytest.mark.parametrize("path", MODULES, ids=dotted)
def test_only_public_names_of_timm(path: Path) -> None:
    assert private(dotted(path), path.read_text()) == []


def test_plotting_is_imported_only_where_something_is_drawn() -> None:
    for path in MODULES:
        for node in ast.parse(path.read_text()).body:  # at import time, so not inside functions
            if isinstance(node, ast.Import | ast.ImportFrom):
                assert not any(m.split(".")[0] == "matplotlib" for m, _ in imports(ast.unparse(node))), path


@pytest.mark.parametrize(
    ("module", "source", "found"),
    [
        ("layers.resample", "from gmlp_vision.trunks.trunk import Trunk", ["trunks.trunk"]),
        ("filters.extract", "def f():\n    import gmlp_vision.models.gmlp", ["models.gmlp"]),
        ("models.gmlp", "from gmlp_vision.trunks.trunk import Trunk", []),
        ("cli", "from gmlp_vision import demo", []),
        ("shipped", "from gmlp_vision import cli", ["cli"]),
    ],
)
def test_the_check_sees_an_upward_import(module: str, source: str, found: list[str]) -> None:
    assert upward(module, source) == found


def test_the_check_sees_a_private_name() -> None:
    assert private("demo", "from timm.models._builder import load_pretrained") != []
    assert private("demo", "from timm.models import _builder") != []
    assert private("demo", "from timm.models import build_model_with_cfg") == []


# -- one room writes files -----------------------------------------------------------------------------------

# Calls that may write a file. What a function of the room does, or of checkpoints.save, has other names.
WRITES = re.compile(
    r"(os\.(open|replace|rename|link|symlink|mkdir|makedirs|remove|unlink|truncate)|(shutil|tempfile)\.\w+"
    r"|.*\.(write_text|write_bytes|touch|mkdir|rename|unlink|rmdir|symlink_to|tofile|savefig|save|save_file"
    r"|save_model|to_csv|to_json|dump)|save_for_hf|save_model|savez?)"
)
# Where such a call does not write past the room.
HARMLESS = {
    ("cli.streams", "os.open"): "the null device, in place of a closed stream",
    ("checkpoints.hub", "path.parent.mkdir"): "torch's own cache of downloads",
    ("checkpoints.save", "safetensors.torch.save"): "to bytes",
    ("checkpoints.save", "torch.save"): "to bytes",
    ("checkpoints.save", "save_for_hf"): "into a folder of the room's",
    ("export", "torch.jit.save"): "to bytes",
    ("export", "torch.export.save"): "to bytes",
    ("export", "openvino.save_model"): "which knows files only, under a name of the room's",
    ("filters.explorer", "small.save"): "to bytes",
    ("filters.sheet", "figure.savefig"): "to bytes",
}


def writes(source: str) -> set[str]:
    """The calls of a module that may write a file."""
    found = set()
    for node in ast.walk(ast.parse(source)):
        if not isinstance(node, ast.Call):
            continue
        name = ast.unparse(node.func)
        modes = [word.value for word in ast.walk(node) if isinstance(word, ast.Constant)]
        opens = name.split(".")[-1] in ("open", "fdopen") and name != "os.open"
        if WRITES.fullmatch(name) or (
            opens and any(re.fullmatch("[rwaxbt+]*[wax+][rwaxbt+]*", str(m)) for m in modes)
        ):
            found.add(name)
    return found


@pytest.mark.parametrize("path", [p for p in MODULES if dotted(p) not in ("atomic", "temporary")], ids=dotted)
def test_only_one_room_writes_files(path: Path) -> None:
    assert {(dotted(path), call) for call in writes(path.read_text())} - set(HARMLESS) == set()


def test_what_is_harmless_is_there() -> None:
    there = {(dotted(path), call) for path in MODULES for call in writes(path.read_text())}
    assert set(HARMLESS) <= there


@pytest.mark.parametrize(
    ("source", "found"),
    [
        ("path.write_text(x)", {"path.write_text"}),
        ("open(path, mode='w')", {"open"}),
        ("path.open('r+b')", {"path.open"}),
        ("import torch\ntorch.save(x, path)", {"torch.save"}),
        ("(folder / 'a').mkdir()", {"(folder / 'a').mkdir"}),
        ("tempfile.TemporaryDirectory()", {"tempfile.TemporaryDirectory"}),
        ("open(path); open(path, 'rb'); path.open(encoding='utf-8'); name.replace(a, b)", set()),
        ("write_file(path, x); save_file(x, path)", set()),
    ],
)
def test_the_check_sees_what_writes(source: str, found: set[str]) -> None:
    assert writes(source) == found


# -- no general room knows a family --------------------------------------------------------------------------

GENERAL = ["layers", "trunks", "checkpoints", "filters", "export", "verify", "cli"]


def of_families() -> set[str]:
    """The classes that family files define and the names of their parts, less those of general layers' parts.

    Read off the registered models, so that a new family is held to it without a line here.
    """
    own, general = set(), set()
    for name in (name for row in ROWS for name in row.names):
        for module in timm.create_model(name, device="meta", **tiny_kwargs(name)).modules():
            of_family = type(module).__module__.startswith("gmlp_vision.models.")
            of_trunk = isinstance(module, Trunk)  # whose parts are its own, whatever class derives from it
            names = own if of_family and not of_trunk else general
            names.update(module._modules, module._parameters)
            if names is general:
                names.update(vars(module))
            if of_family:
                own.add(type(module).__name__)
    return own - general


def told(source: str) -> set[str]:
    """What a module says: classes, attributes, imports, and words in strings, docstrings apart."""
    tree, found = ast.parse(source), set()
    docstrings = {
        id(node.body[0].value)
        for node in ast.walk(tree)
        if isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef)
        and node.body
        and isinstance(node.body[0], ast.Expr)
    }
    for node in ast.walk(tree):
        if isinstance(node, ast.Constant) and isinstance(node.value, str) and id(node) not in docstrings:
            if " " not in node.value:  # names of tensors, and patterns of such; the rest is prose
                found.update(re.findall(r"\w+", node.value))
        elif isinstance(node, ast.Name) and node.id[0].isupper():  # a variable may have any name
            found.add(node.id)
        elif isinstance(node, ast.Attribute):
            found.add(node.attr)
        elif isinstance(node, ast.alias):
            found.update(node.name.split("."))
    return found


@pytest.fixture(scope="module")
def families() -> set[str]:
    names = of_families()
    assert {"GMlpBlock", "mlp_channels"} <= names
    return names


@pytest.mark.parametrize("path", [p for p in MODULES if dotted(p).split(".")[0] in GENERAL], ids=dotted)
def test_general_rooms_name_no_tensor_and_no_class_of_a_family(path: Path, families: set[str]) -> None:
    assert told(path.read_text()) & families == set()


def test_the_check_sees_a_familys_name(families: set[str]) -> None:
    assert told('"""mlp_channels"""\nx = 1') & families == set()
    assert told('key = "blocks.0.mlp_channels.fc1"') & families == {"mlp_channels"}
    assert told("block.mlp_channels.fc1") & families == {"mlp_channels"}
    assert told("from gmlp_vision.models.gmlp import GMlpBlock") & families == {"GMlpBlock"}
