"""FOCUS and SG-FOCUS ([1]) as the loop of Alg. 1."""

import numpy as np

from tests.oracles.averaging import History
from tests.oracles.local import Run, local_model
from tests.oracles.problem import Array


def focus(run: Run, *, gamma: float | None = None) -> History:
    """[1] Alg. 1 (line 9 with x_{t,i} for the printed x_{k,i}). State: x, y [d], g_prev_i [N, d].

    gamma: None is the round's eta. Client gradients are N w_i grad f_i, so that y tracks the gradient of N F.
    """
    problem, rounds, x0, local = run
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
