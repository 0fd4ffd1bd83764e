"""Warnings before a run: parts of the module, options and measurements that have another effect than expected."""

from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from typing import Any
from unittest.mock import PropertyMock, patch

import numpy as np
import torch

from raylfl.config.groups.records import EvalConfig
from raylfl.core.algorithm import Algorithm
from raylfl.core.population import Population
from raylfl.core.returned import init_clients_of, start_point_of
from raylfl.experiment.parts import Experiment
from raylfl.runtime.workers.hooks import overridden, overrides_hook
from raylfl.runtime.workers.worker import Worker

COUNTERS = ("current_epoch", "global_step")  # Lightning's counters, which are 0 without a Trainer


def module_warnings(worker: Worker, config: EvalConfig) -> list[str]:
    """Warnings about the module's behaviour in a run, one line each."""
    module: Any = worker.flat.module
    evaluator = worker.evaluator
    lines = [f"{name} is not called: {note}" for name, note in overridden(module, "ignored").items()]
    used = {evaluator.stage(kind) for kind in evaluated_kinds(worker, config)}
    for stage in ("validation", "test"):
        names = [name for name in overridden(module, "called") if name.startswith(f"on_{stage}_")]
        if names and stage not in used:
            lines.append(f"{', '.join(names)} not called: no evaluation goes through {stage}_step")
    shipped = str(type(module).training_step.__module__).startswith("raylfl.models")  # whose optimizer is the config's
    if overrides_hook(module, "configure_optimizers") and not shipped:
        if worker.setup.algorithm.own_step:
            lines.append("configure_optimizers is not used: the method defines its own local step")
        elif worker.setup.optimizer != "module":
            used_one = f"local.optimizer={worker.setup.optimizer} with local.lr={worker.setup.rule.lr:g}"
            lines.append(f"configure_optimizers is not used, {used_one} is: local.optimizer=module uses it")
    lines += worker.differences
    effect = "has its first value again for each client" if worker.flat.processes == 1 else "goes from client to client"
    for name in worker.attributes.changed_tensors():
        lines.append(f"{name} is changed in place, and {effect}: register it as a buffer, which is sent and averaged")
    for name in worker.attributes.generators:
        lines.append(f"{name} is a generator of its own, which is never reset: draw from torch's global generator")
    if evaluator.left_out:
        names = sorted(evaluator.left_out)
        lines.append(f"{', '.join(names)} not recorded in evaluations: logged with on_epoch=False")
    return lines


def evaluated_kinds(worker: Worker, config: EvalConfig) -> list[str]:
    """The kinds of data (test, val, train) on which a run evaluates the model."""
    on_clients = config.clients or config.participants or config.random_clients
    return [kind for kind in ("test", "val") if worker.sources[kind] is not None] + ["train"] * bool(on_clients)


@contextmanager
def reads_recorded() -> Iterator[Callable[[], list[str]]]:
    """A context with a function that returns the COUNTERS that a module has read in it, as those of LightningModule."""
    from lightning.pytorch import LightningModule

    with ExitStack() as stack:
        zero = [patch.object(LightningModule, name, new_callable=PropertyMock, return_value=0) for name in COUNTERS]
        reads = [stack.enter_context(counter) for counter in zero]
        yield lambda: [name for name, read in zip(COUNTERS, reads, strict=True) if read.called]


def evaluation_warnings(experiment: Experiment, worker: Worker) -> list[str]:
    """Warnings about evaluations that measure another model, or other inputs, than their names may suggest."""
    config, setup, algorithm = experiment.config.eval, experiment.setup, experiment.algorithm
    of_clients = {
        "eval.clients": config.clients,
        "eval.participants": config.participants,
        "eval.random_clients": config.random_clients,
    }
    chosen = [key for key, on in of_clients.items() if on and config.every]
    lines = []
    if config.random_clients > setup.population.count:
        lines.append(f"eval.random_clients={config.random_clients}, but there are {setup.population.count} clients")
    if chosen and not algorithm.pattern.peers and starts_from_its_own_state(algorithm, worker.initial.x):
        name = experiment.config.resolved["algorithm"]["name"]
        lines.append(
            f"{', '.join(chosen)}: the server's model is measured on the clients' data, not the personal parameters in "
            f"the client states, from which {name}'s local steps start"
        )
    if setup.local_buffers and len(worker.initial.buffers) and config.every:
        lines.append(
            "local.buffers=local: evaluations use the initial buffers (of BatchNorm: mean 0 and variance 1), because "
            "each client keeps its own"
        )
    collate, others = setup.train.collate, [s.collate for s in (setup.test, setup.val) if s is not None]
    if chosen and collate is not None and others and all(other is not collate for other in others):
        lines.append(
            f"{', '.join(chosen)}: the clients' data go through the collate function of the training set, with its "
            "augmentation (MixUp, say), because the data have no other one for them"
        )
    return lines


def starts_from_its_own_state(algorithm: Algorithm, x: torch.Tensor) -> bool:
    """Whether the starting point of a client's local steps depends on the client's state; x: the initial parameters."""
    broadcast = algorithm.broadcast(algorithm.init_server(x, Population(np.ones(1, dtype=np.int64), np.ones(1))))
    state = init_clients_of(algorithm, x, 1)
    other = {name: rows + 1 for name, rows in state.items()}
    points = [start_point_of(algorithm, broadcast, rows, 1, x.numel()) for rows in (state, other)]
    return not torch.equal(*points)
