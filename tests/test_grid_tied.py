"""What belongs to a grid: carried per call, cached in eval mode and never stale; and carried for good."""

import copy
import io
import multiprocessing
import pickle
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor

import pytest
import torch
from torch import nn

from gmlp_vision.layers import GridTied, PositionTable, SpatialProjection
from gmlp_vision.layers.grid_tied import carry, tied_layers
from gmlp_vision.layers.resample import resample_map, resample_operator
from gmlp_vision.layers.rules import OPERATOR, TOKEN_MAP, fixed

OWN, OTHER = (2, 3), (3, 4)


def layer(dynamic: bool = True) -> SpatialProjection:
    tied = SpatialProjection(OWN)
    with torch.no_grad():
        for p in tied.parameters():
            p.normal_()
    tied.dynamic = dynamic
    return tied.eval()


def x(grid: tuple[int, int] = OTHER, batch: int = 2) -> torch.Tensor:
    return torch.randn(batch, *grid, 5, generator=torch.Generator().manual_seed(1))


def carried(tied: SpatialProjection, tokens: torch.Tensor) -> torch.Tensor:
    """The layer's output by a layer that is tied to the grid of the tokens."""
    grid = tuple(tokens.shape[1:3])
    other = SpatialProjection(grid).to(tied.weight.dtype)
    with torch.inference_mode(False), torch.no_grad():
        other.weight.copy_(resample_operator(tied.weight, OWN, grid))
        other.bias.copy_(resample_map(tied.bias, OWN, grid))
        return other(tokens)


@pytest.fixture
def made(monkeypatch: pytest.MonkeyPatch) -> list[tuple[int, int]]:
    """The grids that parameters were carried to, in turn."""
    grids: list[tuple[int, int]] = []
    on_grid = GridTied.on_grid

    def count(self: GridTied, grid_size: tuple[int, int]) -> tuple[torch.Tensor, ...]:
        grids.append(grid_size)
        return on_grid(self, grid_size)

    monkeypatch.setattr(GridTied, "on_grid", count)
    return grids


# -- what is cached ------------------------------------------------------------------------------------------


def test_on_its_own_grid_the_parameters_themselves(made: list) -> None:
    tied = layer()
    assert tied.parameters_on(OWN) == (tied.weight, tied.bias)
    torch.testing.assert_close(tied(x(OWN)), layer_like(tied)(x(OWN)))
    assert made == []


def layer_like(tied: SpatialProjection) -> SpatialProjection:
    other = layer(dynamic=False)
    other.load_state_dict(tied.state_dict())
    return other


def test_in_eval_mode_a_grid_is_made_once(made: list) -> None:
    tied = layer()
    with torch.no_grad():
        for _ in range(3):
            for grid in (OTHER, (4, 3), OWN, (1, 6)):
                torch.testing.assert_close(tied(x(grid)), carried(tied, x(grid)))
    assert made == [OTHER, (4, 3), (1, 6)]


def test_frozen_parameters_are_cached_with_gradients_on_too(made: list) -> None:
    tied = layer().requires_grad_(False)
    for _ in range(3):
        tokens = x().requires_grad_()
        tied(tokens).square().sum().backward()
        assert tokens.grad.abs().max() > 0
    assert made == [OTHER]


@pytest.mark.parametrize("training", [False, True])
def test_gradients_to_the_parameters_flow_through_what_is_carried(training: bool, made: list) -> None:
    tied = layer()
    with torch.no_grad():
        tied(x())
    tied.train(training)
    for _ in range(2):
        tied.zero_grad()
        tied(x()).square().sum().backward()
        assert tied.weight.grad.abs().max() > 0
        assert tied.bias.grad.abs().max() > 0
    assert made == [OTHER] * 3


def test_only_the_last_grids_are_kept(made: list) -> None:
    tied = layer()
    with torch.no_grad():
        for width in range(1, 40):
            tied(torch.zeros(1, 5, width, 1))
    assert list(tied.cache.carried) == [(5, width) for width in range(24, 40)]


def test_training_mode_frees_it() -> None:
    tied = layer()
    with torch.no_grad():
        tied(x())
    assert tied.cache.carried
    assert not tied.train().cache.carried
    with torch.no_grad():
        tied.eval()(x())
    tied.clear_cache()
    assert not tied.cache.carried


def test_it_is_not_in_the_state_dict() -> None:
    tied = layer()
    with torch.no_grad():
        tied(x())
    assert list(tied.state_dict()) == ["weight", "bias"]
    assert not list(tied.buffers())


@pytest.mark.parametrize("how", ["deepcopy", "pickle", "torch.save"])
@pytest.mark.parametrize("compiled", [False, True])
def test_copies_take_nothing_along_and_go_their_own_way(how: str, compiled: bool) -> None:
    tied = layer()
    with torch.no_grad():
        expected = tied(x())
        if compiled:  # nn.Module leaves the compiled call out, since it can be neither copied nor written
            tied.compile(backend="eager")
        if how == "deepcopy":
            twin = copy.deepcopy(tied)
        elif how == "pickle":
            twin = pickle.loads(pickle.dumps(tied))
        else:
            buffer = io.BytesIO()
            torch.save(tied, buffer)
            buffer.seek(0)
            twin = torch.load(buffer, weights_only=False)
        assert not twin.cache.carried
        torch.testing.assert_close(twin(x()), expected)
        twin.weight.add_(1)
        assert not torch.allclose(twin(x()), expected)
        torch.testing.assert_close(tied(x()), expected)


def test_threads_do_not_mix_their_grids_up() -> None:
    tied = layer().requires_grad_(False)
    batches = [x(grid) for grid in (OTHER, (4, 3), (2, 6), (6, 2))] * 16
    expected = [carried(tied, tokens) for tokens in batches]
    with ThreadPoolExecutor(4) as pool:
        for found, right in zip(pool.map(tied, batches), expected, strict=True):
            torch.testing.assert_close(found, right)


# -- never stale ---------------------------------------------------------------------------------------------


def edit(tied: SpatialProjection) -> None:
    with torch.no_grad():
        tied.weight.add_(1)


def edit_one_number_of_the_bias(tied: SpatialProjection) -> None:
    with torch.no_grad():
        tied.bias[3] += 1


def edit_by_data(tied: SpatialProjection) -> None:
    tied.weight.data[0, 0] += 1


def edit_by_numpy(tied: SpatialProjection) -> None:
    tied.weight.detach().numpy()[1, 2] += 1


def edit_unversioned(tied: SpatialProjection) -> None:
    with torch.no_grad(), torch.autograd._unsafe_preserve_version_counter(tied.weight):
        tied.weight.mul_(2)


def fused_step(tied: SpatialProjection) -> None:
    optimizer = torch.optim.AdamW(tied.parameters(), lr=0.1, fused=True)
    tied(x()).square().sum().backward()
    with torch.no_grad():
        tied(x())
    optimizer.step()


def load(tied: SpatialProjection) -> None:
    tied.load_state_dict(layer().state_dict())


def load_by_assignment(tied: SpatialProjection) -> None:
    tied.load_state_dict(layer().state_dict(), assign=True)


def new_storage(tied: SpatialProjection) -> None:
    tied.weight.data = tied.weight.data + 1


def new_parameter(tied: SpatialProjection) -> None:
    values = tied.weight.detach() + 1
    del tied.weight  # its memory is free for the next tensor
    tied.weight = nn.Parameter(values)


def swapped(tied: SpatialProjection) -> None:
    torch.utils.swap_tensors(tied.weight, nn.Parameter(tied.weight.detach() + 1))


def other_dtype(tied: SpatialProjection) -> None:
    tied.double().float().weight.data.mul_(2)


def in_another_process(tied: SpatialProjection) -> None:
    tied.share_memory()
    process = multiprocessing.get_context("fork").Process(target=edit_by_numpy, args=(tied,))
    process.start()
    process.join()
    assert process.exitcode == 0


@pytest.mark.parametrize(
    "change",
    [
        edit, edit_one_number_of_the_bias, edit_by_data, edit_by_numpy, edit_unversioned, fused_step, load,
        load_by_assignment, new_storage, new_parameter, swapped, other_dtype, in_another_process,
    ],
)  # fmt: skip
@pytest.mark.filterwarnings("ignore:.*multi-threaded, use of fork:DeprecationWarning")
def test_no_change_of_a_parameter_is_missed(change: Callable[[SpatialProjection], None]) -> None:
    tied = layer()
    with torch.no_grad():
        before = tied(x())
    change(tied)
    with torch.no_grad():
        after = tied(x())
    torch.testing.assert_close(after, carried(tied, x()))
    assert (after - before).abs().max() > 1e-3


def test_it_follows_to() -> None:
    tied = layer()
    with torch.no_grad():
        expected = tied(x())
        torch.testing.assert_close(tied.double()(x().double()).float(), expected)
        assert tied.cache.carried[OTHER][0].dtype == torch.float64
        torch.testing.assert_close(tied.float()(x()), expected)
        assert tied.bfloat16()(x().bfloat16()).dtype == torch.bfloat16


def test_eval_with_gradients_after_inference_mode() -> None:
    tied, tokens = layer().requires_grad_(False), x()
    with torch.inference_mode():
        expected = tied(tokens).clone()
    found = tied(tokens.requires_grad_())
    torch.testing.assert_close(found, expected)
    found.square().sum().backward()
    assert tokens.grad.abs().max() > 0


# -- carried for good ----------------------------------------------------------------------------------------


class Two(nn.Module):
    """Layers of two grids."""

    def __init__(self) -> None:
        super().__init__()
        self.position = PositionTable((4, 6), 3)
        self.projection = layer()
        self.free = nn.Linear(3, 3)


def test_each_layer_goes_to_its_own_grid() -> None:
    model = Two()
    assert list(tied_layers(model)) == ["position", "projection"]
    old = model.position.weight.detach().clone(), model.projection.weight.detach().clone()
    for tied, grid, parameters in carry(model, {"position": (8, 6), "projection": OTHER}):
        tied.replace_grid(grid, parameters)
    assert (model.position.grid_size, model.projection.grid_size) == ((8, 6), OTHER)
    assert torch.equal(model.position.weight, resample_map(old[0], (4, 6), (8, 6)))
    assert torch.equal(model.projection.weight, resample_operator(old[1], OWN, OTHER))
    assert model.position(torch.zeros(1, 8, 6, 3)).std() > 0
    assert carry(model, {"position": (8, 6), "projection": OTHER}) == []


def test_under_inference_mode_the_new_parameters_can_be_trained() -> None:
    model = Two()
    with torch.inference_mode():
        moved = carry(model, {"position": (8, 6), "projection": OTHER})
    for tied, grid, parameters in moved:
        tied.replace_grid(grid, parameters)
    model.projection(x()).square().sum().backward()
    assert model.projection.weight.grad.abs().max() > 0


class Unmovable(GridTied):
    RULES = {  # noqa: RUF012  a ClassVar in the base
        "weight": OPERATOR,
        "mask": fixed("the mask has no meaning elsewhere", lambda grid: grid),
    }

    def __init__(self) -> None:
        super().__init__(OWN)
        self.weight = nn.Parameter(torch.randn(6, 6))
        self.mask = nn.Parameter(torch.randn(2, 3))


def test_a_rule_may_refuse() -> None:
    model = nn.Sequential(layer(), Unmovable())
    before = {name: p.detach().clone() for name, p in model.named_parameters()}
    with pytest.raises(ValueError, match="no meaning elsewhere"):
        carry(model, {"0": OTHER, "1": OTHER})
    assert all(torch.equal(p, before[name]) for name, p in model.named_parameters())
    assert [len(c) for c in carry(model, {"0": OTHER, "1": OWN})] == [3]


def test_a_rule_tells_whether_a_tensor_is_one_of_a_grid() -> None:
    assert OPERATOR.fits(torch.zeros(6, 6), OWN)
    assert not OPERATOR.fits(torch.zeros(6, 7), OWN)
    assert not OPERATOR.fits(torch.zeros(6), OWN)
    assert TOKEN_MAP.fits(torch.zeros(6), OWN)
    assert TOKEN_MAP.fits(torch.zeros(6, 128), OWN)
    assert not TOKEN_MAP.fits(torch.zeros(5, 128), OWN)


@pytest.mark.parametrize("grid", [(4, 6), (2, 3), (5, 4), (1, 9)])
def test_a_constant_position_table_stays_constant(grid: tuple[int, int]) -> None:
    values = torch.tensor([1.0, -2.0, 3.0]).expand(6, 3)
    torch.testing.assert_close(resample_map(values, OWN, grid), values[:1].expand(grid[0] * grid[1], 3))
