"""Runs for the tests of metrics: points in the plane, with metrics in closed form, and digits."""

from types import SimpleNamespace

import numpy as np
import torch
from torch.utils.data import TensorDataset

from raylfl.config.load import load_config
from raylfl.config.objects import object_layer
from raylfl.experiment.assemble import assemble
from raylfl.runtime.round.loop import Federation
from raylfl.runtime.workers.backend import LocalBackend

ETA, STEPS = 0.1, np.array([1, 2, 3, 4, 5])
Q = np.array([0.0, 0.2, 0.4, 0.6, 0.8])
SIZES = np.array([3, 1, 4, 2, 5])
N, D = 5, 2
W = SIZES / SIZES.sum()


class Points:
    """Client i owns points e_k in the plane; with the model `quadratic`, f_i(x) = mean_k |x - e_k|^2 / 2."""

    dim = D

    def __init__(self):
        owner = np.repeat(np.arange(N), SIZES)
        self.points = np.random.default_rng(0).standard_normal((len(owner), D)) + owner[:, None]
        self.client_indices = [np.flatnonzero(owner == i).tolist() for i in range(N)]
        self.centres = np.stack([self.points[own].mean(axis=0) for own in self.client_indices])
        spread = [np.mean(np.sum((self.points[own] - self.points[own].mean(0)) ** 2, 1)) for own in self.client_indices]
        self.floor = np.array(spread) / 2  # f_i at its minimum, the centre

    def train_dataset(self):
        e = torch.from_numpy(self.points)
        return TensorDataset(torch.full_like(e, 0.5), -e, e.square().sum(dim=1) / 2)

    def optimum(self, weights):
        return weights @ self.centres


class OneOptimum(Points):
    """Data that give x* for equal weights only."""

    def optimum(self):
        return self.centres.mean(axis=0)


POINTS = {
    "rounds": 8,
    "dtype": "float64",
    "weights": "data_size",
    "model": {"name": "quadratic", "init_args": {"x0": 5.0}},
    "data": {"class_path": "tests.runtime.measured.Points"},
    "partition": {"name": "natural"},
    "algorithm": {"name": "fedavg"},
    "local": {"steps": STEPS.tolist(), "batch_size": "full", "lr": ETA},
    "runtime": {"backend": "local", "vectorize": "never", "step": "autograd"},  # no metric depends on the step's form
}
DIGITS = {
    "rounds": 3,
    "num_clients": 20,
    "model": {"name": "logistic"},
    "data": {"name": "digits"},
    "partition": {"name": "dirichlet", "alpha": 0.3, "min_size": 5},
    "participation": {"name": "uniform", "size": 4},
    "link": {"name": "bernoulli", "q": 0.5},
    "runtime": {"backend": "local"},
}
SAMPLED = ["participation.name=uniform", "participation.size=3"]
LINKS = ["link.name=bernoulli", f"link.q={Q.tolist()}"]
LOSSY = [*SAMPLED, *LINKS]


class CountingBackend(LocalBackend):
    """A backend that counts the floats sent to tasks and returned from them."""

    down = up = answers = 0

    def attempt(self, task, down, own):
        outcome, known = super().attempt(task, down, own), self.worker.algorithm.server_known
        self.down += len(task.clients) * sum(v.numel() for v in down.values())
        self.up += sum(v.numel() for name, v in outcome.uploads.items() if name not in known)
        return outcome


def walk(overrides, config=POINTS):
    """(backend, [(x before, metrics, participation row, x after)]) of a run in process."""
    experiment = assemble(load_config(config, overrides))
    backend = CountingBackend(experiment.setup)
    federation = Federation.of(experiment, backend)
    rounds = []
    before = federation.state.server["x"].numpy().copy()
    for metrics, row, _ in federation.rounds(experiment.world.rounds):
        after = federation.state.server["x"].numpy().copy()
        rounds.append((before, metrics, row, after))
        before = after
    backend.close()
    return backend, rounds


def rounds_of(config, overrides=(), **objects):
    """A run in this process without check and files: its `params`, `metrics`, `rows` (the rounds' clients), `links`.

    `place` is where its server was.

    objects: a model or data class, as for `raylfl.run`.
    """
    experiment = assemble(load_config(config, overrides, object_layer(objects) if objects else None))
    backend = LocalBackend(experiment.setup)
    try:
        federation = Federation.of(experiment, backend)
        records = list(federation.rounds(experiment.world.rounds))
        params = federation.collect().server["x"]
    finally:
        backend.close()
    metrics, rows = [record.metrics | {"time/round": 0.0} for record in records], [record.row for record in records]
    place, links = federation.dispatch.on_device.place, federation.state.links
    return SimpleNamespace(params=params, metrics=metrics, rows=rows, links=links, place=place)


def received(row):
    """R_r, in cohort order."""
    return np.array(row["cohort"], dtype=int)[np.array(row["received"], dtype=bool)]
