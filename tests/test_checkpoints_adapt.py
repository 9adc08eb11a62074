"""Every tensor is accounted for, by load_checkpoint and by timm's pretrained=True alike."""

import logging
from collections.abc import Callable
from pathlib import Path

import pytest
import timm
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from timm.layers import resample_patch_embed
from timm.models import MlpMixer, VisionTransformer, adapt_input_conv
from tiny import TINY, images, perturb, same_weights, tiny
from torch import nn

from gmlp_vision import CheckpointError, load_checkpoint
from gmlp_vision.checkpoints import Report
from gmlp_vision.checkpoints.grid import first_that_fits
from gmlp_vision.layers.resample import resample_map, resample_operator

W, B = "blocks.1.mlp_channels.gate.proj.weight", "blocks.1.mlp_channels.gate.proj.bias"
HEAD = {"head.weight", "head.bias"}
Load = Callable[..., nn.Module]


def by_hand(path: Path, **kwargs: object) -> nn.Module:
    model = tiny(**kwargs)
    load_checkpoint(model, path)
    return model


def by_timm(path: Path, **kwargs: object) -> nn.Module:
    overlay = {"file": str(path), **kwargs.pop("pretrained_cfg_overlay", {})}
    kwargs = {**TINY, **kwargs}
    return timm.create_model("gmlp_ti16", pretrained=True, pretrained_cfg_overlay=overlay, **kwargs).eval()


both_routes = pytest.mark.parametrize("load", [by_hand, by_timm])


def saved(model: nn.Module, path: Path, **changes: torch.Tensor | None) -> Path:
    """The model's state dict on disk, with some tensors replaced, or left out where None."""
    state = {**model.state_dict(), **{k.replace("__", "."): v for k, v in changes.items()}}
    torch.save({k: v for k, v in state.items() if v is not None}, path)
    return path


def copy(model: nn.Module) -> dict[str, torch.Tensor]:
    return {k: v.clone() for k, v in model.state_dict().items()}


# -- the account ---------------------------------------------------------------------------------------------


@both_routes
def test_equal_sizes_load_as_they_are(load: Load, tmp_path: Path) -> None:
    source = tiny()
    assert same_weights(load(saved(source, tmp_path / "x.pth")), source.state_dict())


def account(report: Report) -> tuple[set[str], set[str]]:
    """The names that a report says the file and the model have."""
    taken = {*report.loaded, *report.adapted}
    return taken | set(report.dropped), taken | set(report.missing)


TARGETS = [
    {},
    {"img_size": 48},
    {"in_chans": 1},
    {"patch_size": 4},
    {"num_classes": 7},
    {"num_classes": 0},
    {"img_size": (16, 64), "num_classes": 0, "in_chans": 4},
]


@pytest.mark.parametrize("target", TARGETS)
@pytest.mark.parametrize("classes", [0, 5])
def test_no_tensor_is_left_out_of_the_report(target: dict, classes: int, tmp_path: Path) -> None:
    source, model = tiny(num_classes=classes), tiny(**target)
    report = load_checkpoint(model, saved(source, tmp_path / "x.pth"))
    file, own = account(report)
    assert file == set(source.state_dict())
    assert own == set(model.state_dict())
    counts = len(report.loaded) + len(report.adapted) + len(report.dropped)
    assert counts == len(source.state_dict())  # none twice
    assert str(report).startswith(f"{tmp_path / 'x.pth'}: raw weights, names of timm\n  loaded   ")


def test_the_report_in_words(tmp_path: Path) -> None:
    path = saved(tiny(), tmp_path / "x.pth")
    report = load_checkpoint(tiny(img_size=(48, 32), num_classes=7, in_chans=1), path)
    assert str(report).splitlines()[1:] == [
        "  loaded   19 tensors",
        "  adapted  4 tensors, grid 4 x 4 to 6 x 4: "
        "blocks.*.mlp_channels.gate.proj.weight, blocks.*.mlp_channels.gate.proj.bias",
        "  adapted  1 tensor, channels 3 to 1: stem.proj.weight",
        "  dropped  2 tensors, it is for 5 classes, and the model has 7: head.weight, head.bias",
        "  missing  2 tensors, the model keeps its own head, for 7 classes: head.weight, head.bias",
        "  note     the file's grid is 4 x 4 tokens, guessed to be square, since nothing states it",
    ]


# -- classes -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("cfg", [5, 7, 1000, -1])
@pytest.mark.parametrize("model_classes", [0, 5, 7])
@pytest.mark.parametrize("file_classes", [0, 5, 10])
def test_shapes_decide_on_the_head(file_classes: int, model_classes: int, cfg: int, tmp_path: Path) -> None:
    """Also where the file, the cfg and the model all differ: (10, 1000, 7)."""
    source = tiny(num_classes=file_classes)
    path = saved(source, tmp_path / "x.pth")
    model = by_timm(path, num_classes=model_classes, pretrained_cfg_overlay={"num_classes": cfg})
    own = model.state_dict()
    assert all(torch.equal(own[k], v) for k, v in source.state_dict().items() if k not in HEAD)
    assert model.num_classes == model_classes == (0 if "head.weight" not in own else len(own["head.weight"]))
    if (
        model_classes and model_classes == file_classes and cfg >= 0
    ):  # with -1 timm is told to make a new head
        assert torch.equal(own["head.weight"], source.state_dict()["head.weight"])
        assert torch.equal(own["head.bias"], source.state_dict()["head.bias"])
    elif model_classes:
        assert not own["head.weight"].any()  # as made: zero


def test_the_model_keeps_its_own_head_and_says_so(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    path = saved(tiny(num_classes=10), tmp_path / "x.pth")
    model = tiny(num_classes=7)
    head = model.head.weight.clone()
    report = load_checkpoint(model, path)
    assert torch.equal(model.head.weight, head)
    assert set(report.missing) == set(report.dropped) == HEAD
    by_timm(path, num_classes=7)
    said = [r.getMessage() for r in caplog.records if r.levelno == logging.WARNING]
    assert len(said) == 1
    assert "it is for 10 classes, and the model has 7" in said[0]


def test_the_new_head_that_train_py_asks_for_is_said(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    by_timm(saved(tiny(), tmp_path / "x.pth"), pretrained_cfg_overlay={"num_classes": -1})
    assert "dropped  2 tensors, the pretrained cfg has num_classes=-1" in caplog.text
    assert "missing  2 tensors, no head to take, so the model keeps its own" in caplog.text


def test_labels_of_another_head_do_not_stay(tmp_path: Path) -> None:
    cfg = {"num_classes": 3, "label_names": ("a", "b", "c")}
    model = by_timm(saved(tiny(), tmp_path / "x.pth"), pretrained_cfg_overlay=cfg)
    assert model.pretrained_cfg["num_classes"] == 5
    assert "label_names" not in model.pretrained_cfg


@both_routes
@pytest.mark.parametrize("changes", [{"head__bias": None}, {"head__weight": None},
                                     {"head__bias": torch.zeros(6)}, {"head__weight": torch.zeros(5, 8)},
                                     {"head__weight": torch.zeros(9, 16)}])  # fmt: skip
def test_a_head_that_does_not_hold_together(load: Load, changes: dict, tmp_path: Path) -> None:
    with pytest.raises(CheckpointError, match=r"head\."):
        load(saved(tiny(), tmp_path / "x.pth", **changes))


# -- channels and patches ------------------------------------------------------------------------------------


@both_routes
@pytest.mark.parametrize(("file", "model"), [(1, 3), (3, 1), (4, 3), (3, 4), (1, 2), (3, 3), (4, 4), (1, 1)])
def test_channels_as_timm_adapts_them(
    load: Load, file: int, model: int, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    source = tiny(in_chans=file)
    loaded = load(saved(source, tmp_path / "x.pth"), in_chans=model)
    expected = adapt_input_conv(model, source.stem.proj.weight.detach(), base_chans=file)
    assert expected.shape[1] == model
    assert same_weights(loaded, {**source.state_dict(), "stem.proj.weight": expected})
    assert not [r for r in caplog.records if r.levelno >= logging.WARNING]  # timm's, of what is right
    assert load is by_hand or loaded.pretrained_cfg["input_size"] == (model, 224, 224)


@both_routes
def test_a_grey_image_means_the_same_to_one_channel_as_to_three(load: Load, tmp_path: Path) -> None:
    source = tiny()
    grey = images(2, 1, 32, 32)
    loaded = load(saved(source, tmp_path / "x.pth"), in_chans=1)
    assert source(grey.repeat(1, 3, 1, 1)).std() > 1e-3
    torch.testing.assert_close(loaded(grey), source(grey.repeat(1, 3, 1, 1)), atol=1e-5, rtol=1e-4)


@both_routes
@pytest.mark.parametrize(("patch", "img_size"), [(4, 16), (16, 64), ((4, 8), (16, 32))])
def test_another_patch_resizes_the_stem_as_timm_does(
    load: Load, patch: int | tuple[int, int], img_size: int | tuple[int, int], tmp_path: Path
) -> None:
    source = tiny()
    loaded = load(saved(source, tmp_path / "x.pth"), patch_size=patch, img_size=img_size)
    expected = resample_patch_embed(source.stem.proj.weight.detach(), list(loaded.stem.patch_size))
    assert same_weights(loaded, {**source.state_dict(), "stem.proj.weight": expected})


@both_routes
def test_patch_channels_grid_and_classes_at_once(load: Load, tmp_path: Path) -> None:
    source = tiny(in_chans=4)
    loaded = load(saved(source, tmp_path / "x.pth"), patch_size=4, img_size=(24, 32), num_classes=3)
    state = source.state_dict()
    stem = adapt_input_conv(3, state["stem.proj.weight"], base_chans=4)
    expected = {**state, "stem.proj.weight": resample_patch_embed(stem, [4, 4])}
    for name in state:
        if name.endswith("gate.proj.weight"):
            expected[name] = resample_operator(state[name], (4, 4), (6, 8))
        if name.endswith("gate.proj.bias"):
            expected[name] = resample_map(state[name], (4, 4), (6, 8))
    assert same_weights(loaded, expected, but=HEAD)


# -- grids ---------------------------------------------------------------------------------------------------


@both_routes
@pytest.mark.parametrize("img_size", [48, 24, (32, 64), (16, 48)])
def test_w_and_b_are_carried_to_the_models_grid(load: Load, img_size: int | tuple, tmp_path: Path) -> None:
    source = tiny()
    loaded = load(saved(source, tmp_path / "x.pth"), img_size=img_size)
    grid = loaded.stem.grid_size
    assert torch.equal(loaded.state_dict()[W], resample_operator(source.state_dict()[W], (4, 4), grid))
    assert torch.equal(loaded.state_dict()[B], resample_map(source.state_dict()[B], (4, 4), grid))


@both_routes
def test_a_model_of_varying_size_takes_weights_too(load: Load, tmp_path: Path) -> None:
    source = tiny()
    loaded = load(saved(source, tmp_path / "x.pth"), img_size=48, dynamic_img_size=True)
    fixed = load(tmp_path / "x.pth", img_size=48)
    torch.testing.assert_close(loaded(images(2, 3, 48, 48)), fixed(images(2, 3, 48, 48)))


def of_64_tokens(image: tuple[int, int]) -> dict[str, tuple[int, int]] | None:
    grid = (image[0] // 8, image[1] // 8)
    return {"layer": grid} if min(grid) > 0 and grid[0] * grid[1] == 64 else None


MADE, USED = "by the img_size in its config", "by the input_size in its config"
BY_CFG = "by the input_size of the model's pretrained cfg"
GUESSED = "guessed to be square, since nothing states it"
CFG = {"input_size": (3, 16, 256)}


@pytest.mark.parametrize(
    ("config", "kwargs", "expected"),
    [
        ({"model_args": {"img_size": 64}, "pretrained_cfg": CFG}, {"grid": (4, 16)}, ((4, 16), "as given")),
        ({"model_args": {"img_size": 64}, "pretrained_cfg": CFG}, {"own": (128, 32)}, ((8, 8), MADE)),
        ({"model_args": {"img_size": [32, 128]}}, {}, ((4, 16), MADE)),
        ({"model_args": {"img_size": 24}, "pretrained_cfg": CFG}, {"own": (128, 32)}, ((2, 32), USED)),
        ({"pretrained_cfg": {"input_size": [3, 16, 256]}}, {}, ((2, 32), USED)),
        ({"input_size": [3, 16, 256]}, {}, ((2, 32), USED)),  # an older config.json, all in one dict
        ({}, {"own": (128, 32), "pretrained_cfg": CFG}, ((16, 4), "as the model's own")),
        ({}, {"own": (24, 32), "pretrained_cfg": CFG}, ((2, 32), BY_CFG)),
        ({}, {"own": (24, 32), "pretrained_cfg": {"input_size": (3, 16, 16)}}, ((8, 8), GUESSED)),
        ({}, {"overlaid_cfg": CFG}, ((2, 32), BY_CFG)),
        ({}, {"overlaid_cfg": CFG, "own": (16, 256)}, ((2, 32), BY_CFG)),
        ({}, {"overlaid_cfg": CFG, "own": (24, 32)}, ((2, 32), BY_CFG)),
        ({}, {"overlaid_cfg": {"input_size": (3, 8, 8)}, "own": (128, 32)}, ((16, 4), "as the model's own")),
        ({"model_args": {"img_size": 64}}, {"overlaid_cfg": CFG, "own": (128, 32)}, ((8, 8), MADE)),
        ({"model_args": 3, "pretrained_cfg": "?"}, {"pretrained_cfg": None}, ((8, 8), GUESSED)),
        (
            {"model_args": {"img_size": "64"}, "pretrained_cfg": {"input_size": [1, 2, 3, 4]}},
            {},
            ((8, 8), GUESSED),
        ),
        (
            {"model_args": {"img_size": [None, 8]}, "pretrained_cfg": {"input_size": {}}},
            {},
            ((8, 8), GUESSED),
        ),
    ],
)
def test_who_says_what_the_grid_is(config: dict, kwargs: dict, expected: tuple) -> None:
    found = first_that_fits(of_64_tokens, (8, 8), config, **kwargs)
    assert (found.grid, found.how) == expected
    assert found.image == (8 * found.grid[0], 8 * found.grid[1])
    assert found.doubtful == (found.how == GUESSED)


def test_a_cfg_that_the_model_contradicts_is_followed_and_said_to_be_doubtful() -> None:
    found = first_that_fits(of_64_tokens, (8, 8), {}, overlaid_cfg=CFG, own=(128, 32))
    assert (found.grid, found.doubtful) == ((2, 32), True)
    assert found.how.startswith(f"{BY_CFG}; the model's own size, 128 x 32 pixels of the file, would fit too")


def test_a_grid_that_nobody_knows_is_an_error_that_names_the_arguments(tmp_path: Path) -> None:
    path = saved(tiny(img_size=(32, 40)), tmp_path / "x.pth")  # 4 x 5
    for load in (by_hand, by_timm):
        with pytest.raises(
            CheckpointError,
            match=r"\(20, 20\): nothing tells .*grid=\(H, W\).*--grid H W.*input_size.*_cfg_overlay",
        ):
            load(path)
    model = tiny()
    for grid, tokens in (((3, 5), 15), ((-5, -4), 20)):
        with pytest.raises(CheckpointError, match=rf"\(20, 20\): the grid .* has {tokens} tokens"):
            load_checkpoint(model, path, grid=grid)
    report = load_checkpoint(model, path, grid=(5, 4))
    assert report.adapted[W] == "grid 5 x 4 to 4 x 4"
    assert report.notes == ["the file's grid is 5 x 4 tokens, as given"]
    overlaid = by_timm(path, pretrained_cfg_overlay={"input_size": (3, 40, 32)})
    assert torch.equal(overlaid.state_dict()[W], model.state_dict()[W])


def test_a_guessed_grid_is_said_aloud(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    by_timm(saved(tiny(), tmp_path / "x.pth"), img_size=48)
    assert "guessed to be square" in caplog.text
    assert caplog.records[-1].levelno == logging.WARNING


def test_timms_cfg_speaks_for_the_file_and_a_live_models_does_not(tmp_path: Path) -> None:
    """16 tokens, 4 x 4 by the cfg and 2 x 8 by the model, and a file that says nothing."""
    source = tiny()
    path = saved(source, tmp_path / "x.pth")
    assert torch.equal(by_hand(path, img_size=(16, 64)).state_dict()[W], source.state_dict()[W])
    by_cfg = by_timm(path, img_size=(16, 64), pretrained_cfg_overlay={"input_size": (3, 32, 32)})
    assert torch.equal(by_cfg.state_dict()[W], resample_operator(source.state_dict()[W], (4, 4), (2, 8)))


def test_a_file_of_the_models_own_size_where_the_default_cfg_would_fit_too(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """gmlp_pico4 at 16 x 64 pixels has the 64 tokens of its default 32 x 32."""
    kwargs = {"img_size": (16, 64), "depth": 2, "embed_dim": 16}
    source = tiny("gmlp_pico4", **kwargs, patch_size=4, num_classes=10)
    path = saved(source, tmp_path / "x.pth")

    def load(**overlay: object) -> nn.Module:
        overlay["file"] = str(path)
        return timm.create_model("gmlp_pico4", pretrained=True, pretrained_cfg_overlay=overlay, **kwargs)

    assert same_weights(load(input_size=(3, 16, 64)), source)
    assert not [r for r in caplog.records if r.levelno >= logging.WARNING]
    carried = load()
    assert torch.equal(carried.state_dict()[W], resample_operator(source.state_dict()[W], (8, 8), (4, 16)))
    (said,) = [r.getMessage() for r in caplog.records if r.levelno == logging.WARNING]
    assert (
        "8 x 8 tokens, by the input_size of the model's pretrained cfg; the model's own size, 16 x 64" in said
    )
    assert "`input_size` in pretrained_cfg_overlay" in said
    assert "its config" not in said


# -- dtypes and numbers --------------------------------------------------------------------------------------


@pytest.mark.parametrize("file", [torch.float16, torch.bfloat16, torch.float64])
def test_a_file_of_another_precision(file: torch.dtype, tmp_path: Path) -> None:
    source, model = tiny().to(file), tiny()
    report = load_checkpoint(model, saved(source, tmp_path / "x.pth"))
    assert same_weights(model, {k: v.float() for k, v in source.state_dict().items()})
    assert set(report.adapted.values()) == {f"{file} to float32".replace("torch.", "")}
    assert not report.loaded


@both_routes
@pytest.mark.parametrize(
    ("value", "why"),
    [
        (torch.full((16,), torch.nan), r"NaN or infinity in norm\.bias"),
        (torch.full((16,), -torch.inf), r"NaN or infinity in norm\.bias"),
        (torch.full((16,), 1e300, dtype=torch.float64), r"cannot hold norm\.bias .*: take float64"),
        (torch.zeros(16, dtype=torch.int64), r"not floating point: norm\.bias \(torch\.int64\)"),
        (torch.zeros(16, dtype=torch.bool), r"not floating point: norm\.bias \(torch\.bool\)"),
        (torch.zeros(16, dtype=torch.complex64), r"not floating point: norm\.bias \(torch\.complex64\)"),
    ],
)
def test_numbers_that_are_no_weights(load: Load, value: torch.Tensor, why: str, tmp_path: Path) -> None:
    with pytest.raises(CheckpointError, match=why):
        load(saved(tiny(), tmp_path / "x.pth", norm__bias=value))


# -- other models --------------------------------------------------------------------------------------------

SMALL = {"img_size": 32, "patch_size": 8, "embed_dim": 16, "num_classes": 5}
OTHERS = {
    "vit": lambda: VisionTransformer(depth=2, num_heads=2, **SMALL),
    "mixer": lambda: MlpMixer(num_blocks=2, **SMALL),
    "resnet": lambda: timm.create_model("test_resnet", num_classes=5),
    "deeper": lambda: tiny(depth=3),
    "shallower": lambda: tiny(depth=1),
    "wider": lambda: tiny(embed_dim=24),
    "more hidden": lambda: tiny(mlp_ratio=4.0),
    "no final norm": lambda: tiny(final_norm=False),
    "a linear layer": lambda: nn.Linear(16, 5),
}


@pytest.mark.parametrize("how", [{}, {"num_classes": 7}, {"num_classes": 0}, {"features_only": True},
                                 {"pretrained_cfg_overlay": {"num_classes": -1}},
                                 {"pretrained_cfg_overlay": {"num_classes": 5}}])  # fmt: skip
@pytest.mark.parametrize("other", OTHERS)
def test_a_file_of_another_model_is_never_loaded(other: str, how: dict, tmp_path: Path) -> None:
    path = saved(perturb(OTHERS[other]()), tmp_path / "x.pth")
    with pytest.raises(CheckpointError, match=r"In the model, not in the file|of another size"):
        by_timm(path, **how)


@pytest.mark.parametrize("other", OTHERS)
def test_a_refused_file_leaves_the_model_as_it_was(other: str, tmp_path: Path) -> None:
    model = tiny()
    before = copy(model)
    with pytest.raises(CheckpointError):
        load_checkpoint(model, saved(perturb(OTHERS[other]()), tmp_path / "x.pth"))
    assert same_weights(model, before)


def test_an_error_lists_the_first_five_of_each_side(tmp_path: Path) -> None:
    path = saved(OTHERS["vit"](), tmp_path / "x.pth")
    with pytest.raises(CheckpointError) as caught:
        load_checkpoint(tiny(), path)
    missing, unexpected = (
        str(caught.value).split("In the model, not in the file: ")[1].split(". In the file, ")
    )
    stem = "stem.proj.weight, stem.proj.bias, blocks.0.norm.weight, blocks.0.norm.bias, blocks.0.mlp_channels"
    assert missing.startswith(stem)
    assert missing.endswith(", ... (22 in all)")
    assert unexpected.startswith("not in the model: cls_token, pos_embed, patch_embed.proj.weight, ")
    assert unexpected.count(",") == 5
    assert isinstance(caught.value, RuntimeError)
    assert not isinstance(caught.value, TypeError)


def test_an_error_lists_shapes(tmp_path: Path) -> None:
    path = saved(
        tiny(), tmp_path / "x.pth", norm__weight=torch.zeros(3), stem__proj__weight=torch.zeros(16, 3, 8)
    )
    both = r"stem\.proj\.weight \(16, 3, 8\) for \(16, 3, 8, 8\), norm\.weight \(3,\) for \(16,\)"
    with pytest.raises(CheckpointError, match=both):
        load_checkpoint(tiny(), path)


@pytest.mark.parametrize(
    "make",
    [
        lambda: nn.Linear(2, 2),
        lambda: VisionTransformer(depth=1, num_heads=2, **SMALL),
        lambda: nn.DataParallel(tiny()),
    ],
    ids=["linear", "vit", "wrapped"],
)
def test_what_is_no_model_of_ours(make: Callable[[], nn.Module], tmp_path: Path) -> None:
    model = make()
    with pytest.raises(
        ValueError, match=f"the model is a {type(model).__name__}; expected one of this package"
    ):
        load_checkpoint(model, saved(tiny(), tmp_path / "x.pth"))


@settings(deadline=None)  # it reads and writes files
@given(
    shapes=st.dictionaries(
        st.sampled_from(sorted(tiny().state_dict())),
        st.lists(st.integers(0, 5), max_size=5),
        min_size=1,
        max_size=3,
    )
)
def test_no_shape_ends_in_another_error(
    shapes: dict[str, list[int]], tmp_path_factory: pytest.TempPathFactory
) -> None:
    model = tiny()
    before = copy(model)
    path = saved(
        tiny(),
        tmp_path_factory.getbasetemp() / "x.pth",
        **{k.replace(".", "__"): torch.zeros(v) for k, v in shapes.items()},
    )
    try:
        report = load_checkpoint(model, path)
    except CheckpointError:
        assert same_weights(model, before)
    else:
        assert account(report)[1] == set(before)
