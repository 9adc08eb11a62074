"""Ways to run a model without gradients. Each makes of a model and a batch a call that gives the logits."""

import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import nn

from gmlp_vision.export import FORMATS, write_onnx

Run = Callable[[], torch.Tensor | np.ndarray]
Maker = Callable[[nn.Module, torch.Tensor], Run]


def eager(model: nn.Module, x: torch.Tensor) -> Run:
    return torch.inference_mode()(lambda: model(x))


def compiled(model: nn.Module, x: torch.Tensor) -> Run:
    # a whole graph, since torch would else run in eager mode what it has compiled too often
    call = torch.compile(model, fullgraph=True, dynamic=False)
    return torch.inference_mode()(lambda: call(x))


def cuda_graphs(model: nn.Module, x: torch.Tensor) -> Run:
    call = torch.compile(model, fullgraph=True, dynamic=False, mode="reduce-overhead")
    return torch.inference_mode()(lambda: call(x))


def onnxruntime_options(threads: int) -> Any:
    """Of a session whose threads do not go on spinning after a call, into the turn of the next contender."""
    import onnxruntime

    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = threads
    options.add_session_config_entry("session.force_spinning_stop", "1")
    return options


def onnx_runtime(model: nn.Module, x: torch.Tensor) -> Run:
    import onnxruntime

    options = onnxruntime_options(torch.get_num_threads())
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "model.onnx"
        write_onnx(model, x[:2], path)
        session = onnxruntime.InferenceSession(path, options, providers=["CPUExecutionProvider"])
    image = {"image": x.numpy()}
    return lambda: session.run(None, image)[0]


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
    return lambda: request.infer(image)[0]


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
RUNTIMES = tuple(dict.fromkeys(runtime for runtime, _ in (*CPU, *CUDA)))
# The packages that a runtime takes beside torch.
NEEDS = {"onnxruntime": FORMATS["onnx"].needs, "openvino": FORMATS["openvino"].needs}
