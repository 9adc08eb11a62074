"""The recipes against the options of timm's train.py, and the command that finds them.

train.py takes any key of a --config file without a word, so a misspelt one does nothing. The list of its
options and their types is `data/train_options.yaml`; the script beside it makes that list anew.
"""

import argparse
import math
import random
import re
import shlex
from pathlib import Path

import pytest
import timm
import yaml
from PIL import Image
from timm.data import create_transform, resolve_input_data_config
from timm.layers import DropPath
from timm.models import resolve_model_input_args

import gmlp_vision  # noqa: F401 - registers the models
from gmlp_vision.cli import main
from gmlp_vision.shipped import recipes
from gmlp_vision.zoo import find_names

ROOT = Path(__file__).resolve().parent.parent
OPTIONS = yaml.safe_load((ROOT / "tests/data/train_options.yaml").read_text())
TYPES = {"bool": bool, "dict": dict, "float": float, "int": int, "str": str}
HEADER = ("reproduces", "expected", "measured", "cost", "command", "CPU", "MPS")
# 1 - survival probability of Table 1
DROP_PATH = {"gmlp_ti16": 0.00, "gmlp_s16": 0.05, "gmlp_b16": 0.20}
# for many models, which their headers name
PROTOCOLS = ("gmlp_in1k", "deit_in1k", "cyclemlp_in1k")
NAMES = [
    *PROTOCOLS,
    "gmlp_finetune",
    "gmlp_pico4",
    "gmlp_pico4_10k",
    "gmlp_pico4_cifar10",
    "gmlp_pico4_distilled",
    "gmlp_smoke",
]


def has_type(value: object, kind: str) -> bool:
    if kind.startswith("list"):
        return isinstance(value, list) and all(has_type(item, kind[5:-1]) for item in value)
    return type(value) is TYPES[kind]


def faults(recipe: dict) -> list[str]:
    """What train.py would do other than the recipe says, in silence."""
    found = [f"{key}: no such option" for key in recipe if key not in OPTIONS]
    found += [
        f"{key}: {value!r} is no {OPTIONS[key]}"
        for key, value in recipe.items()
        if key in OPTIONS and not has_type(value, OPTIONS[key])
    ]
    if found:
        return found
    for key, default in (("min_lr", 0.0), ("warmup_lr", 1e-5)):
        if recipe.get(key, default) >= recipe["lr"]:
            found.append(f"{key}: not below lr")
    if recipe.get("amp") and recipe.get("amp_dtype") != "bfloat16":
        found.append("amp: in float16")
    if "pretrained_path" in recipe and not recipe.get("pretrained"):
        found.append("pretrained_path: ignored without pretrained")
    if recipe.get("device_modules") != ["gmlp_vision"]:
        found.append("device_modules: does not import the models")
    return found


def read(name: str) -> dict:
    return yaml.safe_load(recipes()[name].read_text())


def header(name: str) -> dict[str, str]:
    lines = re.findall(r"^# ([A-Za-z0-9 ]+?): +(\S.*)$", recipes()[name].read_text(), flags=re.M)
    return dict(lines)


def test_the_recipes_are_there() -> None:
    assert set(recipes()) >= set(NAMES)


@pytest.mark.parametrize("name", recipes())
def test_train_py_does_what_the_recipe_says(name: str) -> None:
    assert faults(read(name)) == []


@pytest.mark.parametrize(
    ("line", "fault"),
    [
        ("weight_dcay: 0.05", "weight_dcay"),
        ("weight_decay: 1e-3", "weight_decay"),  # YAML 1.1 reads a string
        ("warmup_epochs: 2.5", "warmup_epochs"),
        ("scale: 0.5", "scale"),
        ("min_lr: 0.01", "min_lr"),
        ("lr: 1.0e-5", "warmup_lr"),
        ("amp: true", "amp"),
        ("pretrained_path: model.pth", "pretrained_path"),
        ("device_modules: [timm]", "device_modules"),
    ],
)
def test_a_fault_is_seen(line: str, fault: str) -> None:
    good = {"device_modules": ["gmlp_vision"], "lr": 1e-3}
    assert faults(good) == []
    assert [found.split(":")[0] for found in faults({**good, **yaml.safe_load(line)})] == [fault]


@pytest.mark.parametrize("name", recipes())
def test_header_is_complete(name: str) -> None:
    fields = header(name)
    assert [key for key in HEADER if key not in fields] == []
    assert f'--config "$(gmlp-vision recipe {name})" --data-dir ' in fields["command"]


def test_the_table_has_every_recipe() -> None:
    page = (ROOT / "train/README.md").read_text()
    assert set(re.findall(r"^\| \[(\w+)\]\(\1\.yaml\)", page, flags=re.M)) == set(recipes())


@pytest.mark.parametrize("name", [name for name in recipes() if "pico4" in name])
def test_the_small_ones_serve_other_images_too(name: str) -> None:
    """Beside the command's place for the data nothing of what train.py reads is CIFAR-10's."""
    assert "cifar" not in yaml.safe_dump(read(name)).lower()


def train_py_lines() -> list[str]:
    """What follows train.py in each of its command lines in the pages on training and in the recipes."""
    pages = [ROOT / "train/README.md", ROOT / "docs/training.md", ROOT / "docs/structure.md"]
    pages += [ROOT / "examples/distillation/README.md", *recipes().values()]
    text = "\n".join(path.read_text() for path in pages).replace("\\\n", " ")
    return re.findall(r"train\.py (-[^\n`]+)", text)


def train_py_parser() -> argparse.ArgumentParser:
    """A parser of the options in the list; abbreviations, which train.py takes, are refused."""
    parser = argparse.ArgumentParser(allow_abbrev=False, exit_on_error=False)
    parser.add_argument("--config")
    short = {"batch_size": "-b", "workers": "-j"}
    for name, kind in OPTIONS.items():
        if name in ("data", "local_rank"):  # a place on the line, and a thing of launchers
            continue
        flags = ["--" + name.replace("_", "-"), *([short[name]] if name in short else [])]
        if kind == "bool":
            parser.add_argument(*flags, action="store_true")
        elif kind == "dict":
            parser.add_argument(*flags, nargs="*")
        elif name == "torchcompile":  # its backend may be left out
            parser.add_argument(*flags, nargs="?", const="inductor")
        else:
            item = re.sub(r"list\[(\w+)\]", r"\1", kind)
            parser.add_argument(*flags, type=TYPES[item], nargs="+" if kind.startswith("list") else None)
    return parser


def test_the_lines_are_found() -> None:
    lines = train_py_lines()
    assert len(lines) > 20
    assert {word for line in lines for word in line.split()} >= {
        "--grad-accum-steps",
        "--dataset",
        "--resume",
    }


@pytest.mark.parametrize("line", train_py_lines())
def test_train_py_takes_the_line(line: str) -> None:
    _, unknown = train_py_parser().parse_known_args(shlex.split(line))
    assert unknown == []


def test_an_option_that_train_py_lacks_is_seen() -> None:
    _, unknown = train_py_parser().parse_known_args(["--lr", "1e-3", "--grad-accum", "2"])
    assert unknown == ["--grad-accum", "2"]


@pytest.mark.parametrize("name", recipes())
def test_model_exists(name: str) -> None:
    recipe = read(name)
    model = timm.create_model(
        recipe["model"],
        num_classes=recipe.get("num_classes"),
        drop_rate=recipe.get("drop", 0.0),
        drop_path_rate=recipe.get("drop_path"),
        device="meta",
        **recipe.get("model_kwargs", {}),
    )
    assert model.get_classifier().out_features == recipe.get("num_classes", 1000)


def served(name: str) -> list[str]:
    """The registered names that a protocol's header says."""
    return [model for pattern in header(name)["serves"].split() for model in find_names(pattern)]


def test_every_name_for_imagenet_is_served_by_one_protocol() -> None:
    names = [model for protocol in PROTOCOLS for model in served(protocol)]
    assert len(names) == len(set(names))
    timms = {"mixer", "gmixer", "resmlp"}
    ours = {model for model in find_names() if model.split("_")[0] not in timms}
    assert {*names} == ours - {"gmlp_pico4"}


@pytest.mark.long
@pytest.mark.parametrize(
    ("name", "model"), [(protocol, model) for protocol in PROTOCOLS for model in served(protocol)]
)
def test_a_protocol_makes_every_model_that_it_serves(name: str, model: str) -> None:
    parser = train_py_parser()
    parser.set_defaults(**read(name))
    args = parser.parse_args(["--model", model])
    assert args.model == model
    made = timm.create_model(
        args.model,
        num_classes=args.num_classes,
        drop_rate=args.drop,
        drop_path_rate=args.drop_path,
        device="meta",
        **(args.model_kwargs or {}),
    )
    assert made.get_classifier().out_features == 1000
    rates = [m.drop_prob for m in made.modules() if isinstance(m, DropPath)]
    assert max(rates) == pytest.approx(args.drop_path)
    # the loader makes an image of the size that the model takes
    size = resolve_input_data_config(made)["input_size"]
    assert (made.in_chans, *(getattr(made, "img_size", None) or made.stem.img_size)) == size


def test_protocols_are_said_once() -> None:
    """CycleMLP's code has DeiT's settings."""
    assert {**read("deit_in1k"), "model": ""} == {**read("cyclemlp_in1k"), "model": ""}
    assert read("deit_in1k")["batch_size"] * 8 == 1024  # Table 9, on the eight GPUs of the header
    assert "--nproc-per-node 8 " in header("deit_in1k")["command"]


def augment(policy: str, draws: int = 1000) -> None:
    transform = create_transform(16, is_training=True, auto_augment=policy, color_jitter=0.0)
    random.seed(0)
    image = Image.effect_noise((16, 16), 64).convert("RGB")
    for _ in range(draws):
        transform(image)


@pytest.mark.parametrize("name", [name for name in recipes() if "aa" in read(name)])
def test_augmentation_does_not_fail(name: str) -> None:
    """Some of timm's policies posterize to 0 bits now and then; Pillow 13 refuses and training stops."""
    augment(read(name)["aa"])


def updates(batch: int, steps: int) -> int:
    """Of an epoch on one GPU: the loader drops a smaller last batch, the optimizer none."""
    return math.ceil(1_281_167 // batch / steps)


def test_the_papers_batch_and_warm_up() -> None:
    """Global batch 4096 on one GPU and on eight; 10,000 steps of warm-up, in whole epochs (appendix A.1)."""
    recipe, on_eight = read("gmlp_in1k"), header("gmlp_in1k")["8 GPUs"]
    batch, steps = recipe["batch_size"], recipe["grad_accum_steps"]
    assert "--nproc-per-node 8 " in on_eight
    assert batch * steps == 8 * batch * int(on_eight.split("--grad-accum-steps ")[1]) == 4096
    assert recipe["warmup_epochs"] == round(10_000 / updates(batch, steps))


def test_the_table_of_splits_keeps_batch_and_warm_up() -> None:
    page = (ROOT / "docs/training.md").read_text()
    rows = re.findall(r"^\| (gmlp_\w+16) \| ([\d.]+) \| (\d+) \| (\d+) \| (\d+) \|", page, flags=re.M)
    assert {model: float(rate) for model, rate, *_ in rows} == pytest.approx(DROP_PATH)
    for batch, steps, steps_on_eight in [map(int, split) for _, _, *split in rows]:
        assert batch * steps == 8 * batch * steps_on_eight == 4096
        assert read("gmlp_in1k")["warmup_epochs"] == round(10_000 / updates(batch, steps))


def test_only_the_survival_probability_changes_with_size() -> None:
    parser = train_py_parser()
    parser.set_defaults(**read("gmlp_in1k"))
    runs = {}
    for size in ("Ti", "command", "B"):
        line = header("gmlp_in1k")[size].partition("train.py ")[2]
        options = vars(parser.parse_args(shlex.split(line)))
        runs[options.pop("model")] = (options.pop("drop_path"), options)
    assert {model: rate for model, (rate, _) in runs.items()} == pytest.approx(DROP_PATH)
    (_, first), *others = runs.values()
    assert all(options == first for _, options in others)


def test_command_lists_names_and_titles(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["recipe"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert [line.split()[0] for line in lines] == list(recipes())
    assert all(f"# {line.split(maxsplit=1)[1]}\n" in recipes()[line.split()[0]].read_text() for line in lines)


def test_command_prints_the_path_in_the_checkout(capsys: pytest.CaptureFixture[str]) -> None:
    """The tests run on an editable install, whose recipes are those of the checkout."""
    assert main(["recipe", "gmlp_smoke"]) == 0
    assert capsys.readouterr().out == f"{ROOT / 'train' / 'gmlp_smoke.yaml'}\n"


def test_unknown_name_is_one_line_with_the_names(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["recipe", "gmlp_s16"]) == 2
    out, err = capsys.readouterr()
    assert out == ""
    assert err.count("\n") == 1
    assert all(word in err for word in ("'gmlp_s16'", *NAMES))


@pytest.mark.parametrize(
    ("args", "kwargs", "size"),
    [
        ({"input_size": [3, 48, 32]}, {}, (3, 48, 32)),
        ({"img_size": 48}, {}, (3, 48, 48)),
        ({"in_chans": 1}, {}, (1, 32, 32)),
        ({"input_size": [3, 48, 48]}, {"img_size": 48}, (3, 48, 48)),
    ],
)
def test_one_option_sizes_model_and_loader_in_newer_train_py(
    args: dict, kwargs: dict, size: tuple[int, int, int]
) -> None:
    """By 1.0.31 train.py makes the model by timm's `resolve_model_input_args`, says timm's own test."""
    resolved = resolve_model_input_args("gmlp_pico4", args, num_classes=10, **kwargs)
    model = timm.create_model(**resolved, device="meta")
    assert (model.in_chans, *model.stem.img_size) == size
    assert resolve_input_data_config(model, args)["input_size"] == size
