"""Softmax (logistic) regression of N clients: objective, minimiser, and bounds that hold for all parameters x.

f_i(W, b) = mean_j (log sum_c exp z_jc - z_jy) + decay |x|^2 / 2, with z_j = W a_j + b, parameters x = (W, b), the
inputs a_j [p] of client i, the label y of sample j and the weight decay. With a 1 appended to a_j, the Hessian is

    mean_j (diag p_j - p_j p_j^T) (x) a_j a_j^T + decay I

Here p_j is the softmax of z_j and (x) the Kronecker product. For a unit vector v, v^T (diag p - p p^T) v is the
variance of v_c under p, at most (max v - min v)^2 / 4 <= 1/2, with equality at p = (1/2, 1/2, 0, ...). The smoothness
is therefore L_i = (largest eigenvalue of mean_j a_j a_j^T) / 2 + decay. As |x| grows, p_j tends to a unit vector and
the first term of the Hessian to 0, so that the best strong convexity mu for all x is the decay.

The gradient of a sample's loss is the Kronecker product of p - e_y and a, with the predicted probabilities p, the label
e_y as a unit vector, and the input a with a 1 appended; |p - e_y|^2 <= 2. The norm of grad f_i without the weight decay
is therefore at most B_i = sqrt(2) mean_j |a_j|, for all x. The gradient of the weight decay is the same for all
clients, so that the B_i alone bound differences of gradients.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np

from raylfl.core.arrays import Floats, Ints

LARGEST = 2 * 10**7  # numbers (inputs times classes) up to which the minimiser is computed


def extended(inputs: Floats) -> Floats:
    """The inputs [n, p] with a 1 appended to each row for the bias, [n, p+1]."""
    return np.hstack([inputs, np.ones((len(inputs), 1))])


def value_and_gradient(x: Floats, inputs: Floats, labels: Ints, classes: int, decay: float) -> tuple[float, Floats]:
    """(f(x), grad f(x) [d]) of a client's objective: mean cross-entropy plus decay |x|^2 / 2.

    x: weight [classes, p] and bias [classes] of a linear layer as one vector [d], in the order of torch.nn.Linear;
    inputs: [n, p]; labels: [n].
    """
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


@dataclass(frozen=True)
class SoftmaxProblem:
    """The problem F = sum_i w_i f_i of softmax regression.

    shards: (inputs [n_i, p], labels [n_i]) of each client. classes: the number of labels. decay: the weight decay.
    weights: w_i [N].
    """

    shards: Sequence[tuple[Floats, Ints]]
    classes: int
    decay: float
    weights: Floats

    @cached_property
    def smoothness(self) -> Floats:
        """The smoothness L_i of every f_i, which holds for all parameters x, [N]."""
        inputs = [extended(rows) for rows, _ in self.shards]
        return np.array([np.linalg.eigvalsh(a.T @ a / len(a))[-1] / 2 + self.decay for a in inputs])

    @cached_property
    def slopes(self) -> Floats:
        """Bounds B_i on the norm of grad f_i without its weight decay, for all parameters x, [N]."""
        means = [float(np.linalg.norm(extended(rows), axis=1).mean()) for rows, _ in self.shards]
        return np.array([np.sqrt(2) * mean for mean in means])

    @cached_property
    def noise(self) -> Floats:
        """Bounds 2 mean_j |a_j|^2 on the variance of a sample's gradient, [N]; a_j: inputs with a 1 appended."""
        return 2 * np.array([np.square(extended(rows)).sum(axis=1).mean() for rows, _ in self.shards])

    def deviation(self) -> Floats:
        """Bounds on |grad f_i - grad F| for all parameters x, [N]."""
        others = float(self.weights @ self.slopes) - self.weights * self.slopes
        return np.asarray((1 - self.weights) * self.slopes + others)

    def dissimilarity(self, weights: Floats) -> float:
        """The bound sqrt(sum_i w_i B_i^2) on sqrt(sum_i w_i |grad f_i - grad F|^2).

        It holds for all parameters x. B_i: `slopes`; weights: w_i [N], sum 1; F = sum_i w_i f_i with these weights.
        """
        return float(np.sqrt(weights @ np.square(self.slopes)))

    def values(self, x: Floats) -> tuple[Floats, Floats]:
        """(f_i(x) [N], grad f_i(x) [N, d]) of all clients."""
        found = [value_and_gradient(x, *shard, self.classes, self.decay) for shard in self.shards]
        return np.array([value for value, _ in found]), np.stack([gradient for _, gradient in found])

    @cached_property
    def optimum(self) -> Floats | None:
        """The minimiser x* [d] of F, by L-BFGS.

        None if there is no weight decay, as there may be no minimiser, or if inputs times classes exceed LARGEST.
        """
        numbers = sum(rows.size for rows, _ in self.shards) * self.classes
        if self.decay <= 0 or numbers > LARGEST:
            return None
        from scipy.optimize import minimize

        def objective(x: Floats) -> tuple[float, Floats]:
            values, gradients = self.values(x)
            return float(self.weights @ values), self.weights @ gradients

        width = self.shards[0][0].shape[1] + 1
        options = {"maxiter": 5000, "ftol": 1e-15, "gtol": 1e-9}
        found = minimize(objective, np.zeros(self.classes * width), jac=True, method="L-BFGS-B", options=options)
        return np.asarray(found.x)
