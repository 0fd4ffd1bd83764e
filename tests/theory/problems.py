"""Random quadratics and dense float64 runs of the methods on them, independent of the package's round engine."""

from collections.abc import Callable

import numpy as np
from hypothesis import strategies as st

from raylfl.config.load import load_config
from raylfl.execution.planned import prepare
from raylfl.theory.quadratic import QuadraticProblem

RIDGE = [
    *("num_clients=3", "data.init_args={num_clients: 3, rows_per_client: 7, dim: 4, lam: 0.3}", "participation.size=2"),
    *("rounds=20", "runtime.backend=local", "runtime.step=autograd", "runtime.vectorize=never"),
]


def experiment(config, *overrides):
    return prepare(load_config(config, list(overrides)))


def random_problem(
    seed: int, clients: int, dim: int, condition: float, spread: float, alike: bool, scale: float = 1.0
) -> QuadraticProblem:
    """Strongly convex f_i with eigenvalues in [1/condition, 1] times `scale`; alike: one Hessian for all."""
    draw = np.random.default_rng(seed)
    h = np.empty((clients, dim, dim))
    for i in range(clients):
        if i == 0 or not alike:
            q, _ = np.linalg.qr(draw.standard_normal((dim, dim)))
            eigenvalues = condition ** -draw.random(dim)
        h[i] = (q * eigenvalues) @ q.T
        h[i] = (h[i] + h[i].T) / 2
    b = spread * draw.standard_normal((clients, dim))
    return QuadraticProblem(scale * h, scale * b, np.zeros(clients), np.full(clients, 1 / clients))


SCALES = st.floats(-3, 3).map(lambda exponent: 10.0**exponent)  # of the losses
SHARES = st.floats(-3, 0).map(lambda exponent: 10.0**exponent)  # shares of the largest step size of a theorem
PROBLEMS = st.builds(
    random_problem,
    st.integers(0, 10**6),
    st.one_of(st.integers(2, 6), st.integers(7, 64)),
    st.integers(1, 4),
    st.floats(1, 30),
    st.floats(0, 3),
    st.booleans(),
    SCALES,
)

Gradient = Callable[[int, np.ndarray], np.ndarray]


def noisy(problem: QuadraticProblem, sigma: float, draw: np.random.Generator) -> Gradient:
    """grad f_i(x) plus noise with E|noise|^2 = sigma^2."""

    def gradient(i: int, x: np.ndarray) -> np.ndarray:
        exact = problem.hessians[i] @ x - problem.linear[i]
        return exact + sigma / np.sqrt(problem.dim) * draw.standard_normal(problem.dim) if sigma else exact

    return gradient


def local(gradient: Gradient, i: int, x: np.ndarray, steps: int, eta: float) -> np.ndarray:
    """x after `steps` steps of client i."""
    for _ in range(steps):
        x = x - eta * gradient(i, x)
    return x


def sfl_run(
    gradient: Gradient, x: np.ndarray, clients: int, size: int, steps: int, eta: float, rounds: int, draw
) -> list:
    """x_0, ..., x_R of SFL: `size` clients in random order, one after the other."""
    path = [x]
    for _ in range(rounds):
        for i in draw.permutation(clients)[:size]:
            x = local(gradient, i, x, steps, eta)
        path.append(x)
    return path


def fedavg_run(gradient, x, clients: int, size: int, steps, eta: float, rounds: int, draw) -> list:
    """x_0, ..., x_R of FedAvg (PFL): the mean of `size` clients drawn without replacement."""
    path = [x]
    for _ in range(rounds):
        chosen = draw.permutation(clients)[:size]
        x = np.mean([local(gradient, i, x, steps, eta) for i in chosen], axis=0)
        path.append(x)
    return path


def focus_run(problem: QuadraticProblem, x, takes_part: np.ndarray, steps: int, eta: float) -> tuple[list, list]:
    """(x_0, ..., x_R; each client's last model after each round) of FOCUS, Alg. 1, full gradients.

    takes_part: bool [R, N].
    """
    y, last, seen = np.zeros_like(x), np.zeros_like(problem.linear), np.tile(x, (problem.count, 1))
    path, models = [x], [seen]
    for part in takes_part[:, :, None]:
        of_clients, change, before = np.tile(x, (problem.count, 1)), np.zeros_like(last), last
        for _ in range(steps):
            gradients = np.einsum("ijk,ik->ij", problem.hessians, of_clients) - problem.linear
            change, before = change + gradients - before, gradients
            seen, of_clients = np.where(part, of_clients, seen), of_clients - eta * change
        y, last = y + np.where(part, change, 0.0).sum(axis=0), np.where(part, before, last)
        x = x - eta * y
        path.append(x)
        models.append(seen)
    return path, models
