"""One self-contained HTML page to explore a FilterBank: its weights, quantised, and the code that shows them.

Shapes: N = H * W tokens in row-major order.
"""

import base64
import io
import json
import warnings
from dataclasses import asdict
from importlib import resources
from pathlib import Path
from typing import Any

import torch

from gmlp_vision.atomic import write_file
from gmlp_vision.errors import UserError
from gmlp_vision.filters.bank import FilterBank, FilterLayer
from gmlp_vision.filters.measure import toeplitz_average
from gmlp_vision.filters.options import check_ending

PAGE_FILES = (".html", ".htm")
STEPS = 127  # of an 8-bit integer to either side of 0
PHOTO_SIDE = 512  # pixels


def write_explorer(bank: FilterBank, path: str | Path, image: str | Path | None = None) -> float:
    """Writes the page, replacing an older file at the end. It opens from disk and never asks a network.

    A weight takes 8 bits, with one scale a row of W, so a page takes about 4/3 N^2 bytes a layer. The page
    states the error.

    Args:
        bank: With at least one 'token' layer, and all of them on one grid; other kinds are left out.
        path: Of the page, .html.
        image: A picture to lay under the grid, cut to its shape around the middle; the page can take another.

    Returns:
        The largest error of a weight in the page.

    Raises:
        ValueError: No 'token' layer, layers of several grids, or another ending than .html.
        OSError: The folder cannot be written.
        UserError: The image cannot be read.
    """
    check_ending(path, PAGE_FILES, "the page is")
    bank = layers_shown(bank)
    layers = [_layer(layer) for layer in bank]
    error = max(layer["error"] for layer in layers)
    data = {
        "source": bank.source,
        "grid": bank[0].grid,
        "grid_source": bank.grid_source,
        "steps": STEPS,
        "error": error,
        "photo": None if image is None else photo(image),
        "layers": layers,
    }
    write_file(path, _page(data))
    return error


def layers_shown(bank: FilterBank) -> FilterBank:
    """The layers that a page shows: those of kind 'token'.

    Raises:
        ValueError: There is none, or they lie on several grids.
    """
    bank = bank.select(kind="token")
    grids: dict[tuple[int, int], dict[str, None]] = {}  # the blocks of each; a block may have several layers
    for layer in bank:
        grids.setdefault(layer.grid, {})[str(layer.block)] = None
    if len(grids) > 1:
        told = "; ".join(f"{h} x {w} (layers {','.join(blocks)})" for (h, w), blocks in grids.items())
        raise ValueError(
            f"the page shows layers of one grid, and {bank.source} has several: {told}. Choose layers of "
            "one, with bank.select or --layers"
        )
    return bank


def quantise(matrix: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """W (N, N) to int8 and one float32 scale a row, (N,), whose product is close to W; 0 for a zero row."""
    scale = matrix.abs().amax(dim=1) / STEPS
    steps = torch.where(scale[:, None] > 0, matrix / scale[:, None], 0.0)
    return steps.round().clamp(-STEPS, STEPS).to(torch.int8), scale


def _layer(layer: FilterLayer) -> dict[str, Any]:
    whole, scale = quantise(layer.matrix)
    return {
        **asdict(layer.stats()),
        "weight": _base64(whole),
        "scale": _base64(scale),
        "error": (whole * scale[:, None] - layer.matrix).abs().max().item(),
        "kernel": _base64(toeplitz_average(layer.matrix, layer.grid)),
        "bias": None if layer.bias is None else _base64(layer.bias),
    }


def _base64(tensor: torch.Tensor) -> str:
    """Raw bytes, little-endian, as JavaScript's typed arrays read them."""
    values = tensor.contiguous().numpy()
    return base64.b64encode(values.astype(values.dtype.newbyteorder("<")).tobytes()).decode()


def photo(path: str | Path) -> str:
    """A picture as the page has it: upright, as its EXIF says, and small; a data: URL.

    Raises:
        UserError: The file cannot be read as a picture.
    """
    from PIL import Image, ImageOps

    if not Path(path).is_file():  # to read a FIFO would take as long as nobody writes into it
        raise UserError(f"the image {path} cannot be read: there is no such file")
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # of a large picture, which is read, and of odd metadata
            with Image.open(path) as image:
                small = ImageOps.exif_transpose(image).convert("RGB")
    except Exception as error:  # a parser of foreign bytes may raise anything
        reason = f"{error.strerror}" if isinstance(error, OSError) and error.strerror else f"{error}"
        raise UserError(f"the image {path} cannot be read: {reason}") from error
    small.thumbnail((PHOTO_SIDE, PHOTO_SIDE))
    data = io.BytesIO()
    small.save(data, "JPEG", quality=85)
    return f"data:image/jpeg;base64,{base64.b64encode(data.getvalue()).decode()}"


def _page(data: dict[str, Any]) -> str:
    """The template with style, code and data put in."""
    files = resources.files(__package__)
    # '<' as an escape, so that no text of the data can end the script element that holds it
    parts = {
        "STYLE": files.joinpath("page.css").read_text("utf-8"),
        "DATA": json.dumps(data, allow_nan=False).replace("<", "\\u003c"),
        "CODE": "\n".join(
            files.joinpath(f"{name}.js").read_text("utf-8") for name in ("data", "paint", "view", "page")
        ),
    }
    head, *rest = files.joinpath("page.html").read_text("utf-8").split("@@")
    for name, text in zip(rest[::2], rest[1::2], strict=True):
        head += parts[name] + text
    return head
