"""Weights to disk. Under its own name a file is always whole: the old one or the new one."""

import hashlib
import io
import json
from collections.abc import Mapping
from pathlib import Path

import safetensors.torch
import torch
from timm.models import save_for_hf
from torch import nn

from gmlp_vision.atomic import new_folder, replace_file

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
    with replace_file(path) as temporary:
        temporary.write_bytes(data)


def save_folder(model: nn.Module, path: Path) -> None:
    """Writes timm's local-dir form: model.safetensors, and config.json, to which the file's sha256 is added.

    Raises:
        UserError: There is something at `path`.
    """
    with new_folder(path) as temporary:
        save_for_hf(model, str(temporary), safe_serialization=True)
        config = temporary / "config.json"
        stated = json.loads(config.read_text(encoding="utf-8"))
        # the config says it once already, and transformers' TimmWrapper fails where it is said twice
        stated["model_args"].pop("num_classes", None)
        stated["sha256"] = hashlib.sha256((temporary / "model.safetensors").read_bytes()).hexdigest()
        config.write_text(json.dumps(stated, indent=2) + "\n", encoding="utf-8")
