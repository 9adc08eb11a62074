"""benchmarks/evidence/: its images, its models, its runs of train.py and its table."""

import argparse
import copy
import json
import shutil
import subprocess
from collections.abc import Callable
from functools import partial
from pathlib import Path

import pytest
import timm
import torch
import yaml
from benchmark_scripts import load
from timm.data import resolve_input_data_config
from timm.optim import create_optimizer_v2
from timm.utils import CheckpointSaver, ParseKwargs
from tiny import images, perturb
from torch import nn
from torch.nn.functional import cross_entropy
from torch.nn.utils import parametrize

import gmlp_vision
from gmlp_vision.errors import UserError
from gmlp_vision.shipped import find_recipe

modules = load("evidence")
evidence, make_subset, report = modules.evidence, modules.subset.make_subset, modules.report.report
ROWS, parameters = modules.evidence_models.ROWS, modules.evidence_models.parameters
OPTIMIZERS, optimizers = modules.evidence_models.OPTIMIZERS, modules.report.optimizers
RATES, LEVERS = modules.evidence_models.RATES, modules.levers.LEVERS
record = modules.runs.record
KERNELS, kernels = modules.evidence_models.KERNELS, modules.report.kernels

RECIPE = yaml.safe_load(find_recipe("gmlp_pico4_10k").read_text())
FROZEN = [f"blocks.{i}.mlp_channels.gate.proj.weight" for i in range(8)]


# -- the images ---------------------------------------------------------------------------------------------


def touch(folder: Path, count: int) -> None:
    folder.mkdir(parents=True)
    for i in range(count):
        (folder / f"{i:04}.png").touch()


@pytest.fixture
def data(tmp_path: Path) -> Path:
    """Ten classes, of 8 to 17 images each."""
    for i in range(10):
        touch(tmp_path / f"data/train/class{i}", 8 + i)
        touch(tmp_path / f"data/test/class{i}", 2)
    (tmp_path / "data/train/class0/notes.txt").touch()
    return tmp_path / "data"


def names(folder: Path) -> list[str]:
    return sorted(str(path.relative_to(folder)) for path in folder.rglob("*.png"))


def test_the_subset_is_balanced_and_leads_to_the_images(data: Path, tmp_path: Path) -> None:
    make_subset(data, tmp_path / "subset", each=8)
    for i in range(10):
        chosen = list((tmp_path / f"subset/train/class{i}").iterdir())
        assert len(chosen) == 8
        assert all(link.resolve() == data / "train" / f"class{i}" / link.name for link in chosen)
    assert (tmp_path / "subset/test").resolve() == data / "test"


def test_the_seed_decides_which_images(data: Path, tmp_path: Path) -> None:
    for name, seed in (("first", 0), ("again", 0), ("other", 1)):
        make_subset(data, tmp_path / name, each=5, seed=seed)
    assert names(tmp_path / "first") == names(tmp_path / "again") != names(tmp_path / "other")
    before = (tmp_path / "first").stat().st_ino
    make_subset(data, tmp_path / "first", each=5)
    assert (tmp_path / "first").stat().st_ino == before
    with pytest.raises(UserError, match=r"first does not hold the 5 images a class that seed 1 draws"):
        make_subset(data, tmp_path / "first", each=5, seed=1)


def test_images_held_out_are_no_others_than_training_images_and_are_not_trained_on(
    data: Path, tmp_path: Path
) -> None:
    make_subset(data, tmp_path / "plain", each=5)
    make_subset(data, tmp_path / "held", each=5, held_out=2)
    make_subset(data, tmp_path / "whole", each=5, held_out=2, whole=True)
    assert names(tmp_path / "plain/train") == names(tmp_path / "held/train")
    held = names(tmp_path / "held/test")
    assert held == names(tmp_path / "whole/test")
    assert not {*held} & {*names(tmp_path / "held/train")}
    assert sorted(held + names(tmp_path / "whole/train")) == names(data / "train")
    for folder in ("held", "whole"):
        for i in range(10):
            links = list((tmp_path / folder / f"test/class{i}").iterdir())
            assert len(links) == 2
            assert all(link.resolve() == data / "train" / f"class{i}" / link.name for link in links)
    with pytest.raises(UserError, match=r"whole does not hold the images a class that seed 1 draws"):
        make_subset(data, tmp_path / "whole", each=5, seed=1, held_out=2, whole=True)
    with pytest.raises(UserError, match=r"class0 holds 8 images; expected 9 or more"):
        make_subset(data, tmp_path / "more", each=5, held_out=4)


def one_less(subset: Path) -> None:
    next((subset / "train/class3").iterdir()).unlink()


def a_file_more(subset: Path) -> None:
    (subset / "train/class3/9999.png").touch()


@pytest.mark.parametrize("fault", [one_less, a_file_more])
def test_a_subset_that_was_changed_is_refused(
    fault: Callable[[Path], None], data: Path, tmp_path: Path
) -> None:
    make_subset(data, tmp_path / "subset", each=5)
    fault(tmp_path / "subset")
    with pytest.raises(UserError, match="remove it"):
        make_subset(data, tmp_path / "subset", each=5)


# -- the models ---------------------------------------------------------------------------------------------


def make(row: str, **model_kwargs: object) -> nn.Module:
    """As train.py makes it with the recipe."""
    contender = evidence.ALL[row]
    parser = argparse.ArgumentParser()
    parser.add_argument("--model-kwargs", nargs="*", action=ParseKwargs)
    words = [f"{key}={value}" for key, value in contender.model_kwargs.items()]
    return timm.create_model(
        contender.model,
        num_classes=RECIPE["num_classes"],
        drop_path_rate=RECIPE["drop_path"],
        **parser.parse_args(["--model-kwargs", *words]).model_kwargs,
        **model_kwargs,
    )


def test_parameters_are_within_a_twentieth() -> None:
    assert parameters(ROWS["gmlp"], {}) == 1_236_106
    for name, row in ROWS.items():
        assert abs(parameters(row, row.model_kwargs) / 1_236_106 - 1) <= 0.05, name


@pytest.mark.parametrize("row", OPTIMIZERS)
def test_rows_of_optimizers_start_alike_but_for_the_scale_of_w(row: str) -> None:
    torch.manual_seed(0)
    plain = timm.create_model("gmlp_pico4", num_classes=10, depth=2, embed_dim=16).state_dict()
    torch.manual_seed(0)
    started = make(row, depth=2, embed_dim=16).state_dict()
    scale = float(OPTIMIZERS[row].model_kwargs["init_std"]) / 1e-6
    for name, tensor in plain.items():
        tensor *= scale if name.endswith("gate.proj.weight") else 1.0
    torch.testing.assert_close(started, plain)


@pytest.mark.parametrize("row", OPTIMIZERS)
def test_w_has_weight_decay_but_in_one_row(row: str) -> None:
    model = make(row, depth=2, embed_dim=16)
    groups = create_optimizer_v2(model, opt="sgd", lr=0.1, weight_decay=0.05).param_groups
    free = {id(p) for group in groups if group["weight_decay"] == 0 for p in group["params"]}
    matrices = [name for name, p in model.named_parameters() if p.ndim > 1 and id(p) in free]
    assert matrices == (FROZEN[:2] if row == "lamb_undecayed" else [])


@pytest.mark.parametrize("row", [row for row in KERNELS if "dense+" in row])
def test_kernels_of_every_form_learn_and_merge(row: str) -> None:
    model = perturb(make(row, depth=2, embed_dim=16).double())
    x = images(2, 3, 32, 32).double()
    logits = model.eval()(x)
    cross_entropy(logits, torch.arange(2)).backward()
    kernels = [p for name, p in model.named_parameters() if "gate.proj" in name and ".weight" not in name]
    assert all(p.grad is not None and p.grad.any() for p in kernels)
    plain = copy.deepcopy(model)
    for block in plain.blocks:
        if parametrize.is_parametrized(block.mlp_channels.gate.proj):
            parametrize.remove_parametrizations(block.mlp_channels.gate.proj, "table")
    merged = gmlp_vision.merge(plain)
    assert merged.state_dict().keys() == make("gmlp", depth=2, embed_dim=16).state_dict().keys()
    torch.testing.assert_close(merged(x), logits, atol=1e-12, rtol=1e-12)


def test_forms_of_a_kernel_start_where_they_say() -> None:
    def table(form: str) -> torch.Tensor:
        model = make(f"nadamuon_dense+toeplitz_{form}", depth=1, embed_dim=16)
        return model.blocks[0].mlp_channels.gate.proj.table.detach()

    assert not any(table(form).any() for form in ("undecayed", "quarter", "four", "normed"))
    assert table("blur")[7, 7] == table("blur").max() > table("blur")[7, 8] > table("blur")[6, 8] > 0


@pytest.mark.parametrize("row", ROWS)
def test_every_model_sees_the_same_images_and_learns_from_them(row: str) -> None:
    model = perturb(make(row))
    assert resolve_input_data_config(model) == resolve_input_data_config(make("gmlp"))
    cross_entropy(model.eval()(images(4, 3, 32, 32)), torch.arange(4)).backward()
    still = [name for name, p in model.named_parameters() if p.grad is None or not p.grad.any()]
    assert still == (FROZEN if row == "frozen" else [])


@pytest.mark.parametrize("row", ROWS)
def test_only_frozen_tokens_do_not_see_one_another(row: str) -> None:
    model, x = make(row).eval(), images(1, 3, 32, 32)
    fixed = {name: p.clone() for name, p in model.named_parameters() if not p.requires_grad}
    perturb(model).load_state_dict(fixed, strict=False)  # all that training may move is far from its init
    other = x.clone()
    other[:, :, :4, :4] += 1.0  # the first patch
    with torch.no_grad():
        change = (model.forward_features(other) - model.forward_features(x)).abs().amax(dim=(0, 2))
    assert change[0] > 0.1
    assert change[1:].max() < 1e-3 if row == "frozen" else change[1:].min() > 1e-2


@pytest.mark.parametrize("row", LEVERS)
def test_levers_change_what_they_say_and_the_model_stays_gmlp_pico4(row: str) -> None:
    model = make(row)
    plain = {name: p.shape for name, p in make("gmlp").named_parameters()}
    ours = {name: p.shape for name, p in gmlp_vision.merge(model).named_parameters()}
    assert ours == plain
    assert LEVERS[row].options.items() >= evidence.ALL["nadamuon_dense"].options.items()
    others = [other for other in LEVERS if LEVERS[other][1:] == LEVERS[row][1:]]
    assert others == [row]


def test_the_whitened_stem_brings_waves_and_colours_nearer_to_one_scale() -> None:
    def spread(row: str) -> float:
        """Of the responses to patches with the spectrum of natural images: largest to smallest."""
        torch.manual_seed(0)
        weight = make(row).stem.proj.weight.detach()
        n = torch.arange(4)
        waves = torch.cos(torch.pi / 4 * n[:, None] * (n + 0.5))
        grey, red = torch.ones(3), torch.tensor([1.0, 0.0, -1.0])
        patches = [
            amount * torch.einsum("c,i,j->cij", colour, waves[u], waves[0])
            for colour, amount, u in ((grey, 1.0, 0), (grey, 0.25, 1), (grey, 0.1, 2), (red, 0.3, 0))
        ]
        sizes = (torch.stack(patches).flatten(1) @ weight.flatten(1).T).norm(dim=1)
        return (sizes.max() / sizes.min()).item()

    assert spread("whitened") < 2.5 < 6 < spread("base")


def test_drop_path_over_depth() -> None:
    def rates(row: str) -> list[float]:
        return [getattr(block.drop_path, "drop_prob", 0.0) for block in make(row).blocks]

    rate = RECIPE["drop_path"]
    assert rate > 0
    assert rates("constant") == rates("mixer") == rates("resmlp") == [rate] * 8
    assert rates("gmlp") == rates("frozen") == pytest.approx([rate * i / 7 for i in range(8)])


# -- the runs -----------------------------------------------------------------------------------------------


@pytest.fixture
def arguments(data: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """All that a row needs, for 8 images a class and a train.py that says what it was given."""
    monkeypatch.setattr(evidence, "make_subset", partial(make_subset, each=8))
    (tmp_path / "scripts").mkdir()
    (tmp_path / "scripts/train.py").write_text(TRAIN)
    return [
        *("--data-dir", str(data), "--scripts", str(tmp_path / "scripts")),
        *("--output", str(tmp_path / "runs")),
    ]


TRAIN = """
import argparse, importlib, json, pathlib, timm, timm.utils, yaml
parser = argparse.ArgumentParser()
for name in ("config", "data-dir", "model", "output", "experiment", "seed", "epochs"):
    parser.add_argument(f"--{name}")
parser.add_argument("--device", default="cpu")
parser.add_argument("--device-modules", nargs="+")
parser.add_argument("--model-kwargs", nargs="*", default={}, action=timm.utils.ParseKwargs)
args = parser.parse_args()
for module in args.device_modules:
    importlib.import_module(module)
timm.create_model(args.model, device="meta", **args.model_kwargs)
print("seed", args.seed)
folder = pathlib.Path(args.output, args.experiment)
(folder / "args.yaml").write_text(yaml.safe_dump({**vars(args), "epochs": int(args.epochs)}))
(folder / "summary.csv").write_text(f"epoch,eval_top1\\n{int(args.epochs) - 1},4{args.seed}.5\\n")
"""


def ended_with(status: int) -> object:
    return lambda command, **_: subprocess.CompletedProcess(command, status)


@pytest.mark.slow
def test_a_row_runs_what_is_missing_of_it(
    arguments: list[str], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    runs = tmp_path / "runs"
    finished(runs, "constant", 3, 43.5)
    before = (runs / "constant/seed3").stat()
    assert evidence.main(["constant", *arguments, "--seeds", "3", "4", "--epochs", "2"]) == 0
    assert (runs / "constant/seed3").stat() == before
    assert (runs / "constant/seed4.log").read_text() == "seed 4\n"
    assert sorted(path.name for path in (runs / "constant").iterdir()) == ["seed3", "seed4", "seed4.log"]
    options = yaml.safe_load((runs / "constant/seed4/args.yaml").read_text())
    assert options["data_dir"] == str(runs / "cifar10_10k")
    assert options["model_kwargs"] == {"drop_path_rule": "constant"}
    assert options["config"] == str(find_recipe("gmlp_pico4_10k"))
    capsys.readouterr()
    assert evidence.main(["table", "--output", str(runs), "--seeds", "3", "4"]) == 0
    told = capsys.readouterr().out
    assert (
        f"| constant | {ROWS['constant'].title} | 1,236,106 | 3, 4 | 44.00 | 0.71 | 43.50 | 44.50 |" in told
    )
    assert "given --epochs 2 (constant seed 4)" in told


def test_a_row_says_what_is_its_own_and_keeps_the_recipes_model_kwargs() -> None:
    row = evidence.Contender("", "a_model", {"b": "2", "c": "3"}, {"opt": "lamb", "weight-decay": "0.1"})
    words = evidence.options_of(row, {"model_kwargs": {"a": 1, "b": 1}})
    assert " ".join(words[: words.index("--model")]) == (
        "--opt lamb --weight-decay 0.1 --model-kwargs a=1 b=2 c=3"
    )
    assert "--model-kwargs" not in evidence.options_of(ROWS["gmlp"], {"model_kwargs": {"a": 1}})


@pytest.mark.parametrize("word", ["--model", "--seed=8"])
def test_a_row_takes_no_option_that_it_sets_itself(
    word: str, arguments: list[str], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert evidence.main(["gmlp", *arguments, "--epochs", "1", word, "8"]) == 2
    assert capsys.readouterr().err.startswith(f"evidence.py: a row sets {word} itself; ")
    assert not (tmp_path / "runs").exists()


@pytest.mark.parametrize(
    ("outcome", "status", "message"),
    [
        (ended_with(1), 2, "train.py ended with 1; the log is "),
        (ended_with(0), 2, "train.py was stopped; the log is "),
        (None, 130, "stopped; the log is "),
    ],
    ids=["failed", "ended early", "Ctrl-C"],
)
def test_what_is_not_finished_leaves_its_log_alone(
    outcome: object,
    status: int,
    message: str,
    arguments: list[str],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    def run(command: list[str], **kwargs: object) -> object:
        folder = Path(command[command.index("--output") + 1], command[command.index("--experiment") + 1])
        (folder / "args.yaml").write_text("epochs: 5\n")
        (folder / "summary.csv").write_text("epoch,eval_top1\n3,50.0\n")
        if outcome is None:
            raise KeyboardInterrupt
        return outcome(command)

    monkeypatch.setattr(subprocess, "run", run)
    assert evidence.main(["gmlp", *arguments]) == status
    last = capsys.readouterr().err.splitlines()[-1]
    assert last.startswith("evidence.py: ")
    assert f"{message}{tmp_path / 'runs/gmlp/seed0.log'}" in last
    assert [path.name for path in (tmp_path / "runs/gmlp").iterdir()] == ["seed0.log"]


@pytest.mark.parametrize(
    ("gone", "message"),
    [
        ("scripts/train.py", "no script at "),
        ("data/test", " has no folder test/"),
        ("data/test/class9", "of the same names in both"),
        ("data/train/class0/0003.png", "class0 holds 7 images; expected 8 or more"),
    ],
)
def test_what_is_missing_is_told_in_one_line(
    gone: str, message: str, arguments: list[str], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / gone).rename(tmp_path / "elsewhere")
    assert evidence.main(["gmlp", *arguments]) == 2
    out, err = capsys.readouterr()
    assert (out, err.count("\n")) == ("", 1)
    assert err.startswith("evidence.py: ")
    assert message in err
    assert not list(tmp_path.glob("runs/*/seed*"))


# -- the table ----------------------------------------------------------------------------------------------


def finished(
    output: Path, row: str, seed: int, top1: float, seconds: float = 60.0, **options: object
) -> None:
    """A run's folder, as train.py and evidence.py leave it."""
    folder = output / row / f"seed{seed}"
    folder.mkdir(parents=True)
    made = {
        "model": evidence.ALL[row].model,
        "model_kwargs": modules.evidence_models.values(evidence.ALL[row].model_kwargs),
    }
    (folder / "args.yaml").write_text(yaml.safe_dump({**RECIPE, **made, "seed": seed, **options}))
    (folder / "summary.csv").write_text(f"epoch,train_loss,eval_top1\n3,2.0,99.0\n4,1.5,{top1}\n")
    machine = {"date": "2026-11-29 20:00 UTC", "cpu": "a CPU", "gpu": None, "threads": 1}
    told = {
        "further": [],
        "seconds": seconds,
        "machine": {**machine, "versions": {"timm": "1", "torch": "2"}},
    }
    (folder / "run.json").write_text(json.dumps(told))


def test_table(tmp_path: Path) -> None:
    for seed, top1, seconds in ((0, 40.0, 60.0), (1, 42.0, 90.0), (2, 47.0, 120.0)):
        finished(tmp_path, "gmlp", seed, top1, seconds)
    finished(tmp_path, "vit", 1, 38.25)
    rows = report(tmp_path, [0, 1, 2], RECIPE).splitlines()
    assert rows[2] == "| gmlp | gMLP | 1,236,106 | 0, 1, 2 | 43.00 | 3.61 | 40.00 | 47.00 | 1.5 |"
    assert rows[3] == f"| vit | {ROWS['vit'].title} | 1,229,882 | 1 | 38.25 | - | 38.25 | 38.25 | 1.0 |"
    assert {row.count("|") for row in rows[:4]} == {11 - 1}
    assert rows[4] == ""
    assert rows[5].startswith("Not run: frozen seed 0, frozen seed 1, ")
    assert rows[5].endswith("mixer seed 2, vit seed 0, vit seed 2.")
    assert rows[6:] == ["2026-11-29, a CPU, threads a run: 1, timm 1, torch 2."]


def test_the_table_says_where_a_run_left_the_recipe(tmp_path: Path) -> None:
    finished(tmp_path, "gmlp", 0, 40.0)
    finished(tmp_path, "mixer", 0, 40.0, model="mixer_pico4", lr=1e-3)
    told = report(tmp_path, [0], RECIPE)
    assert "Other than the recipe: lr 0.001, not 0.002 (mixer seed 0).\n" in told
    assert told.count("Other than the recipe") == 1


def test_records_outlive_the_folders(tmp_path: Path) -> None:
    """And print the same table; a run that is made again replaces its line."""
    finished(tmp_path, "gmlp", 0, 40.0)
    finished(tmp_path, "mixer", 1, 41.0, lr=1e-3, model_kwargs={"drop_rate": 0.1})
    table = report(tmp_path, [0, 1], RECIPE)
    assert record(tmp_path, [0, 1], RECIPE) == f"{tmp_path / 'runs.jsonl'}: 2 runs"
    assert report(tmp_path, [0, 1], RECIPE) == table
    for folder in ("gmlp", "mixer"):
        shutil.rmtree(tmp_path / folder)
    assert report(tmp_path, [0, 1], RECIPE) == table
    finished(tmp_path, "gmlp", 0, 50.0)
    record(tmp_path, [0, 1], RECIPE)
    shutil.rmtree(tmp_path / "gmlp")
    assert report(tmp_path, [0, 1], RECIPE) == table.replace("40.00", "50.00")


def test_a_table_says_where_a_run_is_older_than_its_row(tmp_path: Path) -> None:
    finished(tmp_path, "nadamuon_dense", 0, 40.0, opt="nadamuon", lr=4e-3)
    finished(tmp_path, "nadamuon_dense", 1, 40.0, opt="nadamuon", lr=8e-3)
    told = kernels(tmp_path, [0, 1], RECIPE)
    assert "Other than the recipe: lr 0.004, not the row's 8e-3 (nadamuon_dense seed 0).\n" in told
    assert told.count("Other than the recipe") == 1
    finished(tmp_path, "nadamuon_dense", 2, 40.0, opt="nadamuon", lr=8e-3, model_kwargs={"spatial": "7x7"})
    (line,) = (s for s in kernels(tmp_path, [1, 2], RECIPE).splitlines() if "Other than the recipe" in s)
    assert (
        "model_kwargs {'spatial': '7x7'}, not the row's {'spatial': 'dense'} (nadamuon_dense seed 2)" in line
    )
    finished(tmp_path, "nadamuon_dense", 3, 40.0, opt="nadamuon", lr=8e-3, model="gmlp_ti16")
    assert "model 'gmlp_ti16', not the row's 'gmlp_pico4' (all)" in kernels(tmp_path, [3], RECIPE)


def test_the_table_of_optimizers_says_how_far_w_went(tmp_path: Path) -> None:
    for seed, rms in ((0, 3e-3), (1, 5e-3)):
        finished(tmp_path, "lamb_1e-3", seed, 40.0 + seed, opt="lamb", lr=0.03)
        model = make("lamb_1e-3", depth=2, embed_dim=16)
        for i, block in enumerate(model.blocks):
            nn.init.constant_(block.mlp_channels.gate.proj.weight, rms * (1 + i))
        folder = str(tmp_path / f"lamb_1e-3/seed{seed}")
        asked = argparse.Namespace(model=OPTIMIZERS["lamb_1e-3"].model)
        optimizer = torch.optim.SGD(model.parameters())
        CheckpointSaver(model, optimizer, asked, checkpoint_dir=folder).save_checkpoint(4)
    rows = optimizers(tmp_path, [0, 1], RECIPE).splitlines()
    title = OPTIMIZERS["lamb_1e-3"].title
    # the mean of 3 and 6, and of 5 and 10, in thousandths
    assert rows[2] == (f"| lamb_1e-3 | {title} | 0.03 | 0, 1 | 40.50 | 0.71 | 40.00 | 41.00 | 6.0e-03 | 6 |")
    assert "Other than the recipe" not in "".join(rows)  # since the row says so itself


def test_the_table_of_kernels_counts_them_and_rows_differ_in_nothing_else(tmp_path: Path) -> None:
    for row, top1 in (("nadamuon_dense", 40.0), ("nadamuon_dense+toeplitz", 42.0), ("adamw_dense+3x3", 41.0)):
        finished(tmp_path, row, 0, top1, model_kwargs=KERNELS[row].model_kwargs, **KERNELS[row].options)
    rows = kernels(tmp_path, [0], RECIPE).splitlines()
    counts = {row.split(" | ")[0].strip("| "): row.split(" | ")[2] for row in rows[2:5]}
    assert counts == {
        "adamw_dense+3x3": f"{1_236_106 + 8 * 9:,}",
        "nadamuon_dense": "1,236,106",
        "nadamuon_dense+toeplitz": f"{1_236_106 + 8 * 15 * 15:,}",
    }
    assert "Other than the recipe" not in "".join(rows)
    missing = [f"{row} seed 0" for row in KERNELS if row not in counts]
    assert f"Not run: {', '.join(missing)}." in rows


def test_rates_measured_on_images_held_out_are_apart_from_the_others(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    row = "nadamuon_lr8e-3"
    finished(tmp_path, row, 0, 60.0, **RATES[row].options)
    finished(tmp_path / "held_out", row, 0, 50.0, **RATES[row].options)
    assert evidence.main(["rates", "--output", str(tmp_path), "--held-out", "--seeds", "0"]) == 0
    rows = capsys.readouterr().out.splitlines()
    assert rows[2] == f"| {row} | NAdaMuon | 8e-3 | 0 | 50.00 | - | 50.00 | 50.00 |"
    assert "Other than the recipe" not in "".join(rows)


@pytest.mark.parametrize(
    ("argv", "message"),
    [
        (["table", "--epochs", "1"], "table takes no --epochs 1"),
        (["kernels", "--epochs", "1"], "kernels takes no --epochs 1"),
        (["optimizers", "--epochs", "1"], "optimizers takes no --epochs 1"),
        (["table", "--recipe", "gmlp"], "no recipe is named 'gmlp'; there are cyclemlp_in1k, "),
        (["images"], "images needs --data-dir"),
        (["images", "--data-dir", "/data/cifar10", "--whole"], "--whole is for `images --held-out`"),
        (["gmlp", "--whole", "--data-dir", "/d", "--scripts", "/s"], "--whole is for `images --held-out`"),
        (["gmlp", "--data-dir", "/data/cifar10"], "gmlp needs --scripts"),
    ],
)
def test_arguments(argv: list[str], message: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert evidence.main(argv) == 2
    err = capsys.readouterr().err
    assert err.startswith(f"evidence.py: {message}")
    assert err.count("\n") == 1
