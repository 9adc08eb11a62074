"""examples/text/: its corpus and masks, its models, its loop, its tables and figure."""

import json
import math
import re
import sysconfig
from pathlib import Path
from typing import Any

import pytest
import torch
from benchmark_scripts import load
from tiny import perturb

from gmlp_vision.layers.resample import Grid
from gmlp_vision.models.gmlp import GMlpBlock

FOLDER = Path(__file__).parents[1] / "examples/text"
README = (FOLDER / "README.md").read_text()
modules = load("text", FOLDER.parent)
corpus, model, train, report = modules.corpus, modules.model, modules.train, modules.report
N, MASK, ROWS = corpus.N, corpus.MASK, model.ROWS


def generator(seed: int = 0) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


# -- the loop -----------------------------------------------------------------------------------------------


def run(out: Path, *args: str) -> dict[str, Any]:
    train.main(["split", "--out", str(out), *args])
    return json.loads((out / "split.0.json").read_text())


def test_thirty_steps_lower_the_loss(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(train, "EVERY", 10)
    monkeypatch.setattr(train, "TEST_BATCHES", 1)
    result = run(tmp_path, "--steps", "30", "--batch", "4")
    first, _, last = result["train_loss"]
    assert last < first - 0.5
    assert result["loss"] < 3.9 < math.log(256)
    assert 0.1 < result["accuracy"] < 0.6
    weights = modules.results.read_weights(tmp_path / "split.0.npz")
    state = torch.load(tmp_path / "split.0.pt")
    for i, w in enumerate(weights):
        true = state[f"blocks.{i}.mlp_channels.gate.proj.weight"]
        assert (w - true).abs().max() <= true.abs().max() / 254 * 1.01
    assert sorted(path.name for path in tmp_path.iterdir()) == [f"split.0.{x}" for x in ("json", "npz", "pt")]


def test_a_run_that_was_stopped_ends_as_one_that_was_not(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(train, "EVERY", 2)
    monkeypatch.setattr(train, "TEST_BATCHES", 1)
    args = ("--steps", "5", "--batch", "2")
    whole = run(tmp_path / "whole", *args)
    true_rate = train.rate

    def stop(step: int, steps: int) -> float:
        if step == 3:
            raise KeyboardInterrupt
        return true_rate(step, steps)

    monkeypatch.setattr(train, "rate", stop)
    with pytest.raises(KeyboardInterrupt):
        run(tmp_path / "halved", *args)
    monkeypatch.setattr(train, "rate", true_rate)
    with pytest.raises(SystemExit, match=r"has lr [0-9.]+, not 0\.1"):
        run(tmp_path / "halved", *args, "--lr", "0.1")
    halved = run(tmp_path / "halved", *args)
    for key in ("loss", "accuracy", "train_loss", "toeplitz_share"):
        assert halved[key] == whole[key]
    with pytest.raises(SystemExit, match="has steps 5, not 6"):
        run(tmp_path / "halved", "--steps", "6", "--batch", "2")


def test_what_cannot_be_is_refused_in_a_line(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "file").write_text("")
    for args, said in (
        (("--steps", "0"), "--steps is 0; expected at least 1"),
        (("--lr", "-1"), "--lr is -1.0; expected a number above 0"),
        (("--lr", "nan"), "--lr is nan; expected a number above 0"),
        (("--out", str(tmp_path / "file")), "file: File exists; expected a folder, or the name of a new one"),
    ):
        with pytest.raises(SystemExit):
            train.main(["split", "--out", str(tmp_path), *args])
        assert said in capsys.readouterr().err


@pytest.mark.parametrize("row", ["split", "toeplitz"])
def test_muon_takes_w_but_no_table(row: str) -> None:
    net = model.TextModel(*ROWS[row])
    optimizer = train.make_optimizer(net, "nadamuon", 1e-3)
    net(torch.zeros(1, N, dtype=torch.long), torch.ones(1, N, dtype=torch.bool)).sum().backward()
    optimizer.step()
    taken = {name for name, p in net.named_parameters() if optimizer.state[p]["use_muon"]}
    matrices = ("fc1", "fc2", "gate.proj") if row == "split" else ("fc1", "fc2")
    assert taken == {f"blocks.{i}.mlp_channels.{part}.weight" for i in range(6) for part in matrices}


# -- the models ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize("row", ROWS)
def test_every_row_has_as_many_parameters_and_trains_all_of_them(row: str) -> None:
    net = model.TextModel(*ROWS[row])
    count, split = (sum(p.numel() for p in x.parameters()) for x in (net, model.TextModel(*ROWS["split"])))
    assert abs(count / split - 1) < 0.05
    assert 1.0e6 < count < 1.05e6
    perturb(net)
    text = corpus.windows("train", 2, generator())
    seen, asked = corpus.mask(text, generator())
    logits = net(seen, asked)
    assert logits.shape == (int(asked.sum()), 256)
    assert logits.std(0).min() > 0
    logits.square().mean().backward()
    dead = {n for n, p in net.named_parameters() if p.grad is None or not p.grad.any()}
    frozen = {f"blocks.{i}.mlp_channels.gate.proj.weight" for i in range(6)}
    assert dead == (frozen if row == "frozen" else set())


@pytest.mark.parametrize("row", ROWS)
def test_bytes_mix_but_where_w_is_frozen_near_zero(row: str) -> None:
    net = model.TextModel(*ROWS[row]).eval()
    if row != "frozen":
        perturb(net)
    text = corpus.windows("train", 1, generator())
    other = text.clone()
    other[0, 5] = (text[0, 5] + 1) % 256
    asked = torch.zeros_like(text, dtype=torch.bool)
    asked[0, 100] = True
    with torch.inference_mode():
        change = (net(text, asked) - net(other, asked)).abs().max().item()
    assert (change > 1e-5) == (row != "frozen")


def test_the_blocks_are_this_packages_own() -> None:
    net = model.TextModel(*ROWS["split"])
    assert all(type(block) is GMlpBlock for block in net.blocks)
    grids: set[Grid] = {block.mlp_channels.gate.proj.grid_size for block in net.blocks}
    assert grids == {(1, 128)}


def test_the_sources_are_as_short_as_they_say() -> None:
    assert len((FOLDER / "model.py").read_text().splitlines()) < 80
    assert len((FOLDER / "train.py").read_text().splitlines()) < 150


# -- the corpus ---------------------------------------------------------------------------------------------


def test_parts_hold_whole_files_and_no_tests() -> None:
    whole = corpus.corpus()
    texts = {part: bytes(text.tolist()) for part, text in whole.parts.items()}
    assert sum(map(len, texts.values())) == sum(whole.about["bytes"].values()) > 5e6
    assert len(texts["train"]) > 10 * len(texts["test"]) > 1e6
    root = Path(sysconfig.get_path("stdlib"))
    for name in ("json/decoder.py", "argparse.py", "unittest/case.py", "pydoc_data/topics.py"):
        assert sum((root / name).read_bytes() in text for text in texts.values()) == 1
    tests = [path for path in root.glob("*/test*/*.py") if path.stat().st_size > 1000]
    installed = list((root / "site-packages").glob("*/*.py"))[:20]
    assert not any(path.read_bytes() in text for path in tests + installed for text in texts.values())


def test_masks_are_as_berts() -> None:
    text = corpus.windows("train", 400, generator())
    seen, asked = corpus.mask(text, generator(1))
    assert torch.equal(seen[~asked], text[~asked])
    assert asked.double().mean().item() == pytest.approx(0.15, abs=0.01)
    assert (seen[asked] == MASK).double().mean().item() == pytest.approx(0.8, abs=0.02)
    assert (seen[asked] == text[asked]).double().mean().item() == pytest.approx(0.1, abs=0.02)
    assert seen.max() == MASK
    assert text.max() < MASK


def test_lines_start_at_position_0_and_only_they_are_asked_for() -> None:
    whole = bytes(corpus.corpus().parts["train"].tolist())
    drawn = corpus.lines("train", 64, generator())
    for row in drawn.tolist():
        line, _, rest = bytes(row).partition(b"\0")
        assert not any(rest)
        assert b"\n" not in line[:-1]
        assert b"\n" + line in whole
    _, asked = corpus.mask(drawn, generator())
    assert asked.any()
    assert (drawn[asked] != 0).all()


# -- the tables and the figure ------------------------------------------------------------------------------


def runs(row: str, losses: list[float], share: list[float], opt: str = "nadamuon") -> list[dict[str, Any]]:
    kept: dict[str, Any] = {
        "opt": opt,
        "part": "test",
        "parameters": 1_028_736,
        "accuracy": 0.4,
        "cpu_seconds": 90.0,
    }
    kept |= {"date": "2026-11-30", "cpu": "x", "versions": {"torch": "2", "timm": "1"}, "row": row}
    kept |= {"corpus": {"python": "3", "files": 7, "bytes": {"test": 1}, "sha256": "00"}}
    both = [{"all": [one] * 6, "first": [one] * 6} for one in share]
    return [
        {**kept, "seed": seed, "loss": loss, "toeplitz_share": {"start": one, "end": one}}
        for seed, (loss, one) in enumerate(zip(losses, both, strict=True))
    ]


def test_a_claim_needs_t_above_2() -> None:
    share = [0.30, 0.31, 0.32]
    found = [
        *runs("split", [2.00, 2.02, 2.04], share),
        *runs("multiplicative", [2.10, 2.12, 2.14], share),
        *runs("additive", [2.11, 2.13, 2.15], share),
        *runs("linear", [2.01, 2.03, 2.05], share),
        *runs("toeplitz", [2.01, 2.03, 2.05], share),
        *runs("amlp", [1.9], share[:1]),
        *runs("transformer", [2.0], share[:1]),
    ]
    lines = dict(line.strip("| ").split(" | ", 1) for line in report.claims(found).splitlines()[2:])
    # 0.1 apart, each mean's standard error 0.02 / sqrt(3)
    assert lines["loss: split < multiplicative"] == "2.020 | 2.120 | 6.1 | yes"
    assert lines["loss: multiplicative < additive"] == "2.120 | 2.130 | 0.6 | no"
    assert lines["loss: additive < linear"].endswith("| -6.1 | no: the other way round")
    assert lines["loss: Toeplitz W = dense W"].endswith("| -0.6 | yes")
    assert lines["loss: aMLP < Transformer"].endswith("| - | open: one seed")
    assert lines["loss: split < W frozen"].startswith("not run")
    assert lines["Toeplitz share of dense W > a random matrix's"] == "0.310 | 0.0156 | 51.0 | yes"


def test_the_readme_has_the_tables_of_the_results() -> None:
    found = modules.results.read(FOLDER / "results")
    assert found
    assert report.rewritten(README, found) == README
    for name in report.TABLES:
        assert README.count(f"<!-- begin {name}:") == README.count(f"<!-- end {name} -->") == 1


def test_every_result_is_a_row_at_its_settings() -> None:
    for one in modules.results.read(FOLDER / "results"):
        assert one["row"] in ROWS
        assert one["part"] == "tune" or (one["steps"], one["lr"]) == (train.STEPS, train.LR[one["opt"]])
    assert all(path.stat().st_size < 102_400 for path in (FOLDER / "results").iterdir())


def test_the_figure_is_drawn(tmp_path: Path) -> None:
    modules.figure.main(["-o", str(tmp_path / "figure.png")])
    assert (tmp_path / "figure.png").stat().st_size > 50_000


# -- filling in ---------------------------------------------------------------------------------------------


def fill(*args: str) -> None:
    modules.fill.main(list(args))


def test_fill_trains_first_where_there_is_no_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(modules.fill, "STEPS", 2)
    for name in ("BATCH", "TEST_BATCHES"):
        monkeypatch.setattr(train, name, 1)
    fill("de# f(s#lf", "--mask", "#", "--count", "3", "--out", str(tmp_path))
    told = capsys.readouterr().out
    assert "training it first" in told
    lines = told.splitlines()[-2:]
    assert [line[:3] for line in lines] == ["1: ", "2: "]
    odds = [[float(x) for x in re.findall(r"([\d.]+) %", line)] for line in lines]
    assert all(len(x) == 3 and x == sorted(x, reverse=True) and 0 < sum(x) <= 100.1 for x in odds)
    fill("a?c", "--out", str(tmp_path))
    assert "training" not in capsys.readouterr().out


def test_fill_does_not_train_over_a_result_that_has_no_weights(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "split.0.json").write_text("{}")
    with pytest.raises(SystemExit):
        fill("a?c", "--run", "split.0", "--out", str(tmp_path))
    assert "the result of split.0 without its weights" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("args", "why"),
    [
        (("no mask",), "put one where a byte is to be found"),
        (("?" + "é" * 63,), "has 127 bytes; expected at most 126"),
        (("?", "--mask", ""), "--mask must not be empty"),
        (("?", "--run", "nothing.0"), "or ROW.SEED with a row of"),
    ],
)
def test_fill_says_what_is_wrong(
    args: tuple[str, ...], why: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit) as error:
        fill(*args, "--out", str(tmp_path))
    assert error.value.code == 2
    assert not list(tmp_path.iterdir())  # told before the minutes of training
    assert why in capsys.readouterr().err
