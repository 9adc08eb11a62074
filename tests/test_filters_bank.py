"""A bank as a sequence of layers, and the statistics of whole networks: trained, fresh and zero."""

import csv
import itertools
import json
from dataclasses import asdict, replace
from pathlib import Path

import pytest
import timm
import torch
from tiny import perturb, projections, tiny
from torch import nn
from toy_networks import Blocks, Kernels, projection, pyramid

from gmlp_vision.filters import extract, format_stats, measure, write_stats
from gmlp_vision.filters.table import untrained_notice

FRESH = {
    "gmlp_ti16": (64, 96),
    "gmlp_ti16_224": (64, 96),
    "resmlp_12_224": (64, 96),
    "gmixer_12_224": (64, 96),
}


@pytest.mark.parametrize("name", FRESH)
def test_a_fresh_network_looks_untrained_at_the_scale_of_its_init(name: str) -> None:
    torch.manual_seed(0)
    stats = extract(timm.create_model(name, img_size=FRESH[name])).stats()
    for row in stats:
        # an operator of 24 x 24 has its rms within 2 % of the std it is drawn with; a product within 10 %
        assert row.moved == pytest.approx(1, rel=0.1), row.name
        assert row.untrained == (row.kind == "token"), row.name
    assert untrained_notice(stats).startswith("looks untrained: layer 0, 1, 2")


def test_a_moved_network_does_not_look_untrained() -> None:
    bank = extract(tiny(img_size=(32, 48)))
    for layer, row in zip(bank.layers, bank.stats(), strict=True):
        assert row.moved == pytest.approx(
            layer.weight.double().square().mean().sqrt().item() / 1e-6, rel=1e-9
        )
        assert row.moved > 1e4
        assert not row.untrained
    assert untrained_notice(bank.stats()) == ""


def test_a_layer_that_is_small_but_regular_does_not_look_untrained() -> None:
    model = tiny()
    proj = model.blocks[0].mlp_channels.gate.proj
    proj.weight.data.copy_(1e-7 * torch.eye(16))
    assert [row.untrained for row in extract(model).stats()] == [False, False]


def test_zero_looks_untrained_and_divides_by_nothing() -> None:
    model = tiny()
    for layer in projections(model):
        layer.weight.data.zero_()
    for row in extract(model).stats():
        assert row.untrained
        assert (row.rms, row.moved) == (0, 0)
        assert (row.toeplitz_share, row.locality, row.effective_rank) == (None, None, None)


def test_stats_are_the_functions_of_measure() -> None:
    bank = extract(tiny(img_size=(32, 48)))
    w, grid, row = bank.layers[1].matrix, (4, 6), bank.stats()[1]
    for name in ("toeplitz_share", "locality", "anisotropy"):
        assert getattr(row, name) == getattr(measure, name)(w, grid)
    for name in ("diagonal_share", "symmetry", "effective_rank", "rms"):
        assert getattr(row, name) == getattr(measure, name)(w)
    for name in ("toeplitz_share", "locality"):
        assert getattr(row, f"{name}_random") == getattr(measure, f"random_{name}")(grid)


def test_kernels_are_measured_as_kernels() -> None:
    layer = Kernels(5, (3, 5))
    (row,) = extract(Blocks(layer)).stats()
    kernels = layer.weight.detach()
    assert row.rms == measure.rms(kernels)
    assert row.moved == pytest.approx(row.rms / 0.02)
    assert row.effective_rank == measure.effective_rank(kernels.view(5, 15))
    assert row.locality == measure.kernel_locality(kernels)
    assert row.locality_random == measure.random_kernel_locality(kernels)
    assert row.anisotropy == measure.kernel_anisotropy(kernels)
    assert (row.toeplitz_share, row.diagonal_share, row.symmetry) == (None, None, None)
    assert not row.untrained
    nn.init.zeros_(layer.weight)
    (row,) = extract(Blocks(layer)).stats()
    assert row.untrained
    assert (row.moved, row.effective_rank, row.locality, row.anisotropy) == (0, None, None, None)


def test_what_starts_at_zero_has_not_moved_by_a_factor() -> None:
    (layer,) = extract(Blocks(projection((2, 3))))
    row = replace(layer, init_std=0.0).stats()
    assert row.moved is None
    assert not row.untrained


def test_a_bank_is_a_sequence_of_its_layers() -> None:
    bank = extract(tiny())
    assert len(bank) == 2
    assert list(bank) == [bank[0], bank[1]] == list(bank.layers)
    assert bank[-1:] == bank.layers[1:]
    assert bank[1] in bank


def test_select_by_block_and_kind() -> None:
    bank = extract(perturb(timm.create_model("mixer_s32_224", img_size=(64, 96))))
    assert [x.kind for x in bank.select([2]).layers] == ["hidden", "hidden", "token"]
    assert [x.block for x in bank.select([5, 1], "token").layers] == [1, 5]
    with pytest.raises(ValueError, match="no layer 8 in MlpMixer; it has 0 to 7"):
        bank.select([0, 8])
    with pytest.raises(ValueError, match="no layers of kind 'row', only 'hidden' and 'token'"):
        bank.select(kind="row")
    mixed = extract(Blocks(Kernels(), projection((2, 3))))
    assert [x.kind for x in mixed.select(kind=("token", "kernel"))] == ["kernel", "token"]
    with pytest.raises(ValueError, match="no layers of kind 'token' among layers 0, only 'kernel'"):
        mixed.select([0], "token")
    with pytest.raises(ValueError, match="no layers of kind 'hidden' or 'row', only 'kernel' and 'token'"):
        mixed.select(kind=("hidden", "row"))
    with pytest.raises(ValueError, match=r"no layer 9 .*; it has 0 to 7"):
        bank.select(itertools.count(9))
    outside = r"token \(2, 0\) lies outside the grid of 2 x 3 tokens of blocks\.0\.mlp_tokens\.product"
    with pytest.raises(ValueError, match=outside):
        bank.select(kind="token").layers[0].filter((2, 0))


# -- the table -----------------------------------------------------------------------------------------------


def test_csv_and_json_hold_every_number_in_full(tmp_path: Path) -> None:
    stats = extract(perturb(timm.create_model("mixer_s32_224", img_size=(64, 96)))).stats()
    write_stats(stats, tmp_path / "s.json")
    assert json.loads((tmp_path / "s.json").read_text()) == [asdict(row) for row in stats]
    write_stats(stats, tmp_path / "s.csv")
    with open(tmp_path / "s.csv", newline="") as file:
        rows = list(csv.DictReader(file))
    for row, line in zip(stats, rows, strict=True):
        for field, value in asdict(row).items():
            assert line[field] == ("" if value is None else str(value))


def test_what_was_there_survives_a_failure(tmp_path: Path) -> None:
    stats = extract(tiny()).stats()
    with pytest.raises(ValueError, match=r"ends in '\.xls'; statistics are written as one of \.csv, \.json"):
        write_stats(stats, tmp_path / "s.xls")
    with pytest.raises(FileNotFoundError):
        write_stats(stats, tmp_path / "no" / "s.csv")
    assert list(tmp_path.iterdir()) == []


def test_the_text_table_has_a_line_a_layer() -> None:
    bank = extract(perturb(timm.create_model("mixer_s32_224", img_size=(64, 96))))
    head, *lines = format_stats(bank.stats()).splitlines()
    assert head.split()[:4] == ["layer", "moved", "rms", "toeplitz"]
    assert len(lines) == len(bank.layers)
    assert lines[0].endswith("blocks.0.mlp_tokens.fc1")
    assert lines[2].endswith("blocks.0.mlp_tokens.product (ignores the non-linearity)")
    assert f"{bank.stats()[2].locality:.3g}" in lines[2].split()
    assert "-" in lines[0].split()


def test_the_text_table_has_a_column_of_grids_where_there_are_several() -> None:
    head, *lines = format_stats(extract(pyramid()).stats()).splitlines()
    assert head.split()[:3] == ["layer", "grid", "moved"]
    assert [line.split()[1] for line in lines] == ["4x6", "4x6", "2x3"]
    assert "grid" not in format_stats(extract(tiny()).stats())
