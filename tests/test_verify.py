"""`gmlp-vision verify`, with a script that takes timm's options and does what its validate.py does."""

import re
import sys
from pathlib import Path

import pytest
import timm
import torch
from PIL import Image
from timm.data import create_transform, resolve_data_config
from tiny import perturb

from gmlp_vision.checkpoints import families, hub
from gmlp_vision.checkpoints.names import from_ours
from gmlp_vision.cli import main
from gmlp_vision.errors import UserError
from gmlp_vision.models.gmlp import LAYOUTS
from gmlp_vision.verify import verify

# The parts of validate.py that this package meets: its options, timm's model, cfg, folders and transforms.
VALIDATE = """
import argparse, json
import timm, torch
from PIL import Image
from timm.data import create_dataset, create_transform, resolve_data_config

parser = argparse.ArgumentParser()
for option in ("--data-dir", "--split", "--model", "--device", "--results-file", "--results-format"):
    parser.add_argument(option)
parser.add_argument("--pretrained", action="store_true")
parser.add_argument("--crop-pct", type=float)
for option in ("--batch-size", "--workers"):
    parser.add_argument(option, type=int)

if __name__ == "__main__":
    args = parser.parse_args()
    assert args.pretrained and args.results_format == "json"
    model = timm.create_model(args.model, pretrained=True, in_chans=3).to(args.device).eval()
    config = resolve_data_config(vars(args), model=model, use_test_size=True)
    data = create_dataset("", root=args.data_dir, split=args.split)
    transform = create_transform(**config)
    images, targets = [], []
    for file, target in data.reader.samples:
        with Image.open(file) as image:
            images.append(transform(image.convert("RGB")))
        targets.append(target)
    with torch.inference_mode():
        best = model(torch.stack(images)).topk(5).indices
    right = (best == torch.tensor(targets)[:, None]).double().mean(0) * 100
    result = dict(model=args.model, top1=right[0].item(), top5=right.sum().item())
    result |= dict(img_size=config["input_size"][-1])
    result |= {key: config[key] for key in ("crop_pct", "interpolation")}
    with open(args.results_file, "w") as file:
        json.dump(result, file)
    print("--result")
"""
PER_CLASS = 4

CFG = timm.get_pretrained_cfg("gmlp_pico4")
PUBLISHED = families.top1_of("gmlp_pico4")  # as its card says: tests/test_pretrained.py


@pytest.fixture
def scripts(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setattr(sys, "path", list(sys.path))
    monkeypatch.setattr(sys, "argv", list(sys.argv))
    monkeypatch.delenv("TIMM_SCRIPTS", raising=False)
    folder = tmp_path / "scripts"
    folder.mkdir()
    (folder / "validate.py").write_text(VALIDATE)
    return folder


@pytest.fixture(scope="session")
def data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with a train/, and a val/ of ten classes of noise."""
    root = tmp_path_factory.mktemp("data")
    generator = torch.Generator().manual_seed(0)
    for split, count in (("train", 1), ("val", PER_CLASS)):
        for c in range(10):
            folder = root / split / f"class_{c}"
            folder.mkdir(parents=True)
            for i in range(count):
                pixels = torch.randint(0, 256, (40, 44, 3), generator=generator, dtype=torch.uint8)
                Image.fromarray(pixels.numpy()).save(folder / f"{i}.png")
    return root


def top1(model: torch.nn.Module, data: Path, crop_pct: float = CFG.crop_pct) -> float:
    """Of the images in data/val, computed here."""
    means = {"mean": (0.5,) * 3, "std": (0.5,) * 3}
    transform = create_transform((3, 32, 32), interpolation="bicubic", crop_pct=crop_pct, **means)
    right = 0
    for c in range(10):
        for file in (data / f"val/class_{c}").iterdir():
            with Image.open(file) as image:
                right += int(model(transform(image)[None]).argmax()) == c
    return right / (10 * PER_CLASS) * 100


def pico4(seed: int) -> torch.nn.Module:
    """Random enough that its guesses differ from image to image."""
    return perturb(timm.create_model("gmlp_pico4", norm_eps=1e-5), seed).eval()


def test_the_shipped_weights(scripts: Path, data: Path, capsys: pytest.CaptureFixture[str]) -> None:
    command = ["verify", "gmlp_pico4", "--data-dir", str(data), "--scripts", str(scripts), "--device", "cpu"]
    assert main(command) == 0
    out, err = capsys.readouterr()
    measured = top1(timm.create_model("gmlp_pico4", pretrained=True).eval(), data)
    images, first, published, difference = out.splitlines()
    assert images == f"images     40, 32 px, crop_pct {CFG.crop_pct:g}, bicubic"
    assert first.startswith(f"measured   {measured:.2f} top-1, ")
    assert published.startswith(
        f"published  {PUBLISHED:.2f} top-1, gmlp_pico4.{CFG.tag}, by the card beside "
    )
    assert difference == f"difference {measured - PUBLISHED:+.2f}"
    assert "--result" in err  # what the script prints is no part of the answer


def test_a_file_in_other_names(
    scripts: Path, data: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """validate.py's own --checkpoint would not read it."""
    monkeypatch.setenv("TIMM_SCRIPTS", str(scripts))
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    crop_pct = timm.get_pretrained_cfg("gmlp_pico4.cifar10").crop_pct
    shipped = top1(timm.create_model("gmlp_pico4.cifar10", pretrained=True).eval(), data, crop_pct)
    model, expected = next((m, t) for m in map(pico4, range(9)) if (t := top1(m, data, crop_pct)) != shipped)
    theirs = from_ours(model.state_dict(), LAYOUTS["lucidrains"].rows_for(model))
    torch.save({"model": theirs}, tmp_path / "theirs.pth")
    found = verify("gmlp_pico4.cifar10", data, checkpoint=str(tmp_path / "theirs.pth"), device="cpu")
    assert found.top1 == pytest.approx(expected)
    assert (found.images, found.published) == (40, 83.34)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["scripts", "theirs.pth"]


def test_which_weights_of_a_file(scripts: Path, data: Path, tmp_path: Path) -> None:
    crop_pct = CFG.crop_pct
    raw, ema = (pico4(seed) for seed in range(2))
    named = {f"teacher.{key}": value for key, value in ema.state_dict().items()}
    pupil = {f"pupil.{key}": value for key, value in raw.state_dict().items()}
    torch.save({"state_dict": raw.state_dict(), "state_dict_ema": ema.state_dict()}, tmp_path / "both.pth")
    torch.save({**named, **pupil}, tmp_path / "two.pth")
    for file, kwargs, model in (
        ("both.pth", {}, ema),
        ("both.pth", {"weights": "raw"}, raw),
        ("two.pth", {"prefix": "pupil"}, raw),
        ("two.pth", {"prefix": "teacher"}, ema),
    ):
        found = verify(
            "gmlp_pico4", data, scripts=scripts, checkpoint=str(tmp_path / file), device="cpu", **kwargs
        )
        assert found.top1 == pytest.approx(top1(model, data, crop_pct))
    assert top1(raw, data, crop_pct) != top1(ema, data, crop_pct)
    with pytest.raises(UserError, match="--weights and --prefix choose from a file: give one"):
        verify("gmlp_pico4", data, scripts=scripts, device="cpu", weights="raw")


def test_another_crop_and_nothing_published(
    scripts: Path, data: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("gmlp_vision.models.gmlp.TOP1", {})
    monkeypatch.chdir(scripts)  # where validate.py is looked for too
    args = ["verify", "gmlp_pico4", "--data-dir", str(data), "--device", "cpu", "--crop-pct", "0.6"]
    assert main(args) == 0
    images, first, published = capsys.readouterr().out.splitlines()
    assert images == "images     40, 32 px, crop_pct 0.6, bicubic"
    model = timm.create_model("gmlp_pico4", pretrained=True).eval()
    assert first.startswith(f"measured   {top1(model, data, crop_pct=0.6):.2f} top-1, ")
    assert published == f"published  nothing is known for gmlp_pico4.{CFG.tag}"


@pytest.mark.parametrize(
    ("argv", "message"),
    [
        (["gmlp_pico5"], "gmlp_pico5 is no model of this package.*did you mean gmlp_pico4"),
        (["gmlp_pico4.in1k"], r"Invalid pretrained tag \(in1k\) for gmlp_pico4"),
        (["gmlp_pico4.in1k", "--checkpoint", "x.pth"], r"Invalid pretrained tag \(in1k\) for gmlp_pico4"),
        (["gmlp_ti16"], "gmlp_ti16 has no released weights; give a file of some, --checkpoint FILE"),
        (["vip_s7"], r"behind a page, https://drive.*gmlp-vision verify vip_s7 --checkpoint FILE"),
        (["cycle_b1"], "images of 10 classes .*and the model is for 1000"),
        (["gmlp_pico4", "--batch-size", "0"], "the batch size is 0; expected at least 1"),
        *((["gmlp_pico4", "--crop-pct", x], "expected a part of the image") for x in ("0", "1.1", "nan")),
        (["gmlp_pico4", "--workers", "-1"], "the number of workers is -1; expected at least 0"),
        (["gmlp_pico4", "--device", "gpu"], "nothing can be computed on the device 'gpu'"),
        (["gmlp_pico4", "--device", "meta"], "nothing can be computed on the device 'meta'"),
        (
            ["gmlp_pico4", "--data-dir", "nowhere"],
            "nowhere is no folder; expected one that holds a folder of",
        ),
        (["gmlp_pico4", "--data-dir", "."], r"^gmlp-vision: \.: Found 0 images in"),
        (["gmlp_pico4", "--split", "test"], "does not hold a folder of images for each class"),
        (["gmlp_pico4", "--scripts", "nowhere"], "no script at .*nowhere/validate.py.*git clone"),
        (["gmlp_pico4", "--checkpoint", "x.pth"], "x.pth is neither a file"),
        (["gmlp_s16", "--checkpoint", "pico4.pth"], "pico4.pth does not hold the weights of a gmlp_s16"),
        (["gmlp_pico4", "--checkpoint", "seven.pth"], "images of 10 classes .*and the model is for 7"),
        (["gmlp_pico4", "--checkpoint", ""], "argument --checkpoint: it is empty"),
    ],
)
def test_what_cannot_be_is_one_line(
    argv: list[str],
    message: str,
    scripts: Path,
    data: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.chdir(tmp_path)
    (scripts / "validate.py").write_text("raise AssertionError('the script is run')")
    if "pico4.pth" in argv:
        torch.save(pico4(0).state_dict(), "pico4.pth")
    if "seven.pth" in argv:
        torch.save(timm.create_model("gmlp_pico4", num_classes=7).state_dict(), "seven.pth")
    usual = ["--data-dir", str(data), "--scripts", str(scripts), "--device", "cpu"]
    assert main(["verify", *usual, *argv]) == 2
    out, err = capsys.readouterr()
    assert (out, err.count("\n")) == ("", 1)
    assert re.search(message, err), err


@pytest.mark.parametrize(
    ("script", "status", "message"),
    [
        ("pass", 2, "ended without a result; expected validate.py of timm"),
        ("import sys, pathlib\n"
         "pathlib.Path(sys.argv[sys.argv.index('--results-file') + 1]).write_text('{\"top1\": 1}')", 2,
         "ended without crop_pct, img_size, interpolation, top5"),
    ],
)  # fmt: skip
def test_another_script(
    script: str, status: int, message: str, scripts: Path, data: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (scripts / "validate.py").write_text(script)
    args = ["verify", "gmlp_pico4", "--data-dir", str(data), "--scripts", str(scripts), "--device", "cpu"]
    assert main(args) == status
    assert message in capsys.readouterr().err


def test_the_scripts_error_is_told_whole(
    scripts: Path,
    data: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    (scripts / "validate.py").write_text("def inner():\n    raise ValueError('of the script')\ninner()")
    with pytest.raises(SystemExit) as ended:
        verify("gmlp_pico4", data, scripts=scripts, device="cpu")
    assert ended.value.code == 1
    assert "line 2, in inner" in capsys.readouterr().err
    assert [path.name for path in tmp_path.iterdir()] == ["scripts"]


def test_a_published_figure_is_that_of_one_tag() -> None:
    """The first tag's goes by the model's name; that of another would be told of weights it is not of."""
    assert families.top1_of("resmlp_12_224") == families.top1_of("resmlp_12_224.fb_in1k") == 76.66
    assert families.top1_of("resmlp_12_224.fb_distilled_in1k") == 77.95
    assert families.top1_of("resmlp_12_224.fb_dino") is None
    assert families.top1_of("vit_small_patch16_224") is None


def test_a_published_figure_has_weights_and_a_source() -> None:
    pairs = [(family, name) for family in families.families() for name in getattr(family, "TOP1", {})]
    assert len(pairs) > 35
    for family, name in pairs:
        cfg = timm.get_pretrained_cfg(name)
        assert families.top1_of(name) == family.TOP1[name]
        assert hub.released_at(name) or hub.page_of(name), name
        assert cfg.origin_url or cfg.file or hasattr(family, "NAMES"), name  # timm's own cfgs say no origin


# of any size, at 224 and 256 px; of one size, with another crop than the others, and at 384 px
@pytest.mark.parametrize("name", ["cycle_b1", "swin_mlp_t_c24", "vip_l7", "eamlp_7"])
def test_what_validate_py_makes_of_a_cfg(name: str) -> None:
    cfg = timm.get_pretrained_cfg(name)
    model = timm.create_model(name, device="meta")
    assert resolve_data_config({"img_size": None}, model=model, use_test_size=True) == {
        "input_size": cfg.input_size,
        "interpolation": "bicubic",
        "mean": cfg.mean,
        "std": cfg.std,
        "crop_pct": cfg.crop_pct,
        "crop_mode": "center",
    }
