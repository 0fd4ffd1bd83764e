"""The gradient oracle, mini-batches and local steps of a task, for a cohort or a single client that owns all data."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

import numpy as np

from raylfl.core.accumulated import AccumulatedOracle, batch_numbers, grouped_batches
from raylfl.core.algorithm import Work
from raylfl.core.batches import BatchOrders, CohortBatches
from raylfl.core.keyed import keyed
from raylfl.core.oracle import Batch, Oracle
from raylfl.core.population import Population
from raylfl.core.samples import BatchSource
from raylfl.experiment.parts import WorkerSetup
from raylfl.runtime.workers.measures import ModelMeasures, WeightedOracle
from raylfl.runtime.workers.task import Task


@dataclass(frozen=True)
class TaskWork:
    """The gradient oracle, mini-batches and local work of a task, as arguments of `run_local`.

    batches: (t, rows) -> the mini-batches of local step t, one for each row; rows are positions of clients in the task.
    full: the whole shard of each client as a batch, for methods that need full gradients; otherwise None.
    """

    oracle: Oracle
    batches: Callable[[int, Sequence[int]], Sequence[Batch]]
    work: Work
    full: list[Batch] | None = None

    def accumulated(self, setup: WorkerSetup, task: Task, after_batch: Callable[[], None]) -> TaskWork:
        """The work with `setup.accumulate` batches for each local step of the task's only client.

        after_batch: called after the gradient of each of several batches.
        """
        if setup.accumulate == 1:
            return self
        batches = grouped_batches(self.batches, setup.accumulate, batches_per_pass(setup, task))
        return replace(self, oracle=AccumulatedOracle(self.oracle, after_batch), batches=batches)


def batches_per_pass(setup: WorkerSetup, task: Task) -> int | None:
    """The number of batches in a pass over the data of the task's first client.

    None if batches are drawn with replacement: `local.sampling`, or a single client for all data of unequal weights.
    """
    owned, size = len(setup.trained_on(task.clients[0])), max(1, task.batch_sizes[0])
    drawn = setup.sampling == "with_replacement" or (setup.merged and size < owned and not _equal_samples(setup))
    return None if drawn else max(1, -(-owned // size))


def _equal_samples(setup: WorkerSetup) -> bool:
    """Whether all samples have the same weight in F, because client i's weight w_i is proportional to n_i."""
    return bool(np.allclose(setup.population.weights * len(setup.shards.indices), setup.shards.sizes))


def work_of(task: Task, population: Population, seed: int) -> Work:
    """The work of the task's clients, as the methods of an algorithm receive it. seed: the seed of the run."""
    clients = np.asarray(task.clients)
    return Work(
        np.asarray(task.steps, dtype=np.float64),
        np.asarray(task.a_norm, dtype=np.float64),
        population.weights[clients] / (1.0 / population.count),
        task.lr,
        seed,
        task.round,
        clients,
    )


def cohort_work(setup: WorkerSetup, task: Task, oracle: Oracle, train: BatchSource) -> TaskWork:
    """The work of several clients, each with mini-batches of its own shard of the training data `train`."""
    shards = setup.shards.of_clients(np.array(task.clients))
    orders = BatchOrders(setup.seed, task.round, task.clients, shards, task.batch_sizes, setup.sampling)
    ends = task.steps  # the numbers of batches, beyond which none is read
    if setup.accumulate > 1:
        ends = tuple(batch_numbers(k, setup.accumulate, batches_per_pass(setup, task)).start for k in task.steps)
    batches = CohortBatches(train, orders, ends)
    work = work_of(task, setup.population, setup.seed)
    return TaskWork(oracle, batches, work, batches.full() if setup.algorithm.full_gradient else None)


def merged_work(setup: WorkerSetup, task: Task, oracle: Oracle, train: BatchSource, full: ModelMeasures) -> TaskWork:
    """The work of a single client that owns the data of all N clients: local steps on F = sum_i w_i f_i.

    w_i are the importance weights of the N clients, n_i their numbers of samples. Full batches give the exact gradient
    of F, from `full`. If w_i is proportional to n_i, mini-batches are drawn from all samples as a client draws from its
    shard. Otherwise samples are drawn with replacement, each sample of client i with probability w_i / n_i.
    """
    seed, weights, shards = setup.seed, setup.population.weights, setup.shards
    batch_size, whole = task.batch_sizes[0], len(shards.indices)
    work = work_of(task, Population.of(setup.population.sizes.sum(keepdims=True)), seed)
    if batch_size >= whole:
        return TaskWork(WeightedOracle(full, weights), lambda t, rows: [Batch(None, whole)], work)
    if _equal_samples(setup):
        orders = BatchOrders(seed, task.round, task.clients, [shards.indices], [batch_size], setup.sampling)
        return TaskWork(oracle, lambda t, rows: [train.batch(orders.indices(t, [0])[0])], work)
    share = np.repeat(weights / np.maximum(shards.sizes, 1), shards.sizes)
    share /= share.sum()

    def batches(t: int, rows: Sequence[int]) -> list[Batch]:
        rng = keyed(seed, "batches", task.round, *task.clients, t)
        return [train.batch(rng.choice(shards.indices, size=batch_size, p=share))]

    return TaskWork(oracle, batches, work)
