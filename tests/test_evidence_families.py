"""benchmarks/evidence/families.py: the models of its rows, their table and their figures."""

import argparse
import json
import shutil
from functools import cache
from itertools import combinations
from pathlib import Path
from typing import Any

import pytest
import timm
import torch
import yaml
from benchmark_scripts import load
from matplotlib.text import Text
from timm.data import resolve_data_config
from timm.utils import CheckpointSaver
from tiny import images, learned, perturb
from torch import nn
from torch.nn.functional import cross_entropy
from zoo import ROWS as CLASSES_OF_BLOCKS

from gmlp_vision.checkpoints.build import build
from gmlp_vision.checkpoints.families import families as modules_of_families
from gmlp_vision.checkpoints.families import names_of
from gmlp_vision.shipped import find_recipe

modules = load("evidence")
evidence, models, report = modules.evidence, modules.evidence_models, modules.family_report
families = modules.families
FAMILIES, MODELS, RECIPES, TRIES = families.FAMILIES, families.MODELS, families.RECIPES, families.TRIES

MEASURED = Path(__file__).parents[1] / "benchmarks/evidence/measured/families"
RECIPE = yaml.safe_load(find_recipe("gmlp_pico4_10k").read_text())
PYRAMIDS = [family for family, model in MODELS.items() if families.kind_of(model) == "pyramid"]


def make(family: str, **kwargs: Any) -> nn.Module:
    """As train.py makes it with the recipe."""
    model = MODELS[family]
    sizes = {"num_classes": 10, "drop_path_rate": 0.1, **models.values(model.model_kwargs), **kwargs}
    return timm.create_model(model.model, **sizes)


@cache
def shape_of(family: str) -> nn.Module:
    """The model without numbers."""
    return make(family, device="meta")


# -- the rows -----------------------------------------------------------------------------------------------


def test_every_family_of_the_zoo_has_a_row() -> None:
    used = {model.model for model in MODELS.values()}
    blocks = {type(m) for family in ("resmlp", "mixer") for m in shape_of(family).modules()}
    for family in modules_of_families():
        if hasattr(family, "NAMES"):  # timm's: the rows are models of its class, with these blocks
            assert {timm.models.mlp_mixer.ResBlock, timm.models.MixerBlock} <= blocks
        else:
            assert used & {*names_of(family)}, family.__name__


def test_every_class_of_blocks_has_a_row_but_kinds_of_w() -> None:
    used = {model.model for model in MODELS.values()}
    without = {str(row) for row in CLASSES_OF_BLOCKS if not used & row.names.keys()}
    kinds_of_w = {
        str(row) for row in CLASSES_OF_BLOCKS if "gmlp" in str(row) and spatial_of(str(row)) != "dense"
    }
    # the base model of Sparse-MLP has both mixtures, and Wave-MLP-S other norms than T
    assert without == kinds_of_w | {"sparse_mlp_s", "sparse_mlp_l", "wave_s"}


def spatial_of(name: str) -> str:
    return timm.create_model(name, device="meta").block_args.get("spatial", "dense")


def test_a_row_is_a_family_and_an_optimizer() -> None:
    assert {*FAMILIES} == {f"{recipe}_{family}" for recipe in RECIPES for family in MODELS}
    assert FAMILIES.keys() <= evidence.ALL.keys()
    others = {**models.ROWS, **models.OPTIMIZERS, **models.KERNELS, **models.RATES}
    assert not FAMILIES.keys() & others.keys()
    for family, model in MODELS.items():
        plain, other = FAMILIES[f"adamw_{family}"], FAMILIES[f"nadamuon_{family}"]
        assert plain == model
        assert other == model._replace(options={**model.options, **RECIPES["nadamuon"]})


def test_a_try_is_a_family_by_nadamuon_with_one_thing_of_its_own() -> None:
    assert TRIES.keys() <= evidence.ALL.keys()
    assert not TRIES.keys() & FAMILIES.keys()
    for row, tried in TRIES.items():
        setting, _, family = row.partition("_")
        plain = FAMILIES[f"nadamuon_{family}"]
        if setting == "small":
            assert tried == plain._replace(model=f"{family}_pico4_small")
        else:
            assert tried == plain._replace(options={**plain.options, "lr": setting.removeprefix("lr")})


@pytest.mark.parametrize(
    ("family", "small"), [("resmlp", "linear_tokens.weight"), ("mixer", "mlp_tokens.fc2.weight")]
)
def test_a_small_start_is_of_the_map_over_tokens_alone(family: str, small: str) -> None:
    plain, other = (started(f"{family}_pico4{end}").state_dict() for end in ("", "_small"))
    scaled = {name for name in plain if not torch.equal(plain[name], other[name])}
    assert scaled == {f"blocks.{i}.{small}" for i in range(8)}
    for name in scaled:
        torch.testing.assert_close(other[name], plain[name] * 1e-3)


def started(name: str) -> nn.Module:
    torch.manual_seed(0)
    return timm.create_model(name)


@pytest.mark.parametrize("family", MODELS)
def test_parameters_are_within_a_twentieth(family: str) -> None:
    assert abs(sum(p.numel() for p in shape_of(family).parameters()) / 1_236_106 - 1) <= 0.05


@pytest.mark.parametrize("family", MODELS)
def test_the_grid_begins_with_8_x_8_tokens_and_there_are_8_blocks(family: str) -> None:
    model = shape_of(family)
    if family in PYRAMIDS:
        assert model.stage_grids((32, 32))[0] == (8, 8)
        assert sum(model.depths) == 8
    else:
        stem = model.patch_embed if family == "vit" else model.stem
        assert stem.grid_size == (8, 8)
        assert len(model.blocks) == 8


@pytest.mark.parametrize("family", MODELS)
def test_the_loader_treats_all_models_alike(family: str) -> None:
    model = MODELS[family]
    words = evidence.options_of(model, RECIPE)
    args = vars(loader_options().parse_known_args(words)[0])
    assert resolve_data_config(args, model=shape_of(family)) == resolve_data_config(
        {}, model=shape_of("gmlp")
    )


def loader_options() -> argparse.ArgumentParser:
    """The options of train.py that say how the loader makes an image, as it has them."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--input-size", nargs=3, type=int)
    parser.add_argument("--crop-pct", type=float)
    parser.add_argument("--interpolation", default="")
    for name in ("--mean", "--std"):
        parser.add_argument(name, type=float, nargs="+")
    return parser


@pytest.mark.long
@pytest.mark.parametrize("family", MODELS)
def test_all_of_a_model_learns(family: str) -> None:
    model = perturb(make(family, drop_path_rate=0.0)).train()
    cross_entropy(model(images(4, 3, 32, 32)), torch.arange(4)).backward()
    still = {name for name, p in learned(model).items() if p.grad is None or not p.grad.any()}
    # one offset alone: its weight is that of every Gaussian, over itself
    one_offset = {f"stages.3.blocks.{i}.pos.mixer.{name}" for i in (0, 1) for name in ("centers", "spreads")}
    assert still == (one_offset if family == "posmlp" else set())
    assert all(p.grad is None or p.grad.isfinite().all() for p in model.parameters())


@pytest.mark.long
@pytest.mark.parametrize("family", MODELS)
def test_tokens_mix_in_every_row_but_one(family: str) -> None:
    """By what a change of the first patch changes behind the blocks of the first stage, or of all."""
    model, x = perturb(make(family)).eval(), images(1, 3, 32, 32)
    other = x.clone()
    other[:, :, :4, :4] += 1.0
    with torch.no_grad():
        change = (tokens_of(model, other) - tokens_of(model, x)).abs().amax(dim=-1).flatten()
    assert change.max() > 0.1
    assert (change > 1e-5).sum() == 1 if family == "patch_mlp" else (change > 1e-5).sum() > 4


def tokens_of(model: Any, x: torch.Tensor) -> torch.Tensor:
    if hasattr(model, "stages"):
        return model.stages[0](model.stem(x.permute(0, 2, 3, 1)))
    return model.forward_features(x)


def test_a_checkpoint_says_which_model_it_holds(tmp_path: Path) -> None:
    """So that filters and the like open it by itself, without this folder's scripts."""
    for family in ("aft_local", "swin_mlp", "hire"):
        model = perturb(make(family))
        args = argparse.Namespace(
            model=MODELS[family].model,
            model_kwargs=models.values(MODELS[family].model_kwargs),
            input_size=[3, 32, 32],
        )
        folder = tmp_path / family
        folder.mkdir()
        saver = CheckpointSaver(model, torch.optim.SGD(model.parameters()), args, checkpoint_dir=str(folder))
        saver.save_checkpoint(4)
        found = build(folder / "last.pth.tar").model.eval()
        x = images(2, 3, 32, 32)
        with torch.no_grad():
            torch.testing.assert_close(found(x), model.eval()(x))


# -- the table and the figures ------------------------------------------------------------------------------


def finished(output: Path, row: str, seed: int, top1: float, seconds: float = 60.0) -> None:
    """A run's folder, as train.py and evidence.py leave it."""
    folder, model = output / row / f"seed{seed}", {**FAMILIES, **TRIES}[row]
    folder.mkdir(parents=True)
    sizes = {"model_kwargs": models.values(model.model_kwargs)} if model.model_kwargs else {}
    options = {key.replace("-", "_"): value for key, value in model.options.items()}
    args = {**RECIPE, **options, **sizes, "model": model.model, "seed": seed}
    (folder / "args.yaml").write_text(yaml.safe_dump(args))
    (folder / "summary.csv").write_text(f"epoch,train_loss,eval_top1\n4,1.5,{top1}\n")
    where = {"date": "2026-11-29 20:00 UTC", "cpu": "a CPU", "gpu": None, "threads": 1}
    told = {"further": [], "seconds": seconds, "machine": {**where, "versions": {"timm": "1", "torch": "2"}}}
    (folder / "run.json").write_text(json.dumps(told))


def measured(output: Path, families: list[str]) -> None:
    """The file of speeds.py, with rates that differ."""
    images = {
        f: {"adamw": 250 + i, "nadamuon": 125 + i, "inference": 1000 + i} for i, f in enumerate(families)
    }
    where = {"date": "2026-11-30 10:00 UTC", "cpu": "a CPU", "threads": 1}
    told = {"machine": where, "batch": 128, "precision": "bfloat16", "rounds": 7, "images a second": images}
    (output / "speeds.json").write_text(json.dumps(told))


def test_table(tmp_path: Path) -> None:
    for seed, top1, seconds in ((0, 40.0, 60.0), (1, 42.0, 90.0), (2, 47.0, 120.0)):
        finished(tmp_path, "adamw_gmlp", seed, top1, seconds)
    finished(tmp_path, "nadamuon_gmlp", 1, 50.0, 30.0)
    finished(tmp_path, "adamw_cycle", 0, 38.25)
    lines = report.families(tmp_path, [0, 1, 2], RECIPE).splitlines()
    columns = [cell.strip() for cell in lines[0].strip("|").split("|")]
    gmlp, cycle = (dict(zip(columns, cells_of(line), strict=True)) for line in lines[2:4])
    assert gmlp == {
        "family": "gmlp",
        "model": "gMLP",
        "parameters": "1,236,106",
        "MMACs": "88.5",  # README: 0.089 G
        "top-1, nadamuon": "50.00",
        "top-1, adamw": "43.00 (std 3.61, 3 seeds)",
        "images/s in training, nadamuon": "-",
        "images/s in training, adamw": "-",
        "images/s in inference": "-",
        "minutes, nadamuon": "0.5",
        "minutes, adamw": "1.5",
    }
    assert (cycle["family"], cycle["top-1, adamw"], cycle["top-1, nadamuon"]) == ("cycle", "38.25", "-")
    assert cycle["minutes, nadamuon"] == "-"
    assert lines[4] == ""
    assert lines[5] == f"Not run by nadamuon: {', '.join(f for f in MODELS if f != 'gmlp')}."
    assert lines[6] == f"Not run by adamw: {', '.join(f for f in MODELS if f not in ('gmlp', 'cycle'))}."
    # and no line of options other than the recipe's: the rows say theirs
    assert lines[7:] == ["2026-11-29, a CPU, threads a run: 1, timm 1, torch 2."]


def cells_of(line: str) -> list[str]:
    return [cell.strip() for cell in line.strip("|").split("|")]


@pytest.mark.long
def test_the_table_of_the_docs_is_what_families_prints() -> None:
    printed = report.families(MEASURED, [0, 1, 2], RECIPE).splitlines()
    table = printed[: printed.index("")]
    assert len(table) > 40
    assert "\n".join(table) in (MEASURED.parents[3] / "train/README.md").read_text()


def test_the_best_come_first(tmp_path: Path) -> None:
    for row, seed, top1 in (
        ("adamw_cycle", 0, 60.0),
        ("nadamuon_resmlp", 0, 58.0),
        ("nadamuon_resmlp", 1, 50.0),
        ("nadamuon_vit", 0, 55.0),
        ("adamw_gmlp", 0, 61.0),
    ):
        finished(tmp_path, row, seed, top1)
    lines = report.families(tmp_path, [0, 1], RECIPE).splitlines()
    assert [cells_of(line)[0] for line in lines[2:6]] == ["vit", "resmlp", "gmlp", "cycle"]


def test_table_with_speeds(tmp_path: Path) -> None:
    finished(tmp_path, "adamw_gmlp", 0, 40.0)
    measured(tmp_path, ["vip", "gmlp"])
    lines = report.families(tmp_path, [0], RECIPE).splitlines()
    assert cells_of(lines[2])[6:9] == ["126", "251", "1001"]
    assert lines[-2] == (
        "Images a second: 2026-11-30 10:00 UTC, a CPU, 1 threads, batch 128, bfloat16, median of 7, all in "
        "turns."
    )


def test_table_of_tries_has_the_families_that_have_one(tmp_path: Path) -> None:
    for row, seed, top1 in (
        ("nadamuon_resmlp", 0, 58.0),
        ("nadamuon_resmlp", 1, 59.0),
        ("nadamuon_cycle", 0, 55.0),
        ("nadamuon_gmlp", 0, 67.0),
        ("lr4e-3_resmlp", 0, 60.0),
        ("lr2e-3_cycle", 0, 57.0),
        ("small_resmlp", 0, 61.0),
    ):
        finished(tmp_path, row, seed, top1)
    lines = report.tries(tmp_path, [0, 1], RECIPE).splitlines()
    assert cells_of(lines[0]) == ["family", "8e-3", "2e-3", "4e-3", "16e-3", "8e-3, small start"]
    assert [cells_of(line) for line in lines[2:4]] == [
        ["resmlp", "58.50 (std 0.71, 2 seeds)", "-", "60.00", "-", "61.00"],
        ["cycle", "55.00", "57.00", "-", "-", "-"],
    ]
    assert lines[4:] == ["", "2026-11-29, a CPU, threads a run: 1, timm 1, torch 2."]


def test_figures_have_a_label_a_family_and_none_covers_another(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    shown = list(MODELS)[::6]
    macs = iter(range(80_000_000, 90_000_000, 10_000))
    monkeypatch.setattr(modules.family_report, "count_macs", lambda model, size: next(macs))
    for i, family in enumerate(shown):
        finished(tmp_path, f"adamw_{family}", 0, 40.0 + i % 4)
    finished(tmp_path, f"nadamuon_{shown[0]}", 0, 45.0)
    measured(tmp_path, shown)
    drawn = {}
    monkeypatch.setattr(
        modules.family_figures,
        "save_figure",
        lambda figure, path, dpi: drawn.update({path.name: figure}),
    )
    assert evidence.main(["figures", "--output", str(tmp_path), "--seeds", "0"]) == 0
    assert [Path(line).name for line in capsys.readouterr().out.splitlines()] == [*drawn]
    assert [*drawn] == ["families_macs.png", "families_time.png"]
    for figure in drawn.values():
        nadamuon, adamw = figure.axes
        assert [text.get_text() for text in adamw.texts] == shown
        assert [text.get_text() for text in nadamuon.texts] == shown[:1]
        figure.draw_without_rendering()
        boxes = [Text.get_window_extent(text) for text in adamw.texts]
        assert not any(a.overlaps(b) for a, b in combinations(boxes, 2))
    # 250 images a second, and 50,000 of them
    assert drawn["families_time.png"].axes[1].texts[0].xy == pytest.approx((50_000 / 250 / 60, 40.0))


def test_no_figure_of_time_before_speeds_and_none_without_runs(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert evidence.main(["figures", "--output", str(tmp_path)]) == 2
    assert "has no runs of families" in capsys.readouterr().err
    finished(tmp_path, "adamw_gmlp", 0, 40.0)
    assert evidence.main(["figures", "--output", str(tmp_path), "--seeds", "0"]) == 0
    assert [path.name for path in tmp_path.glob("*.png")] == ["families_macs.png"]


def test_speeds_are_written_for_all_tasks(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    small = families.isotropic("gMLP", "gmlp_ti16", 16, depth=1)
    monkeypatch.setattr(modules.speeds, "MODELS", {"gmlp": small, "other": small})
    monkeypatch.setattr(modules.speeds, "ROUNDS", 1)
    told = modules.speeds.speeds(tmp_path / "new", [0], {**RECIPE, "batch_size": 2})
    assert told == str(tmp_path / "new/speeds.json")
    found = modules.speeds.read_speeds(tmp_path / "new")
    assert [*found["images a second"]] == ["gmlp", "other"]
    for rates in found["images a second"].values():
        assert {*rates} == {*RECIPES, "inference"}
        assert all(0 < rate < 1e6 for rate in rates.values())
    assert (found["batch"], found["precision"], found["rounds"]) == (2, "bfloat16", 1)


# -- what was learned ------------------------------------------------------------------------------------


def trained(output: Path, row: str, seed: int) -> nn.Module:
    """A finished run with its last checkpoint, of a model with weights that are not those of its start."""
    finished(output, row, seed, 40.0)
    folder = output / row / f"seed{seed}"
    args = yaml.safe_load((folder / "args.yaml").read_text())
    model = perturb(timm.create_model(args["model"], num_classes=10, **args.get("model_kwargs", {})), seed)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    CheckpointSaver(model, optimizer, checkpoint_dir=folder).save_checkpoint(epoch=4, metric=40.0)
    return model


def test_what_was_learned_is_told_and_drawn_and_outlives_the_folders(tmp_path: Path) -> None:
    gmlp = trained(tmp_path, "adamw_gmlp", 0)
    trained(tmp_path, "adamw_gmlp", 1)
    trained(tmp_path, "nadamuon_mixer", 0)
    trained(tmp_path, "adamw_patch_mlp", 0)
    told = modules.learned.learned(tmp_path, [0, 1], RECIPE)
    units, mixer, first, second = (cells_of(line) for line in told.splitlines()[2:])
    assert (first[:4], second[:4]) == (["adamw_gmlp", "0", "token", "8"], ["adamw_gmlp", "1", "token", "8"])
    ws = [block.mlp_channels.gate.proj.weight.detach().double() for block in gmlp.blocks]
    places = torch.cartesian_prod(torch.arange(8.0), torch.arange(8.0)).double()
    reach = [float((w.abs() * torch.cdist(places, places)).sum() / w.abs().sum()) for w in ws]
    assert first[4] == f"{sum(reach) / 8:.2f}"
    assert first != second
    assert (units[2:4], mixer[2:4]) == (["hidden", "16"], ["token", "8"])
    assert units[6] == "-"  # of hidden units offsets explain nothing that could be told
    drawn = {path.name for path in (tmp_path / "learned").iterdir()}
    assert drawn == {"adamw_gmlp.png", "nadamuon_mixer.png"}
    for row in ("adamw_gmlp", "nadamuon_mixer"):
        shutil.rmtree(tmp_path / row)
    assert modules.learned.learned(tmp_path, [0, 1], RECIPE) == told


def test_nothing_was_learned_yet(tmp_path: Path) -> None:
    assert len(modules.learned.learned(tmp_path, [0], RECIPE).splitlines()) == 2
    assert not [*tmp_path.iterdir()]
