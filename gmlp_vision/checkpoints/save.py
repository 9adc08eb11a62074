"""Weights to disk. Under its own name a file is always whole: the old one or the new one."""

import hashlib
import io
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import safetensors
import safetensors.torch
import torch
from timm.models import save_for_hf
from torch import nn

from gmlp_vision.atomic import new_folder, write_file

DTYPES = {"fp32": torch.float32, "fp16": torch.float16, "bf16": torch.bfloat16}
TORCH_SUFFIXES = (".pth", ".pt", ".pth.tar", ".bin")


def is_file_name(path: Path) -> bool:
    """Whether this name asks for one file of weights; any other asks for a folder."""
    return path.name.endswith((".safetensors", *TORCH_SUFFIXES))


def save_file(state_dict: Mapping[str, torch.Tensor], path: Path) -> None:
    """Writes tensors alone, as safetensors or in torch's form by the suffix, over what is there."""
    tensors = {name: tensor.detach().contiguous() for name, tensor in state_dict.items()}
    if path.name.endswith(".safetensors"):
        data = safetensors.torch.save(tensors, metadata={"format": "pt"})
    else:
        buffer = io.BytesIO()
        torch.save(tensors, buffer)
        data = buffer.getvalue()
    write_file(path, data)


def save_folder(model: nn.Module, path: Path) -> None:
    """Writes a new folder in timm's local-dir form.

    Raises:
        UserError: There is something at `path`.
        OSError: As `write_local_dir`.
    """
    with new_folder(path) as folder:
        write_local_dir(model, folder)


def write_local_dir(model: nn.Module, folder: Path, **config: Any) -> None:
    """Writes model.safetensors, and timm's config.json, to which the file's sha256 is added, into a folder.

    Args:
        config: As timm's `save_for_hf` takes it: model_args, data_config, model_config.

    Raises:
        OSError: The disk is full.
    """
    try:
        save_for_hf(model, str(folder), safe_serialization=True, **config)
    except safetensors.SafetensorError as error:  # which is no OSError
        raise OSError(f"model.safetensors cannot be written: {error}") from error
    config_file = folder / "config.json"
    stated = json.loads(config_file.read_text(encoding="utf-8"))
    stated["sha256"] = hashlib.sha256((folder / "model.safetensors").read_bytes()).hexdigest()
    write_file(config_file, json.dumps(stated, indent=2) + "\n")
