"""A model to a file for other runtimes. What the file computes is compared before it gets its name.

Whatever the dtype inside, a file takes float32 images, (B, C, height, width), and gives float32 logits.
"""

import importlib.util
import io
import sys
import warnings
from collections.abc import Callable
from copy import deepcopy
from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch import nn

from gmlp_vision.atomic import replace_files, write_file
from gmlp_vision.checkpoints import DTYPES, build, kernels_of, merge
from gmlp_vision.checkpoints.outputs import check_files
from gmlp_vision.checkpoints.rounding import losses
from gmlp_vision.errors import UserError
from gmlp_vision.trunks import Trunk

# The largest difference of a logit that passes, as a part of the spread between images.
TOLERANCES = {"fp32": 1e-3, "fp16": 0.05, "bf16": 0.3}

Runner = Callable[[torch.Tensor], torch.Tensor]


class Parity(NamedTuple):
    """How far a file is from its model, and how far it may be: parts of the spread of the model's logits.

    The notes tell which numbers the dtype could not hold, and what was merged.
    """

    difference: float
    tolerance: float
    notes: tuple[str, ...] = ()


class Float32Ends(nn.Module):
    """A copy of a model on the CPU, in eval mode and some dtype, from float32 images to float32 logits."""

    def __init__(self, model: Trunk, dtype: torch.dtype) -> None:
        super().__init__()
        self.model = deepcopy(model).to("cpu", dtype)
        self.model.set_grad_checkpointing(False)  # torch 2.9 would leave its traces in an exported program
        self.dtype = dtype
        self.eval()

    def forward(self, image: torch.Tensor) -> torch.Tensor:
        return self.model(image.to(self.dtype)).float()


class Format(NamedTuple):
    """A kind of file: its suffix, how it is written and run, and which packages that takes beside torch."""

    suffix: str
    write: Callable[[Float32Ends, torch.Tensor, Path], None]
    open: Callable[[Path], Runner]
    needs: tuple[str, ...] = ()
    dtypes: tuple[str, ...] = tuple(DTYPES)


def export_checkpoint(
    source: str | Path,
    out: str | Path,
    format: str,
    *,
    img_size: tuple[int, int] | None = None,
    dynamic_batch: bool = False,
    dtype: str = "fp32",
    model: str | None = None,
    prefix: str | None = None,
) -> Parity:
    """`export_model` for the model whose weights are in a file, a folder, on the hub or under a model name.

    Args:
        source, model, prefix: As for `gmlp_vision.checkpoints.build`.
        img_size: (height, width) in pixels; None for the size that the weights are of.
        out, format, dynamic_batch, dtype: As for `export_model`.

    Raises:
        ValueError: As `export_model`, or an image that the patch does not divide.
        UserError: As `export_model`, or the source cannot be read or holds no model of this package.
    """
    check_arguments(Path(out), format, dtype)
    results = [Path(out), *([Path(out).with_suffix(".bin")] if format == "openvino" else [])]
    check_files(results, source)
    built = build(source, img_size=img_size, model=model, prefix=prefix)
    return export_model(built.model, out, format, dynamic_batch=dynamic_batch, dtype=dtype)


def export_model(
    model: Any, out: str | Path, format: str, *, dynamic_batch: bool = False, dtype: str = "fp32"
) -> Parity:
    """Writes a model of this package, in eval mode and at its image size, to a file for another runtime.

    Args:
        model: Is left as it is, in its mode and on its device.
        out: File to write, replaced if it is there. OpenVINO's is an .xml and gets a .bin beside it.
        format: A key of FORMATS.
        dynamic_batch: Whether the file takes any number of images, not one; a TorchScript file always does.
        dtype: Of the weights and the arithmetic, a key of DTYPES.

    Returns:
        The difference that was found, and the tolerance.

    Raises:
        ValueError: An unknown format or dtype, another suffix than the format's, or no model of this package.
        UserError: There is no such folder, a package is missing, the format cannot hold the dtype or images
            of any size, or the numbers, the model gives the same logits for any image, or the file computes
            something else.
            At `out` all is then as it was.
        OSError: The disk is full, or `out` is a folder or write-protected. At `out` all is then as it was.
    """
    out = Path(out)
    check_arguments(out, format, dtype)
    if not isinstance(model, Trunk):
        raise ValueError(f"the model is a {type(model).__name__}; expected one of this package, unwrapped")
    kind = FORMATS[format]
    images = torch.randn(3, model.in_chans, *model.img_size, generator=torch.Generator().manual_seed(0))
    with torch.no_grad():
        expected = Float32Ends(model, torch.float32)(images)
    merged: list[str] = []
    if count := len(kernels_of(model)):
        model = merge(deepcopy(model))
        merged = [f"the shared kernels of {count} layers are merged into W"]
    exported = Float32Ends(model, DTYPES[dtype])
    notes = (*merged, *losses(model.state_dict(), exported.model.state_dict(), "this model"))
    spread = expected.std(dim=0).max().item()
    if spread == 0:
        raise UserError(
            "this model gives the same logits for any image, so nothing would show whether a file of it is "
            "right; its head may be untrained: export trained weights"
        )
    with replace_files(out) as path:
        # torch takes an example of one image for a fixed batch
        kind.write(exported, images[: 2 if dynamic_batch else 1], path)
        run = kind.open(path)
        found = torch.cat([run(batch) for batch in images.split(3 if dynamic_batch else 1)])
        parity = Parity((found - expected).abs().max().item() / spread, TOLERANCES[dtype], notes)
        if not parity.difference <= parity.tolerance:  # nor if it is nan
            raise UserError(
                f"the {format} file in {dtype} computes something else than the model: logits differ by "
                f"{parity.difference:.2g} of their spread, and {parity.tolerance:g} is allowed; nothing was "
                "written"
            )
    return parity


def check_arguments(out: Path, format: str, dtype: str) -> None:
    """Refuses what cannot work before anything slow begins."""
    if format not in FORMATS:
        raise ValueError(f"format is {format!r}; expected one of {', '.join(FORMATS)}")
    if dtype not in DTYPES:
        raise ValueError(f"dtype is {dtype!r}; expected one of {', '.join(DTYPES)}")
    kind = FORMATS[format]
    if out.suffix != kind.suffix:
        raise ValueError(f"{out} should end in {kind.suffix}, the suffix of {format}")
    if not out.parent.is_dir():
        raise UserError(f"there is no folder {out.parent}; make it first")
    if dtype not in kind.dtypes:
        raise UserError(
            f"ONNX Runtime has no {dtype} convolution on a CPU, so such a file could not be checked; choose "
            f"{' or '.join(kind.dtypes)}, or --format openvino"
        )
    missing = [package for package in kind.needs if importlib.util.find_spec(package) is None]
    if missing:
        raise UserError(f"{format} needs packages that are not installed: pip install {' '.join(missing)}")


def write_onnx(model: nn.Module, images: torch.Tensor, path: Path) -> None:
    write_file(path, onnx_of(model, images))


def onnx_of(model: nn.Module, images: torch.Tensor) -> bytes:
    from onnxscript.optimizer import fold_constants

    program = torch.onnx.export(
        model,
        (images,),
        dynamo=True,
        dynamic_shapes=batch_dimension(images),
        input_names=["image"],
        output_names=["logits"],
        verbose=False,
    )
    assert program is not None  # it is, with dynamo=True
    # by itself torch folds small constants only, and a quantizer would not know the halves of U as constants
    fold_constants(program.model, input_size_limit=sys.maxsize, output_size_limit=sys.maxsize)
    for node in program.model.graph:
        node.metadata_props.clear()  # stack traces, which have the paths of this machine
    return program.model_proto.SerializeToString()


def open_onnx(path: Path) -> Runner:
    import onnxruntime

    session = onnxruntime.InferenceSession(path, providers=["CPUExecutionProvider"])
    return lambda images: torch.from_numpy(session.run(None, {"image": images.numpy()})[0])


def write_openvino(model: nn.Module, images: torch.Tensor, path: Path) -> None:
    import openvino

    # not convert_model, which would make sums of the subtractions (layers/spatial_projection.py says what
    # they are for) and sends statistics of its use over the network
    converted = openvino.Core().read_model(onnx_of(model, images))
    try:
        openvino.save_model(converted, path, compress_to_fp16=False)
    except RuntimeError as error:  # "iostream error", of a full disk too
        raise OSError(f"OpenVINO cannot write {path.name}: is the disk full? ({error})") from error


def open_openvino(path: Path) -> Runner:
    import openvino

    # Left to itself, OpenVINO computes a float32 model in bfloat16 where the CPU can.
    compiled = openvino.Core().compile_model(path, "CPU", {"INFERENCE_PRECISION_HINT": "f32"})
    return lambda images: torch.from_numpy(compiled(images.numpy())[0])


def write_torchscript(model: Float32Ends, images: torch.Tensor, path: Path) -> None:
    if model.model.dynamic_img_size:
        raise UserError(
            "torchscript cannot express a model made with dynamic_img_size=True: load its state_dict() into "
            "one made without and export that, or choose another format"
        )
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", r"`torch\.jit\.", FutureWarning)  # known: this format was asked for
        data = io.BytesIO()  # to a file, torch's own writer ends the process where the disk is full
        torch.jit.save(torch.jit.script(model), data)
    write_file(path, data.getbuffer())


def open_torchscript(path: Path) -> Runner:
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", r"`torch\.jit\.", FutureWarning)
        model = torch.jit.load(path)
    return without_gradients(model)


def write_exported_program(model: nn.Module, images: torch.Tensor, path: Path) -> None:
    program = torch.export.export(model, (images,), dynamic_shapes=batch_dimension(images))
    for node in program.graph.nodes:
        node.meta.pop("stack_trace", None)  # which has the paths of this machine
    data = io.BytesIO()  # as for TorchScript
    torch.export.save(program, data)
    write_file(path, data.getbuffer())


def open_exported_program(path: Path) -> Runner:
    return without_gradients(torch.export.load(path).module())


def batch_dimension(images: torch.Tensor) -> tuple[dict[int, Any]] | None:
    return ({0: torch.export.Dim("batch")},) if len(images) > 1 else None


def without_gradients(model: nn.Module) -> Runner:
    return torch.no_grad()(lambda images: model(images))


FORMATS = {
    "onnx": Format(".onnx", write_onnx, open_onnx, ("onnx", "onnxscript", "onnxruntime"), ("fp32", "fp16")),
    "openvino": Format(".xml", write_openvino, open_openvino, ("onnx", "onnxscript", "openvino")),
    "torchscript": Format(".pt", write_torchscript, open_torchscript),
    "exported-program": Format(".pt2", write_exported_program, open_exported_program),
}
