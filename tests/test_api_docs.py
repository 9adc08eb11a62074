"""docs/api.md: every public name stands on it with its arguments, each can be imported, the examples run."""

import argparse
import ast
import inspect
import pkgutil
import re
from pathlib import Path
from typing import Any

import pytest
import timm
import torch
from tiny import perturb

import gmlp_vision
from gmlp_vision import filters

PAGE = (Path(__file__).parents[1] / "docs/api.md").read_text()
# (where the names of a section are found, its text)
SECTIONS = re.findall(r"^## [^\n]+\n\nIn `([\w.]+)`(.*?)(?=^## |\Z)", PAGE, flags=re.M | re.S)
NAMES = [
    (place, name, text)
    for place, section in SECTIONS
    for name, text in re.findall(r"^### (\w+)\n(.*?)(?=^### |\Z)", section, flags=re.M | re.S)
]
# those of modules that have internal names in their __all__, or none
OTHERS = {
    "gmlp_vision.checkpoints": {"build", "convert_file", "describe", "read_checkpoint"},
    "gmlp_vision.export": {"export_checkpoint", "export_model"},
    "gmlp_vision.GMlp": {"clear_cache", "set_grad_checkpointing", "set_input_size"},
}


def arguments(function: Any) -> str:
    """The signature without annotations, as the page writes it."""
    signature = inspect.signature(function)
    parameters = [
        p.replace(annotation=inspect.Parameter.empty) for n, p in signature.parameters.items() if n != "self"
    ]
    return str(signature.replace(parameters=parameters, return_annotation=inspect.Signature.empty))


def test_every_public_name_has_an_entry() -> None:
    found: dict[str, set[str]] = {}
    for place, name, _ in NAMES:
        found.setdefault(place, set()).add(name)
    assert found == {
        "gmlp_vision": set(gmlp_vision.__all__),
        "gmlp_vision.filters": set(filters.__all__),
        **OTHERS,
    }


@pytest.mark.parametrize(("place", "name", "text"), NAMES, ids=[name for _, name, _ in NAMES])
def test_an_entry_has_its_arguments_and_an_example(place: str, name: str, text: str) -> None:
    entry = getattr(pkgutil.resolve_name(place), name)
    assert re.search(r"^```python\n.*\b" + name, text, flags=re.M | re.S) or inspect.isclass(entry)
    assert text.count("```python\n") == 1
    if not inspect.isclass(entry):
        assert " ".join(text.split()).startswith(f"`{name}{arguments(entry)}`")


def test_names_in_the_text_can_be_imported() -> None:
    names = set(re.findall(r"`(gmlp_vision(?:\.\w+)+)`", PAGE))
    assert len(names) > 5
    for name in names:
        pkgutil.resolve_name(name)


def test_an_argument_that_is_not_there_is_seen() -> None:
    assert arguments(gmlp_vision.GMlp.set_input_size) == "(img_size=None, patch_size=None)"
    assert arguments(lambda self, x, *, y=1: None) == "(x, *, y=1)"


@pytest.mark.slow
def test_every_example_runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    raw, ema = (perturb(timm.create_model("gmlp_pico4"), seed).state_dict() for seed in (0, 1))
    torch.save(
        {"args": argparse.Namespace(model="gmlp_pico4"), "state_dict": raw, "state_dict_ema": ema},
        "model_best.pth.tar",
    )
    names: dict[str, Any] = {}
    checked = 0
    for block in re.findall(r"^```python\n(.*?)^```", PAGE, flags=re.M | re.S):
        exec(compile(block, "api.md", "exec"), names)
        for expression, value in re.findall(r"^([^=\n]+)  # (.+)$", block, flags=re.M):
            found = eval(expression, names)
            found = tuple(found.shape) if isinstance(found, torch.Tensor) else found
            assert found == ast.literal_eval(value), expression
            checked += 1
    assert checked > 8
    written = {path.name for path in tmp_path.iterdir()}
    assert written >= {"pico48", "stats.csv", "filters.pdf", "units.png", "explorer.html", "pico48.pt2"}
