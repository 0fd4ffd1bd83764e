"""The check before a run: a training step and evaluations on two samples each, in the calling process."""

import warnings
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack
from dataclasses import fields, is_dataclass, replace
from functools import partial
from typing import Any, TypeVar

import numpy as np
import torch
from torch import Tensor
from torch.nn.modules.batchnorm import _BatchNorm

from raylfl.config.groups.records import EvalConfig
from raylfl.core.arrays import Ints
from raylfl.core.flat import same_entries
from raylfl.core.keyed import keyed_int
from raylfl.core.oracle import Batch, private_randomness
from raylfl.core.population import ClientShards, Population
from raylfl.core.samples import BatchSource, SampleSet
from raylfl.diagnostics.metric_names import higher_is_better
from raylfl.errors import BadConfig, exits_as_errors, own_code
from raylfl.experiment.assemble import obstacle
from raylfl.experiment.data_source import class_of
from raylfl.experiment.parts import Experiment, WorkerSetup
from raylfl.runtime.measured import measurements_without_effect, require_measured
from raylfl.runtime.notices import evaluated_kinds, evaluation_warnings, module_warnings, reads_recorded
from raylfl.runtime.ray.resources import check_resources
from raylfl.runtime.records.sources import sources_of
from raylfl.runtime.round.plan import check_sampling
from raylfl.runtime.stopping import time_limit
from raylfl.runtime.workers.logged import Logged, refuse_two_names
from raylfl.runtime.workers.module import check_gpu
from raylfl.runtime.workers.task import Chunk
from raylfl.runtime.workers.training import LocalObserver
from raylfl.runtime.workers.worker import Worker

T = TypeVar("T")
NUMBERS = (bool, int, float, complex, str)
WARM_UP_SECONDS = 60.0  # added to runtime.client_timeout


def check(experiment: Experiment) -> Experiment:
    """Checks an experiment by a training step and evaluations on two samples each, without Ray.

    Raises BadConfig if model, data, algorithm, participation or resources do not fit together. Adds warnings about the
    model to `experiment.warnings`, the names of the values that the model logs to `experiment.logged`, and the better
    directions of the metric objects among them to `experiment.logged_directions`. Returns the experiment with
    `assignable`.
    """
    check_sampling(experiment)
    if experiment.config.runtime.backend == "ray":
        check_resources(experiment.config.runtime, experiment.clients)
    else:
        check_gpu(experiment.config.runtime)
    setup = experiment.setup
    if not len(setup.shards.indices):
        raise BadConfig("no client owns any training sample: nothing to train on")
    model, config = experiment.config.resolved["model"], experiment.config.eval
    label = model["name"] or model["class_path"]
    with ExitStack() as stack, private_randomness(keyed_int(setup.seed, "check")):
        stack.callback(torch.set_num_threads, torch.get_num_threads())  # a worker changes it for its process
        few, carried = _on_two_samples(setup)
        experiment.warnings.extend(f"data: {line}" for line in carried)
        worker = _try(f"model {label} cannot be made ready", lambda: Worker(few), _time_limit(setup))
        with reads_recorded() as counters:
            experiment.logged["train"] = _try_training(worker, label)
            experiment.warnings.extend(f"model {label}: {line}" for line in _changed_buffers(worker))
            for kind, logged in _try_evaluations(worker, config, label).items():
                experiment.logged[kind] = list(logged.results())
                experiment.logged_directions.update(logged.directions())
    chosen = {"stop.metric": experiment.config.stop.metric, "checkpoint.best": experiment.config.checkpoint.best}
    for key, metric in chosen.items():
        if metric is not None:
            require_measured(metric, experiment, key)
            higher_is_better(metric, experiment.directions, key)
    lines = [f"{name} is always 0: a run has no epochs that all clients share" for name in counters()]
    experiment.warnings.extend(f"model {label}: {line}" for line in [*lines, *module_warnings(worker, config)])
    experiment.warnings.extend([*measurements_without_effect(experiment), *evaluation_warnings(experiment, worker)])
    experiment.sources.update(sources_of(_components(experiment, worker)))
    if setup.assigned and "train" in worker.whole and (config.participants or config.random_clients):
        raise BadConfig(
            f"model {label} has hooks for whole evaluations, but clients on workers of their own are evaluated apart: "
            "set eval.participants=false and eval.random_clients=0, or runtime.placement=shared"
        )
    optimum = experiment.optimum
    if optimum is not None and len(optimum.x) != worker.flat.width:
        raise BadConfig(
            f"the data's optimum() has {len(optimum.x)} entries, but model {label} has {worker.flat.width} parameters"
        )
    shown = {} if setup.train.is_blank else worker.shown
    return replace(experiment, assignable=_assignable(experiment, worker), setup=replace(setup, probes=shown))


def _assignable(experiment: Experiment, worker: Worker) -> frozenset[str]:
    """The kinds of devices on which `placement: auto` may assign clients to workers (`Experiment.assignable`).

    There, clients run one by one, or side by side on a GPU. Evaluations must not put samples of several clients into a
    batch. The samples must be arrays: other data sets would be copied to each worker as a whole.
    """
    config, setup = experiment.config, experiment.setup
    if config.runtime.placement != "auto" or obstacle(experiment.algorithm, setup.merged) or setup.train.arrays is None:
        return frozenset()
    if config.eval.participants or config.eval.random_clients:
        return frozenset()
    vectorize = config.runtime.vectorize
    if worker.forms.one_by_one is None or vectorize == "always":
        return frozenset()
    side_by_side = vectorize == "never" or not worker.forms.cohort_pays
    return frozenset(["cpu", "cuda"] if side_by_side else ["cpu"])


def _components(experiment: Experiment, worker: Worker) -> list[Any]:
    """The objects of a run whose classes may be the user's."""
    config, setup = experiment.config, experiment.setup
    parts = [config.algorithm, config.partition, config.participation, config.link, config.topology, config.system]
    parts += [
        value for part in parts for value in getattr(part, "__dict__", {}).values()
    ]  # such as an algorithm's aggregation rule
    parts += [class_of(config, "data"), *worker.flat.module.modules()]
    for samples in (setup.train, setup.test, setup.val):
        if samples is not None:
            parts += [samples.transform, samples.measured_through, samples.collate]
            dataset = samples.items
            for _ in range(8):  # a data set may wrap another one
                parts.append(dataset)
                dataset = getattr(dataset, "dataset", None)
    return [part for part in parts if part is not None]


def _changed_buffers(worker: Worker) -> list[str]:
    """Warnings about buffers that the probe step has changed and that do not travel."""
    names, module = worker.forms.oracle.changed_buffers(), worker.flat.module
    # counters that their layers do not use
    idle = {f"{path}.num_batches_tracked" for path, part in module.named_modules() if isinstance(part, _BatchNorm)}
    return [
        f"buffer {name} is changed by local steps, but does not travel: every client's work begins with its initial "
        f"entries (model.buffers names the buffers that travel)"
        for name in names
        if name not in idle
    ]


def _time_limit(setup: WorkerSetup) -> float | None:
    """The time limit of each call of the user's code in this check, longer than in a run: first calls are slow."""
    timeout = setup.runtime.client_timeout
    return None if timeout is None else timeout + WARM_UP_SECONDS


def _on_two_samples(setup: WorkerSetup) -> tuple[WorkerSetup, list[str]]:
    """A copy of the setup for one client on the CPU, with the first two samples of each set of data; and warnings.

    The warnings, one line each, are about state of the data that reading a sample carries over to the next.
    """
    seed, lines = keyed_int(setup.seed, "check"), list[str]()
    few: dict[str, SampleSet] = {}
    for kind, samples in (("train", setup.train), ("test", setup.test), ("val", setup.val)):
        if samples is not None:
            first = setup.shards.indices[:2] if kind == "train" else np.arange(min(2, len(samples)), dtype=np.int64)
            text = f"the data's first {kind} batch cannot be made"
            few[kind] = _try(text, partial(_few, samples, first))
            lines += _try(text, partial(_carried_state, samples, first, seed, kind), _time_limit(setup))
    on_few = replace(
        setup,
        runtime=replace(setup.runtime, gpus_per_worker=0.0, processes_per_worker=1),
        train=few["train"],
        test=few.get("test"),
        val=few.get("val"),
        shards=ClientShards.of([np.arange(len(few["train"]))]),
        population=Population(np.array([len(few["train"])]), np.ones(1)),
    )
    return on_few, lines


def _carried_state(samples: SampleSet, indices: Ints, seed: int, kind: str) -> list[str]:
    """A warning if reading these samples, twice with the same seed, carries state over to later batches.

    State is a number in an attribute that has changed, or a batch that differs. Other attributes may change, such as an
    opened file or a cache.
    """
    if samples.is_blank or (samples.arrays is not None and samples.transform is None):
        return []
    source = BatchSource(samples, torch.device("cpu"), torch.float32)
    before, batches = dict(_numbers(samples, kind)), []
    for _ in range(2):
        with private_randomness(seed):
            batches.append(source.gather(indices))
    changed = [name for name, value in _numbers(samples, kind) if before.get(name, value) != value]
    if changed:
        what = f"reading samples changes {', '.join(changed)}"
    elif not _equal(*batches):
        what = f"the same {kind} samples, read twice with the same seed, differ (a counter or a generator of its own)"
    else:
        return []
    return [f"{what}, which is never reset: results depend on the samples that a worker has read before"]


def _numbers(samples: SampleSet, kind: str) -> Iterator[tuple[str, Any]]:
    """(name, value) of the numbers in attributes of the transform, the collate function and the data set."""
    parts = {f"{kind}_transform": samples.transform, "collate_fn": samples.collate, f"{kind}_dataset": samples.items}
    for name, part in parts.items():
        for depth in range(8):  # a data set may wrap another one
            part = getattr(part, "__self__", part)  # the object of a method
            own = getattr(part, "__dict__", {})
            for key, value in own.items():
                if isinstance(value, NUMBERS):
                    yield f"{name}{'.dataset' * depth}.{key}", value
            part = own.get("dataset")


def _equal(a: Any, b: Any) -> bool:
    """Whether two batches are equal; parts of types that cannot be compared count as equal."""
    if isinstance(a, Tensor):
        return isinstance(b, Tensor) and a.shape == b.shape and same_entries(a, b)
    if isinstance(a, Mapping):
        return a.keys() == b.keys() and all(_equal(a[key], b[key]) for key in a)
    if isinstance(a, (tuple, list)):
        return len(a) == len(b) and all(map(_equal, a, b))
    if is_dataclass(a) and not isinstance(a, type):
        return all(_equal(getattr(a, part.name), getattr(b, part.name)) for part in fields(a))
    return a == b if isinstance(a, NUMBERS) else True


def _few(samples: SampleSet, indices: np.ndarray) -> SampleSet:
    if samples.by_index:
        blank = samples.items.blank(len(indices))  # zeros in place of samples that are on other nodes
        rows = samples.items.rows(indices) if blank is None else blank
        return replace(samples, arrays=tuple(rows), items=None, collate=None, owned=None)
    if samples.arrays is not None:
        return replace(samples, arrays=tuple(a[indices] for a in samples.arrays), owned=None)
    return replace(samples, items=samples.read(indices), owned=None)


def _try_training(worker: Worker, label: str) -> list[str]:
    """Tries a local step of the model with this name; returns the names of the values that it logs in the step."""
    indices = worker.setup.shards[0]
    batch = worker.train.batch(indices)
    _try("the data's first batch cannot be made", lambda: batch.content)
    worker.flat.module.train()
    text = f"model {label} cannot be trained on a batch of {_shapes(batch)}"
    return _try(text, lambda: _local_step(worker, batch), _time_limit(worker.setup))


def _local_step(worker: Worker, batch: Batch) -> list[str]:
    """Takes one local step on this batch, with the module's hooks; returns the names that the module logs."""
    worker.attributes.restore()
    x, optimizer = worker.forms.oracle.workspace(1).copy_(worker.initial.x), worker.local_optimizer()
    state = x.new_zeros(1, optimizer.width(worker.flat.width))
    with LocalObserver(worker.training, 1, optimizer, steps=1, steps_per_epoch=1) as observer:
        observer.begin()
        observer.before_step(0, [batch])
        losses, g = worker.forms.oracle.gradients(x, [batch], lambda c: 0)
        observer.after_gradient(g)
        optimizer.step(x, g, state, worker.setup.rule.lr)
        observer.after_step(0, [0], losses)
        observer.end()
        for name, given in observer.log.given.items():
            for other in given:
                refuse_two_names(name, next(iter(given)), other)
        with warnings.catch_warnings(action="ignore"):  # as in an evaluation
            return list(observer.log.results().result())


def _try_evaluations(worker: Worker, config: EvalConfig, label: str) -> dict[str, Logged]:
    """Tries the evaluations of a run; returns test, val or clients -> the values that the model with this name logs."""
    logged = {}

    def evaluated(chunk: Chunk) -> Logged:
        with warnings.catch_warnings(action="ignore"):  # metrics may warn that two samples are too few
            values = Logged.joined(worker.evaluate({"x": worker.initial.x}, [chunk]))
            values.results()  # metric objects keep their results
            return values

    for kind in evaluated_kinds(worker, config) or ["train"]:
        source = worker.sources[kind]
        assert source is not None
        indices = np.arange(len(source.samples))
        batch = source.batch(indices)
        _try(f"the data's first {kind} batch cannot be made", partial(getattr, batch, "content"))
        text = f"model {label} cannot be evaluated on a batch of {_shapes(batch)}"
        if worker.evaluator.stage(kind) is None:
            text += " by its training loss, without gradients (a test_step may evaluate it in another way)"
        chunk = Chunk(kind, indices)
        logged["clients" if kind == "train" else kind] = _try(
            text, partial(evaluated, chunk), _time_limit(worker.setup)
        )
    return logged


def _try(text: str, make: Callable[[], T], seconds: float | None = None) -> T:
    """The result of `make()`; raises BadConfig, whose message begins with `text`, if it fails or exceeds `seconds`."""
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
        f"{tuple(p.shape)} {str(p.dtype).removeprefix('torch.')}" if isinstance(p, Tensor) else type(p).__name__
        for p in parts
    )
