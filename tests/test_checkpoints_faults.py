"""Damaged files, by the hundred: each loads to exactly the right tensors or is refused, and no more."""

import hashlib
import io
import json
import random
import zipfile
from collections.abc import Iterator
from pathlib import Path

import pytest
import safetensors.torch
import timm
import torch
from tiny import TINY, tiny

from gmlp_vision import CheckpointError, load_checkpoint

State = dict[str, torch.Tensor]
with torch.random.fork_rng():  # the same mutants in every run
    torch.manual_seed(0)
    GOOD: State = {k: v.clone() for k, v in tiny().state_dict().items()}
    MODEL = tiny()
BEFORE: State = {k: v.clone() for k, v in MODEL.state_dict().items()}


def as_pth(content: object, zipped: bool = True) -> bytes:
    buffer = io.BytesIO()
    torch.save(content, buffer, _use_new_zipfile_serialization=zipped)
    return buffer.getvalue()


OTHER = {name: tensor + 1 for name, tensor in GOOD.items()}
PTH, OLD, SAFE = as_pth({"state_dict": GOOD}), as_pth(GOOD, zipped=False), safetensors.torch.save(GOOD)
HEADER = 8 + int.from_bytes(SAFE[:8], "little")


def flipped(data: bytes, bit: int) -> bytes:
    changed = bytearray(data)
    changed[bit // 8] ^= 1 << bit % 8
    return bytes(changed)


def boundaries(data: bytes) -> set[int]:
    """Where one part of the file ends and the next begins."""
    if data is SAFE:
        header = json.loads(SAFE[8:HEADER])
        return {
            0,
            8,
            HEADER,
            *(HEADER + v["data_offsets"][0] for k, v in header.items() if k != "__metadata__"),
        }
    with zipfile.ZipFile(io.BytesIO(data)) as archive:
        starts = {info.header_offset for info in archive.infolist()}
        names = {info.header_offset + 30 + len(info.filename) for info in archive.infolist()}
        return {0, *starts, *names, archive.start_dir, data.rindex(b"PK\x05\x06")}


def truncations() -> Iterator[tuple[str, bytes]]:
    for suffix, data in ((".pth", PTH), (".safetensors", SAFE)):
        cuts = {cut + by for cut in boundaries(data) for by in (-1, 0, 1)} | {len(data) - 1}
        for cut in sorted(c for c in cuts if 0 <= c < len(data)):
            yield suffix, data[:cut]
    for cut in range(0, len(OLD), len(OLD) // 20):
        yield ".pth", OLD[:cut]
    yield ".pth", PTH + b"x"
    yield ".safetensors", SAFE + b"x"


def header_flips() -> Iterator[tuple[str, bytes]]:
    rng = random.Random(0)
    for bit in [*range(64), *rng.sample(range(64, 8 * HEADER), 80)]:
        yield ".safetensors", flipped(SAFE, bit)
    with zipfile.ZipFile(io.BytesIO(PTH)) as archive:
        directory = archive.start_dir
    for bit in [*rng.sample(range(8 * 2000), 60), *rng.sample(range(8 * directory, 8 * len(PTH)), 200)]:
        yield ".pth", flipped(PTH, bit)


def payload_flips() -> Iterator[tuple[str, bytes]]:
    rng = random.Random(1)
    for _ in range(40):
        yield ".safetensors", flipped(SAFE, rng.randrange(8 * HEADER, 8 * len(SAFE)))
        yield ".pth", flipped(PTH, rng.randrange(8 * len(PTH)))


def other_tensors() -> Iterator[tuple[str, State]]:
    """What is wrong, and the state dict. The file itself is whole."""
    for name, tensor in GOOD.items():
        yield f"{name} missing", {k: v for k, v in GOOD.items() if k != name}
        for value in (torch.nan, torch.inf, -torch.inf):
            broken = tensor.clone()
            broken.view(-1)[-1] = value
            yield f"{name} {value}", {**GOOD, name: broken}
        yield f"{name} longer", {**GOOD, name: torch.cat([tensor, tensor[:1]])}
        yield f"{name} deeper", {**GOOD, name: tensor[None]}
        yield f"{name} empty", {**GOOD, name: tensor[:0]}
        yield f"{name} integer", {**GOOD, name: tensor.int()}
        yield f"{name} renamed", {k + "x" if k == name else k: v for k, v in GOOD.items()}
    yield "extra", {**GOOD, "extra": torch.ones(1)}
    yield "extra block", {**GOOD, "blocks.2.norm.weight": torch.ones(16)}
    yield "nothing", {}


def other_contents() -> Iterator[object]:
    yield from ({"a": GOOD, "b": OTHER}, {"state_dict": {"a.": GOOD, "b.": OTHER}})
    yield from (
        [GOOD],
        (GOOD,),
        None,
        1,
        "text",
        {},
        {"state_dict": {}},
        {"state_dict_ema": []},
        {"model": None},
    )
    yield from ({"state_dict": GOOD["norm.bias"]}, {**GOOD, "norm.bias": 1.0}, {**GOOD, "norm.bias": None})
    yield from ({**GOOD, "norm.bias": [1.0] * 16}, {"module.": GOOD["norm.bias"]})
    yield {**GOOD, "module.norm.bias": GOOD["norm.bias"]}


OTHER_BYTES = (
    b"",
    b"\0" * 100,
    b"hello\n",
    b"{}",
    b"PK\x03\x04",
    PTH[::-1],
    SAFE[::-1],
    b"\x80\x02}q\0.",
    b"<html>",
)
# safetensors' headers: of a tensor that ends beyond the file, of an unknown dtype, and of none
HEADERS = (
    '{"a":{"dtype":"F32","shape":[9999999999],"data_offsets":[0,39999999996]}}',
    '{"a":{"dtype":"F99","shape":[1],"data_offsets":[0,4]}}',
    '{"a":1}',
    "{}",
    "[]",
)
OTHER_BYTES += tuple(len(h).to_bytes(8, "little") + h.encode() + b"\0" * 4 for h in HEADERS)
OTHER_BYTES += tuple(size.to_bytes(8, "little") + b"{}" for size in (2**31, 2**64 - 1))


def check(path: Path, fault: str, expected: State | None = GOOD, sha256: str | None = None) -> bool:
    """Loads a file. True where it is refused; the model is then as it was, else it has the right tensors."""
    MODEL.load_state_dict(BEFORE)
    wanted = expected
    try:
        load_checkpoint(MODEL, path, sha256=sha256)
    except CheckpointError:
        wanted = BEFORE
    assert wanted is not None, f"{fault}: loaded"
    own = MODEL.state_dict()
    assert own.keys() == wanted.keys(), fault
    assert all(torch.equal(own[k], wanted[k]) for k in own), fault
    return wanted is BEFORE


def test_the_good_files_load(tmp_path: Path) -> None:
    for name, data in (("x.pth", PTH), ("y.pth", OLD), ("x.safetensors", SAFE)):
        (tmp_path / name).write_bytes(data)
        assert not check(tmp_path / name, name)
    assert not torch.equal(
        GOOD["stem.proj.weight"], BEFORE["stem.proj.weight"]
    )  # a load can be told from none


def test_truncated_at_every_boundary(tmp_path: Path) -> None:
    refused = []
    for i, (suffix, data) in enumerate(truncations()):
        (tmp_path / f"x{suffix}").write_bytes(data)
        refused.append(check(tmp_path / f"x{suffix}", f"{suffix} cut to {len(data)} ({i})"))
    assert len(refused) > 300
    assert sum(refused) >= len(refused) - 1  # what hangs on behind a zip is not read


def test_a_flipped_bit_in_a_header(tmp_path: Path) -> None:
    refused = []
    for i, (suffix, data) in enumerate(header_flips()):
        (tmp_path / f"x{suffix}").write_bytes(data)
        refused.append(check(tmp_path / f"x{suffix}", f"{suffix} flip {i}"))
    assert len(refused) == 404
    assert sum(refused) > 200  # the others are in what no reader looks at: a time stamp, padding


def test_a_flipped_bit_anywhere_is_caught_by_the_crc_or_the_hash(tmp_path: Path) -> None:
    known = {".pth": None, ".safetensors": hashlib.sha256(SAFE).hexdigest()}
    refused = {".pth": [], ".safetensors": []}
    for i, (suffix, data) in enumerate(payload_flips()):
        (tmp_path / f"x{suffix}").write_bytes(data)
        refused[suffix].append(check(tmp_path / f"x{suffix}", f"{suffix} flip {i}", sha256=known[suffix]))
    assert all(refused[".safetensors"])
    assert sum(refused[".pth"]) > 20  # the others are in padding, and the tensors are right


@pytest.mark.parametrize("suffix", [".pth", ".safetensors"])
def test_tensors_that_are_missing_extra_or_of_another_kind(suffix: str, tmp_path: Path) -> None:
    count, every = 0, 1 if suffix == ".pth" else 5  # what is read is judged alike, whatever it was read from
    for fault, state in list(other_tensors())[::every]:
        path = tmp_path / f"x{suffix}"
        path.write_bytes(as_pth(state) if suffix == ".pth" else safetensors.torch.save(state))
        assert check(path, fault, expected=None)
        count += 1
    assert count > 200 / every


def test_timms_route_refuses_the_same_tensors(tmp_path: Path) -> None:
    for fault, state in list(other_tensors())[::5]:
        torch.save(state, tmp_path / "x.pth")
        overlay = {"file": str(tmp_path / "x.pth")}
        for classes in (5, 7):  # with 7 timm itself would let anything pass
            if classes == 7 and fault.startswith("head"):
                continue
            with pytest.raises(CheckpointError):
                timm.create_model(
                    "gmlp_ti16",
                    pretrained=True,
                    pretrained_cfg_overlay=overlay,
                    **{**TINY, "num_classes": classes},
                )


def test_contents_that_are_no_state_dict(tmp_path: Path) -> None:
    for i, content in enumerate(other_contents()):
        torch.save(content, tmp_path / "x.pth")
        assert check(tmp_path / "x.pth", f"content {i}", expected=None)


def test_bytes_that_are_no_checkpoint(tmp_path: Path) -> None:
    for i, data in enumerate(OTHER_BYTES):
        for suffix in (".pth", ".safetensors", ".bin", ".txt", ""):
            (tmp_path / f"x{suffix}").write_bytes(data)
            assert check(tmp_path / f"x{suffix}", f"bytes {i} as {suffix}", expected=None)


def test_folders(tmp_path: Path) -> None:
    (tmp_path / "x.pth").mkdir()
    assert check(tmp_path / "x.pth", "a folder with a file's name")
    (tmp_path / "x.pth/config.json").write_text("{}")
    assert check(tmp_path / "x.pth", "no weights")
    (tmp_path / "x.pth/model.safetensors").mkdir()
    assert check(tmp_path / "x.pth", "weights that are a folder")
    (tmp_path / "x.pth/pytorch_model.bin").write_bytes(PTH)
    assert not check(tmp_path / "x.pth", "good after all")
    (tmp_path / "x.pth/config.json").write_bytes(b"\xff\xfe")
    assert check(tmp_path / "x.pth", "config.json that is no text")


def test_the_bytes_decide_whatever_the_name(tmp_path: Path) -> None:
    swapped = {".pth": ".safetensors", ".safetensors": ".pth"}
    for i, (suffix, data) in enumerate([*truncations()][::4] + [*header_flips()][::6]):
        path = tmp_path / f"x{swapped[suffix]}"
        path.write_bytes(data)
        check(path, f"{suffix} as {path.name} ({i})")


def test_a_flipped_bit_in_an_index_of_shards(tmp_path: Path) -> None:
    names = sorted(GOOD)
    shards = {"a.safetensors": names[:8], "b.safetensors": names[8:]}
    for file, part in shards.items():
        safetensors.torch.save_file({name: GOOD[name] for name in part}, tmp_path / file)
    size = sum(tensor.nbytes for tensor in GOOD.values())
    places = {name: file for file, part in shards.items() for name in part}
    index = json.dumps({"metadata": {"total_size": size}, "weight_map": places}).encode()
    path = tmp_path / "model.safetensors.index.json"
    path.write_bytes(index)
    assert not check(path, "good")
    refused = []
    for bit in random.Random(2).sample(range(8 * len(index)), 150):
        path.write_bytes(flipped(index, bit))
        refused.append(check(path, f"index, bit {bit}"))
    assert sum(refused) > 100  # the others are in spaces and in total_size, which is only told
    for cut in range(0, len(index), 100):
        path.write_bytes(index[:cut])
        assert check(path, f"index cut to {cut}")
