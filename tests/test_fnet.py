"""FNet: its transform in every dtype, by FFT and by products. tests/test_zoo.py has the rest."""

from pathlib import Path

import pytest
import timm
import torch
from tiny import images, perturb, same, same_weights
from zoo import tiny_kwargs

from gmlp_vision.checkpoints import build
from gmlp_vision.layers.fourier import dft_matrices, real_part_of_dft
from gmlp_vision.models.fnet import FourierMixing


def test_a_constant_image_goes_to_one_number() -> None:
    x = torch.ones(1, 2, 3, 5)
    y = FourierMixing(5, (2, 3))(x)
    expected = torch.zeros(1, 2, 3, 5)
    expected[0, 0, 0, 0] = 30**0.5  # unitary: the same sum of squares
    torch.testing.assert_close(y, expected, atol=1e-6, rtol=0)


def test_tokens_are_one_sequence() -> None:
    """A transform along each axis of the grid gives something else."""
    x = images(1, 3, 4, 6).double()
    y = FourierMixing(6, (3, 4))(x)
    sequence = torch.fft.fft(torch.fft.fft(x.view(1, 12, 6)), dim=1).real / 72**0.5
    torch.testing.assert_close(y.view(1, 12, 6), sequence, atol=1e-12, rtol=0)
    grid = torch.fft.fftn(x, dim=(1, 2, 3), norm="ortho").real
    assert (y - grid).abs().max() > 0.1


@pytest.mark.parametrize("n", [1, 2, 7, 12])
def test_matrices_are_the_unitary_transform(n: int) -> None:
    cosines, sines = dft_matrices(n, torch.empty(0, dtype=torch.float64))
    expected = torch.fft.fft(torch.eye(n, dtype=torch.float64), norm="ortho")
    torch.testing.assert_close(torch.complex(cosines, -sines), expected, atol=1e-14, rtol=0)


def test_an_exported_model_has_products_and_no_complex_numbers() -> None:
    mixing, x = FourierMixing(6, (3, 4)), images(2, 3, 4, 6)
    program = torch.export.export(mixing, (x,))
    operations = {str(node.target) for node in program.graph.nodes}
    assert any("matmul" in name for name in operations)
    assert not any("fft" in name for name in operations)
    torch.testing.assert_close(program.module()(x), mixing(x), atol=1e-5, rtol=1e-5)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16, torch.float32, torch.float64])
def test_float32_inside_and_the_dtype_of_x_outside(dtype: torch.dtype) -> None:
    x = images(2, 3, 5, 6).to(dtype)
    exact = real_part_of_dft(x.double())
    for autocast in (False, True):
        with torch.autocast("cpu", torch.bfloat16, enabled=autocast):
            inside, outside = real_part_of_dft(x), FourierMixing(6, (3, 5))(x)
        assert inside.dtype == (torch.float64 if dtype == torch.float64 else torch.float32)
        assert outside.dtype == dtype
        torch.testing.assert_close(inside.double(), exact, atol=1e-5, rtol=1e-5)
    assert exact.std() > 0.5


def test_a_model_of_bfloat16() -> None:
    model = perturb(timm.create_model("fnet_s16", **tiny_kwargs("fnet_s16"))).eval()
    half = timm.create_model("fnet_s16", **tiny_kwargs("fnet_s16"))
    half.load_state_dict(model.state_dict())
    logits = half.eval().bfloat16()(images().bfloat16())
    assert logits.dtype == torch.bfloat16
    expected = model(images())
    assert (logits - expected).norm() < 0.05 * (expected - expected.mean(0)).norm()


def test_a_bare_file_of_no_registered_size_is_known_by_its_tensors(tmp_path: Path) -> None:
    model = perturb(timm.create_model("fnet_s16", **tiny_kwargs("fnet_s16"))).eval()
    torch.save(model.state_dict(), tmp_path / "some.pth")
    built = build(tmp_path / "some.pth").model
    assert same_weights(built, model)
    same(built(images()), model(images()))


def test_the_positions_can_be_left_out() -> None:
    model = timm.create_model("fnet_s16", **tiny_kwargs("fnet_s16"), pos_embed=False)
    assert not model.fixed_input_size
    assert perturb(model).eval()(images(1, 3, 40, 24)).shape == (1, 5)
