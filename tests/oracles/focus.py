"""FOCUS and SG-FOCUS ([1]) twice: as the loop of Alg. 1, and as the (N+1) x (N+1) matrices of eqs. 13-14.

The two share no code but the gradients. FedAvg in matrix form (eqs. 6a-6c) stands beside them.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from tests.oracles.averaging import History
from tests.oracles.local import PLAIN, Local, local_model
from tests.oracles.problem import Array, Problem
from tests.oracles.rounds import Round


def focus(
    problem: Problem, rounds: Sequence[Round], x0: Array, local: Local = PLAIN, *, gamma: float | None = None
) -> History:
    """[1] Alg. 1 (line 9 with x_{t,i} for the printed x_{k,i}). State: x, y [d], g_prev_i [N, d].

    gamma: None is the round's eta. Client gradients are N w_i grad f_i, so that y tracks the gradient of N F.
    """
    n, w = problem.count, problem.weights
    x, y, stored, history = x0.copy(), np.zeros_like(x0), np.zeros((n, len(x0))), []
    for r in rounds:
        if r.arrived:
            uploads = []
            for i in r.arrived:
                y_i, previous = np.zeros_like(x0), stored[i]  # line 6: y is not pulled

                def track(g: Array, z: Array, i: int = i) -> Array:
                    nonlocal y_i, previous
                    g = n * w[i] * g
                    y_i, previous = y_i + g - previous, g  # line 8
                    return y_i  # line 9 moves x along it

                local_model(problem, i, x, r, local, track)
                uploads.append((i, y_i, previous))
            stored = stored.copy()
            for i, y_i, last in uploads:
                y, stored[i] = y + y_i, last  # line 12, not averaged
            x = x - (r.lr if gamma is None else gamma) * y  # line 13
        history.append({"x": x, "y": y, "g_prev_i": stored})
    return history


def pull_matrix(cohort: Sequence[int], clients: int) -> Array:
    """R(S), eq. 4: row i in S copies node 0, every other row is the identity. Node i + 1 is client i."""
    matrix = np.eye(clients + 1)
    for i in cohort:
        matrix[i + 1] = 0
        matrix[i + 1, 0] = 1
    return matrix


def average_matrix(cohort: Sequence[int], clients: int) -> Array:
    """A(S), Fig. 1: row 0 averages S, every other row is the identity (eq. 4 swaps the indices)."""
    matrix = np.eye(clients + 1)
    matrix[0] = 0
    for i in cohort:
        matrix[0, i + 1] = 1 / len(cohort)
    return matrix


def _gradients(problem: Problem, x: Array, r: Round, t: int, old: Array, scale: Array) -> Array:
    """The stored gradients after step t [N + 1, d]: renewed at x for the received clients that still step."""
    new = old.copy()
    for i in r.arrived:
        if t < r.steps_of(i):
            new[i + 1] = scale[i] * problem.gradient(i, x[i + 1], r.index, t)
    return new


def push_pull(problem: Problem, rounds: Sequence[Round], x0: Array, gamma: float | None = None) -> History:
    """Eqs. 13-14 read literally: x+ = R_k (x - eta D_k y), y+ = C_k (y + grad f(x+) - grad f(x)).

    grad f(x_k) is the stored gradient, f_0 = 0. S: the received clients, since a lost client's state is as if
    it had not been sampled. R_k = R(S) at a round's first step, C_k = R(S)^T at its last, else I. D_k: client i
    is active for its first K_i steps; D[0,0] = gamma/eta at a round's first step, with the gamma of the round
    that made y. A round that receives nothing has no step. The loop's x_{r+1} is node 0 after the move that
    opens round r+1. Returns what focus() returns. Plain SGD only.
    """
    n = problem.count
    scale = n * problem.weights
    x, y, grads = np.tile(x0, (n + 1, 1)), np.zeros((n + 1, len(x0))), np.zeros((n + 1, len(x0)))
    due = 0.0  # the server lr that the next opening move applies to y_0
    history: History = []
    waiting: History = []  # rounds whose x_{r+1} the next opening move decides

    def open_round(moved: Array) -> None:
        for state in waiting:
            state["x"] = moved[0].copy()
        waiting.clear()

    for r in rounds:
        if r.arrived:
            last = max(r.steps_of(i) for i in r.arrived) - 1
            for t in range(last + 1):
                activity = np.zeros((n + 1, n + 1))
                activity[0, 0] = due / r.lr if t == 0 else 0.0
                for i in r.arrived:
                    activity[i + 1, i + 1] = float(t < r.steps_of(i))
                pull = pull_matrix(r.arrived, n) if t == 0 else np.eye(n + 1)
                push = pull_matrix(r.arrived, n).T if t == last else np.eye(n + 1)
                x = pull @ (x - r.lr * activity @ y)
                if t == 0:
                    open_round(x)
                renewed = _gradients(problem, x, r, t, grads, scale)
                y = push @ (y + renewed - grads)
                grads = renewed
            due = r.lr if gamma is None else gamma
        state = {"y": y[0].copy(), "g_prev_i": grads[1:].copy()}
        history.append(state)
        waiting.append(state)
    open_round(x - due * y)
    return history


def fedavg_matrix(problem: Problem, rounds: Sequence[Round], x0: Array) -> History:
    """Eqs. 6a-6c: y = R x, y+ = y - eta D grad f(y), x+ = A y+, with rule `mean`, s_i = 1 and gamma = 1."""
    n = problem.count
    x, history = np.tile(x0, (n + 1, 1)), []
    for r in rounds:
        if r.arrived:
            last = max(r.steps_of(i) for i in r.arrived) - 1
            for t in range(last + 1):
                activity = np.zeros((n + 1, n + 1))
                for i in r.arrived:
                    activity[i + 1, i + 1] = float(t < r.steps_of(i))
                y = (pull_matrix(r.arrived, n) if t == 0 else np.eye(n + 1)) @ x
                grads = _gradients(problem, y, r, t, np.zeros_like(x), np.ones(n))
                x = (average_matrix(r.arrived, n) if t == last else np.eye(n + 1)) @ (y - r.lr * activity @ grads)
        history.append({"x": x[0].copy()})
    return history
