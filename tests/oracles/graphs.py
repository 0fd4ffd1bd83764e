"""Methods without a server, as recursions on dense N x N matrices, and the matrices themselves, entry by entry.

A round is (active nodes, arrived messages as pairs (from, to), K of each node). A node that is not active has the row
and column of the identity. Where a paper's recursion needs two past iterates it holds for a constant matrix and full
participation only; these are the functions called `literal_...`.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np

from tests.oracles.problem import Array, Problem


@dataclass(frozen=True)
class GraphRound:
    """nodes: active, ascending; arrived: the set of pairs (from, to) whose message arrives, of any two nodes."""

    index: int
    nodes: list[int]
    arrived: set[tuple[int, int]]
    steps: list[int]  # of all N nodes
    lr: float


def metropolis(r: GraphRound, count: int) -> Array:
    """1 / (1 + the larger degree) where both messages arrive between active nodes; the rest on the diagonal."""
    mutual = {(i, j) for i, j in r.arrived if (j, i) in r.arrived and i in r.nodes and j in r.nodes}
    degree = [sum(a == i for a, _ in mutual) for i in range(count)]
    w = np.zeros((count, count))
    for i, j in mutual:
        w[i, j] = 1 / (1 + max(degree[i], degree[j]))
    return w + np.diag(1 - w.sum(axis=1))


def row_stochastic(r: GraphRound, count: int) -> Array:
    """Every node averages itself and the messages that it receives."""
    w = np.eye(count)
    for sender, receiver in r.arrived:
        if sender in r.nodes and receiver in r.nodes:
            w[receiver, sender] = 1
    return w / w.sum(axis=1, keepdims=True)


def column_stochastic(r: GraphRound, count: int) -> Array:
    """Every node divides its row into equal parts, one for itself and one for each message that arrives."""
    w = np.eye(count)
    for sender, receiver in r.arrived:
        if sender in r.nodes and receiver in r.nodes:
            w[receiver, sender] = 1
    return w / w.sum(axis=0, keepdims=True)


Direction = Callable[[int, Array, Array], Array]


def _local(problem: Problem, r: GraphRound, x: Array, direction: Direction) -> Array:
    """x after the local steps: K_i times x_i <- x_i - lr direction(i, x_i, gradient) for the active nodes."""
    moved = x.copy()
    for i in r.nodes:
        for t in range(r.steps[i]):
            g = problem.count * problem.weights[i] * problem.gradient(i, moved[i], r.index, t)
            moved[i] = moved[i] - r.lr * direction(i, moved[i], g)
    return moved


def _plain(i: int, x: Array, g: Array) -> Array:
    return g


def dsgd(problem: Problem, rounds: Sequence[GraphRound], x0: Array, order: str) -> list[Array]:
    """x [N, d] after each round."""
    x, out = np.tile(x0, (problem.count, 1)), []
    for r in rounds:
        w = metropolis(r, problem.count)
        if order == "atc":
            x = w @ _local(problem, r, x, _plain)
        elif order == "cta":
            x = _local(problem, r, w @ x, _plain)
        else:
            x = w @ x - (x - _local(problem, r, x, _plain))
        out.append(x)
    return out


def dsgdm(problem: Problem, rounds: Sequence[GraphRound], x0: Array, beta: float) -> list[Array]:
    x, out = np.tile(x0, (problem.count, 1)), []
    m = np.zeros_like(x)

    def momentum(i: int, z: Array, g: Array) -> Array:
        m[i] = beta * m[i] + g
        return m[i]

    for r in rounds:
        x = metropolis(r, problem.count) @ _local(problem, r, x, momentum)
        out.append(x)
    return out


def sgp(problem: Problem, rounds: Sequence[GraphRound], x0: Array) -> list[tuple[Array, Array]]:
    """(numerators [N, d], masses [N])."""
    n = problem.count
    x, w, out = np.tile(x0, (n, 1)), np.ones(n), []
    for r in rounds:
        x = x.copy()
        for i in r.nodes:
            for t in range(r.steps[i]):
                x[i] -= r.lr * n * problem.weights[i] * problem.gradient(i, x[i] / w[i], r.index, t)
        c = column_stochastic(r, n)
        x, w = c @ x, c @ w
        out.append((x, w))
    return out


def tracking(problem: Problem, rounds: Sequence[GraphRound], x0: Array, form: str) -> list[tuple[Array, Array, Array]]:
    """(x, y, stored gradients) of DIGing, adapt-then-combine, push-pull (K steps) and Push-DIGing (x: numerators)."""
    n = problem.count
    x, out = np.tile(x0, (n, 1)), []
    y, stored, w = np.zeros_like(x), np.zeros_like(x), np.ones(n)
    for r in rounds:
        y, stored, moved = y.copy(), stored.copy(), x.copy()
        for i in r.nodes:
            for t in range(r.steps[i]):
                g = n * problem.weights[i] * problem.gradient(i, moved[i] / w[i], r.index, t)
                y[i] += g - stored[i]
                stored[i] = g
                moved[i] = moved[i] - r.lr * y[i]
        m, rows, columns = metropolis(r, n), row_stochastic(r, n), column_stochastic(r, n)
        if form == "diging":
            x, y = m @ x + (moved - x), m @ y
        elif form == "atc":
            x, y = m @ moved, m @ y
        elif form == "push_pull":
            x, y = rows @ moved, columns @ y
        else:
            x, y, w = columns @ moved, columns @ y, columns @ w
        out.append((x, y, stored))
    return out


def kgt(problem: Problem, rounds: Sequence[GraphRound], x0: Array, gamma: float) -> list[tuple[Array, Array]]:
    """(x, c)."""
    n = problem.count
    x, out = np.tile(x0, (n, 1)), []
    c = np.zeros_like(x)
    for r in rounds:
        moved = _local(problem, r, x, lambda i, z, g, c=c: g + c[i])
        k = np.array([max(s, 1) for s in r.steps])[:, None]
        z = (x - moved) / (k * r.lr)
        w = metropolis(r, n)
        c = c - z + w @ z
        x = w @ (x - k * r.lr * gamma * z)
        out.append((x, c))
    return out


def led(
    problem: Problem, rounds: Sequence[GraphRound], x0: Array, lazy: bool, share: float | None = None
) -> list[tuple[Array, Array]]:
    """(x, dual) of LED and ProxSkip; share: of the dual in a local step, None: 1/K."""
    n = problem.count
    x, out = np.tile(x0, (n, 1)), []
    e = np.zeros_like(x)
    for r in rounds:
        k = max(r.steps)
        beta = 1 / k if share is None else share
        phi = _local(problem, r, x, lambda i, z, g, e=e, r=r, beta=beta: g + beta / r.lr * e[i])
        w = metropolis(r, n)
        w = (np.eye(n) + w) / 2 if lazy else w
        x, e = w @ phi, e + phi - w @ phi
        out.append((x, e))
    return out


def exact_diffusion(problem: Problem, rounds: Sequence[GraphRound], x0: Array) -> list[Array]:
    x, out = np.tile(x0, (problem.count, 1)), []
    psi = x.copy()
    for r in rounds:
        w = (np.eye(problem.count) + metropolis(r, problem.count)) / 2
        new, active = _local(problem, r, x, _plain), np.isin(np.arange(problem.count), r.nodes)[:, None]
        phi = np.where(active, new + x - psi, x)
        psi = np.where(active, new, psi)
        x = w @ phi
        out.append(x)
    return out


def extra(problem: Problem, rounds: Sequence[GraphRound], x0: Array) -> list[tuple[Array, Array]]:
    """(x, s): x+ = W x - lr g + s, s+ = s + (W - W~) x, W~ = (I + W)/2, whose sum is the paper's recursion."""
    n = problem.count
    x, out = np.tile(x0, (n, 1)), []
    s = np.zeros_like(x)
    for r in rounds:
        w, active = metropolis(r, n), np.isin(np.arange(n), r.nodes)[:, None]
        moved = w @ x + (_local(problem, r, x, _plain) - x) + np.where(active, s, 0.0)
        s = s + (w - (np.eye(n) + w) / 2) @ x
        x = moved
        out.append((x, s))
    return out


def _all(problem: Problem, x: Array) -> Array:
    return np.stack([problem.count * problem.weights[i] * problem.full_gradient(i, x[i]) for i in range(problem.count)])


def literal_extra(problem: Problem, w: Array, lr: float, count: int, x0: Array) -> list[Array]:
    """Shi et al. 2015, eq. (2.13) with W~ = (I + W)/2."""
    x = [np.tile(x0, (problem.count, 1))]
    x.append(w @ x[0] - lr * _all(problem, x[0]))
    half = (np.eye(problem.count) + w) / 2
    while len(x) <= count:
        x.append(
            (np.eye(problem.count) + w) @ x[-1] - half @ x[-2] - lr * (_all(problem, x[-1]) - _all(problem, x[-2]))
        )
    return x[1 : count + 1]


def literal_nids(problem: Problem, w: Array, lr: float, count: int, x0: Array) -> list[Array]:
    """x_{k+2} = W (2 x_{k+1} - x_k - lr (g_{k+1} - g_k)), x_1 = W (x_0 - lr g_0): D2; with (I + W)/2: almost NIDS."""
    x = [np.tile(x0, (problem.count, 1))]
    x.append(w @ (x[0] - lr * _all(problem, x[0])))
    while len(x) <= count:
        x.append(w @ (2 * x[-1] - x[-2] - lr * (_all(problem, x[-1]) - _all(problem, x[-2]))))
    return x[1 : count + 1]


def literal_diging(problem: Problem, w: Array, lr: float, count: int, x0: Array) -> list[Array]:
    """Nedic, Olshevsky & Shi 2017, Alg. 1: x+ = W x - lr y, y+ = W y + g(x+) - g(x), y_0 = g(x_0)."""
    x = np.tile(x0, (problem.count, 1))
    y, out = _all(problem, x), []
    for _ in range(count):
        new = w @ x - lr * y
        y = w @ y + _all(problem, new) - _all(problem, x)
        x = new
        out.append(x)
    return out


def literal_push_pull(problem: Problem, r: Array, c: Array, lr: float, count: int, x0: Array) -> list[Array]:
    """Pu et al. 2021, Alg. 1: x+ = R (x - lr y), y+ = C y + g(x+) - g(x), y_0 = g(x_0)."""
    x = np.tile(x0, (problem.count, 1))
    y, out = _all(problem, x), []
    for _ in range(count):
        new = r @ (x - lr * y)
        y = c @ y + _all(problem, new) - _all(problem, x)
        x = new
        out.append(x)
    return out
