"""Ways to run a model without gradients. Each makes of a model and a batch a call that gives the logits."""

import tempfile
from collections.abc import Callable
from functools import partial
from pathlib import Path

import torch
from models import Run
from torch import nn

from gmlp_vision.export import write_onnx

Maker = Callable[[nn.Module, torch.Tensor], Run]


def eager(model: nn.Module, x: torch.Tensor) -> Run:
    return torch.inference_mode()(lambda: model(x))


def compiled(model: nn.Module, x: torch.Tensor, mode: str = "default") -> Run:
    # a whole graph, since torch would else run in eager mode what it has compiled too often
    call = torch.compile(model, fullgraph=True, dynamic=False, mode=mode)
    return torch.inference_mode()(lambda: call(x))


def open_in_onnxruntime(path: Path, x: torch.Tensor) -> Run:
    import onnxruntime

    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = torch.get_num_threads()
    # else its threads go on spinning after a call, into the turn of the next contender
    options.add_session_config_entry("session.force_spinning_stop", "1")
    session = onnxruntime.InferenceSession(path, options, providers=["CPUExecutionProvider"])
    image = {"image": x.numpy()}
    return lambda: session.run(None, image)[0]


def open_in_openvino(path: Path, x: torch.Tensor, precision: str = "f32") -> Run:
    import openvino

    graph = openvino.Core().read_model(path)
    graph.reshape(list(x.shape))
    config = {"INFERENCE_PRECISION_HINT": precision, "INFERENCE_NUM_THREADS": torch.get_num_threads()}
    request = openvino.Core().compile_model(graph, "CPU", config).create_infer_request()
    image = [x.numpy()]
    return lambda: request.infer(image)[0]


def exported(open_file: Callable[[Path, torch.Tensor], Run], model: nn.Module, x: torch.Tensor) -> Run:
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "model.onnx"
        write_onnx(model, x[:2], path)
        return open_file(path, x)


# (runtime, dtype): its maker. Where the maker sets the precision itself, it gets a float32 model.
CPU: dict[tuple[str, str], Maker] = {
    ("eager", "fp32"): eager,
    ("eager", "bf16"): eager,
    ("compile", "fp32"): compiled,
    ("compile", "bf16"): compiled,
    ("onnxruntime", "fp32"): partial(exported, open_in_onnxruntime),
    ("openvino", "fp32"): partial(exported, open_in_openvino),
    # computed in bfloat16: what OpenVINO does by itself where the CPU can
    ("openvino", "bf16"): partial(exported, partial(open_in_openvino, precision="bf16")),
}
CUDA: dict[tuple[str, str], Maker] = {
    (runtime, dtype): make
    for runtime, make in (
        ("eager", eager),
        ("compile", compiled),
        ("cuda graphs", partial(compiled, mode="reduce-overhead")),
    )
    for dtype in ("fp32", "tf32", "bf16")
}
RUNTIMES = tuple(dict.fromkeys(runtime for runtime, _ in (*CPU, *CUDA)))
# The packages that a runtime takes beside torch.
NEEDS = {
    "onnxruntime": ("onnx", "onnxscript", "onnxruntime"),
    "openvino": ("onnx", "onnxscript", "openvino"),
}
