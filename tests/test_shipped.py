"""What comes with the package beside its code: found in a checkout, and in a wheel."""

import subprocess
import sys
from pathlib import Path

import pytest
import timm

import gmlp_vision  # noqa: F401  registers the names
from gmlp_vision.shipped import shipped

ROOT = Path(__file__).parent.parent


def test_in_a_checkout_the_folders_are_at_its_root() -> None:
    """The tests run on an editable install."""
    assert [shipped(name) for name in ("train", "weights")] == [ROOT / "train", ROOT / "weights"]


@pytest.mark.slow
def test_a_built_wheel_brings_recipes_and_weights(tmp_path: Path) -> None:
    build = [sys.executable, "-m", "hatchling", "build", "-t", "wheel", "-d", str(tmp_path)]
    subprocess.run(build, cwd=ROOT, check=True, capture_output=True)
    (wheel,) = tmp_path.glob("*.whl")
    site = tmp_path / "site"
    pip = [sys.executable, "-m", "pip", "install", "--no-deps", "--no-index"]
    subprocess.run([*pip, "--target", str(site), str(wheel)], check=True, capture_output=True)
    code = f"""
import sys
sys.path.insert(0, {str(site)!r})
import timm
from gmlp_vision.cli import main
from gmlp_vision.shipped import recipes
from gmlp_vision.shipped import shipped
print(*recipes())
print(shipped("weights"), shipped("train"))
main(["recipe", "gmlp_in1k"])
print(timm.create_model("gmlp_pico4", pretrained=True).head.weight.double().sum().item())
"""
    done = subprocess.run([sys.executable, "-c", code], cwd=tmp_path, capture_output=True, text=True)
    assert done.stderr == ""
    names, places, recipe, head = done.stdout.splitlines()
    assert recipe == str(site / "gmlp_vision" / "train" / "gmlp_in1k.yaml")
    assert names.split() == sorted(path.stem for path in (ROOT / "train").glob("*.yaml"))
    assert places.split() == [str(site / "gmlp_vision" / folder) for folder in ("weights", "train")]
    expected = timm.create_model("gmlp_pico4", pretrained=True).head.weight.double().sum().item()
    assert float(head) == expected
    for folder in ("weights", "train"):
        shipped_files = sorted(p.relative_to(ROOT) for p in (ROOT / folder).rglob("*.*") if p.is_file())
        assert shipped_files
        for path in shipped_files:
            assert (site / "gmlp_vision" / path).read_bytes() == (ROOT / path).read_bytes()
