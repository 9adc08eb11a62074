"""What a token operator, or a set of kernels, looks like in numbers.

Shapes: N = H * W tokens in row-major order; W[i, j] is what output token i takes from input token j.
R kernels K of (h, w) offsets; K[r, h // 2, w // 2] is what a token takes from itself.
Distances are Euclidean, in tokens. Sums run over all entries, in float64.
"""

import torch

from gmlp_vision.layers.offsets import mean_of_offsets, toeplitz_matrix


def toeplitz_average(weight: torch.Tensor, grid: tuple[int, int]) -> torch.Tensor:
    """The mean kernel of W, the convolution nearest to it in least squares.

        K[H - 1 + dr, W - 1 + dc] = mean of W[i, j] over all i, j with position(j) - position(i) = (dr, dc)

    Args:
        weight: W, (N, N).
        grid: (H, W), in tokens.

    Returns:
        K, (2H - 1, 2W - 1), of the dtype of `weight`. Its centre is the weight that a token gives itself; the
        entry dr rows below and dc columns to the right is what it takes from there.

    Raises:
        ValueError: W does not fit the grid, or holds NaN or infinity.
    """
    return mean_of_offsets(_checked(weight, grid), grid).to(weight.dtype)


def toeplitz_share(weight: torch.Tensor, grid: tuple[int, int]) -> float | None:
    """How much of W its mean kernel explains: 1 for a convolution.

        1 - |W - T|^2 / |W|^2 = |T|^2 / |W|^2,    T[i, j] = K[position(j) - position(i)]

    T is the orthogonal projection of W on the 2-D Toeplitz matrices, so both forms agree. None for W = 0.
    """
    w = _checked(weight, grid)
    if not w.any():
        return None
    t = toeplitz_matrix(mean_of_offsets(w, grid), *grid)
    return (t.square().sum() / w.square().sum()).item()


def random_toeplitz_share(grid: tuple[int, int]) -> float:
    """`toeplitz_share` to expect of independent entries: the share of free numbers, (2H-1)(2W-1) / N^2."""
    h, w = grid
    return (2 * h - 1) * (2 * w - 1) / (h * w) ** 2


def locality(weight: torch.Tensor, grid: tuple[int, int]) -> float | None:
    """Mean distance in tokens between a token and what it looks at, weighted by |W|; 0 for a diagonal W.

        sum |W[i, j]| d(i, j) / sum |W[i, j]|

    None for W = 0.
    """
    return _mean_distance(_checked(weight, grid), _steps(grid))


def kernel_locality(kernels: torch.Tensor) -> float | None:
    """`locality` of (R, h, w) kernels: the mean distance of |K| from the centre. None for K = 0."""
    return _mean_distance(_finite(kernels), _offsets_of_kernel(kernels))


def random_locality(grid: tuple[int, int]) -> float:
    """`locality` to expect of a random W, and that of a constant one: the mean of d(i, j) over all pairs."""
    return _steps(grid).norm(dim=-1).mean().item()


def random_kernel_locality(kernels: torch.Tensor) -> float:
    """`kernel_locality` to expect of random kernels of this shape: the mean distance of an offset."""
    return _offsets_of_kernel(kernels).norm(dim=-1).mean().item()


def anisotropy(weight: torch.Tensor, grid: tuple[int, int]) -> float | None:
    """How much W prefers one direction: 0 for none, 1 where all its mass lies on one line through the token.

        (a - b) / (a + b),    a >= b the eigenvalues of  sum |W[i, j]| s s^T,  s = position(j) - position(i)

    None where W has no mass off its diagonal.
    """
    return _preferred_direction(_checked(weight, grid), _steps(grid))


def kernel_anisotropy(kernels: torch.Tensor) -> float | None:
    """`anisotropy` of (R, h, w) kernels taken together. None where they have no mass off their centre."""
    return _preferred_direction(_finite(kernels).abs().sum(0), _offsets_of_kernel(kernels))


def diagonal_share(weight: torch.Tensor) -> float | None:
    """Share of the mass that tokens give themselves: sum |W[i, i]| / sum |W[i, j]|. None for W = 0."""
    w = _finite(weight).abs()
    return (w.diagonal().sum() / w.sum()).item() if w.any() else None


def symmetry(weight: torch.Tensor) -> float | None:
    """Share of W in its symmetric part: 1 for W = W^T, 0 for W = -W^T, near 1/2 for a random W.

        |(W + W^T) / 2|^2 / |W|^2

    None for W = 0.
    """
    w = _finite(weight)
    return ((((w + w.T) / 2) ** 2).sum() / (w**2).sum()).item() if w.any() else None


def effective_rank(weight: torch.Tensor) -> float | None:
    """exp of the entropy of the normalised singular values (Roy and Vetterli, EUSIPCO 2007): N for the
    identity, 1 for a constant matrix. Any (rows, columns) matrix. None for W = 0.

        exp(-sum p_k log p_k),    p_k = sigma_k / sum sigma
    """
    w = _finite(weight)
    if not w.any():
        return None
    sigma = torch.linalg.svdvals(w)
    return torch.special.entr(sigma / sigma.sum()).sum().exp().item()


def rms(weight: torch.Tensor) -> float:
    """Root of the mean square of the entries of W."""
    return _finite(weight).square().mean().sqrt().item()


# -- pieces --------------------------------------------------------------------------------------------------


def _mean_distance(weight: torch.Tensor, steps: torch.Tensor) -> float | None:
    """Of the steps (..., 2), weighted by |weight| (..., or with more dimensions before)."""
    mass = weight.abs()
    return ((mass * steps.norm(dim=-1)).sum() / mass.sum()).item() if mass.any() else None


def _preferred_direction(weight: torch.Tensor, steps: torch.Tensor) -> float | None:
    """As `anisotropy` has it, of the steps (h, w, 2) weighted by |weight| (h, w)."""
    moment = torch.einsum("ij,ijp,ijq->pq", weight.abs(), steps, steps)
    if moment.trace() <= 0:
        return None
    small, large = torch.linalg.eigvalsh(moment).clamp(min=0)
    return ((large - small) / (large + small)).item()


def _finite(weight: torch.Tensor) -> torch.Tensor:
    w = weight.detach().to("cpu", torch.float64)
    bad = int((~w.isfinite()).sum())
    if bad:
        raise ValueError(
            f"the operator holds {bad} values of {w.numel()} that are NaN or infinite; the training has "
            "diverged, or the file is damaged: take an earlier checkpoint"
        )
    return w


def _checked(weight: torch.Tensor, grid: tuple[int, int]) -> torch.Tensor:
    n = grid[0] * grid[1]
    if weight.shape != (n, n):
        raise ValueError(
            f"the operator is of shape {tuple(weight.shape)}; on a grid of {grid[0]} x {grid[1]} tokens it "
            f"must be ({n}, {n}): give the grid as (height, width) in tokens"
        )
    return _finite(weight)


def _steps(grid: tuple[int, int]) -> torch.Tensor:
    """position(j) - position(i), (N, N, 2)."""
    position = _positions(grid).flatten(0, 1)
    return position[None, :] - position[:, None]


def _offsets_of_kernel(kernels: torch.Tensor) -> torch.Tensor:
    """From the centre, (h, w, 2)."""
    h, w = kernels.shape[1:]
    return _positions((h, w)) - torch.tensor([h // 2, w // 2])


def _positions(grid: tuple[int, int]) -> torch.Tensor:
    """Row and column of every cell, (H, W, 2)."""
    axes = torch.meshgrid(*(torch.arange(size, dtype=torch.float64) for size in grid), indexing="ij")
    return torch.stack(axes, dim=-1)
