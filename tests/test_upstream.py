"""docs/upstream/: the patch fits the installed timm, and what it adds does what this package does."""

import importlib.util
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

FOLDER = Path(__file__).parents[1] / "docs/upstream"
PATCH = FOLDER / "mlp_mixer.patch"

# Run beside the patched timm: its method and this package's function, on the same weights.
COMPARE = """
import copy, sys, tempfile
from pathlib import Path

import timm, torch
from timm.models import get_model_input_config, save_for_hf
from test_timm_sizes import KINDS, mixer
from tiny import images, perturb, same_weights

import gmlp_vision

assert Path(timm.__file__).is_relative_to(sys.argv[1]), timm.__file__
for kind in KINDS:
    for call in ({"img_size": (48, 24)}, {"img_size": 16}, {"img_size": (64, 32), "patch_size": (4, 8)}, {}):
        theirs = mixer(kind)
        ours = copy.deepcopy(theirs)
        theirs.set_input_size(**call)
        gmlp_vision.set_input_size(ours, **call)
        size = get_model_input_config(theirs)["input_size"]
        assert size == get_model_input_config(ours)["input_size"] == (3, *theirs.stem.img_size)
        x = images(2, *size)
        assert theirs(x).std() > 1e-3
        torch.testing.assert_close(theirs(x), ours(x), atol=1e-5, rtol=1e-5)
        assert all((a - b).abs().max() < 1e-6 for a, b in zip(theirs.parameters(), ours.parameters()))
        assert theirs.feature_info == ours.feature_info
        for layer in theirs.modules():
            if isinstance(layer, torch.nn.Linear):
                assert (layer.out_features, layer.in_features) == layer.weight.shape
        before = [p.requires_grad for p in theirs.parameters()]
        assert all(before)
        theirs.to(torch.bfloat16).set_input_size(32)
        assert {p.dtype for p in theirs.parameters()} == {torch.bfloat16}
        torch.jit.script(ours)

model = perturb(timm.create_model("resmlp_12_224", img_size=64, num_classes=5), std=0.05).eval()
model.set_input_size((96, 64))
with tempfile.TemporaryDirectory() as folder:
    save_for_hf(model, folder, safe_serialization=True)
    loaded = timm.create_model(f"local-dir:{folder}", pretrained=True).eval()
assert same_weights(loaded, model)
print("the same")
"""


def test_the_patch_is_small_and_has_no_context() -> None:
    lines = PATCH.read_text().splitlines()
    assert lines[:2] == ["--- a/timm/models/mlp_mixer.py", "+++ b/timm/models/mlp_mixer.py"]
    assert all(re.match(r"[-+]|@@ -\d+(,\d+)? \+\d+(,\d+)? @@$", line) for line in lines)
    new = [line for line in lines[2:] if line.startswith("+")]
    replaced = [line for line in lines[2:] if line.startswith("-")]
    assert 100 < len(new) < 150
    page = (FOLDER / "README.md").read_text()
    assert f"lines that are new ({len(new)}), and\nthose that they would replace (none today)" in page
    assert not replaced
    assert "Apache License 2.0" in page


@pytest.mark.long
def test_the_patched_timm_does_what_this_package_does(tmp_path: Path) -> None:
    spec = importlib.util.find_spec("timm")
    assert spec is not None
    assert spec.origin is not None
    shutil.copytree(Path(spec.origin).parent, tmp_path / "timm", ignore=shutil.ignore_patterns("__pycache__"))
    subprocess.run(["git", "apply", "--unidiff-zero", "-p1", PATCH], cwd=tmp_path, check=True)
    script = tmp_path / "compare.py"
    script.write_text(COMPARE)
    paths = [tmp_path, Path(__file__).parents[1], Path(__file__).parent]
    done = subprocess.run(
        [sys.executable, script, tmp_path],
        env={**os.environ, "PYTHONPATH": os.pathsep.join(map(str, paths))},
        capture_output=True,
        text=True,
        check=False,
    )
    assert (done.returncode, done.stdout) == (0, "the same\n"), done.stderr[-3000:]
