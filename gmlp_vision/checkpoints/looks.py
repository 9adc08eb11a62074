"""What a file is that is no checkpoint of torch's: exported models, other frameworks' weights, archives."""

import io
import re
import zipfile
from pathlib import Path

EXPORTED = "is {}: an exported model, not a checkpoint; give the file that it was exported from"
FOREIGN = "is {}: save the weights as .safetensors or with torch.save where it was written"
ARCHIVE = "is {}: unpack it, and give the file in it"

# What entries of a zip are called, with the folder that torch puts them in, or without.
IN_ZIPS = (
    (r"(.+/)?constants\.pkl", EXPORTED, "TorchScript"),
    (r"(.+/)?(archive_format|models/[^/]+\.json|serialized_exported_program\.json)", EXPORTED,
     "a program of torch.export"),
    (r"(.+/)?model\.weights\.h5", FOREIGN, "a Keras model"),
    (r".+\.npy", FOREIGN, "an .npz file of numpy"),
)  # fmt: skip
# How other files begin: what a bytes pattern matches at their start.
AT_THE_START = (
    (rb"\x89HDF\r\n\x1a\n", FOREIGN, "an HDF5 file, as Keras and TensorFlow write"),
    (rb"GGUF|ggjt|tjgg|lmgg", FOREIGN, "a GGUF file, as llama.cpp takes it"),
    (rb"\x93NUMPY", FOREIGN, "an .npy file of numpy"),
    (rb"[\x81-\x8f\xde][\xa0-\xbf\xd9]", FOREIGN, "a msgpack file, as Flax writes"),
    (rb"....TFL3", EXPORTED, "a TensorFlow Lite file"),
    (rb"....E[TH]\d\d", EXPORTED, "an ExecuTorch program"),
    (rb"....ORTM", EXPORTED, "an ONNX Runtime model"),
    (rb"[fp]trt", EXPORTED, "a TensorRT engine"),
    (rb"\s*(<\?xml[^>]*>\s*)?<net[\s>]", EXPORTED, "an OpenVINO model"),
    # protobuf: the version of the format, then any other field of a model
    (rb"\x08[\x01-\x1f][\x12\x1a\x22\x28\x32\x3a\x42]", EXPORTED, "an ONNX model"),
    (rb"\x1f\x8b|BZh|\xfd7zXZ\0|\x28\xb5\x2f\xfd|7z\xbc\xaf|Rar!", ARCHIVE, "a compressed file"),
    (rb"(?s).{257}ustar", ARCHIVE, "a tar archive"),
    (rb"version https://git-lfs", "is {}: `git lfs pull` fetches the file itself", "a pointer of Git LFS"),
    (rb"(?i)\s*<(!doctype html|html|head)", "is {}: download the file itself", "a page of HTML"),
    (rb"\s*[{\[]", "is {}, and no weights: give the folder that it is in", "JSON"),
)  # fmt: skip


def looks_like(data: bytes, path: Path) -> str | None:
    """What these bytes are, if no checkpoint, and what to give instead; None where nothing tells.

    Args:
        data: All of the file.
        path: Where it is: the weights of an OpenVINO model are numbers alone, told by the .xml beside them.
    """
    if zipfile.is_zipfile(io.BytesIO(data)):
        return _zip_looks_like(data)
    for pattern, sentence, what in AT_THE_START:
        if re.match(pattern, data[:512], flags=re.DOTALL):
            return sentence.format(what)
    network = path.with_suffix(".xml")
    if path.suffix.lower() == ".bin" and network.is_file() and b"<net" in network.read_bytes()[:512]:
        return EXPORTED.format(f"the weights of an OpenVINO model, {network.name}")
    return None


def folder_looks_like(folder: Path) -> str | None:
    """The same of a folder."""
    if (folder / ".metadata").is_file():
        return (
            "is a checkpoint of torch.distributed: make a file of it with "
            "`python -m torch.distributed.checkpoint.format_utils dcp_to_torch FOLDER FILE.pth`"
        )
    if (folder / "saved_model.pb").is_file():
        return EXPORTED.format("a SavedModel of TensorFlow")
    if (folder / "Manifest.json").is_file() and folder.name.lower().endswith(".mlpackage"):
        return EXPORTED.format("a Core ML package")
    return None


def _zip_looks_like(data: bytes) -> str | None:
    try:
        with zipfile.ZipFile(io.BytesIO(data)) as archive:
            names = archive.namelist()
    except (zipfile.BadZipFile, ValueError, NotImplementedError):
        return None
    for pattern, sentence, what in IN_ZIPS:
        if any(re.fullmatch(pattern, name) for name in names):
            return sentence.format(what)
    if names and not any(name.endswith(("data.pkl", "version", ".data/serialization_id")) for name in names):
        return ARCHIVE.format("a zip archive, and none of torch's")
    return None
