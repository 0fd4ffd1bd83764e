"""The FedAvg family: sums c_i U_i of plain updates, and the server steps that use them.

Every function takes a run, then the algorithm's options, and returns the state after each round.
"""

from collections.abc import Callable, Iterable

import numpy as np

from tests.oracles.local import Direction, Run, a_norms, local_model, updates
from tests.oracles.problem import Array, Problem
from tests.oracles.rounds import Round

History = list[dict[str, Array]]


def add_up(vectors: Iterable[Array]) -> Array:
    """The sum of some vectors [d]; at least one."""
    return np.sum(list(vectors), axis=0)


def coefficients(rule: str, problem: Problem, r: Round) -> dict[int, float]:
    """c_i of every received client (spec, aggregation rules; [1] eq. 2c, [3] eqs. 3, 18-21)."""
    w, received, m = problem.weights, r.arrived, r.total_draws
    match rule:
        case "mean":
            return {i: r.draws_of(i) / sum(r.draws_of(j) for j in received) for i in received}
        case "weighted":
            return {i: w[i] / sum(w[j] for j in received) for i in received}
        case "anonymous":
            return {i: r.draws_of(i) / m for i in received}
        case "anonymous_uniform":
            return {i: problem.count / m * w[i] for i in received}
        case "anonymous_importance":
            assert r.p is not None
            return {i: r.draws_of(i) * w[i] / (m * r.p[i]) for i in received}
        case "full":
            return {i: w[i] for i in received}
    raise ValueError(rule)


def aggregate_of(rule: str, problem: Problem, r: Round, update: dict[int, Array]) -> Array:
    """sum_{i in R} c_i U_i."""
    c = coefficients(rule, problem, r)
    return add_up(c[i] * update[i] for i in r.arrived)


def descend(run: Run, step: Callable[[Round, Array], Array]) -> History:
    """x <- x - step(r, x) in every round r with a received upload."""
    x, history = run.x0.copy(), []
    for r in run.rounds:
        if r.arrived:
            x = x - step(r, x)
        history.append({"x": x})
    return history


def fedavg(run: Run, *, aggregate: str = "mean", gamma: float = 1.0) -> History:
    """x <- x - gamma sum c_i U_i (McMahan 2017)."""

    def step(r: Round, x: Array) -> Array:
        return gamma * aggregate_of(aggregate, run.problem, r, updates(run.problem, r, x, run.local))

    return descend(run, step)


def fedacs(run: Run, *, gamma: float = 1.0) -> History:
    """x <- x - gamma (1/M) sum_{i in R} s_i U_i for the recorded draws ([3] Alg. 1 line 26, eq. 3)."""

    def step(r: Round, x: Array) -> Array:
        update = updates(run.problem, r, x, run.local)
        return gamma / r.total_draws * add_up(r.draws_of(i) * update[i] for i in r.arrived)

    return descend(run, step)


def cafedavg(run: Run, *, gamma: float = 1.0) -> History:
    """c_i = s_i / (M (1 - q_i)) ([3] eq. 113)."""

    def step(r: Round, x: Array) -> Array:
        assert r.q is not None
        update = updates(run.problem, r, x, run.local)
        return gamma / r.total_draws * add_up(r.draws_of(i) / (1 - r.q[i]) * update[i] for i in r.arrived)

    return descend(run, step)


def fedsgd(run: Run, *, aggregate: str = "mean", gamma: float = 1.0) -> History:
    """x <- x - gamma eta sum c_i g_i, one gradient at x_r a client, whatever K_i the round recorded."""

    def step(r: Round, x: Array) -> Array:
        g = {i: run.local.condition(run.problem.gradient(i, x, r.index, 0), x) for i in r.arrived}
        return gamma * run.local.rate(r.lr, 0) * aggregate_of(aggregate, run.problem, r, g)

    return descend(run, step)


def proximal(mu: float, start: Array) -> Direction:
    """d(g, x) = g + mu (x - start)."""
    return lambda g, x: g + mu * (x - start)


def fedprox(run: Run, *, mu: float, aggregate: str = "mean", gamma: float = 1.0) -> History:
    """Local gradient + mu (x - x_r) (Li 2020)."""

    def step(r: Round, x: Array) -> Array:
        bend = proximal(mu, x)
        update = {i: x - local_model(run.problem, i, x, r, run.local, bend) for i in r.arrived}
        return gamma * aggregate_of(aggregate, run.problem, r, update)

    return descend(run, step)


def fedavgm(run: Run, *, beta: float, aggregate: str = "mean", gamma: float = 1.0) -> History:
    """v <- beta v + sum c_i U_i; x <- x - gamma v (Hsu 2019)."""
    problem, rounds, x0, local = run
    x, v, history = x0.copy(), np.zeros_like(x0), []
    for r in rounds:
        if r.arrived:
            v = beta * v + aggregate_of(aggregate, problem, r, updates(problem, r, x, local))
            x = x - gamma * v
        history.append({"x": x, "v": v})
    return history


def _adaptive(kind: str, run: Run, b1: float, b2: float, tau: float, aggregate: str, gamma: float) -> History:
    """m <- b1 m + (1-b1) D; v by kind; x <- x - gamma m / (sqrt(v) + tau); v_0 = tau^2 (Reddi 2021)."""
    problem, rounds, x0, local = run
    x, m, v, history = x0.copy(), np.zeros_like(x0), np.full_like(x0, tau**2), []
    for r in rounds:
        if r.arrived:
            d = aggregate_of(aggregate, problem, r, updates(problem, r, x, local))
            m = b1 * m + (1 - b1) * d
            match kind:
                case "adagrad":
                    v = v + d**2
                case "adam":
                    v = b2 * v + (1 - b2) * d**2
                case "yogi":
                    v = v - (1 - b2) * d**2 * np.sign(v - d**2)
            x = x - gamma * m / (np.sqrt(v) + tau)
        history.append({"x": x, "m": m, "v": v})
    return history


def fedadagrad(run: Run, *, b1: float = 0.0, tau: float = 1e-4, aggregate: str = "mean", gamma: float = 1.0) -> History:
    """v <- v + D^2."""
    return _adaptive("adagrad", run, b1, np.nan, tau, aggregate, gamma)


def fedadam(
    run: Run, *, b1: float = 0.9, b2: float = 0.99, tau: float = 1e-4, aggregate: str = "mean", gamma: float = 1.0
) -> History:
    """v <- b2 v + (1 - b2) D^2, no bias correction."""
    return _adaptive("adam", run, b1, b2, tau, aggregate, gamma)


def fedyogi(
    run: Run, *, b1: float = 0.9, b2: float = 0.99, tau: float = 1e-4, aggregate: str = "mean", gamma: float = 1.0
) -> History:
    """v <- v - (1 - b2) D^2 sign(v - D^2)."""
    return _adaptive("yogi", run, b1, b2, tau, aggregate, gamma)


def fednova(run: Run, *, normalise: str = "received", gamma: float = 1.0) -> History:
    """Normalised averaging (Wang 2020); `sent` is the form of [3] eq. 116.

    received: n_i = U_i/(eta |a_i|_1), tau_eff = sum_R w'_i |a_i|_1,
              x <- x - gamma eta tau_eff sum_R w'_i n_i.
    sent:     tau_eff = sum w (1-q) |a|_1 / sum w (1-q) over all N,
              x <- x - gamma tau_eff (1/M) sum_R s_i U_i/|a_i|_1.
    """
    w = run.problem.weights

    def step(r: Round, x: Array) -> Array:
        a, update = a_norms(r, run.problem.count, run.local), updates(run.problem, r, x, run.local)
        if normalise == "received":
            share = {i: w[i] / sum(w[j] for j in r.arrived) for i in r.arrived}
            tau_eff = sum(share[i] * a[i] for i in r.arrived)
            return gamma * r.lr * tau_eff * add_up(share[i] * update[i] / (r.lr * a[i]) for i in r.arrived)
        assert normalise == "sent"
        assert r.q is not None
        success = 1 - np.array(r.q)
        tau_eff = np.sum(w * success * a) / np.sum(w * success)
        return gamma * tau_eff / r.total_draws * add_up(r.draws_of(i) * update[i] / a[i] for i in r.arrived)

    return descend(run, step)


def optimal_probabilities(w: Array, norms: Array) -> Array:
    """p_i proportional to w_i |U_i| (Chen 2022).

    norms [N]: nan is unknown and counts as the mean of the known. p = w where none is known, or where all are
    0.
    """
    if np.isnan(norms).all():
        return w / w.sum()
    filled = np.where(np.isnan(norms), np.nanmean(norms), norms)
    return w * filled / np.sum(w * filled) if np.any(w * filled) else w / w.sum()


def optimal_sampling(run: Run, *, norms: str = "stale", gamma: float = 1.0) -> History:
    """c_i = s_i w_i / (M p_i) ([3] eq. 20) with the round's p, or with its own p where the round has none.

    norms: `stale` (|U_i| of the last received upload) or `fresh` (|U_i| of all N at x_r). State: p the round
    used [N], norms_i known after it [N] (nan: never).
    """
    problem, rounds, x0, local = run
    x, known, history = x0.copy(), np.full(problem.count, np.nan), []
    for r in rounds:
        if norms == "fresh":
            models = [local_model(problem, i, x, r, local) for i in range(problem.count)]
            known = np.array([float(np.linalg.norm(x - model)) for model in models])
        p = optimal_probabilities(problem.weights, known) if r.p is None else np.array(r.p)
        if r.arrived:
            update = updates(problem, r, x, local)
            c = {i: r.draws_of(i) * problem.weights[i] / (r.total_draws * p[i]) for i in r.arrived}
            x = x - gamma * add_up(c[i] * update[i] for i in r.arrived)
            known = known.copy()
            for i in r.arrived:
                known[i] = np.linalg.norm(update[i])
        history.append({"x": x, "p": p, "norms_i": known})
    return history
