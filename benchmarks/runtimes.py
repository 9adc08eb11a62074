"""Ways to run a model without gradients. Each makes, from a model and one batch, a call without arguments."""

import tempfile
from collections.abc import Callable
from pathlib import Path

import torch
from torch import nn

from gmlp_vision.export import write_onnx

Run = Callable[[], object]
Maker = Callable[[nn.Module, torch.Tensor], Run]


def eager(model: nn.Module, x: torch.Tensor) -> Run:
    return torch.inference_mode()(lambda: model(x))


def compiled(model: nn.Module, x: torch.Tensor) -> Run:
    call = torch.compile(model)
    return torch.inference_mode()(lambda: call(x))


def cuda_graphs(model: nn.Module, x: torch.Tensor) -> Run:
    call = torch.compile(model, mode="reduce-overhead")
    return torch.inference_mode()(lambda: call(x))


def onnx_runtime(model: nn.Module, x: torch.Tensor) -> Run:
    import onnxruntime

    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = torch.get_num_threads()
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "model.onnx"
        write_onnx(model, x[:2], path)
        session = onnxruntime.InferenceSession(path, options, providers=["CPUExecutionProvider"])
    image = {"image": x.numpy()}
    return lambda: session.run(None, image)


def openvino(model: nn.Module, x: torch.Tensor) -> Run:
    return _openvino(model, x, "f32")


def openvino_bf16(model: nn.Module, x: torch.Tensor) -> Run:
    """A float32 model, computed in bfloat16: what OpenVINO does by itself where the CPU can."""
    return _openvino(model, x, "bf16")


def _openvino(model: nn.Module, x: torch.Tensor, precision: str) -> Run:
    import openvino

    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "model.onnx"
        write_onnx(model, x[:2], path)
        graph = openvino.Core().read_model(path)
        graph.reshape(list(x.shape))
        config = {"INFERENCE_PRECISION_HINT": precision, "INFERENCE_NUM_THREADS": torch.get_num_threads()}
        request = openvino.Core().compile_model(graph, "CPU", config).create_infer_request()
    image = [x.numpy()]
    return lambda: request.infer(image)


# (runtime, dtype): its maker. Where the maker sets the precision itself, it gets a float32 model.
CPU: dict[tuple[str, str], Maker] = {
    ("eager", "fp32"): eager,
    ("eager", "bf16"): eager,
    ("compile", "fp32"): compiled,
    ("compile", "bf16"): compiled,
    ("onnxruntime", "fp32"): onnx_runtime,
    ("openvino", "fp32"): openvino,
    ("openvino", "bf16"): openvino_bf16,
}
CUDA: dict[tuple[str, str], Maker] = {
    (runtime, dtype): make
    for runtime, make in (("eager", eager), ("compile", compiled), ("cuda graphs", cuda_graphs))
    for dtype in ("fp32", "tf32", "bf16")
}
