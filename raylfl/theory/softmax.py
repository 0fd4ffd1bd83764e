"""Softmax (logistic) regression: constants that hold for all x, from the inputs alone.

f_i(W, b) = mean_j (log sum_c exp z_jc - z_jy) + decay |x|^2 / 2 with z_j = W a_j + b. Its Hessian is

    mean_j (diag p_j - p_j p_j^T) (x) a_j a_j^T + decay I,    a_j with a 1 appended, p_j the softmax of z_j.

a_j: the inputs of a client [p]; y: the label; decay: the weight decay; (x): the Kronecker product; eig: eigenvalues.
For a unit vector v, v^T (diag p - p p^T) v is the variance of v_c under p, at most (max v - min v)^2 / 4 <= 1/2, with
equality at p = (1/2, 1/2, 0, ...). Hence L_i = max eig(mean_j a_j a_j^T) / 2 + decay. As |x| grows p_j becomes a unit
vector and the first term 0, so that the best mu for all x is decay.
"""

from __future__ import annotations

import numpy as np

from raylfl.core.population import Floats, Ints


def smoothness(inputs: Floats, decay: float) -> float:
    """The smoothness L_i of a client with these inputs a_j [n, p]."""
    rows = extended(inputs)
    return float(np.linalg.eigvalsh(rows.T @ rows / len(rows))[-1]) / 2 + decay


def extended(inputs: Floats) -> Floats:
    """The inputs with a 1 appended, for the bias: [n, p+1]."""
    return np.hstack([inputs, np.ones((len(inputs), 1))])


def value_and_gradient(x: Floats, inputs: Floats, labels: Ints, classes: int, decay: float) -> tuple[float, Floats]:
    """(f, grad f [d]) at x = (W [C, p], b [C]) as one vector, in torch.nn.Linear's order."""
    p = inputs.shape[1]
    weight, bias = x[: classes * p].reshape(classes, p), x[classes * p :]
    z = inputs @ weight.T + bias
    z -= z.max(axis=1, keepdims=True)
    shares = np.exp(z)
    total = shares.sum(axis=1, keepdims=True)
    own = np.arange(len(labels)), labels
    value = float(np.mean(np.log(total[:, 0]) - z[own])) + decay / 2 * float(x @ x)
    error = shares / total
    error[own] -= 1
    gradient = np.concatenate([(error.T @ inputs).ravel(), error.sum(axis=0)]) / len(labels)
    return value, np.asarray(gradient + decay * x)
