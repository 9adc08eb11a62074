"""`dynamic_img_size=True`: one model, images of varying size; a test for each thing that it promises."""

import copy
import io
import json
import pickle
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
import timm
import torch
from PIL import Image
from timm.data import create_loader
from timm.models import get_model_input_config, save_for_hf
from tiny import TINY, images, perturb, projections, same, tiny
from torch import nn

from gmlp_vision.layers import DynamicSpatialProjection

# the first two have as many tokens as each other, the third as many as the model's own 32 x 32
OTHER_SIZES = [(48, 64), (64, 48), (16, 64), (24, 24), (8, 56)]


def dynamic(**kwargs: object) -> nn.Module:
    return tiny(dynamic_img_size=True, **kwargs)


def fixed_at(size: tuple[int, int], model: nn.Module) -> nn.Module:
    """The fixed model with the same weights, carried to `size` by set_input_size."""
    fixed = tiny()
    fixed.load_state_dict(model.state_dict())
    fixed.set_input_size(size)
    return fixed.train(model.training)


@pytest.fixture
def made(monkeypatch: pytest.MonkeyPatch) -> list[tuple[int, int]]:
    """The grids that operators were made for, in turn."""
    grids: list[tuple[int, int]] = []
    on_grid = DynamicSpatialProjection.on_grid

    def count(self: DynamicSpatialProjection, grid_size: tuple[int, int]) -> tuple[torch.Tensor, ...]:
        grids.append(grid_size)
        return on_grid(self, grid_size)

    monkeypatch.setattr(DynamicSpatialProjection, "on_grid", count)
    return grids


# -- what it computes ----------------------------------------------------------------------------------------


@pytest.mark.parametrize("size", OTHER_SIZES)
def test_it_is_the_fixed_model_carried_to_that_size(size: tuple[int, int]) -> None:
    model, x = dynamic(), images(2, 3, *size)
    fixed = fixed_at(size, model)
    same(model(x), fixed(x))
    same(model.forward_features(x), fixed.forward_features(x))
    inner = [m.forward_intermediates(x, intermediates_only=True) for m in (model, fixed)]
    for ours, theirs in zip(*inner, strict=True):
        assert ours.shape == (2, 16, size[0] // 8, size[1] // 8)
        same(ours, theirs)


def test_keys_and_shapes_are_those_of_the_fixed_form() -> None:
    shapes = [{k: v.shape for k, v in m.state_dict().items()} for m in (dynamic(), tiny())]
    assert shapes[0] == shapes[1]


def test_its_own_size_uses_w_itself(made: list) -> None:
    model = dynamic()
    for projection in projections(model):
        assert projection.operator((4, 4))[0] is projection.weight
        assert projection.operator((4, 4))[1] is projection.bias
    assert torch.equal(model(images()), fixed_at((32, 32), model)(images()))
    assert made == []


def test_gradients_in_training_are_those_of_the_carried_model() -> None:
    model = dynamic().double().train()
    x = images(2, 3, 48, 24).double()
    model(x).square().sum().backward()
    for p in model.parameters():
        assert p.grad.abs().max() > 0
    weight = projections(model)[0].weight
    direction = images(16, 16, seed=3).double()
    with torch.no_grad():
        losses = []
        for step in (1e-5, -2e-5):
            weight.add_(direction, alpha=step)
            losses.append(model(x).square().sum().item())
    slope = (losses[0] - losses[1]) / 2e-5
    assert slope == pytest.approx((weight.grad * direction).sum().item(), rel=1e-5)


def test_sizes_may_alternate_within_one_step() -> None:
    model = dynamic().train()
    a, b = images(2, 3, 48, 64), images(2, 3, 64, 48)
    (model(a).square().sum() + model(b).square().sum()).backward()
    together = [p.grad.clone() for p in model.parameters()]
    model.zero_grad()
    model(a).square().sum().backward()
    model(b).square().sum().backward()
    for p, expected in zip(model.parameters(), together, strict=True):
        assert p.grad.abs().max() > 0
        torch.testing.assert_close(p.grad, expected, atol=1e-4, rtol=1e-4)


def test_recomputation_in_the_backward_pass_meets_the_grid_of_its_own_call() -> None:
    model = dynamic().train()
    batches = [images(2, 3, 48, 64), images(2, 3, 64, 48)]
    grads = []
    for checkpointing in (False, True):
        model.set_grad_checkpointing(checkpointing)
        model.zero_grad()
        sum(model(x).square().sum() for x in batches).backward()  # both forwards come before the backward
        grads.append([p.grad.clone() for p in model.parameters()])
    for plain, recomputed in zip(*grads, strict=True):
        assert plain.abs().max() > 0
        torch.testing.assert_close(recomputed, plain, atol=1e-5, rtol=1e-5)


def test_threads_do_not_mix_their_sizes_up() -> None:
    model = dynamic().requires_grad_(False)
    batches = [images(1, 3, *size) for size in OTHER_SIZES] * 8
    expected = [fixed_at(size, model)(images(1, 3, *size)) for size in OTHER_SIZES] * 8
    with ThreadPoolExecutor(4) as pool:
        for ours, theirs in zip(pool.map(model, batches), expected, strict=True):
            same(ours, theirs)


def test_under_autocast_the_operators_keep_their_precision() -> None:
    model, x = dynamic(), images(2, 3, 48, 24)
    with torch.no_grad():
        expected = model(x)
        model.clear_cache()
        with torch.autocast("cpu", torch.bfloat16):
            rough = model(x).float()
        assert not torch.equal(rough, expected)
        torch.testing.assert_close(rough, expected, atol=0.1, rtol=0.1)
        same(model(x), expected)  # from operators kept under autocast


@pytest.mark.parametrize("size", [(33, 32), (32, 44), (4, 32)])
def test_a_size_that_the_patch_does_not_divide(size: tuple[int, int]) -> None:
    model = dynamic()
    for call in (model, model.forward_features, model.forward_intermediates):
        with pytest.raises(ValueError, match=rf"{size[0]} x {size[1]} .*8 x 8 does not divide"):
            call(images(1, 3, *size))


# -- timm ----------------------------------------------------------------------------------------------------


def test_its_config_says_that_the_size_is_not_fixed(tmp_path: Path) -> None:
    model = dynamic()
    save_for_hf(model, tmp_path)
    assert json.loads((tmp_path / "config.json").read_text())["pretrained_cfg"]["fixed_input_size"] is False
    loaded = timm.create_model(f"local-dir:{tmp_path}", pretrained=True).eval()
    for m in (model, loaded):
        assert m.default_cfg["fixed_input_size"] is False
        assert get_model_input_config(m)["fixed_input_size"] is False
    assert tiny().default_cfg["fixed_input_size"] is True
    same(loaded(images(1, 3, 48, 24)), model(images(1, 3, 48, 24)))


def test_a_folder_of_the_other_kind(tmp_path: Path) -> None:
    for source, other in ((dynamic(), False), (tiny(), True)):
        folder = tmp_path / str(other)
        save_for_hf(source, folder)
        model = timm.create_model(f"local-dir:{folder}", pretrained=True, dynamic_img_size=other).eval()
        assert model.dynamic_img_size is other
        assert model.default_cfg["fixed_input_size"] is not other
        assert get_model_input_config(model)["fixed_input_size"] is not other
        assert get_model_input_config(model)["input_size"] == (3, 32, 32)
        same(model(images()), source(images()))


def test_it_is_made_at_the_size_of_the_cfg() -> None:
    model = timm.create_model("gmlp_pico4", dynamic_img_size=True, depth=1, embed_dim=8)
    assert model.stem.img_size == (32, 32)


def test_features_only_takes_any_size() -> None:
    kwargs = {"dynamic_img_size": True, "features_only": True, "out_indices": (0, 1)}
    model = perturb(timm.create_model("gmlp_ti16", **TINY, **kwargs)).eval()
    for height, width in OTHER_SIZES:
        maps = model(images(1, 3, height, width))
        assert [m.shape for m in maps] == [(1, 16, height // 8, width // 8)] * 2
    assert model.default_cfg["fixed_input_size"] is False


class RedOrBlue(torch.utils.data.Dataset):
    """24 plain pictures of two classes; timm's loader wraps its transforms, one a size, around it."""

    def __len__(self) -> int:
        return 24

    def __getitem__(self, i: int) -> tuple[Image.Image, int]:
        return Image.new("RGB", (40, 40), (200, 0, 0) if i % 2 else (0, 0, 200)), i % 2


def test_timms_scheduled_resolution_loader_trains_it() -> None:
    loader = create_loader(
        RedOrBlue(),
        input_size=(3, 32, 32),
        input_size_choices=[24, 32, 48],
        batch_size=4,
        batch_choice_seed=0,
        is_training=True,
        num_workers=0,
        use_prefetcher=False,
        device=torch.device("cpu"),
    )
    model = dynamic(num_classes=2).train()
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-3)
    sizes, losses = set(), []
    for _ in range(4):
        for x, y in loader:
            sizes.add(tuple(x.shape[-2:]))
            loss = nn.functional.cross_entropy(model(x), y)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            losses.append(loss.item())
    assert sizes == {(24, 24), (32, 32), (48, 48)}
    assert sum(losses[-4:]) < 0.5 * sum(losses[:4])


def test_set_input_size_changes_the_size_its_weights_belong_to() -> None:
    model, x = dynamic(), images(2, 3, 48, 24)
    with torch.no_grad():
        expected = model(x)
        model.set_input_size((48, 24))
        assert projections(model)[0].operator((6, 3))[0] is projections(model)[0].weight
        same(model(x), expected)
        assert not torch.allclose(model(images()), expected)


@pytest.mark.slow
@pytest.mark.parametrize("training", [False, True])
def test_compiles_to_one_graph_a_size(training: bool) -> None:
    torch.compiler.reset()
    model = dynamic().train(training)
    compiled = torch.compile(model, backend="aot_eager", fullgraph=True)
    for size in [(32, 32), (48, 64), (64, 48), (32, 32)]:
        x = images(2, 3, *size)
        same(compiled(x), model(x))
        if training:
            grads = torch.autograd.grad(compiled(x).square().sum(), list(model.parameters()))
            expected = torch.autograd.grad(model(x).square().sum(), list(model.parameters()))
            for ours, theirs in zip(grads, expected, strict=True):
                assert theirs.abs().max() > 0
                torch.testing.assert_close(ours, theirs, atol=1e-5, rtol=1e-4)


@pytest.mark.slow
@pytest.mark.parametrize("size", [(32, 32), (48, 24)])
def test_exports_at_one_size(size: tuple[int, int]) -> None:
    model, x = dynamic(), images(2, 3, *size)
    with torch.no_grad():
        model(x)  # what is kept from here must not end up in the graph as a constant
    program = torch.export.export(model, (x,), dynamic_shapes=({0: torch.export.Dim("batch")},)).module()
    with torch.no_grad():
        for batch in (1, 3):
            same(program(images(batch, 3, *size)), model(images(batch, 3, *size)))
        loaded = dynamic()
        program.load_state_dict(loaded.state_dict())
        same(program(x), loaded(x))


# -- what it keeps between calls -----------------------------------------------------------------------------


def test_in_eval_the_operators_of_a_grid_are_made_once(made: list) -> None:
    model = dynamic()
    with torch.no_grad():
        for _ in range(3):
            for size in OTHER_SIZES:
                model(images(1, 3, *size))
    assert sorted(made) == sorted([(h // 8, w // 8) for h, w in OTHER_SIZES] * 2)  # once in each block


def test_frozen_weights_are_kept_with_gradients_on_too(made: list) -> None:
    model = dynamic().requires_grad_(False)
    for _ in range(3):
        x = images(1, 3, 48, 24).requires_grad_()
        model(x).square().sum().backward()
        assert x.grad.abs().max() > 0
    assert made == [(6, 3)] * 2


def test_in_eval_gradients_to_w_are_not_cut_off_by_what_was_kept() -> None:
    model, x = dynamic(), images(2, 3, 48, 24)
    with torch.no_grad():
        model(x)
    for _ in range(2):
        model.zero_grad()
        model(x).square().sum().backward()
        assert all(p.grad.abs().max() > 0 for p in model.parameters())


def test_eval_with_gradients_after_inference_mode() -> None:
    model = dynamic().requires_grad_(False)
    x = images(2, 3, 48, 24)
    with torch.inference_mode():
        expected = model(x)
    x.requires_grad_()
    logits = model(x)
    same(logits, expected.clone())
    logits.square().sum().backward()
    assert x.grad.abs().max() > 0


def test_what_is_kept_is_not_in_the_state_dict() -> None:
    model = dynamic()
    keys = list(model.state_dict())
    with torch.no_grad():
        model(images(1, 3, 48, 24))
    assert projections(model)[0].kept.operators
    assert list(model.state_dict()) == keys
    assert len(list(model.buffers())) == 0


@pytest.mark.parametrize("how", ["deepcopy", "pickle", "torch.save"])
def test_copies_compute_the_same_and_go_their_own_way(how: str) -> None:
    model, x = dynamic(), images(2, 3, 48, 24)
    with torch.no_grad():
        expected = model(x)
        if how == "deepcopy":
            twin = copy.deepcopy(model)
        elif how == "pickle":
            twin = pickle.loads(pickle.dumps(model))
        else:
            buffer = io.BytesIO()
            torch.save(model, buffer)
            buffer.seek(0)
            twin = torch.load(buffer, weights_only=False)
        assert not projections(twin)[0].kept.operators  # nothing is copied or written that can be made again
        same(twin(x), expected)
        perturb(twin, seed=5)
        assert not torch.allclose(twin(x), expected, atol=1e-3)
        same(model(x), expected)


@pytest.mark.parametrize("how", ["deepcopy", "pickle"])
def test_a_compiled_projection_is_copied_without_its_compiled_call(how: str) -> None:
    """nn.Module leaves it out, since it can be neither copied nor written."""
    projection = projections(dynamic())[0]
    projection.compile(backend="eager")
    twin = copy.deepcopy(projection) if how == "deepcopy" else pickle.loads(pickle.dumps(projection))
    x = images(2, 4, 6, 16)
    same(twin(x), projection(x))


def test_it_follows_to() -> None:
    model, x = dynamic(), images(2, 3, 48, 24)
    with torch.no_grad():
        expected = model(x)
        wide = model.to(torch.float64)(x.double())
        assert projections(model)[0].kept.operators[(6, 3)][0].dtype == torch.float64
        same(wide.float(), expected)
        same(model.to(torch.float32)(x), expected)
        model.to(torch.bfloat16)
        assert model(x.bfloat16()).dtype == torch.bfloat16


def edit_in_place(model: nn.Module) -> None:
    with torch.no_grad():
        for p in projections(model):
            p.weight.add_(0.1 * images(16, 16, seed=2))


def edit_bias_alone(model: nn.Module) -> None:
    with torch.no_grad():
        projections(model)[1].bias.mul_(1.5)


def optimizer_step(model: nn.Module) -> None:
    # in eval mode, so that train() has no part in it; a fused step does not change a tensor's version
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.1, fused=True)
    model(images(2, 3, 48, 24)).square().sum().backward()
    optimizer.step()


def optimizer_step_at_its_own_size(model: nn.Module) -> None:
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.1, fused=True)
    model(images()).square().sum().backward()
    optimizer.step()


def load(model: nn.Module) -> None:
    model.load_state_dict(perturb(tiny(), seed=7).state_dict())


def load_by_assignment(model: nn.Module) -> None:
    model.load_state_dict(perturb(tiny(), seed=7).state_dict(), assign=True)


def new_storage(model: nn.Module) -> None:
    for p in projections(model):
        p.weight.data = p.weight.data + 0.1 * images(16, 16, seed=2)


def new_parameter(model: nn.Module) -> None:
    for p in projections(model):
        replacement = p.weight.detach() + 0.1 * images(16, 16, seed=2)
        del p.weight  # its memory would be free for the next tensor, were it not held
        p.weight = nn.Parameter(replacement.clone())


def train_with_data_edits(model: nn.Module) -> None:
    model.train()
    for p in projections(model):
        p.weight.data.add_(0.1 * images(16, 16, seed=2))
    model.eval()


def data_edit_then_clear(model: nn.Module) -> None:
    for p in projections(model):
        p.weight.data.add_(0.1 * images(16, 16, seed=2))
    model.clear_cache()


@pytest.mark.parametrize(
    "change",
    [
        edit_in_place, edit_bias_alone, optimizer_step, optimizer_step_at_its_own_size, load,
        load_by_assignment, new_storage, new_parameter, train_with_data_edits, data_edit_then_clear,
    ],
)  # fmt: skip
def test_a_change_of_w_or_b_is_noticed(change: Callable[[nn.Module], None]) -> None:
    model, x = dynamic(), images(2, 3, 48, 24)
    with torch.no_grad():
        before = model(x)
    change(model)
    with torch.no_grad():
        after = model(x)
        assert not torch.allclose(after, before, atol=1e-3)
        same(after, fixed_at((48, 24), model)(x))


def test_weights_given_for_one_call_are_used_in_that_call_alone() -> None:
    model, x = dynamic(), images(2, 3, 48, 24)
    other = perturb(tiny(), seed=7).state_dict()
    with torch.no_grad():
        before = model(x)
        during = torch.func.functional_call(model, other, (x,))
        assert not torch.allclose(during, before, atol=1e-3)
        same(model(x), before)


def test_an_ensemble_under_vmap() -> None:
    models, x = [dynamic(), dynamic()], images(2, 3, 48, 24)
    with torch.no_grad():
        expected = torch.stack([model(x) for model in models])
        state = torch.func.stack_module_state(models)[0]
        for _ in range(2):
            logits = torch.vmap(lambda p: torch.func.functional_call(models[0], p, (x,)))(state)
            same(logits, expected)


def test_a_model_made_under_inference_mode() -> None:
    with torch.inference_mode():
        model, x = dynamic(), images(2, 3, 48, 24)
        before = model(x)
        perturb(model, seed=5)  # such weights have no version to tell it by
        same(model(x), fixed_at((48, 24), model)(x))
        assert not torch.allclose(model(x), before, atol=1e-3)


def test_only_the_last_grids_are_kept() -> None:
    projection = DynamicSpatialProjection((2, 2)).eval()
    with torch.no_grad():
        for width in range(1, 40):
            projection(torch.zeros(1, 3, width, 1))
    assert list(projection.kept.operators) == [(3, width) for width in range(24, 40)]
