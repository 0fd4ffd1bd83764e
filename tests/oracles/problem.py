"""Small problems with gradients to replay: gradient(i, x, r, t) depends on nothing but its arguments."""

from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

Array = npt.NDArray[np.float64]
Batches = Callable[[int, int, int], Sequence[int]]


class Problem(ABC):
    """N local objectives f_i on R^d and F = sum_i w_i f_i.

    weights: w [N], sum 1; sizes: n_i [N]; dim: d.
    """

    weights: Array
    sizes: npt.NDArray[np.int64]
    dim: int

    @property
    def count(self) -> int:
        """N."""
        return len(self.weights)

    @abstractmethod
    def full_gradient(self, i: int, x: Array) -> Array:
        """grad f_i(x) [d]."""

    def gradient(self, i: int, x: Array, r: int, t: int) -> Array:
        """grad f_i(x; xi_t) [d], of client i's local step t in round r; full batch ignores r and t."""
        return self.full_gradient(i, x)

    def optimum(self) -> Array | None:
        """argmin F, or None where no closed form is known."""
        return None

    def global_gradient(self, x: Array) -> Array:
        """grad F(x) = sum_i w_i grad f_i(x)."""
        return np.sum([w * self.full_gradient(i, x) for i, w in enumerate(self.weights)], axis=0)


@dataclass
class Quadratics(Problem):
    """f_i(x) = x^T H_i x / 2 - b_i^T x, H_i symmetric positive definite ([3] eq. 28 without its constant).

    hessians: H [N, d, d]; linear: b [N, d]. noise: standard deviation of a fixed normal vector that each
    (seed, i, r, t) adds to the gradient, so that a stochastic run can be replayed; 0 is full batch.
    """

    hessians: Array
    linear: Array
    weights: Array
    sizes: npt.NDArray[np.int64]
    noise: float = 0.0
    seed: int = 0

    def __post_init__(self) -> None:
        self.dim = self.linear.shape[1]

    def full_gradient(self, i: int, x: Array) -> Array:
        return self.hessians[i] @ x - self.linear[i]

    def gradient(self, i: int, x: Array, r: int, t: int) -> Array:
        g = self.full_gradient(i, x)
        if self.noise == 0:
            return g
        return g + self.noise * np.random.default_rng([self.seed, i, r, t]).standard_normal(self.dim)

    def optimum(self) -> Array:
        """(sum w_i H_i)^-1 sum w_i b_i."""
        return np.linalg.solve(
            np.einsum("i,ijk->jk", self.weights, self.hessians), np.einsum("i,ij->j", self.weights, self.linear)
        )


def random_quadratics(seed: int, count: int, dim: int, *, weights: str = "data_size", noise: float = 0.0) -> Quadratics:
    """Random SPD Hessians with eigenvalues in [0.5, 2], local minimisers N(0, I) apart from each other.

    weights: `data_size` (w_i = n_i/n, n_i in 5..40) or `uniform` (1/N).
    """
    rng = np.random.default_rng(seed)
    hessians = np.empty((count, dim, dim))
    for i in range(count):
        basis = np.linalg.qr(rng.standard_normal((dim, dim)))[0]
        hessians[i] = basis @ np.diag(rng.uniform(0.5, 2.0, dim)) @ basis.T
        hessians[i] = (hessians[i] + hessians[i].T) / 2
    linear = np.einsum("ijk,ik->ij", hessians, rng.standard_normal((count, dim)))
    sizes = rng.integers(5, 41, count)
    w = sizes / sizes.sum() if weights == "data_size" else np.full(count, 1 / count)
    return Quadratics(hessians, linear, w, sizes, noise, seed)


def distances(centres: Array) -> Quadratics:
    """f_i(x) = |x - E_i|^2 / 2 up to a constant ([3] Example 1), w_i = 1/N. centres: E [N, d]."""
    count, dim = centres.shape
    w, sizes = np.full(count, 1 / count), np.ones(count, dtype=np.int64)
    return Quadratics(np.tile(np.eye(dim), (count, 1, 1)), centres.copy(), w, sizes)


@dataclass
class Logistic(Problem):
    """Multinomial logistic regression: mean cross-entropy over a client's rows.

    features: one [n_i, p] a client; labels: one [n_i] of 0..classes-1 a client.
    x is weight [classes, p] row by row, then bias [classes]: d = classes (p + 1).
    batches: (i, r, t) to the row indices of that local step.
    """

    features: list[Array]
    labels: list[npt.NDArray[np.int64]]
    classes: int
    weights: Array
    batches: Batches

    def __post_init__(self) -> None:
        self.dim = self.classes * (self.features[0].shape[1] + 1)
        self.sizes = np.array([len(rows) for rows in self.features], dtype=np.int64)

    def _log_probabilities(self, i: int, x: Array, rows: npt.NDArray[np.int64]) -> Array:
        weight, bias = x[: -self.classes].reshape(self.classes, -1), x[-self.classes :]
        logits = self.features[i][rows] @ weight.T + bias
        logits = logits - logits.max(axis=1, keepdims=True)
        return logits - np.log(np.exp(logits).sum(axis=1, keepdims=True))

    def row_gradient(self, i: int, x: Array, rows: Sequence[int] | npt.NDArray[np.int64]) -> Array:
        """Gradient of the mean loss over the given rows of client i [d]."""
        index = np.asarray(rows, dtype=np.int64)
        excess = np.exp(self._log_probabilities(i, x, index)) - np.eye(self.classes)[self.labels[i][index]]
        weight = excess.T @ self.features[i][index] / len(index)
        return np.concatenate([weight.ravel(), excess.mean(axis=0)])

    def full_gradient(self, i: int, x: Array) -> Array:
        return self.row_gradient(i, x, np.arange(self.sizes[i]))

    def gradient(self, i: int, x: Array, r: int, t: int) -> Array:
        return self.row_gradient(i, x, self.batches(i, r, t))


def random_logistic(seed: int, count: int, *, features: int, classes: int, batch: int) -> Logistic:
    """Normal features, random labels, 6..15 rows a client, w_i = n_i/n.

    batch: rows a local step, drawn with replacement from (seed, i, r, t).
    """
    rng = np.random.default_rng(seed)
    sizes = rng.integers(6, 16, count)

    def draw(i: int, r: int, t: int) -> Sequence[int]:
        return np.random.default_rng([seed, i, r, t]).integers(0, sizes[i], batch).tolist()

    return Logistic(
        [rng.standard_normal((n, features)) for n in sizes],
        [rng.integers(0, classes, n) for n in sizes],
        classes,
        sizes / sizes.sum(),
        draw,
    )
