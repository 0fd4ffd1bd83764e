"""Every random number of a run depends on the seed, the round, the client and its purpose, and on nothing else.

Tables of numbers, a row for each round and a column for each client, are compared with each other: tables of different
draws, of different seeds, of neighbouring rounds and of neighbouring clients have nothing in common.
"""

import itertools
from dataclasses import replace
from functools import cache

import numpy as np
import pytest
import torch

from raylfl.config.load import load_config
from raylfl.core.batches import BatchOrders
from raylfl.core.population import Population
from raylfl.experiment.assemble import assemble
from raylfl.experiment.parts import BUFFERS
from raylfl.heterogeneity.links.bernoulli import Bernoulli as LossyLink
from raylfl.heterogeneity.participation.availability import Bernoulli as Coins
from raylfl.heterogeneity.participation.availability import Markov
from raylfl.heterogeneity.participation.uniform import Uniform
from raylfl.heterogeneity.work import LocalWork
from raylfl.heterogeneity.world import RunContext
from raylfl.runtime.round.plan import Planner
from raylfl.runtime.workers.backend import LocalBackend
from raylfl.runtime.workers.task import Chunk, Task
from tests.runtime.tiny import TINY, rude

N, ROUNDS, SAMPLES = 60, 200, 40
Z = 5.0  # standard errors: once in two million comparisons by chance, and keys are fixed
EVERYONE = np.arange(N)
SHARDS = [np.arange(SAMPLES)] * N  # the same samples for all, so that only the order can differ


def world(seed):
    return RunContext(seed, Population.of(np.full(N, SAMPLES)), ROUNDS)


def batches(sampling, alike, t):
    """The first sample that each client sees in local step t."""

    def row(seed, r):
        sizes = [8] * N if alike else [8 + client % 2 for client in range(N)]
        orders = BatchOrders(seed, r, EVERYONE, SHARDS, sizes, sampling)
        return np.array([samples[0] for samples in orders.indices(t, EVERYONE)])

    return row


def ring(seed, r):
    """Each client's place in the ring."""
    return np.argsort(planner(seed).plan(r, {}).cohort)


@cache
def planner(seed):
    config = {**TINY, "num_clients": 20, "participation": {"name": "full"}, "algorithm": {"name": "sfl"}, "seed": seed}
    return Planner(assemble(load_config(config, [])))


def cohort(process):
    return lambda seed, r: np.isin(EVERYONE, process.draw(r, world(seed)).cohort)


WORK = LocalWork(steps={"uniform": [1, 40]}, batch_size={"uniform": [1, SAMPLES]}, dynamic=True)
EPOCHS = LocalWork(epochs={"uniform": [1, 40]}, batch_size="full", dynamic=True)
DRAWS = {
    "link": lambda seed, r: LossyLink(0.5).lost(r, EVERYONE, world(seed)),
    "link's q": lambda seed, r: LossyLink({"uniform": [0, 0.9]}, dynamic=True).failure(r, EVERYONE, world(seed)),
    "availability": lambda seed, r: Coins(0.5).available(r, world(seed)),
    "availability's p": lambda seed, r: Coins({"phases": [{"uniform": [0, 1]}]}).probabilities(r, world(seed)),
    "availability, redrawn": lambda seed, r: Coins(0.5).available(r, world(seed), attempt=1),
    "Markov": lambda seed, r: Markov(0.5, 0.5).available(r, world(seed)),
    "Markov, redrawn": lambda seed, r: Markov(0.5, 0.5).available(r, world(seed), attempt=1),
    "participation": cohort(Uniform(size=N // 2)),
    "participation with replacement": cohort(Uniform(size=N // 2, replace=True)),
    "steps": lambda seed, r: WORK.draw(r, EVERYONE, world(seed))[0],
    "batch size": lambda seed, r: WORK.draw(r, EVERYONE, world(seed))[1],
    "epochs": lambda seed, r: EPOCHS.draw(r, EVERYONE, world(seed))[0],
    "order": batches("reshuffle", True, 0),
    "order, second epoch": batches("reshuffle", True, 5),
    "order of unequal batches": batches("reshuffle", False, 0),
    "drawn samples": batches("with_replacement", True, 0),
    "drawn samples, next step": batches("with_replacement", True, 1),
    "drawn samples of unequal batches": batches("with_replacement", False, 0),
    "drawn samples of unequal batches, next step": batches("with_replacement", False, 1),
    "ring": ring,
}
ALTERNATIVES = [  # a run has at most one of them: they may share a stream
    {"availability", "Markov"},
    {"availability, redrawn", "Markov, redrawn"},
    {"order", "order of unequal batches", "drawn samples", "drawn samples of unequal batches"},
    {"order, second epoch", "drawn samples, next step", "drawn samples of unequal batches, next step"},
]


@cache
def table(name, seed=0):
    """The numbers of one draw, [ROUNDS, clients], as deviations from their mean in units of their spread."""
    rows = np.array([DRAWS[name](seed, r) for r in range(ROUNDS)], dtype=float)
    return (rows - rows.mean()) / rows.std()


def unrelated(one, other):
    """Whether two tables are uncorrelated up to chance."""
    return abs((one * other).mean()) < Z / np.sqrt(one.size)


def test_no_two_draws_share_random_numbers():
    for one, other in itertools.combinations(DRAWS, 2):
        together = not any({one, other} <= group for group in ALTERNATIVES)
        if together and table(one).shape == table(other).shape:
            assert unrelated(table(one), table(other)), f"{one} and {other}"


# -- draws once a run -----------------------------------------------------------------------------------------------


def setup(*overrides):
    return assemble(load_config(TINY, list(overrides))).setup


ONCE = {
    "initial parameters": lambda seed: LocalBackend(setup(f"seed={seed}")).initial()[0].numpy(),
    "partition": lambda seed: setup(f"seed={seed}", "partition.name=iid").shards.indices,
    "dirichlet": lambda seed: setup(f"seed={seed}", "partition={name: dirichlet, min_size: 1}").shards.indices,
    "steps": lambda seed: LocalWork(steps={"uniform": [1, 40]}).draw(0, EVERYONE, world(seed))[0],
    "link's q": lambda seed: LossyLink({"uniform": [0, 0.9]}).failure(0, EVERYONE, world(seed)),
    "ranges": lambda seed: LossyLink(
        {"ranges": [{"fraction": 0.5, "value": 0.1}, {"fraction": 0.5, "value": 0.9}]}
    ).failure(0, EVERYONE, world(seed)),
    "availability's p": lambda seed: Coins({"uniform": [0, 1]}).probabilities(0, world(seed)),
}


@pytest.mark.parametrize("name", ONCE)
def test_what_is_drawn_once_a_run_is_a_function_of_the_seed(name):
    first, again, other = (ONCE[name](seed) for seed in (0, 0, 1))
    assert np.array_equal(first, again)
    assert first.shape == other.shape
    assert (first == other).mean() < 0.75


# -- randomness within a module -------------------------------------------------------------------------------------


def losses(seed=0, r=0, clients=(0,), steps=1, vectorize="never"):
    """Each client's mean loss of these local steps, in which only dropout is random: data and parameters are equal."""
    data = {"class_path": "tests.runtime.test_randomness.Twins"}
    model = {"class_path": "tests.runtime.tiny.Net", "init_args": {"norm": False, "dropout": 0.5}}
    config = {**TINY, "data": data, "model": model, "partition": {"name": "natural"}, "num_clients": None}
    config["local"] = {"steps": 1, "batch_size": "full", "lr": 1e-12}
    overrides = [f"seed={seed}", f"runtime.vectorize={vectorize}", "participation={name: full}"]
    worker = LocalBackend(assemble(load_config(config, overrides)).setup).worker
    count = len(clients)
    task = Task(r, tuple(clients), (steps,) * count, (30,) * count, (1.0,) * count, 1e-12)
    x = torch.linspace(-1, 1, len(worker.initial.x))
    return worker.run(task, {"x": x}, [None] * count).reports.rows["loss"]


class Twins:
    """Data of two clients with the same thirty points."""

    def __init__(self):
        from tests.runtime.tiny import Points

        points = Points()
        self.x, self.targets = points.x[:30].repeat(2, 1), points.targets[:30].repeat(2)
        self.client_indices = [np.arange(30), np.arange(30, 60)]

    def train_dataset(self):
        return torch.utils.data.TensorDataset(self.x, self.targets)


@pytest.mark.parametrize("vectorize", ["never", "always"])
def test_dropout_differs_between_seeds_rounds_clients_and_steps(vectorize):
    """Everything else is equal, so only the dropout masks can tell these losses apart."""
    (first,) = losses(vectorize=vectorize)
    assert first == losses(vectorize=vectorize)[0]
    both = losses(clients=(0, 1), vectorize=vectorize)
    (twice,) = losses(steps=2, vectorize=vectorize)
    others = [losses(seed=1, vectorize=vectorize)[0], losses(r=1, vectorize=vectorize)[0]]
    seen = [first, *others, both[1], 2 * twice - first]
    assert len({round(float(loss), 7) for loss in seen}) == len(seen)


def test_an_evaluation_that_draws_random_numbers_does_not_depend_on_what_was_measured_before():
    """It depends neither on the worker nor on its earlier pieces; each piece has its own random numbers."""
    setup = assemble(load_config(rude(seeds=False), [])).setup
    one, other = (LocalBackend(setup).worker for _ in range(2))
    broadcast = {"x": one.initial.x, BUFFERS: one.initial.buffers}
    pieces = [Chunk("test", np.arange(k, k + 5)) for k in (0, 5, 0)]
    first, second, again = (logged.results() for logged in one.evaluate(broadcast, pieces))
    assert first == again
    assert other.evaluate(broadcast, pieces[1:2])[0].results() == second
    seed_1 = LocalBackend(replace(setup, seed=1)).worker
    assert seed_1.evaluate(broadcast, pieces[:1])[0].results() != first
