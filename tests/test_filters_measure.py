"""Statistics of operators, against their formulas written out slowly and operators of known form."""

import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from gmlp_vision.filters import measure, toeplitz_average

GRIDS = st.tuples(st.integers(1, 4), st.integers(1, 4))


def draw(grid: tuple[int, int], seed: int = 0) -> torch.Tensor:
    n = grid[0] * grid[1]
    return torch.randn(n, n, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


def pairs(grid: tuple[int, int]) -> list[tuple[int, int, int, int]]:
    """(i, j, dr, dc) of every pair of tokens, by hand."""
    h, w = grid
    return [
        (r * w + c, rr * w + cc, rr - r, cc - c)
        for r in range(h)
        for c in range(w)
        for rr in range(h)
        for cc in range(w)
    ]


def slow_kernel(weight: torch.Tensor, grid: tuple[int, int]) -> dict[tuple[int, int], float]:
    groups: dict[tuple[int, int], list[float]] = {}
    for i, j, dr, dc in pairs(grid):
        groups.setdefault((dr, dc), []).append(weight[i, j].item())
    return {step: sum(values) / len(values) for step, values in groups.items()}


def from_kernel(kernel: torch.Tensor, grid: tuple[int, int]) -> torch.Tensor:
    weight = torch.zeros(grid[0] * grid[1], grid[0] * grid[1], dtype=kernel.dtype)
    for i, j, dr, dc in pairs(grid):
        weight[i, j] = kernel[grid[0] - 1 + dr, grid[1] - 1 + dc]
    return weight


@given(GRIDS, st.integers(0, 9))
@settings(deadline=None, max_examples=30)
def test_the_kernel_is_the_mean_over_pairs_with_one_step(grid: tuple[int, int], seed: int) -> None:
    weight = draw(grid, seed)
    kernel = toeplitz_average(weight, grid)
    assert kernel.shape == (2 * grid[0] - 1, 2 * grid[1] - 1)
    for (dr, dc), mean in slow_kernel(weight, grid).items():
        assert kernel[grid[0] - 1 + dr, grid[1] - 1 + dc].item() == pytest.approx(mean, abs=1e-12)


@given(GRIDS, st.integers(0, 9))
@settings(deadline=None, max_examples=30)
def test_the_share_is_one_minus_the_residual(grid: tuple[int, int], seed: int) -> None:
    weight = draw(grid, seed)
    kernel = slow_kernel(weight, grid)
    residual = sum((weight[i, j].item() - kernel[dr, dc]) ** 2 for i, j, dr, dc in pairs(grid))
    total = sum(x**2 for x in weight.flatten().tolist())
    assert measure.toeplitz_share(weight, grid) == pytest.approx(1 - residual / total, abs=1e-12)


@given(GRIDS, st.integers(0, 9))
@settings(deadline=None, max_examples=30)
def test_locality_is_the_mean_distance_weighted_by_mass(grid: tuple[int, int], seed: int) -> None:
    weight = draw(grid, seed)
    mass = [(abs(weight[i, j].item()), math.hypot(dr, dc)) for i, j, dr, dc in pairs(grid)]
    slow = sum(m * d for m, d in mass) / sum(m for m, _ in mass)
    assert measure.locality(weight, grid) == pytest.approx(slow, abs=1e-12)
    assert measure.random_locality(grid) == pytest.approx(sum(d for _, d in mass) / len(mass), abs=1e-12)


@given(GRIDS, st.integers(0, 9))
@settings(deadline=None, max_examples=30)
def test_anisotropy_is_that_of_the_second_moment(grid: tuple[int, int], seed: int) -> None:
    weight = draw(grid, seed)
    rr = sum(abs(weight[i, j].item()) * dr * dr for i, j, dr, dc in pairs(grid))
    cc = sum(abs(weight[i, j].item()) * dc * dc for i, j, dr, dc in pairs(grid))
    rc = sum(abs(weight[i, j].item()) * dr * dc for i, j, dr, dc in pairs(grid))
    if grid == (1, 1):
        assert measure.anisotropy(weight, grid) is None
    else:  # of a symmetric 2 x 2 matrix, the difference of the eigenvalues over their sum
        slow = math.sqrt((rr - cc) ** 2 + 4 * rc**2) / (rr + cc)
        assert measure.anisotropy(weight, grid) == pytest.approx(slow, abs=1e-9)


@given(st.tuples(st.integers(1, 3), st.integers(1, 5), st.integers(1, 5)), st.integers(0, 9))
@settings(deadline=None, max_examples=30)
def test_kernels_are_measured_from_their_centre(shape: tuple[int, int, int], seed: int) -> None:
    kernels = torch.randn(shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)
    _, h, w = shape
    cells = [
        (abs(kernel[r, c].item()), r - h // 2, c - w // 2)
        for kernel in kernels
        for r in range(h)
        for c in range(w)
    ]
    slow = sum(m * math.hypot(dr, dc) for m, dr, dc in cells) / sum(m for m, _, _ in cells)
    assert measure.kernel_locality(kernels) == pytest.approx(slow, abs=1e-12)
    mean = sum(math.hypot(dr, dc) for _, dr, dc in cells) / len(cells)
    assert measure.random_kernel_locality(kernels) == pytest.approx(mean, abs=1e-12)
    rr, cc, rc = (sum(m * (dr * dr, dc * dc, dr * dc)[k] for m, dr, dc in cells) for k in range(3))
    if (h, w) == (1, 1):
        assert measure.kernel_anisotropy(kernels) is None
    else:  # of a symmetric 2 x 2 matrix, the difference of the eigenvalues over their sum
        slow = math.sqrt((rr - cc) ** 2 + 4 * rc**2) / (rr + cc)
        assert measure.kernel_anisotropy(kernels) == pytest.approx(slow, abs=1e-9)


def test_a_kernel_that_looks_one_down_two_right() -> None:
    kernels = torch.zeros(2, 5, 7)
    kernels[:, 2 + 1, 3 + 2] = torch.tensor([0.5, -3])
    assert measure.kernel_locality(kernels) == pytest.approx(math.sqrt(5))
    assert measure.kernel_anisotropy(kernels) == pytest.approx(1)
    assert measure.kernel_locality(torch.zeros(2, 5, 7)) is None
    assert measure.kernel_anisotropy(torch.zeros(2, 5, 7)) is None


@given(st.tuples(st.integers(1, 5), st.integers(1, 5)), st.integers(0, 9))
@settings(deadline=None, max_examples=30)
def test_effective_rank_is_the_exponential_of_an_entropy(shape: tuple[int, int], seed: int) -> None:
    weight = torch.randn(shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)
    # by the eigenvalues of the Gram matrix, a way that shares nothing with an SVD
    sigma = torch.linalg.eigvalsh(weight @ weight.T).clamp(min=0).sqrt().tolist()
    p = [s / sum(sigma) for s in sigma if s > 1e-7]
    assert measure.effective_rank(weight) == pytest.approx(
        math.exp(-sum(x * math.log(x) for x in p)), abs=1e-5
    )


@given(st.integers(1, 6), st.integers(0, 9))
@settings(deadline=None, max_examples=30)
def test_symmetry_and_diagonal_share_by_hand(n: int, seed: int) -> None:
    weight = draw((n, 1), seed)
    w = weight.tolist()
    every = [(i, j) for i in range(n) for j in range(n)]
    symmetric = sum(((w[i][j] + w[j][i]) / 2) ** 2 for i, j in every) / sum(w[i][j] ** 2 for i, j in every)
    diagonal = sum(abs(w[i][i]) for i in range(n)) / sum(abs(w[i][j]) for i, j in every)
    assert measure.symmetry(weight) == pytest.approx(symmetric, abs=1e-12)
    assert measure.diagonal_share(weight) == pytest.approx(diagonal, abs=1e-12)


@given(GRIDS, st.integers(0, 9))
@settings(deadline=None, max_examples=20)
def test_a_convolution_is_found_exactly(grid: tuple[int, int], seed: int) -> None:
    generator = torch.Generator().manual_seed(seed)
    kernel = torch.randn(2 * grid[0] - 1, 2 * grid[1] - 1, generator=generator)
    weight = from_kernel(kernel, grid)
    assert torch.equal(toeplitz_average(weight, grid), kernel)
    assert measure.toeplitz_share(weight, grid) == pytest.approx(1, abs=1e-12)


def test_a_token_that_looks_one_down_two_right() -> None:
    grid = (4, 5)
    kernel = torch.zeros(7, 9)
    kernel[3 + 1, 4 + 2] = 0.5
    weight = from_kernel(kernel, grid)
    assert weight[0 * 5 + 0, 1 * 5 + 2] == 0.5  # token (0, 0) takes from token (1, 2)
    assert torch.equal(toeplitz_average(weight, grid), kernel)
    assert measure.locality(weight, grid) == pytest.approx(math.sqrt(5))
    assert measure.anisotropy(weight, grid) == pytest.approx(1)
    assert measure.diagonal_share(weight) == 0


@given(GRIDS, st.integers(0, 9))
@settings(deadline=None, max_examples=20)
def test_laws_of_transposition_and_scale(grid: tuple[int, int], seed: int) -> None:
    weight = draw(grid, seed)
    torch.testing.assert_close(toeplitz_average(weight.T, grid), toeplitz_average(weight, grid).flip(0, 1))
    for statistic in (measure.toeplitz_share, measure.locality, measure.anisotropy):
        reference = statistic(weight, grid)
        assert statistic(weight.T, grid) == pytest.approx(reference)
        assert statistic(-1e-20 * weight, grid) == pytest.approx(reference)


@pytest.mark.parametrize("grid", [(3, 3), (2, 5), (1, 4)])
def test_identity_and_constant(grid: tuple[int, int]) -> None:
    n = grid[0] * grid[1]
    identity, constant = torch.eye(n), torch.full((n, n), 0.3)
    assert measure.toeplitz_share(identity, grid) == pytest.approx(1)
    assert measure.locality(identity, grid) == 0
    assert measure.anisotropy(identity, grid) is None
    assert measure.diagonal_share(identity) == pytest.approx(1)
    assert measure.symmetry(identity) == pytest.approx(1)
    assert measure.effective_rank(identity) == pytest.approx(n)
    assert measure.toeplitz_share(constant, grid) == pytest.approx(1)
    assert measure.locality(constant, grid) == pytest.approx(measure.random_locality(grid))
    assert measure.diagonal_share(constant) == pytest.approx(1 / n)
    assert measure.symmetry(constant) == pytest.approx(1)
    assert measure.effective_rank(constant) == pytest.approx(1, abs=1e-4)


def test_antisymmetric_is_zero_symmetric() -> None:
    weight = draw((3, 3))
    assert measure.symmetry(weight - weight.T) == pytest.approx(0)


def test_random_has_the_stated_baselines() -> None:
    grid = (9, 12)
    shares = [measure.toeplitz_share(draw(grid, seed), grid) for seed in range(8)]
    local = [measure.locality(draw(grid, seed), grid) for seed in range(8)]
    # the mean of 8 draws; one share scatters by about sqrt(2 / 391) = 7 % of itself
    assert sum(shares) / 8 == pytest.approx(measure.random_toeplitz_share(grid), rel=0.1)
    assert sum(local) / 8 == pytest.approx(measure.random_locality(grid), rel=0.01)
    assert measure.symmetry(draw(grid)) == pytest.approx(0.5, abs=0.02)


def test_zero_has_no_shares_and_divides_by_nothing() -> None:
    zero, grid = torch.zeros(6, 6), (2, 3)
    assert torch.equal(toeplitz_average(zero, grid), torch.zeros(3, 5))
    for statistic in (measure.toeplitz_share, measure.locality, measure.anisotropy):
        assert statistic(zero, grid) is None
    for statistic in (measure.diagonal_share, measure.symmetry, measure.effective_rank):
        assert statistic(zero) is None
    assert measure.rms(zero) == 0


@pytest.mark.parametrize("bad", [math.nan, math.inf])
def test_nan_is_an_error_not_a_number(bad: float) -> None:
    weight = torch.ones(6, 6)
    weight[2, 3] = bad
    for statistic in (toeplitz_average, measure.toeplitz_share, measure.locality, measure.anisotropy):
        with pytest.raises(ValueError, match=r"1 values of 36 that are NaN or infinite.*earlier checkpoint"):
            statistic(weight, (2, 3))
    for statistic in (measure.diagonal_share, measure.symmetry, measure.effective_rank, measure.rms):
        with pytest.raises(ValueError, match="1 values of 36"):
            statistic(weight)


def test_a_grid_that_does_not_fit_is_refused() -> None:
    with pytest.raises(ValueError, match=r"shape \(6, 6\).*2 x 4 tokens.*\(8, 8\)"):
        toeplitz_average(torch.ones(6, 6), (2, 4))
