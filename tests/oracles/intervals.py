"""Algorithms that count the rounds between participations: fedau, fedawe. Time passes in empty rounds too."""

import numpy as np

from tests.oracles.averaging import History, add_up
from tests.oracles.local import Run, local_model, updates


def fedau(run: Run, *, cutoff: int = 50, normalize: bool = False, gamma: float = 1.0) -> History:
    """Wang & Ji 2024: x <- x - gamma (1/N) sum_R W_i U_i; normalize: divide by sum_R W_i instead of N.

    Then, for every client: S_i += 1; if it took part or S_i = cutoff, the interval S_i ends: W_i <- mean of
    all intervals so far, S_i <- 0. State: x [d]; W_i (1 before the first interval), S_i, intervals_i [N].
    """
    problem, rounds, x0, local = run
    n = problem.count
    x, weight, waited, ended = x0.copy(), np.ones(n), np.zeros(n), np.zeros(n)
    history: History = []
    for r in rounds:
        if r.arrived:
            update = updates(problem, r, x, local)
            divisor = sum(weight[i] for i in r.arrived) if normalize else n
            x = x - gamma * add_up(weight[i] * update[i] for i in r.arrived) / divisor
        weight, waited, ended = weight.copy(), waited + 1, ended.copy()
        for i in range(n):
            if i in r.arrived or waited[i] == cutoff:
                weight[i] = waited[i] if ended[i] == 0 else (ended[i] * weight[i] + waited[i]) / (ended[i] + 1)
                ended[i], waited[i] = ended[i] + 1, 0
        history.append({"x": x, "W_i": weight, "S_i": waited, "intervals_i": ended})
    return history


def fedawe(run: Run, *, gamma: float = 1.0) -> History:
    """Xiang 2024: client i starts from its own x_i; x_i' = x_i - gamma (r - tau_i) U_i; x = mean_R x_i'.

    x goes to the clients of R only: x_i = x, tau_i = r. State: x [d], x_i [N, d] (x0 at first), tau_i [N]
    (-1).
    """
    problem, rounds, x0, local = run
    n = problem.count
    x, own, taken = x0.copy(), np.tile(x0, (n, 1)), np.full(n, -1.0)
    history: History = []
    for r in rounds:
        if r.arrived:
            update = {i: own[i] - local_model(problem, i, own[i], r, local) for i in r.arrived}
            x = add_up(own[i] - gamma * (r.index - taken[i]) * update[i] for i in r.arrived) / len(r.arrived)
            own, taken = own.copy(), taken.copy()
            for i in r.arrived:
                own[i], taken[i] = x, r.index
        history.append({"x": x, "x_i": own, "tau_i": taken})
    return history
