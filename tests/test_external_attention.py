"""External attention: its two normalisations, its memories, refusals. tests/test_zoo.py has the rest."""

from pathlib import Path

import pytest
import timm
import torch
from tiny import images, perturb, same
from zoo import tiny_kwargs

from gmlp_vision.checkpoints import build
from gmlp_vision.filters import extract
from gmlp_vision.models.external_attention import ExternalAttention, ExternalAttentionMlp, normalise_twice


def make() -> ExternalAttention:
    """A perturbed mixer of width 8: four heads of 8 channels, five slots."""
    return perturb(ExternalAttention(8, (3, 4), heads=4, slots=5)).double()


def tokens(*size: int) -> torch.Tensor:
    return images(*(size or (2, 3, 4, 8))).double()


# -- the normalisations -------------------------------------------------------------------------------------


def test_tokens_come_first_and_slots_then() -> None:
    scores = torch.tensor([[1.0, 2.0], [3.0, 6.0], [1.0, 2.0]]).log()
    # over tokens the columns are 1/5, 3/5, 1/5 both; so each token's two slots get one half
    torch.testing.assert_close(normalise_twice(scores), torch.full((3, 2), 0.5))
    uneven = torch.tensor([[1.0, 2.0], [3.0, 2.0]]).log()
    # 1/4, 3/4 and 1/2, 1/2; the other order, or softmax over slots alone, gives 1/3 and 2/3 for the first
    expected = torch.tensor([[1 / 3, 2 / 3], [3 / 5, 2 / 5]])
    torch.testing.assert_close(normalise_twice(uneven), expected)
    shifted = normalise_twice(uneven + torch.tensor([7.0, -3.0]))  # what is equal for all tokens cancels
    torch.testing.assert_close(shifted, expected)
    assert (normalise_twice(uneven + torch.tensor([[1.0], [-1.0]])) - expected).abs().max() > 0.01


@torch.no_grad()
def test_tokens_may_stand_in_any_order() -> None:
    mixer, x = make(), tokens()
    order = torch.randperm(12, generator=torch.Generator().manual_seed(0))
    y = mixer(x).flatten(1, 2)
    assert y.std(1).min() > 1e-4  # else any order would do
    moved = mixer(x.flatten(1, 2)[:, order].view(2, 3, 4, 8)).flatten(1, 2)
    torch.testing.assert_close(moved, y[:, order], atol=1e-12, rtol=1e-10)


@torch.no_grad()
def test_a_token_hears_the_others_of_its_image_only() -> None:
    mixer, x = make(), tokens()
    other = x.clone()
    other[0, 2, 3] += 1
    moved = (mixer(x) - mixer(other)).abs().sum(-1)
    assert moved[0].min() > 1e-8
    assert not moved[1].any()


@torch.no_grad()
def test_the_memories_are_one_pair_for_all_heads() -> None:
    mixer, x = make(), tokens()
    assert mixer.m_k.weight.shape == (5, 8)
    assert mixer.m_v.weight.shape == (8, 5)
    mixer.q.weight.copy_(mixer.q.weight[:8].repeat(4, 1))
    mixer.q.bias.copy_(mixer.q.bias[:8].repeat(4))
    y = mixer.proj.weight.new_zeros(8, 32)
    y[:, :8] = torch.eye(8)
    first = y.clone()
    last = y.roll(24, 1)
    mixer.proj.weight.copy_(first)
    a = mixer(x)
    mixer.proj.weight.copy_(last)
    assert a.std() > 0.01
    torch.testing.assert_close(mixer(x), a, atol=1e-12, rtol=1e-10)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_scores_of_hundreds_give_numbers(dtype: torch.dtype) -> None:
    mixer = make()
    with torch.no_grad():
        mixer.m_k.weight.mul_(1000)
    mixer, x = mixer.to(dtype), tokens().to(dtype)
    assert mixer.m_k(mixer.q(x).unflatten(-1, [4, 8])).abs().max() > 200
    y = mixer(x)
    y.float().square().sum().backward()
    assert y.isfinite().all()
    assert y.float().std() > 1e-3
    assert all(p.grad.isfinite().all() for p in mixer.parameters())


def test_bf16_autocast_stays_near_float32() -> None:
    mixer, x = make().float(), tokens().float()
    expected = mixer(x)
    with torch.autocast("cpu", torch.bfloat16):
        y = mixer(x)
    assert y.dtype == torch.bfloat16
    assert (y.float() - expected).norm() < 0.03 * expected.norm()


# -- sizes --------------------------------------------------------------------------------------------------


def test_any_size_without_the_position_table() -> None:
    model = timm.create_model("ea_s16", **tiny_kwargs("ea_s16"), pos_embed=False)
    assert model.fixed_input_size is False
    perturb(model)
    assert model(images(1, 3, 16, 40)).std() > 1e-3


def test_as_many_heads_and_slots_as_the_released_block_at_this_width() -> None:
    mixer = timm.create_model("ea_s16", depth=1, device="meta").blocks[0].mixer
    shapes = {name: tuple(p.shape) for name, p in mixer.named_parameters() if name.endswith("weight")}
    assert shapes == {
        "q.weight": (1536, 384),
        "m_k.weight": (64, 64),
        "m_v.weight": (64, 64),
        "proj.weight": (384, 1536),
    }


def test_a_file_of_a_size_of_its_own_is_known_by_its_tensors(tmp_path: Path) -> None:
    kwargs = {**tiny_kwargs("ea_s16"), "depth": 3, "widening": 2}
    model = perturb(timm.create_model("ea_s16", **kwargs)).eval()
    torch.save(model.state_dict(), tmp_path / "tiny.pth")
    built = build(tmp_path / "tiny.pth")
    assert isinstance(built.model, ExternalAttentionMlp)
    same(built.model.eval()(images()), model(images()))


# -- what it says and refuses -------------------------------------------------------------------------------


def test_it_says_why_it_shows_nothing() -> None:
    with pytest.raises(ValueError, match="goes through memories"):
        extract(timm.create_model("ea_s16", **tiny_kwargs("ea_s16")))


@pytest.mark.parametrize(
    ("kwargs", "error"),
    [
        ({"heads": 7}, r"heads is 7; expected a divisor of embed_dim \* widening, which is 64"),
        ({"heads": 0}, "heads is 0; expected a divisor"),
        ({"slots": 0}, "slots is 0; expected at least 1"),
        ({"widening": 0}, "widening is 0; expected at least 1"),
    ],
)
def test_wrong_values_are_refused(kwargs: dict[str, int], error: str) -> None:
    with pytest.raises(ValueError, match=error):
        timm.create_model("ea_s16", **{**tiny_kwargs("ea_s16"), **kwargs})
