"""Control variates and memories of updates: scaffold, feddyn, scaffnew, mifa, fedvarp.

Client rows of the state are [N, d] by client id; a client whose upload is lost keeps its row.
"""

import numpy as np

from tests.oracles.averaging import History, add_up
from tests.oracles.local import Direction, Run, local_model, updates
from tests.oracles.problem import Array


def shifted(by: Array) -> Direction:
    """d(g, x) = g + by."""
    return lambda g, x: g + by


def heavy(momentum: float, by: Array) -> Direction:
    """d_t = sum_s momentum^(t-s) g_s + by: a heavy ball on the raw gradient, the correction outside it."""
    seen: list[Array] = []

    def direction(g: Array, x: Array) -> Array:
        seen.append(g)
        return add_up(momentum ** (len(seen) - 1 - s) * past for s, past in enumerate(seen)) + by

    return direction


def dynamic(h: Array, alpha: float, start: Array) -> Direction:
    """d(g, x) = g - h + alpha (x - start)."""
    return lambda g, x: g - h + alpha * (x - start)


def scaffold(
    run: Run,
    *,
    option: int = 2,
    gamma: float = 1.0,
    momentum: float = 0.0,
    variates: str = "zero",
    divisor: float | None = None,
    variate_divisor: str = "clients",
) -> History:
    """Karimireddy 2020, Alg. 1: local x <- x - eta (g - c_i + c); x <- x - gamma mean_R U_i (or sum_R U_i / divisor).

    Option 1: c_i+ = grad f_i(x_r), full batch; option 2: c_i+ = c_i - c + U_i/(sum of the K_i
    learning rates), the mean of the gradients if these are weighted by the rates.
    c <- c + (1/N) sum_R (c_i+ - c_i), or 1/|R|. State: x, c [d], c_i [N, d].
    """
    problem, rounds, x0, local = run
    n = problem.count
    first = x0 if variates == "model" else np.zeros_like(x0)
    x, c, own = x0.copy(), first.copy(), np.tile(first, (n, 1))
    history: History = []
    for r in rounds:
        if r.arrived:
            models = {i: local_model(problem, i, x, r, local, heavy(momentum, c - own[i])) for i in r.arrived}
            renewed = own.copy()
            for i in r.arrived:
                if option == 1:
                    renewed[i] = problem.full_gradient(i, x)
                else:
                    assert option == 2
                    renewed[i] = own[i] - c + (x - models[i]) / sum(local.rate(r.lr, t) for t in range(r.steps_of(i)))
            x = x - gamma * add_up(x - models[i] for i in r.arrived) / (divisor or len(r.arrived))
            c = c + add_up(renewed[i] - own[i] for i in r.arrived) / (
                n if variate_divisor == "clients" else len(r.arrived)
            )
            own = renewed
        history.append({"x": x, "c": c, "c_i": own})
    return history


def feddyn(run: Run, *, alpha: float) -> History:
    """Acar 2021: local gradient g - h_i + alpha (x - x_r); h_i <- h_i - alpha (x_{i,K} - x_r).

    h <- h - (alpha/N) sum_R (x_{i,K} - x_r); x <- mean_R x_{i,K} - h/alpha. State: x, h [d], h_i [N, d].
    """
    problem, rounds, x0, local = run
    n = problem.count
    x, h, own = x0.copy(), np.zeros_like(x0), np.zeros((n, len(x0)))
    history: History = []
    for r in rounds:
        if r.arrived:
            start, before = x, own
            models = {i: local_model(problem, i, start, r, local, dynamic(before[i], alpha, start)) for i in r.arrived}
            own = before.copy()
            for i in r.arrived:
                own[i] = before[i] - alpha * (models[i] - start)
            h = h - alpha / n * add_up(models[i] - start for i in r.arrived)
            x = add_up(models.values()) / len(r.arrived) - h / alpha
        history.append({"x": x, "h": h, "h_i": own})
    return history


def scaffnew(run: Run, *, p: float | None = None) -> History:
    """ProxSkip, Mishchenko 2022: local x <- x - eta (g - h_i); x = mean_R x_{i,K}.

    Then h_i <- h_i + (p/eta)(x - x_{i,K}).
    p: None is 1/K_i; the random coin is a recorded K_i with p given. State: x [d], h_i [N, d].
    """
    problem, rounds, x0, local = run
    x, own, history = x0.copy(), np.zeros((problem.count, len(x0))), []
    for r in rounds:
        if r.arrived:
            models = {i: local_model(problem, i, x, r, local, shifted(-own[i])) for i in r.arrived}
            x = add_up(models.values()) / len(r.arrived)
            own = own.copy()
            for i in r.arrived:
                own[i] = own[i] + (1 / r.steps_of(i) if p is None else p) / r.lr * (x - models[i])
        history.append({"x": x, "h_i": own})
    return history


def mifa(run: Run, *, gamma: float = 1.0, memory: str = "updates") -> History:
    """Gu 2021: B_i = U_i for i in R; x <- x - gamma (1/N) sum_j B_j. State: x [d], B_i [N, d], 0 at first.

    The option `init: all` is a first round that records all clients. memory = "gradients" (Alg. 1, with eta_r):
    B_i = U_i / eta_r; x <- x - gamma eta_r (1/N) sum_j B_j.
    """
    problem, rounds, x0, local = run
    n, x, rows, history = problem.count, x0.copy(), np.zeros((problem.count, len(x0))), []
    for r in rounds:
        if r.arrived:
            rows, scale = rows.copy(), r.lr if memory == "gradients" else 1.0
            for i, update in updates(problem, r, x, local).items():
                rows[i] = update / scale
            x = x - gamma * scale / n * add_up(rows)
        history.append({"x": x, "B_i": rows})
    return history


def fedvarp(run: Run, *, lost: str = "ignore", gamma: float = 1.0) -> History:
    """Jhunjhunwala 2022: v = (1/|R|) sum_R (U_i - B_i) + (1/N) sum_j B_j; x <- x - gamma v; then B_i = U_i.

    lost = "reuse" ([3] eq. 114): v = (1/M)(sum_R s_i U_i + sum_{S-R} s_i B_i), B before this round.
    State: x [d], B_i [N, d], 0 at first.
    """
    problem, rounds, x0, local = run
    n, x, memory, history = problem.count, x0.copy(), np.zeros((problem.count, len(x0))), []
    for r in rounds:
        if r.arrived:
            update = updates(problem, r, x, local)
            if lost == "ignore":
                v = add_up(update[i] - memory[i] for i in r.arrived) / len(r.arrived) + add_up(memory) / n
            else:
                assert lost == "reuse"
                new = [r.draws_of(i) * update[i] for i in r.arrived]
                old = [r.draws_of(i) * memory[i] for i in r.lost]
                v = add_up(new + old) / r.total_draws
            x = x - gamma * v
            memory = memory.copy()
            for i in r.arrived:
                memory[i] = update[i]
        history.append({"x": x, "B_i": memory})
    return history
