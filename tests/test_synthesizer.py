"""Synthesizer: its forms against one another, where numbers end, refusals. tests/test_zoo.py has the rest."""

from pathlib import Path

import pytest
import timm
import torch
from tiny import images, perturb, same
from zoo import tiny_kwargs

from gmlp_vision.checkpoints import build
from gmlp_vision.filters import extract
from gmlp_vision.layers.ask import operators
from gmlp_vision.models.synthesizer import SCORES, Synthesizer, SyntheticAttention, resample_pairs

NAMES = {form: f"synthesizer_{form}_s16" for form in SCORES}
every_form = pytest.mark.parametrize("form", SCORES)


def make(form: str, grid_size: tuple[int, int] = (3, 4)) -> SyntheticAttention:
    """A perturbed mixer of width 8 and two heads, in float64."""
    own = {"rank": 3} if form == "factorized" else {}
    return perturb(SyntheticAttention(8, grid_size, scores=SCORES[form], heads=2, **own)).double()


def tokens(*size: int, seed: int = 1) -> torch.Tensor:
    return images(*(size or (2, 3, 4, 8)), seed=seed).double()


def close(a: torch.Tensor, b: torch.Tensor) -> None:
    assert b.std() > 1e-3
    torch.testing.assert_close(a, b, atol=1e-12, rtol=1e-10)


# -- the three against one another --------------------------------------------------------------------------


@torch.no_grad()
def test_factorized_is_random_with_the_product() -> None:
    factorized, random = make("factorized"), make("random")
    shared = {k: v for k, v in factorized.state_dict().items() if not k.startswith("scores.")}
    a, b = factorized.scores.r1, factorized.scores.r2
    random.load_state_dict({**shared, "scores.weight": torch.einsum("thk,shk->tsh", a, b)})
    assert (random.scores.weight[..., 0] - random.scores.weight[..., 1]).std() > 0.1  # the heads differ
    close(random(tokens()), factorized(tokens()))


@torch.no_grad()
def test_dense_without_what_depends_on_the_token_is_random_with_equal_rows() -> None:
    dense, random = make("dense"), make("random")
    dense.scores.out_weight.zero_()
    shared = {k: v for k, v in dense.state_dict().items() if not k.startswith("scores.")}
    rows = dense.scores.out_bias.expand(12, 12, 2)
    random.load_state_dict({**shared, "scores.weight": rows})
    close(random(tokens()), dense(tokens()))


@torch.no_grad()
def test_in_dense_a_head_computes_its_map_from_its_own_channels_of_the_token_alone() -> None:
    dense, x = make("dense"), tokens(1, 3, 4, 2, 4)
    other = x.clone()
    other[0, 1, 2, 1] += 1  # token 6, head 1
    moved = (dense.scores(x) - dense.scores(other)).abs().sum(-1)[0] > 1e-6
    assert moved.nonzero().tolist() == [[1, 6]]


@every_form
@torch.no_grad()
def test_what_is_taken_is_a_mean(form: str) -> None:
    mixer = make(form)
    mixer.v.weight.zero_()
    x = tokens()
    expected = mixer.proj(mixer.v.bias).expand(2, 3, 4, 8)
    close(mixer(x), expected)


@pytest.mark.parametrize("form", ["random", "factorized"])
@torch.no_grad()
def test_the_operators_are_what_mixes(form: str) -> None:
    mixer = make(form)
    found = operators(mixer.scores, (3, 4))
    assert [(o.part, o.kind, o.note) for o in found] == [
        ("head0", "token", "softmax(R)"),
        ("head1", "token", "softmax(R)"),
    ]
    x = tokens()
    v = mixer.v(x).flatten(1, 2)
    y = torch.cat([found[0].weight @ v[..., :4], found[1].weight @ v[..., 4:]], -1)
    close(mixer(x), mixer.proj(y).view_as(x))
    close(found[0].weight.sum(1) * torch.arange(12), torch.arange(12.0).double())


# -- how it starts, where numbers end -----------------------------------------------------------------------


@pytest.mark.parametrize("form", ["random", "factorized"])
def test_r_starts_with_std_1(form: str) -> None:
    own = {"rank": 8} if form == "factorized" else {}
    mixer = SyntheticAttention(24, (14, 14), scores=SCORES[form], heads=6, **own)
    r = mixer.scores(torch.zeros(1, 14, 14, 6, 4))
    assert r.std().item() == pytest.approx(1, rel=0.05)
    found = operators(mixer.scores, (14, 14))
    spread = torch.stack([o.weight for o in found]).std().item()
    assert spread == pytest.approx(found[0].init_std, rel=0.05 if form == "random" else 0.2)


def test_each_head_of_dense_starts_as_linear_layers_do() -> None:
    scores = SyntheticAttention(128, (8, 8), scores=SCORES["dense"], heads=2).scores
    for head in range(2):
        # Glorot and Bengio 2010, equation 16
        assert scores.in_weight[head].std().item() == pytest.approx((2 / 128) ** 0.5, rel=0.05)
        assert scores.out_weight[:, head].std().item() == pytest.approx((2 / 128) ** 0.5, rel=0.05)
    assert not scores.in_bias.any()
    assert not scores.out_bias.any()


@every_form
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_an_r_of_hundreds_gives_numbers(form: str, dtype: torch.dtype) -> None:
    mixer = make(form)
    with torch.no_grad():
        for p in mixer.scores.parameters():
            p.mul_(300)
    mixer, x = mixer.to(dtype), tokens().to(dtype)
    assert mixer.scores(x.unflatten(-1, [2, 4])).abs().max() > 200
    y = mixer(x)
    y.float().square().sum().backward()
    assert y.isfinite().all()
    assert y.std() > 1e-3
    assert all(p.grad.isfinite().all() for p in mixer.parameters())


@every_form
def test_bf16_autocast_stays_near_float32(form: str) -> None:
    mixer, x = make(form).float(), tokens().float()
    expected = mixer(x)
    with torch.autocast("cpu", torch.bfloat16):
        y = mixer(x)
    assert y.dtype == torch.bfloat16
    assert (y.float() - expected).norm() < 0.03 * expected.norm()


# -- another grid -------------------------------------------------------------------------------------------


def test_an_r_that_is_the_same_for_all_tokens_stays_so() -> None:
    row = torch.linspace(-1, 1, 12).double()
    r = row.expand(12, 12).unsqueeze(-1)
    new = resample_pairs(r, (3, 4), (5, 6))
    assert new.shape == (30, 30, 1)
    assert new.is_contiguous()
    assert new.std() > 0.1
    close(new, new[:1].expand(30, 30, 1))
    torch.testing.assert_close(resample_pairs(torch.ones_like(r), (3, 4), (5, 6)), torch.ones_like(new))
    with pytest.raises(ValueError, match=r"\(12, 12, 1\)"):
        resample_pairs(r, (3, 5), (5, 6))


@every_form
def test_a_file_of_a_size_of_its_own_is_known_by_its_tensors(form: str, tmp_path: Path) -> None:
    kwargs = {**tiny_kwargs(NAMES[form]), "depth": 3}
    model = perturb(timm.create_model(NAMES[form], **kwargs)).eval()
    torch.save(model.state_dict(), tmp_path / "tiny.pth")
    built = build(tmp_path / "tiny.pth")
    assert isinstance(built.model, Synthesizer)
    same(built.model.eval()(images()), model(images()))


# -- what it says and refuses -------------------------------------------------------------------------------


def test_dense_says_why_it_shows_nothing() -> None:
    with pytest.raises(ValueError, match="each token computes its row"):
        extract(timm.create_model(NAMES["dense"], **tiny_kwargs(NAMES["dense"])))


def test_random_shows_a_map_a_head() -> None:
    bank = extract(timm.create_model(NAMES["random"], **tiny_kwargs(NAMES["random"])))
    assert [layer.name for layer in bank][:2] == [
        "blocks.0.mixer.scores.head0",
        "blocks.0.mixer.scores.head1",
    ]
    assert len(bank.layers) == 2 * 4


@every_form
def test_any_form_by_its_name(form: str) -> None:
    model = Synthesizer(**{**tiny_kwargs(NAMES[form]), "scores": form})
    assert {type(block.mixer.scores) for block in model.blocks} == {SCORES[form]}


def test_an_unknown_form_is_refused_with_those_there_are() -> None:
    with pytest.raises(ValueError, match="'mixture'; expected one of 'random', 'factorized', 'dense'"):
        timm.create_model(NAMES["random"], scores="mixture")


@pytest.mark.parametrize(
    ("form", "kwargs", "error"),
    [
        ("random", {"heads": 3}, "heads is 3; expected a divisor of embed_dim, which is 16"),
        ("dense", {"heads": 0}, "heads is 0; expected a divisor"),
        ("factorized", {"rank": 0}, "rank is 0; expected at least 1"),
    ],
)
def test_wrong_values_are_refused(form: str, kwargs: dict[str, int], error: str) -> None:
    with pytest.raises(ValueError, match=error):
        timm.create_model(NAMES[form], **{**tiny_kwargs(NAMES[form]), **kwargs})


def test_an_argument_of_another_form_is_refused() -> None:
    with pytest.raises(TypeError, match="rank"):
        timm.create_model(NAMES["dense"], **tiny_kwargs(NAMES["dense"]), rank=3)
    with pytest.raises(TypeError, match="'rank'"):
        Synthesizer(scores="factorized", depth=1)
