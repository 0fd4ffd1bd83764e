"""The module's own optimizer and schedulers (`local.optimizer: module`) as a local optimizer of one client."""

import math
import warnings
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from raylfl.core.flat import FlatModule
from raylfl.core.local_optimizer import LocalOptimizer
from raylfl.errors import BadConfig


@dataclass(frozen=True)
class Moment:
    """The form of one entry of an optimizer's state, such as `exp_avg` of parameter 0; number: it is no tensor."""

    parameter: int
    name: str
    shape: torch.Size
    dtype: torch.dtype
    device: torch.device
    number: bool

    def of(self, value: Tensor) -> Any:
        """The entry as the optimizer stores it, from its part [n] of a client's row of optimizer state."""
        rounded = value if self.dtype.is_floating_point else value.round()
        return rounded.item() if self.number else rounded.reshape(self.shape).to(self.device, self.dtype, copy=True)


class ModuleOptimizer(LocalOptimizer):
    """The optimizer from `configure_optimizers`, which receives the direction v [1, d] of a step as the gradient.

    Schedulers step as in Lightning: with `interval: step` after each local step, otherwise after each pass over the
    client's data, but only every `frequency`-th time. A client's optimizer state is one row: the number of local steps
    so far, then all moments. A new optimizer that starts from such a row first advances its schedulers by that number
    of local steps. Raises BadConfig for optimizers that local steps cannot use.
    """

    def __init__(self, flat: FlatModule, steps_per_epoch: int, moments: list[Moment] | None = None):
        """A new optimizer from the module.

        steps_per_epoch: local steps in one pass over the client's data. moments: from `moments_of`, None if the state
        is not kept.
        """
        self.flat, self.moments = flat, moments
        self.optimizer, schedulers = _configured(flat.module)
        self.schedulers = [
            (each.scheduler, each.frequency * (1 if each.interval == "step" else steps_per_epoch))
            for each in schedulers
        ]
        self.done = 0

    def width(self, parameters: int) -> int:
        return 0 if self.moments is None else 1 + sum(math.prod(moment.shape) for moment in self.moments)

    def begin(self, state: Tensor) -> None:
        if self.moments is None or (done := round(float(state[0, 0]))) == 0:
            return
        parameters, at = _parameters(self.optimizer), 1
        for moment in self.moments:
            size = math.prod(moment.shape)
            self.optimizer.state[parameters[moment.parameter]][moment.name] = moment.of(state[0, at : at + size])
            at += size
        self.done = done
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # torch warns if a scheduler steps before its optimizer
            for scheduler, each in self.schedulers:
                for _ in range(done // each):
                    scheduler.step()

    def step(self, x: Tensor, v: Tensor, state: Tensor, lr: float | Tensor) -> None:
        self.flat.set_gradients(v[0])
        self.optimizer.step()
        self.flat.take_back()
        self.optimizer.zero_grad(set_to_none=True)
        self.done += 1
        for scheduler, each in self.schedulers:
            if self.done % each == 0:
                scheduler.step()

    def end(self, state: Tensor) -> None:
        if self.moments is None or not self.done:
            return
        found = _moments(self.optimizer)
        if [moment for moment, _ in found] != self.moments:
            raise _refusal(self.flat, self.optimizer, "keeps other moments after some steps than after one")
        values = [torch.as_tensor(value).reshape(-1).to(state) for _, value in found]
        state[0] = torch.cat([state.new_tensor([float(self.done)]), *values])


def moments_of(flat: FlatModule) -> list[Moment]:
    """The forms of the moments that the module's optimizer keeps for its parameters, such as Adam's `exp_avg`.

    A probe step with gradients of 0 creates the moments; the parameters are restored afterwards. Raises BadConfig if
    the step also changes an option of the optimizer, if a moment is neither a tensor nor a number, if a moment is
    float64 in a run of another dtype, or if there are neither moments nor schedulers.
    """
    optimizer, schedulers = _configured(flat.module)
    before, options = flat.params.clone(), _options(optimizer)
    for p in flat.parameters:
        p.grad = torch.zeros_like(p)
    optimizer.step()
    optimizer.zero_grad(set_to_none=True)
    flat.load(before)
    if changed := [name for name, value in _options(optimizer).items() if options.get(name) != value]:
        raise _refusal(flat, optimizer, f"changes its option {changed[0]}, which is no moment of a parameter")
    found = _moments(optimizer)
    if not found and not schedulers:
        raise _refusal(flat, optimizer, "has no moments, so there is nothing to keep")
    for moment, value in found:
        if not isinstance(value, (Tensor, int, float)):
            raise _refusal(flat, optimizer, f"keeps {moment.name}, which is {type(value).__name__}, not a tensor")
        if moment.dtype == torch.float64 != flat.params.dtype:
            raise _refusal(flat, optimizer, f"keeps {moment.name} in float64 (dtype=float64 would do)")
    return [moment for moment, _ in found]


def _moments(optimizer: torch.optim.Optimizer) -> list[tuple[Moment, Any]]:
    """(form, value) of every entry of the optimizer's state, in the order of the parameters."""
    found = list[tuple[Moment, Any]]()
    for k, p in enumerate(_parameters(optimizer)):
        for name, value in sorted(optimizer.state.get(p, {}).items()):
            if isinstance(value, Tensor):
                found.append((Moment(k, name, value.shape, value.dtype, value.device, number=False), value))
            elif value is not None:
                dtype = torch.int64 if isinstance(value, int) else torch.float64
                found.append((Moment(k, name, torch.Size(), dtype, torch.device("cpu"), number=True), value))
    return found


def _parameters(optimizer: torch.optim.Optimizer) -> list[Tensor]:
    return [p for group in optimizer.param_groups for p in group["params"]]


def _options(optimizer: torch.optim.Optimizer) -> dict[str, Any]:
    """Option -> its value as text, for the options of all parameter groups."""
    return {
        f"{name} (group {k})" if k else name: repr(value)
        for k, group in enumerate(optimizer.param_groups)
        for name, value in group.items()
        if name != "params"
    }


def _refusal(flat: FlatModule, optimizer: torch.optim.Optimizer, why: str) -> BadConfig:
    name = f"{type(optimizer).__name__} of {type(flat.module).__name__}.configure_optimizers"
    return BadConfig(f"local.optimizer_state must be fresh with local.optimizer=module here: {name} {why}")


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
