"""Figures: what is drawn is what the bank holds, and the files are what their endings say."""

import xml.etree.ElementTree as ElementTree
from collections import Counter
from itertools import pairwise
from pathlib import Path

import numpy as np
import pytest
import timm
import torch
from matplotlib.figure import Figure
from matplotlib.image import AxesImage
from matplotlib.patches import Rectangle
from PIL import Image
from tiny import perturb, projections, tiny
from torch import nn
from toy_networks import GRIDS, Blocks, Heads, Kernels, projection, pyramid

from gmlp_vision.filters import (
    FilterBank,
    extract,
    plot,
    plot_filters,
    plot_kernels,
    plot_stats,
    plot_units,
    save_figure,
    toeplitz_average,
)


@pytest.fixture(scope="module")
def bank() -> FilterBank:
    return extract(tiny(img_size=(32, 48)))  # 2 layers, 4 x 6 tokens


def texts(figure: Figure) -> list[str]:
    return [text.get_text() for text in figure.axes[0].texts if text.get_text()]


def frames(figure: Figure) -> list[Rectangle]:
    return [p for p in figure.axes[0].patches if isinstance(p, Rectangle) and p.get_linewidth() > 0.4]


def framed_cell(frame: Rectangle, picture: AxesImage) -> tuple[float, float]:
    """(row, column) of the cell of a picture that a frame lies on; x goes to the right, y down."""
    left, right, bottom, top = picture.get_extent()
    rows, columns = picture.get_array().shape
    x, y = frame.get_x() + frame.get_width() / 2, frame.get_y() + frame.get_height() / 2
    return (y - top) / (bottom - top) * rows - 0.5, (x - left) / (right - left) * columns - 0.5


def test_a_picture_is_a_row_of_w_with_its_token_framed(bank: FilterBank) -> None:
    tokens = [(1, 2), (3, 5), (0, 0)]
    figure = plot_filters(bank, tokens=tokens)
    pictures = figure.axes[0].images
    assert len(pictures) == 6
    for k, (picture, frame) in enumerate(zip(pictures, frames(figure), strict=True)):
        layer, (r, c) = bank.layers[k // 3], tokens[k % 3]
        assert np.array_equal(picture.get_array(), layer.weight[r * 6 + c])
        assert framed_cell(frame, picture) == pytest.approx((r, c), abs=1e-6)


def test_a_known_kernel_appears_where_its_token_is() -> None:
    model = tiny(img_size=(64, 96))  # 8 x 12 tokens
    weight = torch.zeros(8, 12, 8, 12)
    weight[5, 7, 4:7, 6:9] = torch.tensor([[1.0, 2, 3], [4, -9, 6], [7, 8, 5]])
    model.blocks[0].mlp_channels.gate.proj.weight.data.copy_(weight.reshape(96, 96))
    figure = plot_filters(extract(model), layers=[0], tokens=[(5, 7)])
    assert np.array_equal(figure.axes[0].images[0].get_array(), weight[5, 7])


def test_captions_say_layer_and_token(bank: FilterBank) -> None:
    words = texts(plot_filters(bank, tokens="1,2;3,5", scale="figure"))
    assert words == ["filter of output token (row, column)", "layer 0", "(1, 2)", "(3, 5)", "layer 1"]


@pytest.mark.parametrize("scale", ["figure", "layer", "picture"])
def test_scales_are_symmetric_about_0_and_shared_as_said(bank: FilterBank, scale: str) -> None:
    figure = plot_filters(bank, tokens="1,2;3,5", scale=scale)
    peaks = np.array(
        [[layer.filter(t).abs().max().item() for t in ((1, 2), (3, 5))] for layer in bank.layers]
    )
    expected = {"figure": np.full((2, 2), peaks.max()), "layer": peaks.max(1, keepdims=True).repeat(2, 1)}
    limits = [image.get_clim() for image in figure.axes[0].images]
    assert [high for _, high in limits] == pytest.approx(expected.get(scale, peaks).flatten().tolist())
    assert all(low == -high for low, high in limits)
    bar = figure.axes[1]
    assert bar.get_xlim() == pytest.approx((-peaks.max(), peaks.max()) if scale == "figure" else (-1, 1))
    if scale != "figure":
        assert any(f"±{peaks.max():.2g}" in word for word in texts(figure))


def test_deep_networks_are_thinned_unless_layers_are_named() -> None:
    bank = extract(timm.create_model("gmlp_ti16_224", img_size=32))
    labels = [word.split("\n")[0] for word in texts(plot_filters(bank)) if word.startswith("layer")]
    assert labels == [f"layer {i}" for i in (0, 3, 6, 9, 12, 16, 19, 22, 25, 29)]
    assert len(plot_filters(bank, layers=range(30), tokens="center").axes[0].images) == 30
    assert len(plot_kernels(bank).axes[0].images) == 30


def test_kernels_are_the_toeplitz_averages(bank: FilterBank) -> None:
    for scale in ("layer", "figure"):
        figure = plot_kernels(bank, scale=scale)
        for image, layer, row in zip(figure.axes[0].images, bank.layers, bank.stats(), strict=True):
            assert np.array_equal(image.get_array(), toeplitz_average(layer.matrix, layer.grid))
            caption = f"layer {layer.block}\n{100 * row.toeplitz_share:.0f} %"
            assert any(word.startswith(caption) for word in texts(figure))
        for frame, picture in zip(frames(figure), figure.axes[0].images, strict=True):
            assert framed_cell(frame, picture) == pytest.approx((3, 5), abs=1e-6)  # the centre of 7 x 11


def test_stats_are_drawn_over_depth(bank: FilterBank) -> None:
    panels = plot_stats(bank).axes
    rows = bank.stats()
    dots, line, expected = panels[0].get_lines()
    assert dots.get_xydata().tolist() == [[row.block, row.toeplitz_share] for row in rows]
    assert line.get_xydata().tolist() == dots.get_xydata().tolist()
    assert set(expected.get_ydata()) == {rows[0].toeplitz_share_random}
    assert panels[7].get_lines()[0].get_ydata().tolist() == [row.moved for row in rows]
    low, high = panels[7].get_ylim()
    assert low < 1 < max(row.moved for row in rows) < high


def test_a_mixer_is_drawn_by_its_product_and_says_so() -> None:
    bank = extract(perturb(timm.create_model("mixer_s32_224", img_size=(64, 96))))
    figure = plot_filters(bank, tokens="0,1")
    product = bank.select([0], "token").layers[0]
    assert np.array_equal(figure.axes[0].images[0].get_array(), product.weight[1])
    assert "ignores the non-linearity" in texts(figure)[0]


def test_units_are_those_of_largest_norm() -> None:
    bank = extract(perturb(timm.create_model("mixer_s32_224", img_size=(64, 96))))
    figure = plot_units(bank, layers=[2], count=3)
    reads, writes = bank.select([2], "hidden").layers
    pairs = [
        (layer, unit)
        for layer in (reads, writes)
        for unit in sorted(range(256), key=lambda k: -layer.weight[k].norm().item())[:3]
    ]
    drawn = [image.get_array() for image in figure.axes[0].images]
    for array, (layer, unit) in zip(drawn, pairs, strict=True):
        assert np.array_equal(array, layer.weight[unit])
    words = texts(figure)
    assert [word for word in words if word.isdigit()] == [str(unit) for _, unit in pairs]
    assert any(word.startswith("layer 2\nfc1\n±") for word in words)


def test_a_figure_is_chosen_by_words(bank: FilterBank) -> None:
    figure = plot(bank, "filters", layers="1", tokens="corners", scale="picture")
    drawn = [image.get_array() for image in figure.axes[0].images]
    assert all(map(np.array_equal, drawn, [bank.layers[1].weight[i] for i in (0, 5, 18, 23)]))
    assert len(plot(bank, "kernels").axes[0].images) == 2
    assert len(plot(bank, "stats").axes) == 8
    with pytest.raises(ValueError, match="no figure 'rows'; expected one of filters, kernels, stats, units"):
        plot(bank, "rows")
    with pytest.raises(ValueError, match="the figure of kernels has no tokens to choose"):
        plot(bank, "kernels", tokens="center")


# -- several grids -------------------------------------------------------------------------------------------


def test_each_grid_has_its_own_tokens_and_pictures_of_its_shape() -> None:
    bank = extract(pyramid())
    figure = plot_filters(bank, tokens="center,corners")
    pictures, marks = figure.axes[0].images, frames(figure)
    wide, small = [(0, 0), (0, 5), (2, 3), (3, 0), (3, 5)], [(0, 0), (0, 2), (1, 0), (1, 1), (1, 2)]
    tokens = [(layer, token) for layer, row in zip(bank, [wide, wide, small], strict=True) for token in row]
    for picture, frame, (layer, token) in zip(pictures, marks, tokens, strict=True):
        assert np.array_equal(picture.get_array(), layer.filter(token))
        assert framed_cell(frame, picture) == pytest.approx(token, abs=1e-6)
        left, right, bottom, top = picture.get_extent()
        assert (bottom - top) / (right - left) == pytest.approx(layer.grid[0] / layer.grid[1])
    assert len({round(p.get_extent()[1] - p.get_extent()[0], 6) for p in pictures}) == 1  # one width
    # tokens are named above the first row of each grid
    heads = [word for word in texts(figure) if word.startswith("(")]
    assert heads == [*map(str, wide), *map(str, small)]


def test_pictures_of_several_grids_do_not_overlap() -> None:
    net = nn.ModuleDict({"stages": nn.Sequential(*(Blocks(projection(g)) for g in ((2, 6), (6, 2), (1, 8))))})
    figure = plot_filters(extract(net), tokens="center,grid:3", scale="picture")
    rows: dict[tuple[int, ...], list[tuple[float, float]]] = {}
    for picture in figure.axes[0].images:
        _, _, bottom, top = picture.get_extent()
        rows.setdefault(picture.get_array().shape, []).append((top, bottom))
    spans = [(min(top for top, _ in row), max(bottom for _, bottom in row)) for row in rows.values()]
    assert all(bottom < top for (_, bottom), (top, _) in pairwise(spans))
    assert spans[-1][1] < figure.axes[0].get_ylim()[0]


def test_fewer_tokens_of_a_small_grid_make_a_shorter_row() -> None:
    figure = plot_filters(extract(pyramid()), tokens="grid:4")
    counts = Counter(picture.get_array().shape for picture in figure.axes[0].images)
    assert counts == {(4, 6): 2 * 16, (2, 3): 6}


def test_a_token_that_one_layer_does_not_have_names_it() -> None:
    with pytest.raises(
        ValueError, match=r"token \(3, 5\) lies outside .* 2 x 3 tokens of stages\.1\.blocks\.0\.mix"
    ):
        plot_filters(extract(pyramid()), tokens="3,5")
    assert len(plot_filters(extract(pyramid()), layers=[0, 1], tokens="3,5").axes[0].images) == 2


def test_kernels_and_curves_of_several_grids() -> None:
    bank = extract(pyramid())
    drawn = [image.get_array().shape for image in plot_kernels(bank).axes[0].images]
    assert drawn == [(2 * h - 1, 2 * w - 1) for h, w in GRIDS]
    expected = plot_stats(bank).axes[0].get_lines()[2]
    assert expected.get_xydata().tolist() == [[row.block, row.toeplitz_share_random] for row in bank.stats()]
    assert len(plot_stats(bank, layers=[0, 1]).axes[0].get_lines()[0].get_xydata()) == 2


# -- kernels, and several maps in a block --------------------------------------------------------------------


def test_kernels_of_largest_norm_are_drawn_in_a_row_a_layer() -> None:
    bank = extract(Blocks(Kernels(9, (3, 5)), Kernels(9, (3, 5))))
    figure = plot_kernels(bank, count=4)
    chosen = [
        (layer, k)
        for layer in bank
        for k in sorted(range(9), key=lambda k, layer=layer: -layer.weight[k].norm().item())[:4]
    ]
    pictures = figure.axes[0].images
    for picture, frame, (layer, k) in zip(pictures, frames(figure), chosen, strict=True):
        assert np.array_equal(picture.get_array(), layer.weight[k])
        assert framed_cell(frame, picture) == pytest.approx((1, 2), abs=1e-6)
    words = texts(figure)
    assert words[0] == "kernels of largest norm, by number\nexp of it mixes"
    assert [word for word in words if word.isdigit()] == [str(k) for _, k in chosen]
    limit = max(abs(x) for x in bank[1].weight[[k for _, k in chosen[4:]]].flatten().tolist())
    assert f"layer 1\n±{limit:.2g}" in words


def test_kernels_stand_beside_mean_kernels() -> None:
    bank = extract(Blocks(Kernels(2, (3, 3)), projection((2, 3))))
    figure = plot_kernels(bank)
    assert [image.get_array().shape for image in figure.axes[0].images] == [(3, 3), (3, 3), (3, 5)]
    assert "mean kernel and the share of W that it explains" in texts(figure)[0]
    assert f"{100 * bank.stats()[1].toeplitz_share:.0f} %" in texts(figure)


def test_curves_of_kernels_are_those_that_kernels_have() -> None:
    bank = extract(Blocks(Kernels(), Kernels()))
    panels = plot_stats(bank).axes
    assert [axes.get_title().split("\n")[0] for axes in panels] == [
        *("mean distance looked at", "anisotropy", "effective rank", "rms of W", "rms of W / at init")
    ]
    dots = panels[0].get_lines()[0]
    assert dots.get_xydata().tolist() == [[row.block, row.locality] for row in bank.stats()]


def test_several_maps_of_a_block_are_told_apart() -> None:
    bank = extract(Blocks(Heads(6), Heads(6)), grid=(2, 3))
    labels = [word.rpartition("\n")[0] for word in texts(plot_filters(bank)) if word.startswith("layer")]
    assert labels == [f"layer {i}\nhead{k}" for i in range(2) for k in range(2)]
    dots, line = plot_stats(bank).axes[6].get_lines()
    rms = [row.rms for row in bank.stats()]
    assert dots.get_ydata().tolist() == rms
    assert line.get_xydata().tolist() == [[0, (rms[0] + rms[1]) / 2], [1, (rms[2] + rms[3]) / 2]]


def test_the_default_figure_is_one_that_the_bank_has_layers_for() -> None:
    kernels = extract(Blocks(Kernels(3)))
    assert len(plot(kernels).axes[0].images) == 3
    with pytest.raises(ValueError, match="no layers of kind 'token', only 'kernel'"):
        plot(kernels, "filters")
    with pytest.raises(ValueError, match="the figure of kernels has no tokens to choose"):
        plot(kernels, tokens="center")
    assert len(plot(extract(Blocks(Kernels(3), projection((2, 3))))).axes[0].images) == 5


def test_zero_is_drawn_as_zero(tmp_path: Path) -> None:
    model = tiny()
    for layer in projections(model):
        layer.weight.data.zero_()
    bank = extract(model)
    for figure in (plot_filters(bank, scale="picture"), plot_kernels(bank), plot_stats(bank)):
        save_figure(figure, tmp_path / "zero.png", dpi=50)
    assert plot_filters(bank).axes[0].images[0].get_clim() == (-1, 1)


def test_files_are_what_their_endings_say(
    bank: FilterBank, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("DISPLAY", raising=False)
    figure = plot_filters(bank, tokens="1,2;3,5")
    for name in ("f.png", "f.pdf", "f.svg"):
        save_figure(figure, tmp_path / name)
        save_figure(plot_filters(bank, tokens="1,2;3,5"), tmp_path / f"again-{name}")
        assert (tmp_path / name).read_bytes() == (tmp_path / f"again-{name}").read_bytes()
    with Image.open(tmp_path / "f.png") as image:
        assert image.format == "PNG"
        assert image.width == pytest.approx(3.25 * 300, abs=1)  # one column of a paper at 300 dots per inch
    assert (tmp_path / "f.pdf").read_bytes().startswith(b"%PDF")
    words = [
        node.text for node in ElementTree.parse(tmp_path / "f.svg").iter("{http://www.w3.org/2000/svg}text")
    ]
    assert "(3, 5)" in words
    assert len(list(tmp_path.iterdir())) == 6  # and no part of a file


def test_refusals(bank: FilterBank, tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="scale is 'row'; expected one of figure, layer, picture"):
        plot_filters(bank, scale="row")
    with pytest.raises(ValueError, match="scale is 'row'; expected one of figure, layer, picture"):
        plot_kernels(bank, scale="row")
    with pytest.raises(ValueError, match="no layer 7"):
        plot_filters(bank, layers=[7])
    with pytest.raises(ValueError, match=r"outside the grid of 4 x 6 tokens of blocks\.0\.mlp_channels"):
        plot_filters(bank, tokens=[(4, 0)])
    with pytest.raises(
        ValueError, match=r"ends in '\.gif'; a figure is written as one of \.pdf, \.png, \.svg"
    ):
        save_figure(plot_kernels(bank), tmp_path / "f.gif")
