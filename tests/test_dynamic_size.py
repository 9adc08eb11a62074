"""`dynamic_img_size=True`: one model, images of varying size; a test for each thing that it promises."""

import json
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


def test_its_own_size_uses_w_itself() -> None:
    model = dynamic()
    assert torch.equal(model(images()), fixed_at((32, 32), model)(images()))


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
        with pytest.raises(ValueError, match=rf"{size[0]} x {size[1]} .*multiples of 8 x 8"):
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
        assert projections(model)[0].parameters_on((6, 3))[0] is projections(model)[0].weight
        same(model(x), expected)
        assert not torch.allclose(model(images()), expected)


@pytest.mark.slow
@pytest.mark.parametrize("training", [False, True])
def test_compiles_to_one_graph_a_size(training: bool) -> None:
    torch.compiler.reset()
    model = dynamic(depth=1).train(training)
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


@pytest.mark.parametrize("spatial", ["dense", "axial", "circulant", "toeplitz"])
def test_compiles_where_all_sizes_are_taken_for_unknowns(spatial: str) -> None:
    torch.compiler.reset()
    model = dynamic(depth=1, spatial=spatial)
    compiled = torch.compile(model, backend="aot_eager", dynamic=True)
    with torch.no_grad():
        for size in [(32, 32), (48, 64), (64, 48)]:
            same(compiled(images(2, 3, *size)), model(images(2, 3, *size)))


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


# -- what is cached between calls (test_grid_tied.py has the rest)
# ---------------------------------------------


def test_a_step_of_a_fused_optimizer_in_eval_mode_is_seen() -> None:
    """Such a step leaves no trace in a tensor's version, and here a call at another size comes before it."""
    model, x = dynamic(), images(2, 3, 48, 24)
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.1, fused=True)
    model(x).square().sum().backward()
    with torch.no_grad():
        before = model(x)
    optimizer.step()
    with torch.no_grad():
        after = model(x)
        same(after, fixed_at((48, 24), model)(x))
    assert (after - before).abs().max() > 1e-2


@pytest.mark.filterwarnings("ignore:`torch.jit.script:FutureWarning")  # of torch, loading jvp
def test_transforms_of_a_frozen_model_at_another_size() -> None:
    """Twice each, with plain calls between: nothing that a transform makes is cached."""
    model, x = dynamic().requires_grad_(False).double(), images(2, 3, 48, 24).double()
    fixed = fixed_at((48, 24), tiny_like(model)).double().requires_grad_(False)

    def results(m: nn.Module) -> list[torch.Tensor]:
        def loss(t: torch.Tensor) -> torch.Tensor:
            return m(t).square().sum()

        return [
            torch.func.grad(loss)(x),
            m(x),
            torch.func.jvp(m, (x,), (x.cos(),))[1],
            torch.func.vmap(torch.func.grad(loss))(torch.stack([x, x.sin()])),
            torch.func.jacrev(m)(x)[:, :, 0, 0, 0],
            torch.func.jvp(torch.func.grad(loss), (x,), (x.sin(),))[1],
            m(x),
        ]

    expected = results(fixed)
    for _ in range(2):
        for found, right in zip(results(model), expected, strict=True):
            assert right.std() > 1e-3
            torch.testing.assert_close(found, right)


def tiny_like(model: nn.Module) -> nn.Module:
    fixed = tiny()
    fixed.load_state_dict(model.state_dict())
    return fixed


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
