"""The objectives f_i of an experiment as functions of x in float64: values, gradients, curvature, gradient noise.

Values and gradients come from the training step of the experiment's torch module, so that any module can be used.
Curvature comes from differences of gradients: exact for quadratics, otherwise estimates.
"""

from dataclasses import replace

import numpy as np
import torch

from raylfl.core.arrays import Floats, Ints
from raylfl.core.keyed import keyed
from raylfl.core.oracle import private_randomness
from raylfl.core.population import Population
from raylfl.errors import BadValue
from raylfl.experiment.parts import BUFFERS, Experiment
from raylfl.runtime.workers.worker import Worker
from raylfl.theory import softmax
from raylfl.theory.quadratic import QuadraticProblem
from raylfl.theory.softmax import SoftmaxProblem

LARGEST_DENSE = 512  # largest d with dense Hessians
DIFFERENCE = 1e-4  # relative length of the differences that estimate curvature
SAMPLES = 256  # largest number of samples of a client for the variance of its stochastic gradients
LINEAR = 1e-7  # relative deviation up to which gradients count as linear in x


class Objectives:
    """The clients' objectives f_i: the loss on the client's whole shard in evaluation mode, plus decay |x|^2 / 2.

    start: the initial model x0 [d]. weights, sizes: importance weights and numbers of samples of the clients [N].
    decay: `local.weight_decay`.
    """

    def __init__(self, experiment: Experiment):
        setup = experiment.setup
        if setup.merged:
            name = experiment.config.resolved["algorithm"]["name"]
            need = "a method of several clients: this one trains one client on all data, and no theorem is about it"
            raise BadValue("algorithm.name", got=name, need=need)
        self.count = setup.population.count
        self.weights, self.sizes = setup.population.weights, setup.population.sizes
        self.decay = experiment.rule.weight_decay
        self.seed = setup.seed
        uniform = Population.of(setup.population.sizes)
        self._worker = Worker(replace(setup, dtype="float64", population=uniform))
        self.start: Floats = self._worker.initial.x.double().numpy()

    @property
    def dim(self) -> int:
        """The number of parameters d."""
        return len(self.start)

    def of(self, client: int, x: Floats) -> tuple[float, Floats]:
        """(value, gradient [d]) of a client's objective at x."""
        broadcast = {"x": torch.from_numpy(np.array(x)), BUFFERS: self._worker.initial.buffers}
        [(value, gradient)] = self._worker.measures.objective(broadcast, [[client]])
        n = self.count  # the worker applies the weight 1/N
        return n * value + self.decay / 2 * float(x @ x), n * gradient.double().numpy() + self.decay * x

    def gradients(self, x: Floats) -> Floats:
        """The gradients [N, d] of all clients' objectives at x."""
        return np.stack([self.of(i, x)[1] for i in range(self.count)])

    def quadratic(self) -> QuadraticProblem | None:
        """The objectives as a quadratic problem; None if d > LARGEST_DENSE or a gradient is not affine in x.

        Only the gradients of the first and the last client are tested.
        """
        if self.dim > LARGEST_DENSE or not all(self._is_linear(i) for i in {0, self.count - 1}):
            return None
        eye, zero = np.eye(self.dim), np.zeros(self.dim)
        values, offsets = zip(*(self.of(i, zero) for i in range(self.count)), strict=True)
        hessians = np.stack([[self.of(i, e)[1] - offsets[i] for e in eye] for i in range(self.count)])
        symmetric = (hessians + hessians.transpose(0, 2, 1)) / 2
        return QuadraticProblem(symmetric, -np.stack(offsets), np.array(values), self.weights)

    def softmax(self) -> SoftmaxProblem | None:
        """The objectives as a softmax regression; None if they are not, or data are not pairs (inputs, class labels).

        The test compares values and gradients with those of softmax regression at two random points, for the first and
        the last client only.
        """
        inputs = [self._inputs(i) for i in range(self.count)]
        found = [pair for pair in inputs if pair is not None]
        if len(found) < len(inputs):
            return None
        classes, rest = divmod(self.dim, found[0][0].shape[1] + 1)
        if rest or any(classes <= labels.max() for _, labels in found):
            return None
        for client in {0, self.count - 1}:
            (rows, labels), draw = found[client], keyed(self.seed, "theory/softmax", client)
            for x in draw.standard_normal((2, self.dim)) / np.sqrt(1 + np.square(rows).sum(axis=1).mean()):
                value, gradient = softmax.value_and_gradient(x, rows, labels, classes, self.decay)
                own, slope = self.of(client, x)
                if abs(own - value) + np.abs(slope - gradient).max() > LINEAR * (1 + abs(value)):
                    return None
        return SoftmaxProblem(found, classes, self.decay, self.weights)

    def _inputs(self, client: int) -> tuple[Floats, Ints] | None:
        content = self._worker.measured.batch(self._worker.setup.shards[client]).content
        if not isinstance(content, (tuple, list)) or len(content) != 2:
            return None
        x, y = content
        if not (isinstance(x, torch.Tensor) and isinstance(y, torch.Tensor)) or y.dtype != torch.int64 or y.dim() != 1:
            return None
        return x.reshape(len(x), -1).double().numpy(), y.numpy()

    def _is_linear(self, client: int) -> bool:
        """Whether grad f(u + v) - grad f(u) - grad f(v) + grad f(0) is 0 up to rounding, for random u, v."""
        u, v = keyed(self.seed, "theory/linear", client).standard_normal((2, self.dim))
        g = [self.of(client, x)[1] for x in (u + v, u, v, np.zeros(self.dim))]
        scale = max(float(np.linalg.norm(row)) for row in g)
        return float(np.linalg.norm(g[0] - g[1] - g[2] + g[3])) <= LINEAR * scale

    def smoothness(self, client: int, x: Floats) -> float:
        """The norm of the Hessian of a client's objective at x, its eigenvalue of largest modulus.

        By Lanczos on differences of gradients; the relative error is about 1e-2.
        """
        from scipy.sparse.linalg import LinearOperator, eigsh

        step = DIFFERENCE * (1 + float(np.linalg.norm(x)))

        def product(v: Floats) -> Floats:
            direction = np.ravel(v) * (step / max(float(np.linalg.norm(v)), 1e-300))
            ahead, behind = self.of(client, x + direction)[1], self.of(client, x - direction)[1]
            return np.asarray((ahead - behind) * (float(np.linalg.norm(v)) / (2 * step)))

        if self.dim == 1:
            return abs(float(product(np.ones(1))[0]))
        operator = LinearOperator((self.dim, self.dim), matvec=product, dtype=np.float64)
        first = keyed(self.seed, "theory/lanczos", client).standard_normal(self.dim)
        return abs(float(eigsh(operator, k=1, which="LM", tol=1e-2, v0=first, return_eigenvectors=False)[0]))

    def sample_variance(self, client: int, x: Floats) -> float:
        """The variance E|grad f_i(x; sample) - grad f_i(x)|^2 over a client's samples.

        If the client has more than SAMPLES samples, only the first SAMPLES are used.
        """
        worker, shard = self._worker, self._worker.setup.shards[client][:SAMPLES]
        at = torch.from_numpy(np.array(x))[None]
        worker.flat.module.eval()
        rows = []
        with private_randomness(0), worker.recorder.into(None):
            for sample in shard:
                batch = worker.measured.batch(np.array([sample]))
                rows.append(worker.loop.gradients(at, [batch], lambda c: 0)[1][0].double().numpy())
        gradients = np.stack(rows)
        return float(np.square(gradients - gradients.mean(axis=0)).sum(axis=1).mean())
