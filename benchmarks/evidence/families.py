"""A row for each family of the zoo, at one size and by two recipes.

All have about as many parameters as gmlp_pico4, 1,236,106, and see the same images of 32 px. They are
registered names, made smaller by --model-kwargs, so that a checkpoint says by itself which model it holds.
The width is what is fitted to the number of parameters; the rest is the family's own, with these exceptions:

- Isotropic models have 8 blocks and patches of 4 px, so 64 tokens. What is counted in tokens shrinks with the
  grid, from 14 x 14 to 8 x 8: kernels of 11 and 7 tokens become 7 and 5, a reach of 6 becomes 3, the 392
  tokens of Sparse-MLP 128. Four heads, as in the row `vit`; external attention keeps heads of 64 channels.
  The last two blocks of Sparse-MLP are sparse, as in its small and base model.
- Pyramids have the family's stem, with a stride of 4, and 8 blocks, two a stage where there are four, whose
  widths are in about the proportions of its smallest model. They have few multiply-adds: where the grid is
  halved three times it has 8, 4, 2 and 1 tokens a side, and the last stage has most of the parameters and
  nothing to mix. There PosMLP's map over offsets has one of them, and gets no gradient.
- A window is as large as the family's or as the grid, whichever is smaller. SwinMLP's first one is half the
  grid: else there would be nothing to shift.

Not here are kinds of W other than dense (`evidence.py kernels`), and timm's gMixer, which no paper has.

`patch_mlp` does not mix tokens, and tells what mixing gives. `frozen` beside gMLP tells less: half of its U
and all of its W do nothing, so that it is a smaller model than its parameters say.

The rate of NAdaMuon is the one that is best for gMLP. TRIES are rows at other rates, and with another
start; RESULTS.md says which were run.
"""

from typing import Any

from evidence_models import IMAGES, NADAMUON, ROWS, Contender

# The loader treats all models as gmlp_pico4, whatever their own cfg says
SAME_IMAGES = {
    "input-size": " ".join(map(str, IMAGES["input_size"])),
    "crop-pct": str(IMAGES["crop_pct"]),
    "interpolation": IMAGES["interpolation"],
    "mean": " ".join(map(str, IMAGES["mean"])),
    "std": " ".join(map(str, IMAGES["std"])),
}

# The best of the optimizers found, and the recipe as it is
RECIPES: dict[str, dict[str, str]] = {"nadamuon": NADAMUON, "adamw": {}}


def isotropic(title: str, model: str, embed_dim: int, **own: Any) -> Contender:
    sizes = {"img_size": 32, "patch_size": 4, "depth": 8, "embed_dim": embed_dim, **own}
    return contender(f"{title}, width {embed_dim}", model, sizes)


def pyramid(title: str, model: str, embed_dims: tuple[int, ...], **own: Any) -> Contender:
    sizes = {"img_size": 32, "depths": (2, 2, 2, 2), "embed_dims": embed_dims, **own}
    return contender(f"{title}, widths {', '.join(map(str, embed_dims))}", model, sizes)


def contender(title: str, model: str, sizes: dict[str, Any]) -> Contender:
    return Contender(title, model, {key: str(value) for key, value in sizes.items()}, SAME_IMAGES)


MODELS = {
    "patch_mlp": Contender("an MLP on each patch, width 136: tokens do not mix", "patch_mlp_pico4"),
    **{name: ROWS[name] for name in ("gmlp", "resmlp", "mixer", "vit")},
    "gmlp_linear": isotropic("gMLP, linear unit", "gmlp_ti16_linear", 112),
    "gmlp_additive": isotropic("gMLP, additive unit", "gmlp_ti16_additive", 112),
    "gmlp_multiplicative": isotropic("gMLP, multiplicative unit", "gmlp_ti16_multiplicative", 112),
    "amlp": isotropic("aMLP", "amlp_ti16", 108),
    "s2mlp": isotropic("S2-MLP", "s2mlp_deep", 124),
    "aft_full": isotropic("AFT-full", "aft_full_ti16", 108),
    "aft_simple": isotropic("AFT-simple", "aft_simple_s16", 112),
    "aft_local": isotropic("AFT-local", "aft_local_s16", 108, reach=3),
    "aft_conv": isotropic("AFT-conv", "aft_conv_ti16", 116, kernel_size=7, heads=4),
    "fnet": isotropic("FNet", "fnet_ti16", 136),
    "gfnet": isotropic("GFNet", "gfnet_ti", 132),
    "ccs": isotropic("CCS, Mixer's block", "ccs_s16", 136),
    "ccs_resmlp": isotropic("CCS, ResMLP's block", "ccs_resmlp_36", 136),
    "synthesizer_random": isotropic("Synthesizer, random", "synthesizer_random_ti16", 116, heads=4),
    "synthesizer_factorized": isotropic(
        "Synthesizer, factorized random", "synthesizer_factorized_ti16", 120, heads=4
    ),
    "synthesizer_dense": isotropic("Synthesizer, dense", "synthesizer_dense_ti16", 120, heads=4),
    "ea": isotropic("external attention", "ea_s16", 96, heads=6),
    "eamlp": isotropic("EAMLP", "eamlp_14", 96, heads=6),
    "ff": isotropic("FF-only", "ff_ti16", 120),
    "lightconv": isotropic("LightConv", "lightconv_s16", 116, kernel_size=5, heads=4),
    "dynamicconv": isotropic("DynamicConv", "dynamicconv_s16", 112, kernel_size=5, heads=4),
    "sparse_mlp": isotropic(
        "Sparse-MLP",
        "sparse_mlp_b",
        116,
        dense_depth=6,
        token_dim=58,
        sparse_tokens=128,
        sparse_channels=58,
        token_experts=4,
        token_expert_dim=116,
        channel_expert_dim=232,
    ),
    "vip": pyramid("ViP", "vip_s7", (64, 128, 128, 128), strides=(4, 2, 1, 1), segments=(8, 4, 4, 4)),
    "cycle": pyramid("CycleMLP", "cycle_b1", (20, 40, 100, 164)),
    "s2mlpv2": pyramid("S2-MLPv2", "s2mlpv2_s7", (64, 128), strides=(4, 2), depths=(2, 6)),
    "hire": pyramid("Hire-MLP", "hire_t", (20, 40, 96, 152)),
    "wave_dw": pyramid("Wave-MLP, depthwise phase", "wave_t_dw", (20, 40, 100, 160)),
    "wave": pyramid("Wave-MLP", "wave_t", (20, 40, 96, 152)),
    "as_mlp": pyramid("AS-MLP", "as_mlp_t", (24, 48, 96, 184)),
    "smlp": pyramid("sMLPNet", "smlp_t", (28, 56, 108, 216)),
    "raft": pyramid("RaftMLP", "raft_s", (28, 56, 108, 216)),
    "convmlp": pyramid("ConvMLP", "convmlp_s", (28, 52, 104, 208)),
    "posmlp": pyramid("PosMLP", "posmlp_t", (44, 88, 176, 352), window=(8, 4, 2, 1), groups=(4, 8, 16, 32)),
    "swin_mlp": pyramid(
        "SwinMLP", "swin_mlp_t_c24", (28, 56, 112, 224), window=(4, 4, 2, 1), heads=(1, 2, 4, 8)
    ),
    "gfnet_h": pyramid("GFNet-H", "gfnet_h_ti", (28, 56, 112, 224)),
}


def kind_of(model: Contender) -> str:
    """'pyramid' or 'isotropic'."""
    return "pyramid" if "depths" in model.model_kwargs else "isotropic"


FAMILIES = {
    f"{opt}_{family}": model._replace(options={**model.options, **options})
    for opt, options in RECIPES.items()
    for family, model in MODELS.items()
}

# Tries at a family's own settings: NAdaMuon at other rates than 8e-3, which is gMLP's best,
OTHER_RATES = ("2e-3", "4e-3", "16e-3")
TRIES = {
    f"lr{rate}_{family}": model._replace(options={**model.options, **NADAMUON, "lr": rate})
    for rate in OTHER_RATES
    for family, model in MODELS.items()
}
# and a start near 0 of maps that timm draws at full size, which in 5 epochs hardly leave their start
SMALL = ("resmlp", "mixer")
TRIES |= {
    f"small_{family}": MODELS[family]._replace(model=f"{family}_pico4_small", options={**NADAMUON})
    for family in SMALL
}
