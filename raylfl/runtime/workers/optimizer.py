"""The module's own optimizer and schedulers (`local.optimizer: module`), new for each client and round."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from raylfl.core.flat import FlatModule
from raylfl.errors import BadConfig

OptimizerStep = Callable[[Tensor], None]


def module_step(flat: FlatModule, steps_per_epoch: int) -> OptimizerStep:
    """A step function of the optimizer from `configure_optimizers`, with v [1, d] in place of the gradient.

    Schedulers step as in Lightning: with `interval: step` after each local step, otherwise after each pass over the
    client's data; each by its `frequency`. Raises BadConfig for optimizers that local steps cannot use.
    """
    optimizer, schedulers = _configured(flat.module)
    done = 0

    def step(v: Tensor) -> None:
        nonlocal done
        for p, g in zip(flat.parameters, flat.views(v[0]), strict=True):
            p.grad = g
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)
        done += 1
        for schedule in schedulers:
            each = schedule.frequency * (1 if schedule.interval == "step" else steps_per_epoch)
            if done % each == 0:
                schedule.scheduler.step()

    return step


def _configured(module: Any) -> tuple[torch.optim.Optimizer, list[Any]]:
    """(optimizer, Lightning's LRSchedulerConfigs) of the module, parsed by Lightning."""
    from lightning.fabric.utilities.exceptions import MisconfigurationException
    from lightning.pytorch.core import optimizer as rules

    name, given = type(module).__name__, module.configure_optimizers()
    try:
        optimizers, found, monitor = rules._configure_optimizers(given)
        schedulers = rules._configure_schedulers_automatic_opt(found, monitor)
    except (MisconfigurationException, KeyError) as error:
        raise BadConfig(f"local.optimizer=module, but {name}.configure_optimizers is refused: {error}") from error
    if len(optimizers) != 1:
        raise BadConfig(
            f"local.optimizer=module, but {name}.configure_optimizers must return one optimizer, not {len(optimizers)}"
        )
    if any(schedule.reduce_on_plateau for schedule in schedulers):
        raise BadConfig(
            f"local.optimizer=module, but {name}.configure_optimizers must return a scheduler without a monitor: local "
            "steps have no metric to watch, as ReduceLROnPlateau needs"
        )
    return optimizers[0], schedulers
