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
    full: the whole shard of each client as a batch, for methods that need full gradients; otherwise None. per_pass: the
    number of batches in a pass over the data of the task's first client; None if they are drawn with replacement.
    """

    oracle: Oracle
    batches: Callable[[int, Sequence[int]], Sequence[Batch]]
    work: Work
    full: list[Batch] | None = None
    per_pass: int | None = None

    def accumulated(self, accumulate: int, after_batch: Callable[[], None]) -> TaskWork:
        """The work with `accumulate` batches for each local step of the task's only client.

        after_batch: called after the gradient of each of several batches.
        """
        if accumulate == 1:
            return self
        batches = grouped_batches(self.batches, accumulate, self.per_pass)
        return replace(self, oracle=AccumulatedOracle(self.oracle, after_batch), batches=batches)


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
    per_pass = _per_pass(setup, orders.batches_per_epoch[0])
    if setup.accumulate > 1:
        ends = tuple(batch_numbers(k, setup.accumulate, per_pass).start for k in task.steps)
    batches = CohortBatches(train, orders, ends)
    work = work_of(task, setup.population, setup.seed)
    return TaskWork(oracle, batches, work, batches.full() if setup.algorithm.full_gradient else None, per_pass)


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
        oracle, per_pass = WeightedOracle(full, weights), _per_pass(setup, 1)
        return TaskWork(oracle, lambda t, rows: [Batch(None, whole)], work, per_pass=per_pass)
    if np.allclose(weights * whole, shards.sizes):  # all samples have the same weight in F
        orders = BatchOrders(seed, task.round, task.clients, [shards.indices], [batch_size], setup.sampling)
        per_pass = _per_pass(setup, orders.batches_per_epoch[0])
        return TaskWork(oracle, lambda t, rows: [train.batch(orders.indices(t, [0])[0])], work, per_pass=per_pass)
    share = np.repeat(weights / np.maximum(shards.sizes, 1), shards.sizes)
    share /= share.sum()

    def batches(t: int, rows: Sequence[int]) -> list[Batch]:
        rng = keyed(seed, "batches", task.round, *task.clients, t)
        return [train.batch(rng.choice(shards.indices, size=batch_size, p=share))]

    return TaskWork(oracle, batches, work)


def _per_pass(setup: WorkerSetup, batches: int) -> int | None:
    return None if setup.sampling == "with_replacement" else max(1, batches)
