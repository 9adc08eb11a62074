"""The page's data and size. What the page does is tested in test_explorer_browser.py."""

import base64
import io
import json
import re
import struct
import zlib
from pathlib import Path

import numpy as np
import pytest
import timm
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from PIL import Image
from tiny import perturb, projections, tiny
from toy_networks import Blocks, projection, pyramid

from gmlp_vision.errors import UserError
from gmlp_vision.filters import extract, measure, toeplitz_average, write_explorer
from gmlp_vision.filters.explorer import photo, quantise


def data_of(path: Path) -> dict:
    return json.loads(
        re.search(r'<script type="application/json" id="bank">(.*?)</script>', path.read_text(), re.S)[1]
    )


def numbers(text: str, kind: str) -> np.ndarray:
    return np.frombuffer(base64.b64decode(text), kind)


@given(st.integers(1, 12), st.integers(0, 9), st.sampled_from([1e-30, 1e-6, 1.0, 1e6]))
@settings(deadline=None, max_examples=30)
def test_no_weight_is_off_by_more_than_half_a_step_of_its_row(n: int, seed: int, size: float) -> None:
    matrix = torch.randn(n, n, generator=torch.Generator().manual_seed(seed)) * size
    matrix[0] = 0
    whole, scale = quantise(matrix)
    half_a_step = matrix.abs().amax(1, keepdim=True) / 254
    assert ((whole * scale[:, None] - matrix).abs() <= half_a_step * 1.0001).all()
    assert (whole[0] == 0).all()


def test_the_page_holds_the_bank(tmp_path: Path) -> None:
    bank = extract(tiny(img_size=(32, 48)))
    error = write_explorer(bank, tmp_path / "e.html")
    data = data_of(tmp_path / "e.html")
    assert data["grid"] == [4, 6]
    assert data["grid_source"] == "as the model's own"
    errors = []
    for layer, row, held in zip(bank.layers, bank.stats(), data["layers"], strict=True):
        weight = numbers(held["weight"], "<i1").reshape(24, 24) * numbers(held["scale"], "<f4")[:, None]
        errors.append(np.abs(weight - layer.matrix.numpy()).max())
        assert held["name"] == layer.name
        assert np.array_equal(numbers(held["bias"], "<f4"), layer.bias)
        kernel = toeplitz_average(layer.matrix, layer.grid)
        assert np.array_equal(numbers(held["kernel"], "<f4").reshape(7, 11), kernel)
        assert held["locality"] == row.locality == measure.locality(layer.matrix, layer.grid)
    assert 0 < max(errors) == pytest.approx(error) == pytest.approx(data["error"])


def test_gmlp_b_fits_in_3_mb_and_the_docs_say_its_size(tmp_path: Path) -> None:
    network = Blocks(*(projection((14, 14)) for _ in range(30)))  # noise, which nothing could compress
    write_explorer(extract(network), tmp_path / "b.html")
    size = (tmp_path / "b.html").stat().st_size
    assert size <= 3_000_000
    docs = Path(__file__).parents[1] / "docs/filters.md"
    assert f"A page for gMLP-B (30 layers, 196 x 196) is {size / 1e6:.1f} MB." in docs.read_text()


def test_the_page_asks_for_nothing_outside(tmp_path: Path) -> None:
    write_explorer(extract(tiny()), tmp_path / "e.html")
    page = tmp_path.joinpath("e.html").read_text()
    assert "default-src 'none'" in page
    assert not re.search(r"https?://|@import|<link[^>]*stylesheet|src=[\"'](?!data:)", page)


def test_a_name_cannot_break_out_of_the_data(tmp_path: Path) -> None:
    folder = tmp_path / "</script><b>"
    folder.mkdir(parents=True)
    torch.save(tiny().state_dict(), folder / "w.pth")
    write_explorer(extract(folder / "w.pth"), tmp_path / "e.html")
    assert "</script><b>" not in (tmp_path / "e.html").read_text()
    assert data_of(tmp_path / "e.html")["source"] == str(folder / "w.pth")


def test_a_mixer_shows_its_products(tmp_path: Path) -> None:
    bank = extract(perturb(timm.create_model("mixer_s32_224", img_size=(64, 96))))
    write_explorer(bank, tmp_path / "e.html")
    assert {x["note"] for x in data_of(tmp_path / "e.html")["layers"]} == {"ignores the non-linearity"}


def test_layers_of_one_grid_are_chosen(tmp_path: Path) -> None:
    bank = extract(pyramid())
    told = r"has several: 4 x 6 \(layers 0,1\); 2 x 3 \(layers 2\)\. Choose .*bank\.select or --layers"
    with pytest.raises(ValueError, match=told):
        write_explorer(bank, tmp_path / "e.html")
    assert list(tmp_path.iterdir()) == []
    write_explorer(bank.select([2]), tmp_path / "e.html")
    data = data_of(tmp_path / "e.html")
    assert data["grid"] == [2, 3]
    assert [layer["block"] for layer in data["layers"]] == [2]


def test_an_image_is_put_in_small(tmp_path: Path) -> None:
    Image.new("RGBA", (1200, 900), "red").save(tmp_path / "photo.png")
    write_explorer(extract(tiny()), tmp_path / "e.html", tmp_path / "photo.png")
    kind, _, text = data_of(tmp_path / "e.html")["photo"].partition(",")
    assert kind == "data:image/jpeg;base64"
    (tmp_path / "back.jpg").write_bytes(base64.b64decode(text))
    with Image.open(tmp_path / "back.jpg") as image:
        assert image.size == (512, 384)


@pytest.mark.parametrize("orientation", range(1, 9))
def test_an_image_is_upright(orientation: int, tmp_path: Path) -> None:
    """As its EXIF says. All of one picture: red above, its left quarter blue, told in eight ways."""
    upright = np.full((40, 60, 3), 255, np.uint8)
    upright[:20] = (255, 0, 0)
    upright[:, :15] = (0, 0, 255)
    turns = [None, *(Image.Transpose(k) for k in (0, 3, 1, 5, 2, 6, 4))]  # what undoes what EXIF asks for
    stored = Image.fromarray(upright)
    if turns[orientation - 1] is not None:
        stored = stored.transpose(turns[orientation - 1])
    exif = Image.Exif()
    exif[0x0112] = orientation
    stored.save(tmp_path / "photo.jpg", exif=exif, quality=95)
    data = base64.b64decode(photo(tmp_path / "photo.jpg").partition(",")[2])
    with Image.open(io.BytesIO(data)) as image:
        assert image.size == (60, 40)
        assert image.getexif().get(0x0112, 1) == 1
        assert np.abs(np.asarray(image)[2::5, 2::5].astype(int) - upright[2::5, 2::5]).mean() < 12


def png_header(width: int, height: int) -> bytes:
    head = b"IHDR" + struct.pack(">IIBBBBB", width, height, 8, 2, 0, 0, 0)
    return (
        b"\x89PNG\r\n\x1a\n"
        + struct.pack(">I", 13)
        + head
        + struct.pack(">I", zlib.crc32(head))
        + b"\0\0\1\0IDAT"
    )


@pytest.mark.parametrize(
    ("data", "why"),
    [
        (png_header(20_000, 20_000), "exceeds limit of"),  # 400 megapixels
        (png_header(10_000, 10_000), "photo.png cannot be read"),  # 100: no warning, and it is cut off
        (b"hello", "cannot identify image file"),
        (b"", "cannot identify image file"),
        (None, "there is no such file"),
    ],
)
def test_an_image_that_cannot_be_read(data: bytes | None, why: str, tmp_path: Path) -> None:
    if data is not None:
        (tmp_path / "photo.png").write_bytes(data)
    with pytest.raises(UserError, match=why):
        photo(tmp_path / "photo.png")


def test_zero_has_a_page_too(tmp_path: Path) -> None:
    model = tiny()
    for layer in projections(model):
        layer.weight.data.zero_()
    assert write_explorer(extract(model), tmp_path / "e.html") == 0
    assert data_of(tmp_path / "e.html")["layers"][0]["toeplitz_share"] is None
