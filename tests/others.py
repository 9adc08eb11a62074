"""Other people's gMLPs: random weights under their names and in their shapes, and their forward written out.

The names, shapes and equations are those of github.com/lucidrains/g-mlp-pytorch (gMLPVision) and of
github.com/jaketae/g-mlp (gMLPForImageClassification). All is float64.

Shapes: B batch, N = H * W tokens, C channels, D width, E hidden width, K classes, P x Q the patch; A the
width of the attention that gMLPVision may have (attn_dim), or 0.
"""

import torch
from torch import nn

from gmlp_vision.checkpoints.names import from_ours
from gmlp_vision.models.gmlp import LAYOUTS

State = dict[str, torch.Tensor]


class Weights:
    """Draws the tensors of one model, all of them large enough to matter."""

    def __init__(self, seed: int = 0) -> None:
        self.generator = torch.Generator().manual_seed(seed)
        self.state: State = {}

    def draw(self, name: str, *shape: int, mean: float = 0.0, std: float = 0.3) -> None:
        self.state[name] = mean + std * torch.randn(*shape, generator=self.generator, dtype=torch.float64)

    def linear(self, name: str, out: int, *into: int) -> None:
        self.draw(f"{name}.weight", out, *into)
        self.draw(f"{name}.bias", out)

    def norm(self, name: str, width: int) -> None:
        self.draw(f"{name}.weight", width, mean=1.0)
        self.draw(f"{name}.bias", width)


def lucidrains_state(
    n: int, patch: tuple[int, int] = (8, 8), c: int = 3, d: int = 16, e: int = 64, k: int = 5, a: int = 0
) -> State:
    w = Weights()
    w.linear("to_patch_embed.1", d, c * patch[0] * patch[1])
    for i in range(2):
        w.norm(f"layers.{i}.fn.norm", d)
        w.linear(f"layers.{i}.fn.fn.proj_in.0", e, d)
        w.draw(f"layers.{i}.fn.fn.sgu.weight", 1, n, n)
        w.draw(f"layers.{i}.fn.fn.sgu.bias", 1, n, mean=1.0)
        w.norm(f"layers.{i}.fn.fn.sgu.norm", e // 2)
        w.linear(f"layers.{i}.fn.fn.proj_out", d, e // 2)
        if a:
            w.draw(f"layers.{i}.fn.fn.attn.to_qkv.weight", 3 * a, d)
            w.linear(f"layers.{i}.fn.fn.attn.to_out", e // 2, a)
    w.norm("to_logits.0", d)
    w.linear("to_logits.2", k, d)
    return w.state


def lucidrains_forward(s: State, images: torch.Tensor, patch: tuple[int, int] = (8, 8)) -> torch.Tensor:
    b, c, height, width = images.shape
    p, q = patch
    # 'b c (h p1) (w p2) -> b (h w) (c p1 p2)'
    cut = images.reshape(b, c, height // p, p, width // q, q).permute(0, 2, 4, 1, 3, 5)
    x = cut.reshape(b, (height // p) * (width // q), c * p * q)
    x = x @ s["to_patch_embed.1.weight"].T + s["to_patch_embed.1.bias"]
    for i in range(2):
        at = f"layers.{i}.fn"
        normed = layer_norm(s, f"{at}.norm", x)
        z = normed @ s[f"{at}.fn.proj_in.0.weight"].T + s[f"{at}.fn.proj_in.0.bias"]
        res, gate = gelu(z).chunk(2, dim=-1)
        gate = layer_norm(s, f"{at}.fn.sgu.norm", gate)
        gate = torch.einsum("bnd,mn->bmd", gate, s[f"{at}.fn.sgu.weight"][0])
        gate = gate + s[f"{at}.fn.sgu.bias"][0][:, None]
        if f"{at}.fn.attn.to_qkv.weight" in s:
            q, k, v = (normed @ s[f"{at}.fn.attn.to_qkv.weight"].T).chunk(3, dim=-1)
            weights = (q @ k.mT * q.shape[-1] ** -0.5).softmax(-1)
            gate = gate + weights @ v @ s[f"{at}.fn.attn.to_out.weight"].T + s[f"{at}.fn.attn.to_out.bias"]
        x = (gate * res) @ s[f"{at}.fn.proj_out.weight"].T + s[f"{at}.fn.proj_out.bias"] + x
    x = layer_norm(s, "to_logits.0", x).mean(dim=1)
    return x @ s["to_logits.2.weight"].T + s["to_logits.2.bias"]


def jaketae_state(n: int, patch: int = 8, c: int = 3, d: int = 16, ffn: int = 24, k: int = 5) -> State:
    w = Weights()
    w.linear("patcher", d, c, patch, patch)
    for i in range(2):
        w.norm(f"model.{i}.norm", d)
        w.linear(f"model.{i}.channel_proj1", 2 * ffn, d)
        w.linear(f"model.{i}.channel_proj2", d, ffn)
        w.norm(f"model.{i}.sgu.norm", ffn)
        w.draw(f"model.{i}.sgu.spatial_proj.weight", n, n, 1)
        w.draw(f"model.{i}.sgu.spatial_proj.bias", n, mean=1.0)
    w.linear("classifier", k, d)
    return w.state


def jaketae_forward(s: State, images: torch.Tensor) -> torch.Tensor:
    kernel = s["patcher.weight"]
    x = torch.nn.functional.unfold(images, kernel.shape[2:], stride=kernel.shape[2:]).transpose(1, 2)
    x = x @ kernel.flatten(1).T + s["patcher.bias"]
    for i in range(2):
        at = f"model.{i}"
        z = layer_norm(s, f"{at}.norm", x) @ s[f"{at}.channel_proj1.weight"].T + s[f"{at}.channel_proj1.bias"]
        u, v = gelu(z).chunk(2, dim=-1)
        v = layer_norm(s, f"{at}.sgu.norm", v)
        v = s[f"{at}.sgu.spatial_proj.weight"][:, :, 0] @ v + s[f"{at}.sgu.spatial_proj.bias"][:, None]
        x = (u * v) @ s[f"{at}.channel_proj2.weight"].T + s[f"{at}.channel_proj2.bias"] + x
    return x.mean(dim=1) @ s["classifier.weight"].T + s["classifier.bias"]


def layer_norm(s: State, name: str, x: torch.Tensor) -> torch.Tensor:
    centred = x - x.mean(dim=-1, keepdim=True)
    variance = centred.square().mean(dim=-1, keepdim=True)
    return centred / (variance + 1e-5).sqrt() * s[f"{name}.weight"] + s[f"{name}.bias"]


def gelu(x: torch.Tensor) -> torch.Tensor:
    return 0.5 * x * (1 + torch.erf(x / 2**0.5))


def in_names_of(name: str, model: nn.Module) -> State:
    """The state dict of a model of ours in the names and shapes of another implementation."""
    return from_ours(model.state_dict(), LAYOUTS[name].rows_for(model))
