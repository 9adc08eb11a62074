"""The fast form of gMLP's block, against the equation as written, against timm's gMLP and against float64."""

from collections import Counter
from collections.abc import Callable

import pytest
import timm
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from tiny import images, perturb, tiny
from torch import nn
from torch.profiler import ProfilerActivity, profile

from gmlp_vision.layers.linear import HAS_BOTH, project_channels, suits_onednn
from gmlp_vision.models.gmlp import GMlpBlock
from gmlp_vision.trunks.recompute import run_block


@pytest.fixture
def fast(monkeypatch: pytest.MonkeyPatch) -> list[bool]:
    """Grows by one for each block that took the fast form: whether its steps were written over each other."""
    calls: list[bool] = []
    compute = GMlpBlock.fast_forward

    def noted(self: GMlpBlock, x: torch.Tensor) -> torch.Tensor:
        calls.append(not torch.is_grad_enabled())
        return compute(self, x)

    monkeypatch.setattr(GMlpBlock, "fast_forward", noted)
    return calls


def choices(blocks: int, grad: bool) -> list[bool]:
    """What `fast` grows by."""
    return blocks * [not grad]


def timms(model: nn.Module, dtype: torch.dtype) -> nn.Module:
    """timm's own gMLP, of the size of `tiny`, with the weights of ours."""
    mixer = timm.models.MlpMixer(
        num_classes=5,
        img_size=32,
        patch_size=8,
        num_blocks=2,
        embed_dim=16,
        mlp_ratio=6,
        block_layer=timm.models.mlp_mixer.SpatialGatingBlock,
        mlp_layer=timm.layers.GatedMlp,
    )
    mixer.load_state_dict(model.state_dict())
    return mixer.eval().to(dtype)


# -- parity -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("grad", [True, False])
def test_float32_is_timms(grad: bool, fast: list[bool]) -> None:
    model = tiny()
    with torch.set_grad_enabled(grad):
        logits, expected = model(images()), timms(model, torch.float32)(images())
    assert fast == choices(2, grad)
    assert expected.std() > 0.1
    torch.testing.assert_close(logits, expected, atol=1e-5, rtol=1e-5)


def watched(model: nn.Module) -> nn.Module:
    """With a hook in each block, which is then computed as its equation is written."""
    for block in model.blocks:
        block.norm.register_forward_hook(lambda *_: None)
    return model


@pytest.mark.parametrize("batch", [1, 3, 16])  # torch takes oneDNN by the batch too
@pytest.mark.parametrize("change", [None, watched])
def test_gradients_are_timms(batch: int, change: Callable | None, fast: list[bool]) -> None:
    """Against float64: of a sum over a batch, float32 has no one value to a part in 100,000."""
    model, x = tiny(), images(batch, 3, 32, 32)
    exact = timms(model, torch.float64)
    if change:
        change(model)
    model(x).square().sum().backward()
    exact(x.double()).square().sum().backward()
    assert fast == ([] if change else choices(2, grad=True))
    for (name, p), q in zip(model.named_parameters(), exact.parameters(), strict=True):
        assert q.grad.abs().max() > 0, name
        scale = q.grad.abs().max().item()
        torch.testing.assert_close(p.grad.double(), q.grad, atol=1e-5 * scale, rtol=1e-5, msg=name)


@pytest.mark.parametrize("threads", [1, 2])
@settings(max_examples=30, deadline=None)
@given(st.integers(0, 20), st.lists(st.integers(1, 9), min_size=1, max_size=2), *2 * [st.integers(1, 40)])
def test_the_product_of_the_channels(
    threads: int, batch: int, tokens: list[int], inputs: int, outputs: int
) -> None:
    """Forward and all three gradients, against a product in float64."""
    draw = torch.Generator().manual_seed(batch)
    shapes = ((batch, *tokens, inputs), (outputs, inputs), (outputs,))
    tensors = [torch.randn(shape, generator=draw, requires_grad=True) for shape in shapes]
    x, weight, bias = exact = [t.detach().double().requires_grad_() for t in tensors]
    before = torch.get_num_threads()
    torch.set_num_threads(threads)
    try:
        y = project_channels(*tensors)
        seed = torch.randn(y.shape, generator=draw)
        found = torch.autograd.grad(y, tensors, seed)
    finally:
        torch.set_num_threads(before)
    expected = x @ weight.T + bias
    torch.testing.assert_close(y.double(), expected, atol=1e-4, rtol=1e-5)
    for f, e in zip(found, torch.autograd.grad(expected, exact, seed.double()), strict=True):
        assert batch == 0 or e.abs().max() > 0
        torch.testing.assert_close(f.double(), e, atol=1e-4, rtol=1e-5)


@pytest.mark.parametrize("threads", [1, 2])
@pytest.mark.parametrize("shape", [(1, 196, 64), (1, 196, 128), (2, 4, 8), (3, 2, 2, 8), (16, 4, 8)])
def test_torch_takes_onednn_where_it_is_said_to(shape: tuple[int, ...], threads: int) -> None:
    """Any other convolution of torch's is slower than a linear layer."""
    x, weight = torch.randn(shape), torch.randn(6, shape[-1])
    before = torch.get_num_threads()
    torch.set_num_threads(threads)
    try:
        with profile(activities=[ProfilerActivity.CPU]) as profiler:
            project_channels(x, weight, torch.zeros(6))
    finally:
        torch.set_num_threads(before)
    called = {event.key for event in profiler.key_averages()}
    for name in ("convolution", "mkldnn_convolution"):
        assert (f"aten::{name}" in called) == suits_onednn(x), name


@pytest.mark.filterwarnings("ignore:TF32 acceleration on top of oneDNN:UserWarning")  # of torch's switch
def test_with_onednn_switched_off_the_projection_is_linear() -> None:
    """torch's own dilated convolution, which would be left, is slow."""
    model, x = tiny(), torch.randn(2, 4, 8)
    assert suits_onednn(x) == HAS_BOTH
    with torch.backends.mkldnn.flags(enabled=False):
        assert not suits_onednn(x)
        torch.testing.assert_close(model(images()), timms(model, torch.float32)(images()))
    assert suits_onednn(x) == HAS_BOTH


@pytest.mark.parametrize("grad", [True, False])
def test_a_batch_of_none(grad: bool, fast: list[bool]) -> None:
    with torch.set_grad_enabled(grad):
        assert tiny()(images(0, 3, 32, 32)).shape == (0, 5)
    assert fast == choices(2, grad)


@pytest.mark.parametrize("autocast", [True, False])
@pytest.mark.parametrize("grad", [True, False])
def test_bfloat16_errs_no_more_than_timms(grad: bool, autocast: bool, fast: list[bool]) -> None:
    """In root mean square over seeds, by a tenth: of a single draw either may have the better one."""
    dtype = torch.float32 if autocast else torch.bfloat16  # of the weights
    ours, theirs = 0.0, 0.0
    for seed in range(16):
        model, x = perturb(tiny(), seed).to(dtype), images(8, 3, 32, 32, seed=seed).to(dtype)
        exact = timms(model, torch.float64)(x.double()).detach()
        with (
            torch.set_grad_enabled(grad),
            torch.autocast("cpu", torch.bfloat16, enabled=autocast),
        ):
            theirs += (timms(model, dtype)(x) - exact).square().mean().item()
            ours += (model(x) - exact).square().mean().item()
    assert fast == choices(32, grad)
    assert 0 < ours**0.5 <= 1.1 * theirs**0.5


@pytest.mark.parametrize("autocast", [True, False])
def test_bfloat16_gradients_err_no_more_than_timms(autocast: bool, fast: list[bool]) -> None:
    """Of each parameter, in root mean square over seeds."""
    dtype = torch.float32 if autocast else torch.bfloat16
    ours, theirs = Counter[str](), Counter[str]()
    for seed in range(16):
        model, x = perturb(tiny(), seed).to(dtype), images(8, 3, 32, 32, seed=seed).to(dtype)
        exact = gradients(timms(model, torch.float64), x.double())
        with torch.autocast("cpu", torch.bfloat16, enabled=autocast):
            for found, errors in (
                (gradients(model, x), ours),
                (gradients(timms(model, dtype), x), theirs),
            ):
                for name, grad in found.items():
                    scale = exact[name].square().mean()
                    assert scale > 0
                    errors[name] += ((grad.double() - exact[name]).square().mean() / scale).item()
    assert fast == choices(32, grad=True)
    assert theirs.keys() == ours.keys()
    for name, error in ours.items():
        assert 0 < error**0.5 <= 1.25 * theirs[name] ** 0.5, name
    assert 0 < ours.total() ** 0.5 <= 1.1 * theirs.total() ** 0.5


def gradients(model: nn.Module, x: torch.Tensor) -> dict[str, torch.Tensor]:
    logits = model(x)
    return dict(
        zip(
            dict(model.named_parameters()),
            torch.autograd.grad(logits.square().sum(), list(model.parameters())),
            strict=True,
        )
    )


@pytest.mark.parametrize("grad", [True, False])
def test_autocast_of_tokens_in_another_dtype(grad: bool, fast: list[bool]) -> None:
    """The branch has autocast's dtype then, and its sum with the tokens theirs."""
    model, x = tiny(), images(2, 4, 4, 16)
    with torch.set_grad_enabled(grad), torch.autocast("cpu", torch.bfloat16):
        y = run_block(model.blocks[0], x, "")
    assert not fast
    assert y.dtype == torch.float32
    torch.testing.assert_close(y, model.blocks[0](x), atol=0.05, rtol=0.05)


@pytest.mark.parametrize("grad", [True, False])
@pytest.mark.parametrize("size", [(32, 32), (48, 24)])
def test_any_grid(size: tuple[int, int], grad: bool, fast: list[bool]) -> None:
    model, x = tiny(dynamic_img_size=True), images(2, 3, *size)
    with torch.set_grad_enabled(grad):
        logits = model(x)
    assert fast == choices(2, grad)
    torch.testing.assert_close(logits, watched(model)(x), atol=1e-6, rtol=1e-5)


@pytest.mark.parametrize("change", [None, watched])
def test_what_onnx_gets(change: Callable | None) -> None:
    """W itself, since an Expand, which baddbmm asks for, would copy it for each image; U in halves."""
    model, batch = tiny(depth=1), torch.export.Dim("batch")
    if change:
        change(model)
    program = torch.onnx.export(model, (images(),), dynamo=True, dynamic_shapes=({0: batch},), verbose=False)
    kinds = Counter(node.op_type for node in program.model.graph)
    assert kinds["MatMul"] == (3 if change else 4)  # U, W, V
    assert kinds["Sub"] == (0 if change else 1)  # b, which a quantiser would take for another kind of bias
    assert kinds["Split"] == (1 if change else 0)  # Z
    assert kinds["Conv"] == 1  # the stem
    assert kinds["Expand"] == 0
