"""What gmlp_vision.zoo says of names and families, and docs/zoo.md, README.md and the command show."""

import importlib.util
import json
from pathlib import Path
from types import ModuleType

import pytest
import timm
import torch
from torch.utils.flop_counter import FlopCounterMode
from zoo import ROWS, Row, tiny_kwargs

from gmlp_vision import cli
from gmlp_vision.checkpoints.families import families, family_of_name, names_of
from gmlp_vision.errors import UserError
from gmlp_vision.zoo import EVIDENCE, count_macs, describe, find_names

ROOT = Path(__file__).parent.parent


@pytest.fixture(scope="module")
def docs() -> ModuleType:
    spec = importlib.util.spec_from_file_location("zoo_docs", ROOT / "docs/zoo.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


every_family = pytest.mark.parametrize("family", families(), ids=lambda f: f.__name__.rpartition(".")[2])


# -- the pages --------------------------------------------------------------------------------------------


@pytest.mark.long
def test_both_are_up_to_date(docs: ModuleType) -> None:
    readme = (ROOT / "README.md").read_text()
    assert (ROOT / "docs/zoo.md").read_text() == docs.page(), "run python docs/zoo.py"
    assert readme == docs.readme(readme), "run python docs/zoo.py"


def test_a_page_has_the_equations_and_what_was_learned(
    docs: ModuleType, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    runs = [
        ("nadamuon_gfnet", 0, "gfnet_ti", 60.0),
        ("nadamuon_gfnet", 1, "gfnet_ti", 61.0),
        ("adamw_gfnet", 0, "gfnet_ti", 50.0),
        ("nadamuon_resmlp", 0, "resmlp_pico4", 64.0),
        ("nadamuon_vit", 0, "vit_pico4", 44.0),
    ]
    place = tmp_path / "benchmarks"
    (place / "learned").mkdir(parents=True)
    (place / "learned/nadamuon_gfnet.png").touch()
    monkeypatch.setattr(docs, "MEASURED", place)
    monkeypatch.setattr(docs, "ROOT", tmp_path)
    gfnet, mixers, gmlp = (family_of_name(name) for name in ("gfnet_ti", "resmlp_12_224", "gmlp_ti16"))
    assert docs.measured() == []
    assert docs.learned(gfnet, []) == []
    assert docs.small("gfnet_ti", []) == "-"
    (place / "runs.jsonl").write_text(
        "".join(
            json.dumps({"row": row, "seed": seed, "top1": top1, "options": {"model": model}}) + "\n"
            for row, seed, model, top1 in runs
        )
    )
    found = docs.measured()
    assert docs.small("gfnet_ti", found) == "60.5"
    assert docs.small("gfnet_xs", found) == "-"
    line, picture = docs.learned(gfnet, found)
    assert "Small, as `gfnet` of" in line
    assert line.endswith("60.5 by NAdaMuon, 50.0 by AdamW.")
    assert picture.endswith("by NAdaMuon](../benchmarks/learned/nadamuon_gfnet.png)")
    assert [line.rpartition(": ")[2] for line in docs.learned(mixers, found)] == ["64.0 by NAdaMuon."]
    assert docs.learned(gmlp, found) == []
    shapes, equation = docs.equations(gmlp)
    assert shapes.startswith("Shapes: B batch, N = H * W tokens")
    assert equation.startswith("```text\nZ = GELU(LN(X) U)  ")
    assert equation.endswith("Z1, Z2 the halves of Z\n```\n")


@every_family
def test_every_familys_page_has_its_equation(docs: ModuleType, family: ModuleType) -> None:
    assert any(part.startswith("```text\n") for part in docs.equations(family))


def test_a_readme_without_its_marks_is_refused(docs: ModuleType) -> None:
    with pytest.raises(UserError, match="has lost the lines"):
        docs.readme("# gmlp-vision\n")


# -- families ---------------------------------------------------------------------------------------------


@every_family
def test_a_family_says_where_it_comes_from_and_what_was_verified(family: ModuleType) -> None:
    assert ": " in family.__doc__.splitlines()[0]
    assert family.SOURCE.endswith(".")
    assert [what for what in EVIDENCE if what in family.VERIFIED] == list(family.VERIFIED)
    tested = {name for row in ROWS for name in row.names}
    assert ("equation" in family.VERIFIED) == (set(names_of(family)) <= tested)
    files = [timm.get_pretrained_cfg(name).file for name in names_of(family)]
    assert ("released file" in family.VERIFIED) == any(files)


@every_family
def test_top1_is_of_names_with_weights(family: ModuleType) -> None:
    top1 = getattr(family, "TOP1", {})
    with_weights = set()
    for name in names_of(family):
        cfg = timm.get_pretrained_cfg(name)
        if cfg.hf_hub_id or cfg.url or cfg.file:
            with_weights.add(name)
    assert {name for name in top1 if "." not in name} == with_weights
    assert all(50 < value < 95 for value in top1.values())


# -- names ------------------------------------------------------------------------------------------------


def test_what_is_said_of_a_name() -> None:
    row = describe("gmlp_pico4")
    assert row.parameters == 1_236_106
    assert row.any_size == "resampled"
    assert row.filters == ("token",)
    assert set(row.weights) == {
        (f"gmlp_pico4.{tag}, in this package", f"weights/gmlp_pico4.{tag}/README.md")
        for tag in ("dist_cifar10", "cifar10")
    }
    deep = describe("s2mlp_deep")
    assert (deep.any_size, deep.filters, deep.licence, deep.top1) == ("free", (), "", None)
    assert "shift" in deep.no_filters[0]
    resmlp = describe("resmlp_12_224")
    assert resmlp.any_size == "resampled"
    assert len(resmlp.weights) == 3
    ff = describe("ff_ti16")
    assert ff.licence == "unknown"
    assert ff.weights[0].title == "linear-tiny-checkpoint.pth"
    assert ff.weights[0].link.startswith("https://github.com/")


@pytest.mark.parametrize(
    ("name", "any_size", "filters", "weights"),
    [
        ("as_mlp_t", "free, in steps of 32 px", (), "a page of shanghaitecheducn-my.sharepoint.com"),
        ("cycle_b1", "free", (), "CycleMLP_B1.pth"),
        ("gfnet_h_ti", "resampled, in steps of 32 px", ("kernel",), "a page of drive.google.com"),
        ("raft_s", "fixed", (), None),
        ("swin_mlp_b", "free, in steps of 224 px", ("token",), "swin_mlp_base_patch4_window7_224.pth"),
    ],
)
def test_what_is_said_of_a_pyramid(
    name: str, any_size: str, filters: tuple[str, ...], weights: str | None
) -> None:
    row = describe(name)
    assert (row.any_size, row.filters) == (any_size, filters)
    assert [place.title for place in row.weights] == ([weights] if weights else [])
    assert row.licence


# by the papers and READMEs, in 10^9 multiply-adds
@pytest.mark.parametrize(
    ("name", "published"),
    [
        ("gmlp_ti16", 1.4),
        ("gfnet_ti", 1.3),
        ("s2mlp_wide", 14.0),
        ("as_mlp_t", 4.4),
        ("hire_t", 2.14),
        ("smlp_t", 4.99),
    ],
)
def test_multiply_adds_are_those_published(name: str, published: float) -> None:
    assert describe(name).gmacs == pytest.approx(published, abs=0.08)


@pytest.mark.parametrize("row", ROWS, ids=str)
def test_alike_blocks_count_as_if_each_were_run(row: Row) -> None:
    size = row.sizes[0] if row.resize == "fixed" else row.sizes[1]  # on the larger grids windows are shifted
    kwargs = {**tiny_kwargs(str(row)), "device": "meta", "img_size": size}
    deeper = {"depths": (2, 3)} if "depths" in kwargs else {"depth": 3}
    model = timm.create_model(str(row), **{**kwargs, **deeper})
    with FlopCounterMode(display=False) as counter:
        model(torch.empty(1, 3, *size, device="meta"))
    macs = counter.get_total_flops() // 2
    assert macs > 0
    assert count_macs(model, size) == macs


# -- the command ------------------------------------------------------------------------------------------


def test_the_command_prints_what_matches(capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["zoo", "ff_[tb]*"]) == 0
    head, *rows = capsys.readouterr().out.splitlines()
    assert " ".join(head.split()) == "name params GMACs image any size filters top-1 licence weights"
    assert [row.split()[0] for row in rows] == ["ff_ti16", "ff_b16"]
    start = head.index("any size")
    assert all(row[start:].startswith("fixed") for row in rows)
    assert all(row[: start - 2].endswith("224 x 224") for row in rows)
    assert "7,676,332" in rows[0]
    assert "61.4" in rows[0]


def test_without_a_pattern_it_is_all() -> None:
    assert set(find_names()) == {name for family in families() for name in names_of(family)}
    assert find_names("gmlp_pico?") == ["gmlp_pico4"]


@pytest.mark.parametrize(
    ("pattern", "hint"),
    [("gmpl_*", "gmlp_*"), ("gmlp_s17", "gmlp_s16"), ("vit_large_patch16_224", "without a pattern")],
)
def test_a_pattern_that_matches_nothing_is_one_line(
    pattern: str, hint: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert cli.main(["zoo", pattern]) == 2
    out, err = capsys.readouterr()
    assert out == ""
    (line,) = err.splitlines()
    assert f"matches {pattern!r}" in line
    assert hint in line
