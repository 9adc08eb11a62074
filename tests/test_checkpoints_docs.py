"""docs/weights.md: every block of it, in order, in a folder with the files it speaks of."""

import argparse
import os
import re
import shlex
import subprocess
import sys
from pathlib import Path

import pytest
import timm
import torch
from hub_server import serve
from others import jaketae_state, lucidrains_state
from PIL import Image
from test_verify import VALIDATE as MEASURE
from tiny import perturb

from gmlp_vision.checkpoints import families
from gmlp_vision.cli import main

PAGE = Path(__file__).parents[1] / "docs/weights.md"
BLOCKS = re.findall(r"^```(\w+)\n(.*?)^```", PAGE.read_text(), flags=re.M | re.S)

# What timm's validate.py does with these arguments before it looks at data.
VALIDATE = """
import argparse
import timm
from timm.models import load_checkpoint
from timm.utils import ParseKwargs

parser = argparse.ArgumentParser()
parser.add_argument("--data-dir")
parser.add_argument("--model")
parser.add_argument("--pretrained", action="store_true")
parser.add_argument("--num-classes", type=int)
parser.add_argument("--checkpoint", default="")
parser.add_argument("--input-size", nargs=3, type=int)
parser.add_argument("--model-kwargs", nargs="*", default={}, action=ParseKwargs)
args = parser.parse_args()
model = timm.create_model(
    args.model, pretrained=args.pretrained, num_classes=args.num_classes, in_chans=3, **args.model_kwargs
)
if args.checkpoint:
    load_checkpoint(model, args.checkpoint, True)
total = sum(p.double().abs().sum() for p in model.parameters())
with open("validated.txt", "a") as file:
    file.write(f"{model.stem.img_size} {total:.6f}\\n")
"""


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", list(sys.path))
    monkeypatch.setattr(sys, "argv", list(sys.argv))
    monkeypatch.delenv("TIMM_SCRIPTS", raising=False)
    raw, ema = (perturb(timm.create_model("gmlp_pico4"), seed).state_dict() for seed in (0, 1))
    args = argparse.Namespace(model="gmlp_pico4", model_kwargs={})
    torch.save({"args": args, "state_dict": raw, "state_dict_ema": ema}, "model_best.pth.tar")
    torch.save(perturb(timm.create_model("gmlp_pico4", img_size=(16, 64))).state_dict(), "wide.pth")
    lightning = {**{f"model.{k}": v for k, v in raw.items()}, "loss.weight": torch.ones(10)}
    torch.save({"epoch": 3, "state_dict": lightning}, "lightning.ckpt")
    torch.save({"student": raw, "teacher": ema}, "distilled.pth")
    torch.save(lucidrains_state(16), "lucidrains.pth")
    torch.save(jaketae_state(16), "jaketae.pth")
    Path("validate.py").write_text(VALIDATE)
    Path("pytorch-image-models").mkdir()
    Path("pytorch-image-models/validate.py").write_text(MEASURE)
    for c in range(10):
        Path(f"cifar/test/{c}").mkdir(parents=True)
        Image.new("RGB", (32, 32), (25 * c, 0, 0)).save(f"cifar/test/{c}/0.png")
    return tmp_path


def test_every_block_of_the_page_runs(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    names: dict[str, object] = {}
    printed = ""
    for kind, text in BLOCKS:
        if "OWNER" in text:
            continue  # the next test's
        if kind == "python":
            exec(compile(text, "weights.md", "exec"), names)
            printed = capsys.readouterr().out
        elif kind == "console":
            for line in text.splitlines():
                command, *args = shlex.split(line)
                assert command == "gmlp-vision"
                assert main(args) == 0, line
        else:
            assert kind == "text"
            assert text == printed
    # both ways to another size give the same model
    plain, overlaid, converted = Path("validated.txt").read_text().splitlines()
    assert plain.startswith("(32, 32)")
    assert overlaid.startswith("(48, 48)")
    assert overlaid == converted
    # there and back
    back = torch.load("back.pth", weights_only=True)
    assert all(torch.equal(back[k], v) for k, v in lucidrains_state(16).items())


@pytest.mark.slow
def test_the_block_about_the_hub(folder: Path) -> None:
    (block,) = [text for _, text in BLOCKS if "OWNER" in text]
    timm.models.save_for_hf(perturb(timm.create_model("gmlp_pico4")), "source", safe_serialization=True)
    files = {path.name: path.read_bytes() for path in Path("source").iterdir()}
    with serve({"OWNER/NAME": files}) as hub:
        clean = {k: v for k, v in os.environ.items() if not k.startswith("HF_")}
        env = {"HF_ENDPOINT": hub.url, "HF_HOME": str(folder / "cache"), "HF_TOKEN": "hf_test"}
        done = subprocess.run(
            [sys.executable, "-c", "import timm\nimport gmlp_vision\n" + block],
            env={**clean, **env},
            capture_output=True,
            text=True,
            timeout=300,
        )
        assert done.returncode == 0, done.stderr
        assert b'"img_size": [\n      64,\n      64\n    ]' in hub.repos["OWNER/OTHER"]["config.json"]


def test_the_page_quotes_messages_that_exist() -> None:
    source = "".join(p.read_text() for p in (Path(__file__).parents[1] / "gmlp_vision").rglob("*.py"))
    source = re.sub(r'"\s*\n\s*f?"', "", source)  # literals over several lines
    table = PAGE.read_text().split("## Errors")[1].split("## What is safe")[0]
    messages = [line.split("|")[1].strip() for line in table.splitlines() if line.startswith("| ")][1:]
    assert len(messages) > 8
    for part in re.split(r" / |\.\.\.", " / ".join(messages)):
        assert part.strip() in source, part


def test_every_layout_stands_on_the_page() -> None:
    names = [name for family in families.families() for name in families.layouts_of(family)]
    assert len(names) > 4
    for name in names:
        assert f"| `{name}` |" in PAGE.read_text(), name
