"""A kernel beside W that all tokens share: against the sum written slowly, on other grids, in a model."""

import math
import warnings

import pytest
import timm
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from timm.optim import param_groups_weight_decay
from tiny import images, perturb, same, tiny
from torch import nn

from gmlp_vision.layers import SpatialProjection
from gmlp_vision.layers.ask import operators
from gmlp_vision.layers.resample import crop_or_pad_offsets, resample_operator
from gmlp_vision.layers.shared_kernel import DenseKernel, DenseToeplitz, SharedKernel
from gmlp_vision.layers.spatial import projection_of, spatial_of
from gmlp_vision.layers.spatial_gating import UNITS
from gmlp_vision.trunks.run_block import choose

KINDS = ["dense+toeplitz", "dense+3x3", "dense+7x7"]


def layer_of(spatial: str, grid: tuple[int, int], seed: int = 0) -> SharedKernel:
    layer = perturb(projection_of(spatial)(grid, init_std=0.1).double(), seed)
    assert isinstance(layer, SharedKernel)
    return layer


def slow_w(layer: SharedKernel, grid: tuple[int, int]) -> torch.Tensor:
    """V[i, j] + k[offset of j from i], entry by entry, k on this grid as on the layer's."""
    kernel, w = layer.shared().detach(), layer.weight.detach().clone().reshape(*grid, *grid)
    rows, columns = (size // 2 for size in kernel.shape)
    for i, j, k, m in torch.cartesian_prod(*map(torch.arange, w.shape)).tolist():
        if abs(k - i) <= rows and abs(m - j) <= columns:
            w[i, j, k, m] += kernel[rows + k - i, columns + m - j]
    return w.reshape(math.prod(grid), -1)


@pytest.mark.parametrize("spatial", KINDS)
def test_w_is_the_free_one_plus_the_kernels(spatial: str) -> None:
    layer, x = layer_of(spatial, (3, 4)), images(2, 3, 4, 5).double()  # 7 x 7 is wider than the grid
    w = slow_w(layer, (3, 4))
    assert (w - layer.weight).std() > 0.02
    assert torch.equal(layer.matrix(), w.unsqueeze(0))
    y = torch.einsum("ij,bjc->bic", w, x.flatten(1, 2)) + layer.bias.unsqueeze(1)
    torch.testing.assert_close(layer(x), y.view_as(x), atol=1e-12, rtol=0)
    fast = layer.fast_forward(x.flatten(1, 2), (3, 4))
    torch.testing.assert_close(fast, y, atol=1e-12, rtol=0)


@pytest.mark.parametrize("spatial", KINDS)
def test_every_token_teaches_the_kernel(spatial: str) -> None:
    layer, x = layer_of(spatial, (3, 4)), images(2, 3, 4, 5).double()
    layer(x).square().sum().backward()
    taught, kernel = layer.weight.grad.reshape(3, 4, 3, 4), torch.zeros_like(layer.shared())
    rows, columns = (size // 2 for size in kernel.shape)
    for i, j, k, m in torch.cartesian_prod(*map(torch.arange, taught.shape)).tolist():
        if abs(k - i) <= rows and abs(m - j) <= columns:
            kernel[rows + k - i, columns + m - j] += taught[i, j, k, m]
    assert kernel.abs().max() > 1
    torch.testing.assert_close(layer.shared().grad, kernel, atol=1e-12, rtol=1e-10)


@pytest.mark.parametrize("spatial", KINDS)
def test_it_starts_as_the_dense_one(spatial: str) -> None:
    torch.manual_seed(0)
    dense = SpatialProjection((3, 4))
    torch.manual_seed(0)
    layer = projection_of(spatial)((3, 4))
    assert torch.equal(layer.weight, dense.weight)
    assert torch.equal(layer.bias, dense.bias)
    assert not layer.shared().any()


GRIDS = st.tuples(st.integers(1, 5), st.integers(1, 5))


@settings(max_examples=25, deadline=None)
@given(spatial=st.sampled_from(KINDS), old=GRIDS, new=GRIDS)
def test_merged_before_it_is_carried_or_after(
    spatial: str, old: tuple[int, int], new: tuple[int, int]
) -> None:
    layer = layer_of(spatial, old)
    w, kernel = layer.matrix()[0], layer.shared().detach().clone()
    carried = layer.matrix(new)[0]
    torch.testing.assert_close(carried, resample_operator(w, old, new), atol=1e-12, rtol=0)
    x = images(2, *new, 3).double()
    dense = SpatialProjection(new).double()
    dense.weight.data, dense.bias.data = resample_operator(w, old, new), layer.on_grid(new)[2]
    layer.dynamic = True
    torch.testing.assert_close(layer(x), dense(x), atol=1e-12, rtol=0)
    layer.replace_grid(new, layer.on_grid(new))
    torch.testing.assert_close(layer(x), dense(x), atol=1e-12, rtol=0)
    same_offsets = crop_or_pad_offsets(kernel, old, new) if spatial == KINDS[0] else kernel
    assert torch.equal(layer.shared(), same_offsets)


def test_by_a_rule_each_it_would_be_another_w() -> None:
    layer = layer_of(KINDS[0], (3, 4))
    table = crop_or_pad_offsets(layer.table, (3, 4), (6, 8))
    apart = resample_operator(layer.weight, (3, 4), (6, 8)) + DenseToeplitz.matrix_of(
        layer, (6, 8), torch.zeros(48, 48), table
    )
    assert (apart - layer.matrix((6, 8))).abs().max() > 0.05


def test_gradients_flow_through_the_rule() -> None:
    layer = layer_of(KINDS[0], (3, 4))
    layer.matrix((5, 4)).square().sum().backward()
    assert layer.weight.grad.abs().max() > 0
    assert layer.table.grad.abs().max() > 0


@pytest.mark.parametrize("spatial", KINDS)
def test_its_operator_is_the_merged_w_and_says_so(spatial: str) -> None:
    layer = layer_of(spatial, (3, 4))
    (operator,) = operators(layer, (3, 4))
    assert torch.equal(operator.weight, slow_w(layer, (3, 4)))
    rows, columns = layer.shared().shape
    assert operator.note == f"a shared kernel of {rows} x {columns} is merged into it"


def test_its_tensors_tell_the_kind() -> None:
    for spatial in (*KINDS, "dense"):
        tensors = projection_of(spatial)((8, 8)).state_dict()
        assert spatial_of(tensors) == {"spatial": spatial, "groups": 1}
    same_table = DenseKernel((8, 8), kernel_size=15)  # as large as a table of 8 x 8
    assert spatial_of(same_table.state_dict())["spatial"] == "dense+15x15"


def test_what_is_refused() -> None:
    with pytest.raises(ValueError, match="the kernel is 4 x 4; expected an odd side"):
        tiny(spatial="dense+4x4")
    with pytest.raises(ValueError, match="the kernel is 4 x 4; expected an odd side"):
        DenseKernel.nearest(torch.ones(16, 16), (4, 4), kernel_size=4)
    with pytest.raises(ValueError, match=r"expected one of 'dense',.*'dense\+toeplitz', 'dense\+KxK'"):
        tiny(spatial="dense+3x5")
    with pytest.raises(ValueError, match=r"spatial='dense\+toeplitz' 1, since all channels share one W"):
        tiny(spatial="dense+toeplitz", groups=2)


# -- in a model ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize("spatial", KINDS[:2])
@pytest.mark.parametrize("unit", UNITS)
def test_a_model_learns_with_it(unit: str, spatial: str) -> None:
    model = tiny(unit=unit, spatial=spatial).train()
    model(images()).square().sum().backward()
    assert all(p.grad.abs().max() > 0 for p in model.parameters())


@pytest.mark.parametrize("spatial", KINDS[:2])
def test_the_fast_form_is_taken_and_equal(spatial: str) -> None:
    model, x = tiny(spatial=spatial).double(), images().double()
    block = model.blocks[0]
    with torch.no_grad():
        fast = model(x)
        assert choose(block, torch.zeros(1, 4, 4, 16)) == block.fast_forward
    for each in model.blocks:
        each.register_forward_hook(lambda *_: None)
    assert choose(block, torch.zeros(1, 4, 4, 16)) == block
    assert fast.std() > 1e-2
    torch.testing.assert_close(fast, model(x), atol=1e-12, rtol=0)


@pytest.mark.parametrize("spatial", KINDS[1:2])
def test_scripted_traced_and_exported(spatial: str) -> None:
    model, x = tiny(spatial=spatial), images()
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", r"`torch\.jit\.", FutureWarning)
        same(torch.jit.script(model)(x), model(x))
    same(torch.fx.symbolic_trace(model)(x), model(x))
    same(torch.export.export(model, (x,)).module()(x), model(x))


def test_any_size_in_each_call() -> None:
    model = tiny(spatial="dense+toeplitz", dynamic_img_size=True)
    at_48 = tiny(spatial="dense+toeplitz")
    at_48.load_state_dict(model.state_dict())
    at_48.set_input_size(48)
    x = images(2, 3, 48, 48)
    same(model(x), at_48(x))
    with torch.no_grad():
        same(model(x), at_48(x))  # cached
    model.blocks[0].mlp_channels.gate.proj.table.data.add_(1)
    with torch.no_grad():
        assert (model(x) - at_48(x)).abs().max() > 1e-3  # and never stale


def test_timm_decays_the_kernel_like_w() -> None:
    model = timm.create_model("gmlp_pico4", depth=1, spatial="dense+toeplitz")
    groups = param_groups_weight_decay(model, weight_decay=0.05)
    decayed = {id(p) for group in groups if group["weight_decay"] for p in group["params"]}
    proj: nn.Module = model.blocks[0].mlp_channels.gate.proj
    assert {n for n, p in proj.named_parameters() if id(p) in decayed} == {"weight", "table"}
