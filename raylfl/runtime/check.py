"""The check before a run: a training step and evaluations on two samples each, in the calling process."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from functools import partial
from typing import TypeVar

import numpy as np
import torch

from raylfl.config.groups.records import EvalConfig
from raylfl.core.keyed import keyed_int
from raylfl.core.oracle import Batch, private_randomness
from raylfl.core.population import Population
from raylfl.core.samples import ClientShards, SampleSet
from raylfl.errors import BadConfig, exits_as_errors, own_code
from raylfl.parts import Experiment, WorkerSetup
from raylfl.runtime.ray.resources import check_resources
from raylfl.runtime.round.plan import check_sampling
from raylfl.runtime.stopping import time_limit
from raylfl.runtime.workers.hooks import HOOKS, overridden
from raylfl.runtime.workers.logged import Logged
from raylfl.runtime.workers.task import Chunk
from raylfl.runtime.workers.worker import Worker

T = TypeVar("T")
WARM_UP_SECONDS = 60.0  # added to runtime.client_timeout


def check(experiment: Experiment) -> None:
    """Checks an experiment by a training step and evaluations on two samples each, without Ray.

    Raises BadConfig if model, data, algorithm, participation or resources do not fit together. Adds warnings about the
    model to `experiment.warnings`, and the names of the values that the model logs to `experiment.logged`.
    """
    check_sampling(experiment)
    if experiment.config.runtime.backend == "ray":
        check_resources(experiment.config.runtime, experiment.clients)
    setup = experiment.setup
    if not len(setup.shards.indices):
        raise BadConfig("no client owns any training sample: nothing to train on")
    model, config = experiment.config.resolved["model"], experiment.config.eval
    label = model["name"] or model["class_path"]
    with _threads_kept(), private_randomness(keyed_int(setup.seed, "check")):
        few, seconds = _on_two_samples(setup), _time_limit(setup)
        worker = _try(f"model {label} cannot be made ready", lambda: Worker(few), seconds)
        experiment.logged["train"] = _try_training(worker, label)
        experiment.logged.update(_try_evaluations(worker, config, label))
    experiment.warnings.extend(f"model {label}: {line}" for line in _module_warnings(worker, config))
    if setup.pinned and "train" in worker.whole and (config.participants or config.random_clients):
        raise BadConfig(
            f"model {label} has hooks for whole evaluations, but pinned clients are evaluated apart: set "
            "eval.participants=false and eval.random_clients=0, or runtime.placement=shared"
        )
    optimum = experiment.optimum
    if optimum is not None and len(optimum.x) != worker.flat.width:
        raise BadConfig(
            f"the data's optimum() has {len(optimum.x)} entries, but model {label} has {worker.flat.width} parameters"
        )


def _module_warnings(worker: Worker, config: EvalConfig) -> list[str]:
    """Warnings about the module's behaviour in a run, one line each.

    They name hooks that are not called, tensors and random generators that are not reset between clients, and values
    that are not recorded, and give the reason if clients are not vectorised.
    """
    module, evaluator = worker.flat.module, worker.evaluator
    lines = [f"{name} is not called: {HOOKS[name].note}" for name in overridden(module, "ignored")]
    used = {evaluator.stage(kind) for kind in _evaluated_kinds(worker, config)}
    for stage in ("validation", "test"):
        names = [name for name in overridden(module, "called") if name.startswith(f"on_{stage}_")]
        if names and stage not in used:
            lines.append(f"{', '.join(names)} not called: no evaluation goes through {stage}_step")
    if worker.training.alone:
        lines.append(f"clients work one by one: {worker.training.alone}")
    for name in worker.attributes.changed_tensors():
        lines.append(f"{name} is changed in place and carried from client to client: register it as a buffer")
    for name in worker.attributes.generators:
        lines.append(f"{name} is a generator of its own, which is never reset: draw from torch's global generator")
    if evaluator.left_out:
        names = sorted(evaluator.left_out)
        lines.append(f"{', '.join(names)} not recorded in evaluations: logged with on_epoch=False")
    return lines


def _evaluated_kinds(worker: Worker, config: EvalConfig) -> list[str]:
    """The kinds of data (test, val, train) on which a run evaluates the model."""
    on_clients = config.clients or config.participants or config.random_clients
    return [kind for kind in ("test", "val") if worker.sources[kind] is not None] + ["train"] * bool(on_clients)


def _time_limit(setup: WorkerSetup) -> float | None:
    """The time limit in seconds of each call of the user's code in this check, or None for no limit.

    It is WARM_UP_SECONDS longer than in a run, because first calls are slow.
    """
    timeout = setup.runtime.client_timeout
    return None if timeout is None else timeout + WARM_UP_SECONDS


def _on_two_samples(setup: WorkerSetup) -> WorkerSetup:
    """A copy of the setup for one client on the CPU, with the first two samples of each set of data.

    The training samples are the first two that belong to any client.
    """
    train = _try("the data's first batch cannot be made", lambda: _few(setup.train, setup.shards.indices[:2]))
    measured = {"test": setup.test, "val": setup.val}
    for kind, samples in measured.items():
        if samples is not None:
            first = np.arange(min(2, len(samples)), dtype=np.int64)
            measured[kind] = _try(f"the data's first {kind} batch cannot be made", partial(_few, samples, first))
    return replace(
        setup,
        runtime=replace(setup.runtime, gpus_per_worker=0.0),
        train=train,
        test=measured["test"],
        val=measured["val"],
        shards=ClientShards.of([np.arange(len(train))]),
        population=Population(np.array([len(train)]), np.ones(1)),
    )


def _few(samples: SampleSet, indices: np.ndarray) -> SampleSet:
    if samples.by_index:
        blank = getattr(samples.items, "blank", None)  # zeros in place of samples that are on other nodes
        rows = samples.items.rows(indices) if blank is None else blank(len(indices))
        return replace(samples, arrays=tuple(rows), items=None, collate=None, owned=None)
    if samples.arrays is not None:
        return replace(samples, arrays=tuple(a[indices] for a in samples.arrays), owned=None)
    return replace(samples, items=[samples.items[int(i)] for i in indices], owned=None)


def _try_training(worker: Worker, label: str) -> list[str]:
    """Tries a local step; returns the names of the values that the module logs in this step.

    label: the model's name for error messages.
    """
    indices = worker.setup.shards[0]
    batch = worker.train.batch(indices)
    _try("the data's first batch cannot be made", lambda: batch.content)
    worker.flat.module.train()
    text = f"model {label} cannot be trained on a batch of {_shapes(batch)}"
    return _try(text, lambda: _local_step(worker, batch), _time_limit(worker.setup))


def _local_step(worker: Worker, batch: Batch) -> list[str]:
    """Takes one local step on this batch with the local optimizer, and calls the module's hooks.

    Returns the names that the module logs.
    """
    worker.attributes.restore()
    x, optimizer = worker.oracle.workspace(1).copy_(worker.initial.x), worker.local_optimizer()
    state = x.new_zeros(1, optimizer.width(worker.flat.width))
    with worker.training.observed(optimizer, clients=1, steps=1, steps_per_epoch=1) as observer:
        observer.begin()
        observer.before_step(0, [batch])
        losses, g = worker.oracle.gradients(x, [batch], lambda c: 0)
        observer.after_gradient(g)
        optimizer.step(x, g, state, worker.setup.rule.lr)
        observer.after_step(0, [0], losses)
        observer.end()
        with warnings.catch_warnings(action="ignore"):  # as in an evaluation
            return list(observer.log.results())


def _try_evaluations(worker: Worker, config: EvalConfig, label: str) -> dict[str, list[str]]:
    """Tries the evaluations of a run; returns test, val or clients -> names of the values that the module logs.

    label: the model's name for error messages.
    """
    logged = {}
    for kind in _evaluated_kinds(worker, config) or ["train"]:
        source = worker.sources[kind]
        assert source is not None
        indices = np.arange(len(source.samples))
        batch = source.batch(indices)
        _try(f"the data's first {kind} batch cannot be made", partial(getattr, batch, "content"))
        text = f"model {label} cannot be evaluated on a batch of {_shapes(batch)}"
        found = _try(text, partial(_evaluated, worker, Chunk(kind, indices)), _time_limit(worker.setup))
        logged["clients" if kind == "train" else kind] = list(found)
    return logged


def _evaluated(worker: Worker, chunk: Chunk) -> dict[str, float]:
    with warnings.catch_warnings(action="ignore"):  # metrics may warn that two samples are too few
        return Logged.joined(worker.evaluate({"x": worker.initial.x}, [chunk])).results()


def _try(text: str, make: Callable[[], T], seconds: float | None = None) -> T:
    """The result of `make()`; raises BadConfig if the call fails or takes more than `seconds`.

    text: the beginning of the message, before the first line of the error.
    """
    try:
        with time_limit(seconds), exits_as_errors():
            return make()
    except BadConfig:
        raise
    except Exception as error:
        lines, place = str(error).strip().splitlines(), own_code(error)
        where = f" ({place})" if place else ""
        raise BadConfig(f"{text}: {type(error).__name__}: {lines[0] if lines else ''}{where}") from error


def _shapes(batch: Batch) -> str:
    parts = batch.content if isinstance(batch.content, (tuple, list)) else [batch.content]
    return ", ".join(
        f"{tuple(p.shape)} {str(p.dtype).removeprefix('torch.')}" if isinstance(p, torch.Tensor) else type(p).__name__
        for p in parts
    )


@contextmanager
def _threads_kept() -> Iterator[None]:
    """A context that restores torch's number of threads, which a worker changes for its process."""
    before = torch.get_num_threads()
    try:
        yield
    finally:
        torch.set_num_threads(before)
